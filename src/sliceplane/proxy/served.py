"""Where a node's kernel leads the cluster IPs of Services, as its rules say by themselves.

An interface: readers of one kind of rules each (``nft.served``, ``iptables.served``) make it, and what compares the
kernel with EndpointSlices (``explain.kernel``) takes it, whichever program wrote the rules.
"""

from __future__ import annotations

from typing import NamedTuple


class ClusterDestination(NamedTuple):
    """A port of a cluster IP.  ``protocol`` is in lower case."""

    address: str
    protocol: str
    port: int

    def __str__(self) -> str:
        return f"{self.address}:{self.port}/{self.protocol.upper()}"


class ServedTarget(NamedTuple):
    """An address and port that connections are translated to."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


#: targets by destination; none: connections there are refused
Served = dict[ClusterDestination, frozenset[ServedTarget]]
