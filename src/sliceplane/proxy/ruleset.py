"""What a node's model asks of a back end's rules, and what back ends have in common when they make them.

A back end is a core and a shell.  The core is a ``Ruleset`` of one IP family: what is desired, a shadow of what the
kernel holds, and transactions from one to the other (``nft.table``, ``iptables.table``).  ``proxy.plane`` owns it and
tells it of changes; the shell (``shell.node.kernel.backend``) carries its transactions out.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_left
from operator import itemgetter
from typing import Protocol, TypeVar

from sliceplane.kit.ip import family, networks
from sliceplane.proxy.model import ServedPort, ServiceChange, ServiceKey
from sliceplane.proxy.surroundings import Surroundings, ThisNode


class RulesTransaction(Protocol):
    """What is common to the transactions of back ends."""

    @property
    def full(self) -> bool:
        """It replaces all rules, whatever was there."""

    @property
    def size(self) -> int:
        """How many commands, for logs."""

    def render(self) -> str:
        """As the back end's own program reads it."""


T_co = TypeVar("T_co", bound=RulesTransaction, covariant=True)


class Ruleset(Protocol[T_co]):
    """What one back end holds of one family.

    ``set_*`` say what is desired, ``take_transaction`` gives the difference; then exactly one of ``on_success`` and
    ``on_failure``.  After a failure the shadow is worth nothing, and the next write is full.
    """

    #: the next transaction replaces everything, whatever the shadow says; the caller may wish for it, too
    needs_full: bool

    def set_surroundings(self, around: Surroundings, node_ports: tuple[str, ...]) -> bool:
        """What rules depend on besides Services; *node_ports*: the addresses that node ports are on, where they are
        listed.  Whether anything is to be written for it."""

    def set_service(self, change: ServiceChange, node: ThisNode) -> bool:
        """The newest state of a Service; whether it means other rules.  O(the Service)."""

    def take_transaction(self, now: float) -> T_co | None:
        """What brings the kernel up to date; ``None``: it is."""

    def on_success(self, now: float) -> None:
        """The kernel took the transaction."""

    def on_failure(self) -> None:
        """The kernel refused it, or what became of it is unknown."""

    def next_deadline(self) -> float | None:
        """When something may be removed that is out of use; ``None``: nothing is kept."""

    def check(self) -> None:
        """Every invariant.  O(state)."""


V = TypeVar("V")
#: the Services that want one place in the kernel, and with which value, sorted by key; the first has it.  Tuples, since
#: nearly every place is wanted by one Service, and there are as many places as there are rules
Shares = tuple[tuple[ServiceKey, V], ...]


def with_share(shares: Shares[V], key: ServiceKey, value: tuple[V] | None) -> Shares[V]:
    """*shares* with *key* wanting the one value, or nothing.  However many there are, it costs little more than a copy:
    thousands of Services may want the place of one endpoint."""
    at = bisect_left(shares, key, key=itemgetter(0))
    end = at + 1 if at < len(shares) and shares[at][0] == key else at
    wanted = () if value is None else ((key, value[0]),)
    return (*shares[:at], *wanted, *shares[end:])


def allowed_sources(port: ServedPort, node_ip: str) -> tuple[str, ...]:
    """Who may use a load balancer's addresses (``loadBalancerSourceRanges``): disjoint networks in canonical form;
    empty: every client.  *node_ip* "": not known.

    A node that is a client may send with one of those addresses as its source, so they are allowed where it is.
    """
    ranges = port.source_ranges
    address = ipaddress.ip_address(node_ip) if node_ip and ranges else None
    if address is None or not any(address in ipaddress.ip_network(network) for network in ranges):
        return ranges
    return networks((*ranges, *(f"{ip}/{address.max_prefixlen}" for ip in port.vips)), family(address))
