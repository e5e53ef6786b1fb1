"""One Service's Endpoints object: what it must say, what the server is known to hold, and the write between the two.

Knowledge of the server has two sources, the cache and the answers to our own writes, and the newer one wins.  An event
that is older than our last write is passed over, so no plan is made on a cache that has not seen it; the event of our
own write tells nothing new, so its addresses are not looked at.  What an object says is known by the digest of
its canonical subsets, worked out at most once a version, and compared with what would be written: truncated
with truncated, so that an object that cannot hold every address is still left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.core import Endpoints
from sliceplane.api.discovery import ANNOTATION_LEADER, ANNOTATION_OVER_CAPACITY
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.endpoints import writes
from sliceplane.endpoints.members import EndpointsMembers
from sliceplane.endpoints.shape import EndpointsShape, Role
from sliceplane.endpoints.truncate import ADDRESSES_MAX, Capacity
from sliceplane.endpoints.versions import is_older
from sliceplane.endpoints.writes import EndpointsPlan, EndpointsWrite
from sliceplane.slices.facts import PodFacts
from sliceplane.slices.own_writes import STALE_PLANS, UNSEEN_TIMEOUT_S
from sliceplane.slices.succession import SelectorChanges
from sliceplane.slices.trigger import parse_nanoseconds


class _Unseen(NamedTuple):
    uid: str
    deadline: float
    deleted: bool


class EndpointsState:
    """Owned by ``EndpointsEngine``, which alone calls it."""

    def __init__(self, key: str, capacity: Capacity, changes: SelectorChanges) -> None:
        self.key: Final = key
        self._capacity = capacity
        self._changes = changes
        self.shape: EndpointsShape | None = None
        self.members: EndpointsMembers | None = None
        #: the newest version that is known, and the digest of its subsets (``None``: not worked out yet)
        self._known: ObjectMeta | None = None
        self._digest: bytes | None = None
        #: what the cache shows
        self._observed: Endpoints | None = None
        #: shown although we knew of a newer version, and the version that the server refused twice: together they say
        #: that the server was restored from a copy, and counts from an earlier number again
        self._older: Endpoints | None = None
        self._refused = ""
        #: the version that our last write replaced
        self._superseded = ""
        self._unseen: _Unseen | None = None
        #: how many more plans wait for the cache
        self._behind = 0
        #: uids that went while a write was under way: an answer that comes late must not revive them
        self._gone: frozenset[str] = frozenset()
        #: the Service is gone, and the object has to follow
        self.condemned = False
        self._synced_before = False
        self._trigger = 0
        self.in_flight = False

    @property
    def empty(self) -> bool:
        """Nothing is left to know: no Service, no object, no write under way."""
        return self.shape is None and self._known is None and self._unseen is None and not self.in_flight

    # -- the Service and its Pods -----------------------------------------------------------------------

    def set_shape(self, shape: EndpointsShape | None, pods: Iterable[PodFacts]) -> None:
        """The Service changed so that all addresses are made anew.  *pods*: those that it selects now."""
        if self.shape is None or shape is None or self.shape.uid != shape.uid:
            self._synced_before, self._trigger = False, 0
        self.shape = shape
        self.condemned = shape is None and (self._known is not None or self.in_flight)
        active = shape is not None and shape.active
        self.members = EndpointsMembers(shape, pods, self.members) if shape is not None and active else None

    def set_labels(self, shape: EndpointsShape) -> None:
        """The Service changed in labels only."""
        self.shape = shape

    # -- what the cache shows ---------------------------------------------------------------------------

    @property
    def is_stray(self) -> bool:
        """An object without a Service.  Those that say who leads are not meant for one."""
        known = self._known
        return self.shape is None and known is not None and ANNOTATION_LEADER not in (known.annotations or {})

    @property
    def is_ours(self) -> bool:
        return self._known is not None and writes.is_ours(self._known)

    def on_endpoints(self, observed: Endpoints) -> bool:
        """The object is there.  False: that tells nothing new."""
        meta, known = observed.metadata, self._known
        if self._unseen is not None and self._unseen.uid == meta.uid:
            if self._unseen.deleted:
                return False
            self._unseen = None
        if known is not None and known.uid == meta.uid:
            if meta.resource_version == known.resource_version:
                self._observed = observed
                return self._waits_for_echo
            if is_older(meta.resource_version, known.resource_version) or meta.resource_version == self._superseded:
                self._older = observed
                return False
        self._adopt(observed)
        return True

    def _adopt(self, observed: Endpoints) -> None:
        self._known, self._digest, self._observed = observed.metadata, None, observed
        self._older, self._refused, self._behind = None, "", 0

    def on_endpoints_gone(self, uid: str) -> bool:
        """The cache lost the object.  False: we knew."""
        if self._unseen is not None and self._unseen.uid == uid:
            self._unseen = None
        if self.in_flight:
            self._gone |= {uid}
        if self._observed is not None and self._observed.metadata.uid == uid:
            self._observed = None
        if self._known is None or self._known.uid != uid:
            return False
        self._forget()
        self.condemned = self.condemned and self.in_flight
        return True

    def _forget(self) -> None:
        self._known = self._digest = self._observed = self._older = None
        self._behind = 0

    @property
    def _waits_for_echo(self) -> bool:
        """To hand the object over its addresses are needed, and only the cache has them."""
        return self.shape is not None and not self.shape.active

    # -- plan and result --------------------------------------------------------------------------------

    def plan(self, now: float) -> EndpointsPlan:
        """The write that is due; ``in_flight`` until its end is told, if there is one."""
        assert not self.in_flight, f"{self.key} has a write under way"
        self._drop_unseen(now)
        if self._behind:
            self._behind -= 1
            return EndpointsPlan(stale=True)
        write = self._write()
        self.in_flight = write is not None
        if write is None and self._synced_before:
            self._trigger = 0
        return EndpointsPlan(write)

    def _write(self) -> EndpointsWrite | None:
        known = self._known
        if self.shape is None:
            return writes.delete_endpoints(known) if self.condemned and known is not None else None
        if self.members is not None:
            return self._desired(self.shape, self.members)
        if known is None or not writes.is_ours(known) or self._changes is SelectorChanges.UPSTREAM:
            return None
        if self.shape.role is Role.EXTERNAL_NAME:
            return writes.delete_endpoints(known)
        if self._observed is None or self._observed.metadata.resource_version != known.resource_version:
            return None  # the cache is about to show it
        return writes.hand_over(known, self._observed.subsets, self._known_digest())

    def _desired(self, shape: EndpointsShape, members: EndpointsMembers) -> EndpointsWrite | None:
        self._note_trigger_time(members)
        text, total = members.render(truncate=self._capacity is Capacity.TRUNCATE)
        capacity = self._capacity.value if total > ADDRESSES_MAX else ""
        content = writes.Content(text, writes.digest_of(text), capacity)
        known = self._known
        if known is None:
            return writes.create_endpoints(shape, content, self._trigger)
        same = (
            (known.labels or {}) == shape.labels
            and (known.annotations or {}).get(ANNOTATION_OVER_CAPACITY, "") == capacity
            and self._known_digest() == content.digest
        )
        return None if same else writes.update_endpoints(shape, known, content, self._trigger)

    def _known_digest(self) -> bytes:
        if self._digest is None:
            assert self._observed is not None, f"{self.key}: nobody knows what version {self._known} says"
            self._digest = writes.digest_of_subsets(self._observed.subsets)
        return self._digest

    def _note_trigger_time(self, members: EndpointsMembers) -> None:
        """Earliest change since the last plan; kept until it is written, so a retry still tells it."""
        found = members.take_trigger_time()
        if not self._synced_before:
            assert self.shape is not None, "members without a Service"
            found = parse_nanoseconds(self.shape.created)
            self._synced_before = True
        if found and (not self._trigger or found < self._trigger):
            self._trigger = found

    def _drop_unseen(self, now: float) -> None:
        unseen = self._unseen
        if unseen is not None and unseen.deadline <= now:
            self._unseen = None
            if self._known is not None and self._known.uid == unseen.uid:
                self._forget()

    def deadline(self) -> float | None:
        """When an own write that the cache never showed is given up."""
        return None if self._unseen is None else self._unseen.deadline

    def succeeded(self, write: EndpointsWrite, answer: bytes, now: float) -> None:
        """The server performed *write* and answered with the object (anything, for a delete)."""
        known = self._known
        if write.verb == "delete":
            if known is not None and known.uid == write.uid:
                self._forget()
                self.condemned = False
                if write.uid not in self._gone:
                    self._unseen = _Unseen(write.uid, now + UNSEEN_TIMEOUT_S, True)
            return
        try:
            meta = decode(answer, Object).metadata
        except msgspec.DecodeError:
            return  # an answer that nobody can read: the cache will show what became of the write
        if known is not None and known.uid == meta.uid and known.resource_version == meta.resource_version:
            self._digest = write.digest  # the cache was faster
        elif meta.uid in self._gone or (known is not None and known.uid != meta.uid):
            return
        elif known is None:
            self._known, self._digest = meta, write.digest
            self._unseen = _Unseen(meta.uid, now + UNSEEN_TIMEOUT_S, False)
        elif known.resource_version == write.resource_version:
            self._known, self._digest, self._superseded = meta, write.digest, known.resource_version

    def failed(self, write: EndpointsWrite, error: StatusError) -> None:
        """*write* was refused, or its end is not known."""
        known = self._known
        if write.verb == "create":
            self._behind = STALE_PLANS if error.reason == "AlreadyExists" and known is None else 0
        elif known is not None and known.uid == write.uid and known.resource_version == write.resource_version:
            if error.reason == "NotFound":
                self._forget()
            elif error.reason != "Conflict":
                return
            elif self._refused == write.resource_version and self._older is not None:
                self._adopt(self._older)
            else:
                self._behind, self._refused = STALE_PLANS, write.resource_version

    def ended(self, *, well: bool) -> None:
        """No write is under way any more."""
        self.in_flight = False
        self._gone = frozenset()
        if well:
            self._trigger = 0

    def check(self) -> None:
        if self.members is not None:
            self.members.check()
        active = self.shape is not None and self.shape.active
        assert (self.members is not None) == active, f"{self.key}: members of a Service that is {self.shape}"
        assert not (self.condemned and self.shape is not None), f"{self.key} is condemned although it has a Service"
        if self._digest is not None and self._observed is not None and self._known is not None:
            observed = self._observed
            if observed.metadata.resource_version == self._known.resource_version:
                digest = writes.digest_of_subsets(observed.subsets)
                assert digest == self._digest, f"{self.key}: version {self._known.resource_version} says something else"
