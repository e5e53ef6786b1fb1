"""A limit on answers over UDP, where their receiver may not be who asked (response rate limiting, as BIND's manual
describes it): so many a second to one network for one name; of the others every second is sent with TC alone, so that a
client that is there can come again over TCP.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Literal

#: octets of an address that make a network: /24 and /56
_NETWORK_OCTETS: Final = {4: 3, 16: 7}
_BUCKETS_MAX: Final = 100_000


class RateLimit:
    """*rate*: answers a second, of which a second's worth may come at once."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        #: network and name: what is left, when that was, and how many were kept back; the longest unused first
        self._buckets: OrderedDict[tuple[bytes, bytes], tuple[float, float, int]] = OrderedDict()

    def verdict(self, packed: bytes, name: bytes, now: float) -> Literal["", "truncated", "dropped"]:
        key = (packed[: _NETWORK_OCTETS[len(packed)]], name)
        left, since, kept_back = self._buckets.pop(key, (self._rate, now, 0))
        left = min(self._rate, left + (now - since) * self._rate)
        if left >= 1:
            self._buckets[key] = (left - 1, now, 0)
        else:
            kept_back += 1
            self._buckets[key] = (left, now, kept_back)
        if len(self._buckets) > _BUCKETS_MAX:
            self._buckets.popitem(last=False)
        if left >= 1:
            return ""
        return "dropped" if kept_back % 2 else "truncated"
