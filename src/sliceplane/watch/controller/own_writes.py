"""The newest versions that a controller has of the objects that it writes: from its cache, or from
the server's answer.

Between the answer to a write and its event, the cache is older than the controller's own writes. A
plan on the cache alone would repeat the work: a second slice for the same endpoints, two Pods
instead of one (kubernetes/kubernetes#93374). A controller can avoid that in two ways:

- *believe* the answer and plan on: ``OwnWrites`` keeps the newest version of each object of one
  key, by name;
- *wait* until the cache shows the answer: ``PendingWrites`` knows the keys for which that is still
  due.

``OwnWrites`` uses ``PendingWrites`` for creates and deletes, where the cache has no object to
compare with. The answer may come from a server that lost the write, so a write that stays pending
is believed only for a limited time.
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

#: seconds that an own create or delete may stay pending before it is given up
PENDING_TIMEOUT_S: Final = 300.0
#: number of consecutive plans that wait for the cache after a conflict, before the same write is
#: retried
STALE_PLANS: Final = 3
#: later than every version: the end of the object is pending
_END: Final = 1 << 64

T = TypeVar("T")
W = TypeVar("W", bound="PlannedWrite")
Verb = Literal["create", "update", "delete"]


def delete_options(uid: str, version: str = "", **options: object) -> bytes:
    """Returns the body of a delete that applies only to the object with this *uid*; with a
    *version*, only to that version.
    """
    preconditions = {"uid": uid, **({"resourceVersion": version} if version else {})}
    kind = {"kind": "DeleteOptions", "apiVersion": "v1"}
    return encode({**kind, "preconditions": preconditions, **options})


class PlannedWrite(msgspec.Struct, frozen=True, kw_only=True):
    """One write of one object.

    ``uid`` and ``resource_version`` are those of the object when the write was planned ("" for
    create). An update has both in its body, a delete has its uid as a precondition, so neither can
    affect another object. ``name`` is "" for a create whose name the server generates.
    """

    verb: Verb
    namespace: str
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    body: bytes

    @classmethod
    def update(cls, meta: ObjectMeta, body: bytes, **subclass_fields: Any) -> Self:
        """Returns the update of the object with *meta*. *subclass_fields*: fields that a subclass
        adds.
        """
        version = meta.resource_version
        return cls(
            verb="update",
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            resource_version=version,
            body=body,
            **subclass_fields,
        )

    @classmethod
    def delete(cls, meta: ObjectMeta, **subclass_fields: Any) -> Self:
        return msgspec.structs.replace(
            cls.update(meta, delete_options(meta.uid), **subclass_fields), verb="delete"
        )


class _Awaited(NamedTuple):
    key: str
    version: int
    deadline: float


class PendingWrites:
    """Own writes that the cache does not show yet, by uid, each for a key of its controller.

    Owned by one controller. A write is resolved by an event of its object in the pending version or
    a later one, by the object's end, or by its deadline. Times are seconds since the epoch.
    """

    def __init__(self, timeout_s: float = PENDING_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        #: by uid, in the order of their deadlines
        self._awaited: dict[str, _Awaited] = {}
        self._uids_by_key: dict[str, dict[str, None]] = {}

    def wait(self, key: str, uid: str, version: int, now: float) -> None:
        """Records a write of *uid*; *version* is that of the server's answer (0: any version
        resolves it).
        """
        self.resolve(uid)
        self._awaited[uid] = _Awaited(key, version, now + self._timeout_s)
        self._uids_by_key.setdefault(key, {})[uid] = None

    def wait_for_end(self, key: str, uid: str, now: float) -> None:
        """Records that the server removed *uid*."""
        self.wait(key, uid, _END, now)

    def on_observed(self, uid: str, resource_version: str) -> bool:
        """Handles *uid* in the cache in this version. Returns False if it is older than the pending
        version.
        """
        awaited = self._awaited.get(uid)
        if awaited is not None:
            if revision_of(resource_version) < awaited.version:
                return False
            self.resolve(uid)
        return True

    def resolve(self, uid: str) -> None:
        awaited = self._awaited.pop(uid, None)
        if awaited is not None:
            uids = self._uids_by_key[awaited.key]
            del uids[uid]
            if not uids:
                del self._uids_by_key[awaited.key]

    def forget(self, key: str) -> None:
        for uid in tuple(self._uids_by_key.get(key, ())):
            self.resolve(uid)

    def deadline(self, key: str) -> float | None:
        """Returns the time at which the oldest pending write of *key* expires; ``None`` if none
        is pending.
        """
        uids = self._uids_by_key.get(key)
        return None if uids is None else self._awaited[next(iter(uids))].deadline

    def drop_expired(self, key: str, now: float) -> tuple[str, ...]:
        """Forgets the expired writes of *key*. Returns their uids."""
        if key not in self._uids_by_key:
            return ()
        uids = tuple(uid for uid in self._uids_by_key[key] if self._awaited[uid].deadline <= now)
        for uid in uids:
            self.resolve(uid)
        return uids

    def check(self) -> None:
        uids_by_key: dict[str, set[str]] = {}
        for uid, awaited in self._awaited.items():
            uids_by_key.setdefault(awaited.key, set()).add(uid)
        assert uids_by_key == {key: set(uids) for key, uids in self._uids_by_key.items()}, (
            f"{uids_by_key} != {self._uids_by_key}"
        )


class Observation(Enum):
    """The meaning of an event of the cache."""

    NEW = "a new object, or a new version"
    ECHO = "the newest version, already stored from the answer to our own write"
    OLD = "a version older than the newest"


@dataclass(slots=True)
class _Suspicion(Generic[T]):
    """Signs that the stored version of an object is not the server's.

    ``plans_to_wait``: number of plans that still wait for the cache. ``refused_version``: the
    stored version, if a write on it met a conflict. ``read_older``: reads the version that the
    cache showed although a newer one was stored.
    """

    plans_to_wait: int = 0
    refused_version: str = ""
    read_older: Callable[[], T] | None = None


class OwnWrites(Generic[T]):
    """The newest versions of the objects of one key, by name: ``objects``, which only this class
    changes.

    ``T`` is the stored form of an object, and *meta_of* returns its metadata. Methods that handle a
    change return True if ``objects`` is different afterwards.

    An event older than the last answer is ignored. After a conflict, the same write is retried once
    ``STALE_PLANS`` plans have waited for the cache. If it is refused again although the cache has
    shown an older version, the server was restored from a backup and counts from an earlier number,
    so that version is adopted.
    """

    __slots__ = ("_gone", "_key", "_meta_of", "_pending", "_suspicions", "in_flight", "objects")

    def __init__(
        self, key: str, pending: PendingWrites, meta_of: Callable[[T], ObjectMeta]
    ) -> None:
        self._key = key
        self._pending = pending
        self._meta_of = meta_of
        self.objects: dict[str, T] = {}
        self._suspicions: dict[str, _Suspicion[T]] = {}
        #: a plan is being executed
        self.in_flight = False
        #: uids of objects that were removed meanwhile: a late answer must not restore them
        self._gone: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        """Returns True if there is any state."""
        return bool(self.objects or self.in_flight or self._pending.deadline(self._key) is not None)

    def meta(self, name: str, uid: str) -> ObjectMeta | None:
        """Returns the newest metadata of the object with this *uid*; ``None`` for another object of
        its name.
        """
        newest = self.objects.get(name)
        if newest is None:
            return None
        meta = self._meta_of(newest)
        return meta if meta.uid == uid else None

    # -- events of the cache

    def on_observed(self, meta: ObjectMeta, read: Callable[[], T]) -> Observation:
        """Handles an object in the cache. *read* returns its stored form, and is called only if the
        version is new.
        """
        if not self._pending.on_observed(meta.uid, meta.resource_version):
            return Observation.OLD
        newest = self.meta(meta.name, meta.uid)
        if newest is not None and meta.resource_version == newest.resource_version:
            if meta.name in self._suspicions:
                self._suspicions[meta.name].read_older = None
            return Observation.ECHO
        if newest is None or is_newer(meta, newest):
            self._put(meta.name, read())
            return Observation.NEW
        self._suspicions.setdefault(meta.name, _Suspicion()).read_older = read
        return Observation.OLD

    def keep(self, newest: T) -> None:
        """Replaces the stored form of the same version, with data of an event that the answer did
        not have.
        """
        name = self._meta_of(newest).name
        assert name in self.objects, f"{self._key} has no {name}"
        self.objects[name] = newest

    def on_gone(self, name: str, uid: str) -> bool:
        """Handles an object that left the cache, is terminating, or is no longer ours."""
        self._pending.resolve(uid)
        if self.in_flight:
            self._gone |= {uid}
        return self._forget(name, uid)

    # -- answers of the server

    def succeeded(
        self, write: PlannedWrite, answer: bytes, read: Callable[[bytes], T], now: float
    ) -> str:
        """Handles the *answer* to *write*: the object (anything for a delete), which *read*
        converts into its stored form. Returns the name of the object if its stored version changed,
        or "".
        """
        if write.verb == "delete":
            if not self._forget(write.name, write.uid):
                return ""
            self._pending.wait_for_end(self._key, write.uid, now)
            return write.name
        try:
            stored = read(answer)
        except msgspec.DecodeError:
            return ""  # the cache will show the result of the write
        meta = self._meta_of(stored)
        if write.verb == "create":
            if meta.name in self.objects or meta.uid in self._gone:
                return ""  # the cache was faster
            self._pending.wait(self._key, meta.uid, 0, now)
        else:
            newest = self.meta(write.name, meta.uid)
            if newest is None or newest.resource_version != write.resource_version:
                return ""  # likewise, and it may have a later version already
        self._put(meta.name, stored)
        return meta.name

    def failed(self, write: PlannedWrite, error: StatusError) -> bool:
        """Handles a *write* that was refused, or whose outcome is unknown."""
        if write.verb == "create":
            if error.reason == "AlreadyExists" and write.name and write.name not in self.objects:
                self._suspicions.setdefault(write.name, _Suspicion()).plans_to_wait = STALE_PLANS
            return False
        newest = self.meta(write.name, write.uid)
        if newest is None:
            return False
        if error.reason == "NotFound":
            return self._forget(write.name, write.uid)
        if error.reason != "Conflict" or newest.resource_version != write.resource_version:
            return False
        suspicion = self._suspicions.setdefault(write.name, _Suspicion())
        if suspicion.refused_version == write.resource_version and suspicion.read_older is not None:
            self._put(write.name, suspicion.read_older())
            return True
        suspicion.refused_version = write.resource_version
        suspicion.plans_to_wait = STALE_PLANS
        return False

    def on_plan_ended(self) -> None:
        """Ends the plan: no write is in flight any more."""
        self.in_flight = False
        self._gone = frozenset()

    # -- suspect versions

    @property
    def is_waiting(self) -> bool:
        """True if the cache has not caught up with a conflict: nothing may be planned yet."""
        return bool(self._suspicions) and any(
            suspicion.plans_to_wait for suspicion in self._suspicions.values()
        )

    @property
    def suspects(self) -> list[str]:
        """Names of objects whose stored version met a conflict that the cache did not explain while
        plans waited.
        """
        if not self._suspicions:
            return []
        unexplained = (
            name
            for name, suspicion in self._suspicions.items()
            if suspicion.refused_version and not suspicion.plans_to_wait
        )
        return sorted(
            name
            for name in unexplained
            if self._meta_of(self.objects[name]).resource_version
            == self._suspicions[name].refused_version
        )

    def proofs(self, writes: Sequence[W], prove: Callable[[T], W]) -> list[W]:
        """Returns the writes that must precede *writes*, which are then planned again: an endpoint
        may be removed from one object because another, only believed object has it. *prove* returns
        an update that changes nothing, and conflicts if the server has another version. A suspect
        that is written first needs no proof.

        Proofs are a job of their own, since a job writes an object once and recordings rely on
        that.
        """
        suspects = self.suspects if writes else []
        if len(suspects) == 1 and writes[0].name == suspects[0]:
            return []
        return [prove(self.objects[name]) for name in suspects]

    def defer_plan(self) -> bool:
        """Returns True if a plan must wait for the cache, and counts the plan."""
        if not self._suspicions:
            return False
        is_waiting = self.is_waiting
        for name, suspicion in list(self._suspicions.items()):
            suspicion.plans_to_wait = max(suspicion.plans_to_wait - 1, 0)
            if not (suspicion.plans_to_wait or suspicion.refused_version or suspicion.read_older):
                del self._suspicions[name]
        return is_waiting

    def deadline(self) -> float | None:
        """Returns the time at which a pending write expires."""
        return self._pending.deadline(self._key)

    def drop_expired(self, now: float) -> tuple[str, ...]:
        """Removes objects whose creation the cache did not show in time. Returns their names."""
        lost = self._pending.drop_expired(self._key, now)
        if not lost:
            return ()
        names = tuple(
            name for name, newest in self.objects.items() if self._meta_of(newest).uid in lost
        )
        for name in names:
            self._drop(name)
        return names

    def _put(self, name: str, newest: T) -> None:
        self._suspicions.pop(name, None)
        self.objects[name] = newest

    def _forget(self, name: str, uid: str) -> bool:
        exists = self.meta(name, uid) is not None
        if exists:
            self._drop(name)
        return exists

    def _drop(self, name: str) -> None:
        self._suspicions.pop(name, None)
        del self.objects[name]

    def check(self) -> None:
        for name, newest in self.objects.items():
            assert name == self._meta_of(newest).name, (
                f"{self._key}: {self._meta_of(newest).key} is kept as {name}"
            )
        for name, suspicion in self._suspicions.items():
            # a create was refused because of an object that the cache does not show yet
            is_name_taken = suspicion.plans_to_wait and not suspicion.refused_version
            assert name in self.objects or is_name_taken, f"{self._key} suspects {name}, without it"
        assert self.in_flight or not self._gone, (
            f"{self._key} remembers {self._gone} and has no plan under way"
        )
