"""Read-your-writes for controllers: a key waits until the cache shows what its own writes did.

After a job the controller notes, per object that it wrote, the uid and the resourceVersion that the server
answered.  Until the informer has shown that version (or a later one, or the object's end) the cache is
older than the controller's own knowledge, and planning on it would repeat work: two Pods instead of one.

The informer often shows a write *before* its answer arrives, so what was seen is remembered too: the
newest version per resource (one watch delivers in the order of versions) and the uids that are alive.
"""

from __future__ import annotations

from sliceplane.api.meta import Object
from sliceplane.informer.changes import Change

#: a version never arrives if the object came and went between two lists; then the cache is right all the same
EXPECTATION_TIMEOUT_S = 30.0
_GONE = 1 << 62


class Expectations:
    """Owned by one controller; called from its ``on_change``, ``on_done`` and planning only."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, int]] = {}  # key -> uid -> version awaited
        self._deadline: dict[str, float] = {}
        self._key_of: dict[str, str] = {}  # uid -> key
        self._newest: dict[str, int] = {}  # resource -> newest version seen
        self._alive: set[str] = set()

    def observe(self, change: Change[Object]) -> None:
        metadata = change.object.metadata
        version = int(metadata.resource_version or 0)
        self._newest[change.resource] = max(version, self._newest.get(change.resource, 0))
        if change.new is None:
            self._alive.discard(metadata.uid)
        else:
            self._alive.add(metadata.uid)
            if change.old is not None and change.old.metadata.uid != metadata.uid:
                self._alive.discard(change.old.metadata.uid)
                self._settle(change.old.metadata.uid)
        key = self._key_of.get(metadata.uid)
        if key is not None and (change.new is None or version >= self._waiting[key][metadata.uid]):
            self._settle(metadata.uid)

    def expect(self, key: str, resource: str, uid: str, version: int, now: float) -> None:
        """*key* must not be planned before *uid* was seen at *version* or later, or was seen to be gone."""
        if self._newest.get(resource, 0) < version:
            self._wait(key, uid, version, now)

    def expect_gone(self, key: str, uid: str, now: float) -> None:
        """The same for an object that the server has removed."""
        if uid in self._alive:
            self._wait(key, uid, _GONE, now)

    def _wait(self, key: str, uid: str, version: int, now: float) -> None:
        self._waiting.setdefault(key, {})[uid] = version
        self._key_of[uid] = key
        self._deadline[key] = now + EXPECTATION_TIMEOUT_S

    def _settle(self, uid: str) -> None:
        key = self._key_of.pop(uid, None)
        if key is None:
            return
        waiting = self._waiting[key]
        del waiting[uid]
        if not waiting:
            self.forget(key)

    def pending(self, key: str, now: float) -> float | None:
        """When to look again if the cache is still behind for *key*; ``None``: it has caught up."""
        deadline = self._deadline.get(key)
        if deadline is not None and now >= deadline:
            self.forget(key)
            return None
        return deadline

    def forget(self, key: str) -> None:
        for uid in self._waiting.pop(key, {}):
            self._key_of.pop(uid, None)
        self._deadline.pop(key, None)

    def check(self) -> None:
        uids = {uid: key for key, waiting in self._waiting.items() for uid in waiting}
        assert uids == self._key_of, f"{uids} != {self._key_of}"
        assert self._waiting.keys() == self._deadline.keys(), f"{self._waiting} != {self._deadline}"
        assert all(self._waiting.values()), f"a key waits for nothing: {self._waiting}"
