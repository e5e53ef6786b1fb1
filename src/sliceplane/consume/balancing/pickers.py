"""Ways to choose the endpoint of the next request.  Each is O(1), whatever the size of the Service.

A picker is attached to one ``ServiceView`` and told what changed there; it only ever gives an
endpoint that may be used from here at this moment and is not *out* (a caller has tried it, or it
failed lately), or ``None`` if there is none. What it draws comes from an ``Rng``: same seed, same
picks.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Protocol

from sliceplane.consume.balancing.load import Load, Ranked
from sliceplane.consume.balancing.model import Endpoint
from sliceplane.consume.balancing.usable import Usable
from sliceplane.kit.rng import Rng

#: requests in flight at an endpoint from which on it counts as busy, and other zones are looked at
SPILL_REQUESTS = 8


class PickStrategy(Protocol):
    """The interface between a view and a way to pick."""

    def attach(self, usable: Usable, load: Load) -> None:
        """Called once; all that is there now counts as new."""

    def detach(self, load: Load) -> None:
        """Undo what ``attach`` did to *load*."""

    def on_change(self, touched: Mapping[str, Endpoint | None], *, rescoped: bool) -> None:
        """The endpoints *touched* came, went or changed; *rescoped*: any other may have joined or
        left too.
        """

    def pick(self, key: bytes, out: Set[str]) -> Endpoint | None:
        """An endpoint that may be used and whose id is not in *out*; *key* says what the request is
        about, to those pickers that mind.
        """

    def check(self) -> None:
        """Assert every invariant."""


class _Plain:
    """A picker that needs nothing but the pool."""

    _usable: Usable

    def attach(self, usable: Usable, load: Load) -> None:
        self._usable = usable

    def detach(self, load: Load) -> None:
        pass

    def on_change(self, touched: Mapping[str, Endpoint | None], *, rescoped: bool) -> None:
        pass

    def check(self) -> None:
        pass


class Random(_Plain):
    """Each usable endpoint with the same chance."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng

    def pick(self, key: bytes, out: Set[str]) -> Endpoint | None:
        return self._usable.pool.sample(self._rng, out)


class RoundRobin(_Plain):
    """One after another: without a change in between, n picks are n endpoints.

    It begins anywhere, so that a thousand clients that start together do not all begin with the
    same endpoint.
    """

    def __init__(self, rng: Rng) -> None:
        self._next = rng.bits64() >> 32
        self._begun = False

    def pick(self, key: bytes, out: Set[str]) -> Endpoint | None:
        pool = self._usable.pool
        if not len(pool):
            return None
        if not self._begun:
            self._begun = True
            self._next %= len(pool)
        for _ in range(min(len(pool), len(out) + 1)):
            if self._next >= len(pool):
                self._next = 0
            endpoint = pool[self._next]
            self._next += 1
            if endpoint.id not in out:
                return endpoint
        return None


class LeastOutstanding:
    """One of the endpoints with the fewest requests in flight (of this view's leases); by chance
    among equals.
    """

    def __init__(self, rng: Rng) -> None:
        self._rng = rng

    def attach(self, usable: Usable, load: Load) -> None:
        self._usable = usable
        self._ranked = Ranked(load)
        load.watchers.append(self._ranked.on_count)
        self.on_change({}, rescoped=True)

    def detach(self, load: Load) -> None:
        load.watchers.remove(self._ranked.on_count)

    def on_change(self, touched: Mapping[str, Endpoint | None], *, rescoped: bool) -> None:
        pool = self._usable.pool
        if rescoped:
            self._ranked.clear()
            for endpoint in pool.endpoints():
                self._ranked.put(endpoint)
            return
        for identity in touched:
            self._ranked.discard(identity)
            now = pool.get(identity)
            if now is not None:
                self._ranked.put(now)

    def pick(self, key: bytes, out: Set[str]) -> Endpoint | None:
        least = self._ranked.least(self._rng, out)
        return None if least is None else least[0]

    def check(self) -> None:
        self._ranked.check()
        assert len(self._ranked) == len(self._usable.pool), "ranked are the usable ones"


class ZoneFirst:
    """The least loaded endpoint near us, and one further away only while all near ones are busy.

    Near are those that hints keep for our node or zone; without hints that count, those of our
    zone. With *spill_at* requests in flight at each of them, the least loaded of the others takes
    the request, if it has fewer. So a zone that is too small for its clients costs some traffic
    between zones and not its latency, and a zone without endpoints costs nothing more than that.
    """

    def __init__(self, rng: Rng, *, spill_at: int = SPILL_REQUESTS) -> None:
        if spill_at < 1:
            raise ValueError(f"spill_at is {spill_at}, it must be at least 1")
        self._rng = rng
        self._spill_at = spill_at

    def attach(self, usable: Usable, load: Load) -> None:
        self._usable = usable
        self._near = Ranked(load)
        self._far = Ranked(load)
        load.watchers += [self._near.on_count, self._far.on_count]
        self.on_change({}, rescoped=True)

    def detach(self, load: Load) -> None:
        load.watchers.remove(self._near.on_count)
        load.watchers.remove(self._far.on_count)

    def on_change(self, touched: Mapping[str, Endpoint | None], *, rescoped: bool) -> None:
        if rescoped:
            self._near.clear()
            self._far.clear()
            for endpoint in self._usable.candidates.endpoints():
                self._file(endpoint)
            return
        for identity in touched:
            self._near.discard(identity)
            self._far.discard(identity)
            now = self._usable.candidates.get(identity)
            if now is not None:
                self._file(now)

    def _file(self, endpoint: Endpoint) -> None:
        (self._near if self._usable.is_near(endpoint) else self._far).put(endpoint)

    def pick(self, key: bytes, out: Set[str]) -> Endpoint | None:
        near = self._near.least(self._rng, out)
        far = self._far.least(self._rng, out)
        if near is None:
            return None if far is None else far[0]
        if far is None or near[1] < self._spill_at or near[1] <= far[1]:
            return near[0]
        return far[0]

    def check(self) -> None:
        self._near.check()
        self._far.check()
        assert len(self._near) + len(self._far) == len(self._usable.candidates), (
            "each candidate is near or far"
        )
