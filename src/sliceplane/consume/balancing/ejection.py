"""Endpoints that failed a moment ago, kept out of picks for a short while: passive ejection.

Without it a broken endpoint is a black hole. It answers fastest, by failing, so it always has the
fewest requests in flight, and the least loaded is who gets the next one: retries included.

A failure keeps an endpoint out for ``FIRST_S``, doubled with each further failure up to
``LONGEST_S``; a request that goes well clears it. **At most half of the usable endpoints are out**,
those that failed most lately, so that a fault of the network or of the client itself never takes a
Service away. The state is bounded: the ``FAILED_MAX`` endpoints that failed last.

Owned by ``consume.balancing.view.BalancedService``; shells report results, and the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sliceplane.consume.balancing.pool import EndpointPool

FIRST_S = 1.0
LONGEST_S = 30.0
FAILED_MAX = 1024


@dataclass(slots=True)
class _Failures:
    failures: int
    #: out until then
    until: float


class Ejections:
    """See the module.  Times are seconds of any clock that does not go back."""

    def __init__(self) -> None:
        #: in the order of the last failure
        self._failed: dict[str, _Failures] = {}
        self._out: frozenset[str] = frozenset()
        #: what ``_out`` was made for, and when it is no longer true
        self._pool_size = -1
        self._good_until = -math.inf

    def on_failure(self, identity: str, now: float) -> None:
        record = self._failed.pop(identity, None)
        failures = 1 if record is None else record.failures + 1
        self._failed[identity] = _Failures(
            failures, now + min(FIRST_S * 2.0 ** min(failures - 1, 16), LONGEST_S)
        )
        if len(self._failed) > FAILED_MAX:
            del self._failed[next(iter(self._failed))]
        self._good_until = -math.inf

    def on_success(self, identity: str) -> None:
        if self._failed.pop(identity, None) is not None:
            self._good_until = -math.inf

    def on_removed(self, identity: str) -> None:
        """It does not belong to the Service any more."""
        self.on_success(identity)

    def failures(self, identity: str) -> int:
        """Returns the number of failures in a row, as far as they are recorded."""
        record = self._failed.get(identity)
        return 0 if record is None else record.failures

    def out(self, pool: EndpointPool, now: float) -> frozenset[str]:
        """Returns the endpoints of *pool* that must not be picked. O(1) while nothing changes, else
        O(those that failed).
        """
        if not self._failed:
            return frozenset()
        if now >= self._good_until or len(pool) != self._pool_size:
            ejected = [
                name for name, record in self._failed.items() if record.until > now and name in pool
            ]
            kept = ejected[len(ejected) - min(len(ejected), len(pool) // 2) :]
            self._out = frozenset(kept)
            self._pool_size = len(pool)
            self._good_until = min(
                (record.until for record in self._failed.values() if record.until > now),
                default=math.inf,
            )
        return self._out

    def check(self) -> None:
        assert len(self._failed) <= FAILED_MAX, f"{len(self._failed)} failures are stored"
        assert all(record.failures > 0 for record in self._failed.values()), (
            "an endpoint without a failure is remembered"
        )
