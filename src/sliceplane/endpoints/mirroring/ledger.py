"""What is known of the slices that mirror one object.

Knowledge has two sources, the cache and the answers to our own writes, and the newer one wins: an event that is older
than our last write of a slice is passed over, so no plan is made on a cache that has not seen it.
Slices are kept as the cache has them, so that tens of thousands of objects cost little beside the cache itself.
"""

from __future__ import annotations

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import ObjectMeta
from sliceplane.endpoints.mirroring.writes import MirrorWrite
from sliceplane.endpoints.versions import is_older
from sliceplane.slices.own_writes import STALE_PLANS, UNSEEN_TIMEOUT_S, Unseen


def _newer(seen: ObjectMeta, known: ObjectMeta) -> bool:
    """Most writes raise the generation, but one of annotations or owners alone does not."""
    same = seen.resource_version == known.resource_version
    return (
        not same and seen.generation >= known.generation and not is_older(seen.resource_version, known.resource_version)
    )


class Ledger:
    """Owned by one ``MirrorState``."""

    __slots__ = ("_behind", "_gone", "_unseen", "slices")

    def __init__(self) -> None:
        #: ours and not on their way out, by name
        self.slices: dict[str, EndpointSlice] = {}
        #: own creates and deletes that the cache has not shown yet, by uid; in the order of their deadlines
        self._unseen: dict[str, Unseen] = {}
        #: slices whose update was refused as stale: name -> how many more plans to wait for the cache
        self._behind: dict[str, int] = {}
        #: uids that went while a plan was under way: an answer that comes late must not revive them
        self._gone: frozenset[str] = frozenset()

    @property
    def empty(self) -> bool:
        return not (self.slices or self._unseen)

    def on_slice(self, observed: EndpointSlice) -> bool:
        """A slice of ours is there.  False: that tells nothing new."""
        meta = observed.metadata
        unseen = self._unseen.get(meta.uid)
        if unseen is not None and unseen.deleted:
            return False
        self._unseen.pop(meta.uid, None)
        known = self.slices.get(meta.name)
        same = known is not None and known.metadata.uid == meta.uid
        if meta.deletion_timestamp is not None:
            return same and self._forget(meta.name)
        if known is not None and same and not _newer(meta, known.metadata):
            if meta.resource_version == known.metadata.resource_version:
                self.slices[meta.name] = observed  # one copy, the cache's, is enough
            return False
        self._behind.pop(meta.name, None)
        self.slices[meta.name] = observed
        return True

    def on_slice_gone(self, name: str, uid: str, *, in_flight: bool) -> bool:
        """The cache lost a slice, or it is not labelled as ours any more.  False: we knew."""
        self._unseen.pop(uid, None)
        if in_flight:
            self._gone |= {uid}
        known = self.slices.get(name)
        return known is not None and known.metadata.uid == uid and self._forget(name)

    def _forget(self, name: str) -> bool:
        self._behind.pop(name, None)
        del self.slices[name]
        return True

    def is_behind(self) -> bool:
        """The cache has not caught up with a conflict.  Each call counts as a plan that waited."""
        if not self._behind:
            return False
        self._behind = {name: patience - 1 for name, patience in self._behind.items() if patience}
        return True

    def drop_unseen(self, now: float) -> None:
        for uid, unseen in list(self._unseen.items()):
            if unseen.deadline > now:
                break
            del self._unseen[uid]
            if unseen.name in self.slices and self.slices[unseen.name].metadata.uid == uid:
                self._forget(unseen.name)

    def deadline(self) -> float | None:
        """When an own write that the cache never showed is given up."""
        return next((unseen.deadline for unseen in self._unseen.values()), None)

    def succeeded(self, write: MirrorWrite, answer: bytes, now: float) -> None:
        """The server performed *write* and answered with the object (anything, for a delete)."""
        known = self.slices.get(write.name)
        if write.verb == "delete":
            if known is not None and known.metadata.uid == write.uid:
                self._unseen.pop(write.uid, None)
                self._unseen[write.uid] = Unseen(write.name, now + UNSEEN_TIMEOUT_S, True)
                self._forget(write.name)
            return
        try:
            new = decode(answer, EndpointSlice)
        except msgspec.DecodeError:
            return  # an answer that nobody can read: the cache will show what became of the write
        meta = new.metadata
        if write.verb == "create":
            if meta.name in self.slices or meta.uid in self._gone:
                return  # the cache was faster
            self._unseen[meta.uid] = Unseen(meta.name, now + UNSEEN_TIMEOUT_S, False)
        elif known is None or known.metadata.uid != meta.uid or not _newer(meta, known.metadata):
            return  # likewise, and it may even know of a later change
        self.slices[meta.name] = new

    def failed(self, write: MirrorWrite, error: StatusError) -> None:
        """*write* was refused, or its end is not known."""
        known = self.slices.get(write.name)
        if write.verb == "create" or known is None or known.metadata.uid != write.uid:
            return
        if error.reason == "NotFound":
            self._forget(write.name)
        elif error.reason == "Conflict" and known.metadata.resource_version == write.resource_version:
            self._behind[write.name] = STALE_PLANS

    def ended(self) -> None:
        """No write of the plan is under way any more."""
        self._gone = frozenset()

    def check(self) -> None:
        assert set(self._behind) <= set(self.slices), f"waits for slices that nobody knows: {self._behind}"
        assert all(name == each.metadata.name for name, each in self.slices.items()), f"misfiled: {self.slices}"
