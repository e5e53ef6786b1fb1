"""Rights of clients by address, their shares of the server's work, and a limit on answers.

A question of the usual shape at a name that ``dns.kept`` has is free. Every other question, a
question that an upstream is asked for, and a large answer over TCP are charged to the client's
address; in each second a client may use as much work as it leaves for all others. An address can be
forged over UDP, so UDP and TCP have separate shares: if a forger uses up a client's share of UDP,
the client gets TC and asks again over TCP.

Shares of UDP hold from a second in which datagrams waited or were lost until ``OVERLOAD_S`` later.
At other times the server answers all that it is asked, so that refusing one client would help no
other. If the overload goes on, the process has less than a processor, or too much to refuse:
clients have half as much work in each next second.

The limit is for answers over UDP, where their receiver may not be who asked (response rate
limiting, as BIND's manual describes it): so many a second to one network for one name; of the
others every second is sent with TC alone, so that a client that is there can come again over TCP.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import msgspec

from sliceplane.kit.ip import Network
from sliceplane.kit.shares import Shares

#: who may have names of others: this machine, private networks (RFC 1918, 4193, 6598), links
PRIVATE: Final[tuple[Network, ...]] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "::1/128",
        "fc00::/7",
        "fe80::/10",
    )
)
#: clients whose rights are kept
CLIENTS_MAX: Final = 10_000
#: octets of an address that make a network: /24 and /56
_NETWORK_OCTETS: Final = {4: 3, 16: 7}
#: networks and names of the rate limit, each about 200 bytes
BUCKETS_MAX: Final = 20_000

# Units of work are about a microsecond that the server saves if it sends a question away, which
# costs some 8 us. : in each second, of all clients together; the rest of the time is for the usual
# questions
UDP_WORK_PER_S: Final = 600_000
#: the least, in a long overload
UDP_WORK_MIN: Final = 75_000
TCP_WORK_PER_S: Final = 300_000
#: a question that is read, looked up and answered anew or from the forwarder's cache, besides
#: ``OCTETS_PER_UNIT``
QUESTION_WORK: Final = 24
#: a question that an upstream is asked for, besides
FORWARD_WORK: Final = 100
#: octets of the query
OCTETS_PER_UNIT: Final = 32
#: seconds for which shares of UDP hold after an overload
OVERLOAD_S: Final = 60
#: of an answer over TCP with more records than ``SMALL_OCTETS``; others cost next to nothing
ANSWER_OCTETS_PER_UNIT: Final = 256
SMALL_OCTETS: Final = 4096


class AnswerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``forwards``: names that are not ours are sent on. ``allow``: who gets answers at all,
    everyone if empty. ``recursion``: who gets names of others; Pods and nodes that we know of do,
    too. ``shared_resolvers``: caches that ask for many clients, and get every endpoint. ``rate``:
    answers of one name a second to a network; 0: no limit.
    """

    forwards: bool = False
    allow: tuple[Network, ...] = ()
    recursion: tuple[Network, ...] = PRIVATE
    shared_resolvers: tuple[Network, ...] = ()
    rate: float = 0.0


class ClientRights(NamedTuple):
    """``account``: that shares are charged to, an address or the network of one host (IPv6,
    /64).
    """

    packed: bytes
    allowed: bool
    recursion: bool
    shared: bool
    account: str


class DnsClients:
    """Rights by address, as text; those of the most recent clients are cached.  *is_in_cluster*
    returns True for the address of a Pod or node.
    """

    def __init__(self, config: AnswerConfig, is_in_cluster: Callable[[bytes], bool]) -> None:
        self._config = config
        self._is_in_cluster = is_in_cluster
        self.rights_by_address: Final[dict[str, ClientRights]] = {}

    def of(self, client: str) -> ClientRights:
        return self.rights_by_address.get(client) or self._evaluate(client)

    def _evaluate(self, client: str) -> ClientRights:
        address = ipaddress.ip_address(client.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        config = self._config
        rights = ClientRights(
            address.packed,
            address.is_loopback
            or not config.allow
            or any(address in network for network in config.allow),
            any(address in network for network in config.recursion)
            or self._is_in_cluster(address.packed),
            any(address in network for network in config.shared_resolvers),
            address.packed[:8].hex(),
        )
        if len(self.rights_by_address) >= CLIENTS_MAX:
            self.rights_by_address.clear()
        self.rights_by_address[client] = rights
        return rights


def source_network(client: str) -> str:
    """The network of an address, as an account of shares: /24 or /56."""
    packed = ipaddress.ip_address(client.partition("%")[0]).packed
    return packed[: _NETWORK_OCTETS[len(packed)]].hex()


class WorkShares:
    """Shares of the work of this second, by account; see the module. At most ``UDP_WORK_PER_S /
    QUESTION_WORK`` accounts have one, so that forged addresses fill nothing.
    """

    def __init__(self) -> None:
        #: seconds for which shares of UDP still hold
        self._overload_s = 0
        self._udp_work = UDP_WORK_PER_S
        self.begin_second(is_overloaded=False)

    def begin_second(self, *, is_overloaded: bool) -> None:
        if not self._overload_s:
            self._udp_work = UDP_WORK_PER_S
        elif is_overloaded:
            self._udp_work = max(UDP_WORK_MIN, self._udp_work // 2)
        self._overload_s = OVERLOAD_S if is_overloaded else max(0, self._overload_s - 1)
        self._shares = {"udp": Shares(self._udp_work), "tcp": Shares(TCP_WORK_PER_S)}

    def is_enforced(self, transport: str) -> bool:
        return transport != "udp" or self._overload_s > 0

    def take(self, transport: str, rights: ClientRights, work: int) -> bool:
        """Returns False if the account has used its share. Shared resolvers ask for many clients,
        and may use all that is left.
        """
        if not self.is_enforced(transport):
            return True
        return self._shares[transport].take(
            rights.account, work, "exempt" if rights.shared else "ordinary"
        )

    def add(self, transport: str, account: str, work: int) -> None:
        """Charges *account* with work that a question has caused after ``take`` granted it."""
        self._shares[transport].add(account, work)

    def verdict(self, transport: str) -> Literal["truncated", "dropped", "refused"]:
        """The outcome for the question that was refused last."""
        if transport != "udp":
            return "refused"
        return "dropped" if self._shares[transport].refused % 2 else "truncated"


class RateLimit:
    """*rate*: answers a second, of which a second's worth may come at once."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        #: by the keyed hash of network and name, as clients choose the length of a name: tokens,
        #: the time of their count, and suppressed answers; the longest unused first
        self._buckets: OrderedDict[int, tuple[float, float, int]] = OrderedDict()

    def verdict(
        self, packed: bytes, name: bytes, now: float
    ) -> Literal["", "truncated", "dropped"]:
        key = hash((packed[: _NETWORK_OCTETS[len(packed)]], name))
        tokens, since, kept_back = self._buckets.pop(key, (self._rate, now, 0))
        tokens = min(self._rate, tokens + (now - since) * self._rate)
        if tokens >= 1:
            self._buckets[key] = (tokens - 1, now, 0)
        else:
            kept_back += 1
            self._buckets[key] = (tokens, now, kept_back)
        if len(self._buckets) > BUCKETS_MAX:
            self._buckets.popitem(last=False)
        if tokens >= 1:
            return ""
        return "dropped" if kept_back % 2 else "truncated"
