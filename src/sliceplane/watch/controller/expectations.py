"""Read-your-writes for controllers that plan on their caches: a key waits until these show what its
own writes did.

After a job the controller notes, per object that it wrote, the uid and the version that the server
answered (``watch.controller.own_writes.PendingWrites``). The informer often shows a write *before* its answer
arrives, so what was seen is remembered too: the newest version per resource (one watch delivers in
the order of versions) and the uids that live.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.meta import Object
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done
from sliceplane.watch.controller.own_writes import PendingWrites

#: a version never arrives if the object came and went between two lists; then the cache is right
#: all the same
EXPECTATION_TIMEOUT_S: Final = 30.0


class Expectations:
    """Owned by one controller; called from its ``on_change``, ``on_done`` and planning only."""

    def __init__(self) -> None:
        self._pending = PendingWrites(EXPECTATION_TIMEOUT_S)
        self._newest: dict[str, int] = {}  # by resource
        self._alive: set[str] = set()

    def observe(self, change: Change[Object]) -> None:
        """Takes a change of a resource that the controller writes."""
        for version, lives in ((change.old, False), (change.new, True)):
            if version is None:
                continue
            meta = version.metadata
            self._newest[change.resource] = max(meta.revision, self._newest.get(change.resource, 0))
            if lives:
                self._alive.add(meta.uid)
                self._pending.on_observed(meta.uid, meta.resource_version)
            elif change.new is None or change.new.metadata.uid != meta.uid:
                self._alive.discard(meta.uid)
                self._pending.resolve(meta.uid)

    def expect(self, done: Done, now: float) -> None:
        """The key of *done* must not be planned before the cache shows what its writes did, as the
        answers tell.
        """
        key = done.job.key
        for write, result in zip(done.job.writes, done.results, strict=False):
            if not result:
                continue  # the error was tolerated: nothing was written
            answer = decode(result, Object)
            if (
                write.verb != "create"
                and answer.metadata.uid
                and answer.metadata.uid not in self._alive
            ):
                # the cache has shown its end already; another object may have the name by now
                continue
            if answer.kind == "Status":
                # Deleted at once: the answer names the uid and has no version.
                uid = (msgspec.json.decode(result).get("details") or {}).get("uid", "")
                if uid in self._alive:
                    self._pending.wait_for_end(key, uid, now)
            elif self._newest.get(write.resource.key, 0) < answer.metadata.revision:
                self._pending.wait(key, answer.metadata.uid, answer.metadata.revision, now)

    def pending(self, key: str, now: float) -> float | None:
        """Returns when to check again if the cache is still behind for *key*; ``None``: it has
        caught up.
        """
        self._pending.drop_expired(key, now)
        return self._pending.deadline(key)

    def forget(self, key: str) -> None:
        self._pending.forget(key)

    def check(self) -> None:
        self._pending.check()
