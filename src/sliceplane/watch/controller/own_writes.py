"""The newest versions that a controller has observed of the objects that it writes: from its cache,
or from the server's answer.

Between the answer to a write and the event that shows it, the cache is older than the controller's
own knowledge. To plan on the cache alone in that time repeats the work: a second slice for the same
endpoints, two Pods instead of one (kubernetes/kubernetes#93374). A controller can do one of two
things about it:

- *believe* the answer and plan on: ``OwnWrites`` keeps the objects of one key as they are known, by
  name;
- *wait* until the cache shows what was answered: ``Unseen`` says for which keys that is still due.

``OwnWrites`` uses ``Unseen`` for creates and deletes, where the cache has no object to compare
with. Either way the answer may be of a server that lost the write, so a write that stays unseen is
believed in for a limited time only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, Literal, NamedTuple, Self, TypeVar

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import ObjectMeta, is_newer, revision_of

#: how long an own create or delete may stay unseen by the cache before it is not believed in any
#: more
UNSEEN_TIMEOUT_S: Final = 300.0
#: how many plans in a row wait for the cache after a conflict, before the write is tried once more
#: as it is
STALE_PLANS: Final = 3
#: later than every version: the end of an object is awaited
_END: Final = 1 << 64

T = TypeVar("T")
W = TypeVar("W", bound="PlannedWrite")
Verb = Literal["create", "update", "delete"]


def delete_options(uid: str, version: str = "", **options: object) -> bytes:
    """Returns the body of a delete that hits the object with this *uid* and no other; with a
    *version*, only that version of it.
    """
    preconditions = {"uid": uid, **({"resourceVersion": version} if version else {})}
    kind = {"kind": "DeleteOptions", "apiVersion": "v1"}
    return encode({**kind, "preconditions": preconditions, **options})


class PlannedWrite(msgspec.Struct, frozen=True, kw_only=True):
    """One write of one object.

    ``uid`` and ``resource_version`` are those of the object as it was when planned ("" for create).
    An update carries both in its body, a delete its uid as a precondition, so that neither can hit
    anything else. ``name`` is "" for a create whose name the server makes.
    """

    verb: Verb
    namespace: str
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    body: bytes

    @classmethod
    def update(cls, meta: ObjectMeta, body: bytes, **own: Any) -> Self:
        """*meta*: of the object as it is.  *own*: what a subclass has beyond this class."""
        version = meta.resource_version
        return cls(
            verb="update",
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            resource_version=version,
            body=body,
            **own,
        )

    @classmethod
    def delete(cls, meta: ObjectMeta, **own: Any) -> Self:
        return msgspec.structs.replace(
            cls.update(meta, delete_options(meta.uid), **own), verb="delete"
        )


class _Awaited(NamedTuple):
    key: str
    version: int
    deadline: float


class Unseen:
    """Own writes that the cache has not shown yet, by uid, each for a key of its controller.

    One controller owns it. A write is settled by an event of its object in the awaited version or a
    later one, by the object's end, or by its deadline. Times are seconds since the epoch.
    """

    def __init__(self, timeout_s: float = UNSEEN_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        #: by uid; in the order of their deadlines
        self._awaited: dict[str, _Awaited] = {}
        self._of_key: dict[str, dict[str, None]] = {}

    def wait(self, key: str, uid: str, version: int, now: float) -> None:
        """*uid* was written; *version* is what the server answered (0: any version will do)."""
        self.settle(uid)
        self._awaited[uid] = _Awaited(key, version, now + self._timeout_s)
        self._of_key.setdefault(key, {})[uid] = None

    def wait_for_end(self, key: str, uid: str, now: float) -> None:
        """The server removed *uid*."""
        self.wait(key, uid, _END, now)

    def on_shown(self, uid: str, resource_version: str) -> bool:
        """The cache shows *uid* in this version.  False: it is older than what is awaited."""
        awaited = self._awaited.get(uid)
        if awaited is not None:
            if revision_of(resource_version) < awaited.version:
                return False
            self.settle(uid)
        return True

    def settle(self, uid: str) -> None:
        awaited = self._awaited.pop(uid, None)
        if awaited is not None:
            uids = self._of_key[awaited.key]
            del uids[uid]
            if not uids:
                del self._of_key[awaited.key]

    def forget(self, key: str) -> None:
        for uid in tuple(self._of_key.get(key, ())):
            self.settle(uid)

    def deadline(self, key: str) -> float | None:
        """When the oldest unseen write of *key* is given up; ``None``: everything was shown."""
        uids = self._of_key.get(key)
        return None if uids is None else self._awaited[next(iter(uids))].deadline

    def give_up(self, key: str, now: float) -> tuple[str, ...]:
        """Forget the writes of *key* whose time is over.  Gives their uids."""
        if key not in self._of_key:
            return ()
        uids = tuple(uid for uid in self._of_key[key] if self._awaited[uid].deadline <= now)
        for uid in uids:
            self.settle(uid)
        return uids

    def check(self) -> None:
        of_key: dict[str, set[str]] = {}
        for uid, awaited in self._awaited.items():
            of_key.setdefault(awaited.key, set()).add(uid)
        assert of_key == {key: set(uids) for key, uids in self._of_key.items()}, (
            f"{of_key} != {self._of_key}"
        )


class Shown(Enum):
    """The meaning of an event of the cache."""

    NEW = "an object, or a version, that was not known"
    ECHO = "the version that is known already, from the answer to our own write"
    OLD = "a version that is older than what is known"


@dataclass(slots=True)
class _Doubt(Generic[T]):
    """Signs that what is known of an object is not what the server has.

    ``patience``: how many more plans wait for the cache. ``refused``: the known version, if a write
    on it met a conflict. ``older``: reads the version that the cache showed although a newer one
    was known.
    """

    patience: int = 0
    refused: str = ""
    older: Callable[[], T] | None = None


class OwnWrites(Generic[T]):
    """The objects of one key as they are known, by name: ``objects``, which this class alone
    changes.

    ``T`` is what is kept of one, and *meta_of* gives its metadata. Told of a change, the methods
    return whether ``objects`` is different now.

    An event older than the last answer is passed over. A write that the server refuses as stale
    waits for the cache, ``STALE_PLANS`` plans long, and is then tried again as it is. Refused
    again, while the cache has shown an older version: then the server was restored from a copy and
    counts from an earlier number, so that version is adopted.
    """

    __slots__ = ("_doubts", "_gone", "_key", "_meta_of", "_unseen", "in_flight", "objects")

    def __init__(self, key: str, unseen: Unseen, meta_of: Callable[[T], ObjectMeta]) -> None:
        self._key = key
        self._unseen = unseen
        self._meta_of = meta_of
        self.objects: dict[str, T] = {}
        self._doubts: dict[str, _Doubt[T]] = {}
        #: a plan is being carried out
        self.in_flight = False
        #: uids that went meanwhile: an answer that comes late must not revive them
        self._gone: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """There is something to know."""
        return bool(self.objects or self.in_flight or self._unseen.deadline(self._key) is not None)

    def meta(self, name: str, uid: str) -> ObjectMeta | None:
        """Returns the newest metadata of the object with this *uid*; another object of its name
        does not count.
        """
        known = self.objects.get(name)
        if known is None:
            return None
        meta = self._meta_of(known)
        return meta if meta.uid == uid else None

    # -- what the cache shows

    def on_shown(self, meta: ObjectMeta, read: Callable[[], T]) -> Shown:
        """An object is there in this version.  *read* gives what is kept of it, and is called if
        that is news.
        """
        if not self._unseen.on_shown(meta.uid, meta.resource_version):
            return Shown.OLD
        known = self.meta(meta.name, meta.uid)
        if known is not None and meta.resource_version == known.resource_version:
            if meta.name in self._doubts:
                self._doubts[meta.name].older = None
            return Shown.ECHO
        if known is None or is_newer(meta, known):
            self._put(meta.name, read())
            return Shown.NEW
        self._doubts.setdefault(meta.name, _Doubt()).older = read
        return Shown.OLD

    def keep(self, known: T) -> None:
        """Another form of what is known: the same version, with what an event told beyond the
        answer.
        """
        name = self._meta_of(known).name
        assert name in self.objects, f"{self._key} knows nothing of {name}"
        self.objects[name] = known

    def on_gone(self, name: str, uid: str) -> bool:
        """The cache lost an object, or it is on its way out, or none of ours any more."""
        self._unseen.settle(uid)
        if self.in_flight:
            self._gone |= {uid}
        return self._forget(name, uid)

    # -- what the server answered

    def succeeded(
        self, write: PlannedWrite, answer: bytes, read: Callable[[bytes], T], now: float
    ) -> str:
        """The server performed *write* and answered with the object (anything, for a delete), of
        which *read* gives what is kept. Returns the name of the object of which something else is
        known now, or "".
        """
        if write.verb == "delete":
            if not self._forget(write.name, write.uid):
                return ""
            self._unseen.wait_for_end(self._key, write.uid, now)
            return write.name
        try:
            made = read(answer)
        except msgspec.DecodeError:
            return ""  # the cache will show what became of the write
        meta = self._meta_of(made)
        if write.verb == "create":
            if meta.name in self.objects or meta.uid in self._gone:
                return ""  # the cache was faster
            self._unseen.wait(self._key, meta.uid, 0, now)
        else:
            known = self.meta(write.name, meta.uid)
            if known is None or known.resource_version != write.resource_version:
                return ""  # likewise, and it may know of a later change already
        self._put(meta.name, made)
        return meta.name

    def failed(self, write: PlannedWrite, error: StatusError) -> bool:
        """*write* was refused, or its end is not known."""
        if write.verb == "create":
            if error.reason == "AlreadyExists" and write.name and write.name not in self.objects:
                self._doubts.setdefault(write.name, _Doubt()).patience = STALE_PLANS
            return False
        known = self.meta(write.name, write.uid)
        if known is None:
            return False
        if error.reason == "NotFound":
            return self._forget(write.name, write.uid)
        if error.reason != "Conflict" or known.resource_version != write.resource_version:
            return False
        doubt = self._doubts.setdefault(write.name, _Doubt())
        if doubt.refused == write.resource_version and doubt.older is not None:
            self._put(write.name, doubt.older())
            return True
        doubt.refused = write.resource_version
        doubt.patience = STALE_PLANS
        return False

    def ended(self) -> None:
        """No write is under way any more."""
        self.in_flight = False
        self._gone = frozenset()

    # -- how far it can be trusted

    @property
    def waits(self) -> bool:
        """The cache has not caught up with a conflict: nothing may be planned before it has."""
        return bool(self._doubts) and any(doubt.patience for doubt in self._doubts.values())

    @property
    def suspects(self) -> list[str]:
        """Objects whose known version met a conflict that the cache has not explained while plans
        waited.
        """
        if not self._doubts:
            return []
        unexplained = (
            name for name, doubt in self._doubts.items() if doubt.refused and not doubt.patience
        )
        return sorted(
            name
            for name in unexplained
            if self._meta_of(self.objects[name]).resource_version == self._doubts[name].refused
        )

    def proofs(self, writes: Sequence[W], prove: Callable[[T], W]) -> list[W]:
        """Returns the writes that must precede *writes*, which are then planned again: something
        may be taken out of one object since another has it, which we only believe to know. *prove*
        writes an object as it is known, which is a conflict if the server has it otherwise; an
        object whose own write comes first proves itself.

        They are a job of their own, as one job writes an object once: that is what a recording
        rests on.
        """
        suspects = self.suspects if writes else []
        if len(suspects) == 1 and writes[0].name == suspects[0]:
            return []
        return [prove(self.objects[name]) for name in suspects]

    def wait_once(self) -> bool:
        """The same, asked for a plan: each that waits costs patience."""
        if not self._doubts:
            return False
        waits = self.waits
        for name, doubt in list(self._doubts.items()):
            doubt.patience = max(doubt.patience - 1, 0)
            if not (doubt.patience or doubt.refused or doubt.older):
                del self._doubts[name]
        return waits

    def deadline(self) -> float | None:
        """When an own write that the cache never showed is given up."""
        return self._unseen.deadline(self._key)

    def give_up(self, now: float) -> tuple[str, ...]:
        """Objects whose creation the cache did not show in time are not there.  Gives their
        names.
        """
        lost = self._unseen.give_up(self._key, now)
        if not lost:
            return ()
        names = tuple(
            name for name, known in self.objects.items() if self._meta_of(known).uid in lost
        )
        for name in names:
            self._drop(name)
        return names

    def _put(self, name: str, known: T) -> None:
        self._doubts.pop(name, None)
        self.objects[name] = known

    def _forget(self, name: str, uid: str) -> bool:
        known = self.meta(name, uid) is not None
        if known:
            self._drop(name)
        return known

    def _drop(self, name: str) -> None:
        self._doubts.pop(name, None)
        del self.objects[name]

    def check(self) -> None:
        for name, known in self.objects.items():
            assert name == self._meta_of(known).name, (
                f"{self._key}: {self._meta_of(known).key} is kept as {name}"
            )
        for name, doubt in self._doubts.items():
            taken = doubt.patience and not doubt.refused  # by an object that was not shown yet
            assert name in self.objects or taken, (
                f"{self._key} doubts {name}, of which it knows nothing"
            )
        assert self.in_flight or not self._gone, (
            f"{self._key} remembers {self._gone} and has no plan under way"
        )
