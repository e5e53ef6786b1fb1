"""Who may ask what, and how often: rights by address, and a limit on answers.

The limit is for answers over UDP, where their receiver may not be who asked (response rate limiting, as BIND's manual
describes it): so many a second to one network for one name; of the others every second is sent with TC alone, so that a
client that is there can come again over TCP.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import msgspec

from sliceplane.kit.ip import Network

#: who may have names of others: this machine, private networks (RFC 1918, 4193, 6598), links
PRIVATE: Final[tuple[Network, ...]] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16",
        "::1/128", "fc00::/7", "fe80::/10",
    )
)  # fmt: skip
#: clients whose rights are kept
_CLIENTS_MAX: Final = 10_000
#: octets of an address that make a network: /24 and /56
_NETWORK_OCTETS: Final = {4: 3, 16: 7}
_BUCKETS_MAX: Final = 100_000


class AnswerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``forwards``: names that are not ours are sent on.  ``allow``: who gets answers at all, everyone if empty.
    ``recursion``: who gets names of others; Pods and nodes that we know of do, too.  ``shared_resolvers``: caches that
    ask for many clients, and get every endpoint.  ``rate``: answers of one name a second to a network; 0: no limit."""

    forwards: bool = False
    allow: tuple[Network, ...] = ()
    recursion: tuple[Network, ...] = PRIVATE
    shared_resolvers: tuple[Network, ...] = ()
    rate: float = 0.0


class ClientRights(NamedTuple):
    packed: bytes
    allowed: bool
    recursion: bool
    shared: bool


class DnsClients:
    """Rights by address, as text; those of the clients that asked last are kept.  *is_in_cluster*: of a Pod or node."""

    def __init__(self, config: AnswerConfig, is_in_cluster: Callable[[bytes], bool]) -> None:
        self._config = config
        self._is_in_cluster = is_in_cluster
        self.known: Final[dict[str, ClientRights]] = {}

    def of(self, client: str) -> ClientRights:
        return self.known.get(client) or self._look(client)

    def _look(self, client: str) -> ClientRights:
        address = ipaddress.ip_address(client.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        config = self._config
        rights = ClientRights(
            address.packed,
            address.is_loopback or not config.allow or any(address in network for network in config.allow),
            any(address in network for network in config.recursion) or self._is_in_cluster(address.packed),
            any(address in network for network in config.shared_resolvers),
        )
        if len(self.known) >= _CLIENTS_MAX:
            self.known.clear()
        self.known[client] = rights
        return rights


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
