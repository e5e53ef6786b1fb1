"""Who wants one place in the kernel, in the order of Services; the first has it.

Kept as tuples, since nearly every place is wanted by one Service, and there are as many places as there are rules.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TypeVar

from sliceplane.proxy.model import ServiceKey

V = TypeVar("V")
Shares = tuple[tuple[ServiceKey, V], ...]


def with_share(shares: Shares[V], key: ServiceKey, value: tuple[V] | None) -> Shares[V]:
    """*shares* (sorted by key) with *key* wanting the one value, or nothing.  However many there are, it costs little
    more than a copy: thousands of Services may want the place of one endpoint."""
    at = bisect_left(shares, key, key=_key_of)
    end = at + 1 if at < len(shares) and shares[at][0] == key else at
    wanted = () if value is None else ((key, value[0]),)
    return (*shares[:at], *wanted, *shares[end:])


def _key_of(share: tuple[ServiceKey, object]) -> ServiceKey:
    return share[0]
