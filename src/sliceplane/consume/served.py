"""Where a node's kernel leads the cluster IPs of Services, as its rules say by themselves, beside
their EndpointSlices.

Readers of one kind of rules each (``node.nft.served``, ``node.iptables.served``) make a ``Served``,
whichever program wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from sliceplane.api.core import Service
from sliceplane.api.discovery import LABEL_FOR_REGION, LABEL_FOR_ZONE, EndpointSlice
from sliceplane.api.findings.wording import part, some
from sliceplane.kit.ip import family, parse_lenient

#: labels of slices that some nodes do not read
_SUBSETS: Final = frozenset({LABEL_FOR_REGION, LABEL_FOR_ZONE})


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


def rule_differences(
    service: Service,
    slices: Iterable[EndpointSlice],
    rules: Mapping[ClusterDestination, frozenset[ServedTarget]],
) -> Iterator[str]:
    """Where the kernel does not lead the Service's cluster IPs as its slices say, a phrase each.
    What hints and the policy Local leave out on a node is no difference.
    """
    slices = tuple(slices)
    spec = service.spec
    endpoints = [endpoint for item in slices for endpoint in item.endpoints or ()]
    is_split = any(_SUBSETS & (item.metadata.labels or {}).keys() for item in slices)
    is_partial = spec.internal_traffic_policy == "Local" or is_split
    is_narrowed = is_partial or any(endpoint.hints for endpoint in endpoints)
    for text in spec.cluster_ips or (spec.cluster_ip,):
        address = parse_lenient(text)
        if address is None:
            continue
        own = [item for item in slices if item.address_type == family(address)]
        for port in spec.ports or ():
            destination = ClusterDestination(
                str(address), (port.protocol or "TCP").lower(), port.port
            )
            ready, all_there = (
                _targets_of(own, port.name, ready=True),
                _targets_of(own, port.name, ready=False),
            )
            targets = rules.get(destination)
            if not targets:
                if ready and not is_partial:
                    effect = "has no rule for" if targets is None else "refuses"
                    yield (
                        f"{effect} {destination}, and "
                        f"{part(len(ready), len(all_there), 'endpoint', 'is')} ready"
                    )
                continue
            strange, lacking = targets - all_there, ready - targets
            if strange:
                yield f"leads {destination} to {some(sorted(map(str, strange)))}, no endpoint of it"
            elif lacking and not is_narrowed:
                yield f"does not lead {destination} to {some(sorted(map(str, lacking)))}"


def _targets_of(
    slices: Iterable[EndpointSlice], port_name: str, *, ready: bool
) -> frozenset[ServedTarget]:
    return frozenset(
        ServedTarget(str(address), port.port)
        for item in slices
        for port in item.ports or ()
        if (port.name or "") == port_name and port.port
        for endpoint in item.endpoints or ()
        if not ready or endpoint.conditions.ready is not False
        for text in endpoint.addresses[:1]
        if (address := parse_lenient(text)) is not None
    )
