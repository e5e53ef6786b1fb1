"""Where a node's kernel leads the cluster IPs of Services, as its rules say by themselves, beside
their EndpointSlices.

Readers of one kind of rules each (``node.nft.served``, ``node.observing.saved``) make a ``Served``,
whichever program wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from sliceplane.api.core import Service, ServicePort
from sliceplane.api.discovery import (
    LABEL_FOR_REGION,
    LABEL_FOR_ZONE,
    EndpointSlice,
    SliceEndpoint,
)
from sliceplane.api.findings.wording import part, some
from sliceplane.kit.ip import Family, family, join_host_port, parse_lenient

#: labels of slices that some nodes do not read
_SUBSETS: Final = frozenset({LABEL_FOR_REGION, LABEL_FOR_ZONE})


class ClusterDestination(NamedTuple):
    """A port of a cluster IP.  ``protocol`` is in lower case."""

    address: str
    protocol: str
    port: int

    def __str__(self) -> str:
        return f"{join_host_port(self.address, self.port)}/{self.protocol.upper()}"


class ServedTarget(NamedTuple):
    """An address and port that connections are translated to."""

    address: str
    port: int

    def __str__(self) -> str:
        return join_host_port(self.address, self.port)


#: targets by destination; none: connections there are refused
Served = dict[ClusterDestination, frozenset[ServedTarget]]


def rule_differences(
    service: Service,
    slices: Iterable[EndpointSlice],
    rules: Mapping[ClusterDestination, frozenset[ServedTarget]],
    ports: Iterable[ServicePort] | None = None,
    node: str = "",
) -> Iterator[str]:
    """Where the kernel does not lead the Service's cluster IPs as its slices say, a phrase each.
    *ports*: those that count, by default all. *node*: the kernel's; without it, what the policy
    Local leaves out on a node is no difference. What hints leave out never is.
    """
    comparison = _Comparison(service, tuple(slices), node)
    for destination, port_name, ip_family in _destinations(service, ports):
        yield from comparison.of(destination, port_name, ip_family, rules.get(destination))


def without_hairpin(
    service: Service,
    slices: Iterable[EndpointSlice],
    rules: Mapping[ClusterDestination, frozenset[ServedTarget]],
    hairpins: Mapping[ClusterDestination, frozenset[ServedTarget]],
    *,
    ports: Iterable[ServicePort],
    node: str,
) -> frozenset[ServedTarget]:
    """Returns the endpoints on *node* that the kernel leads to, and not if they themselves are the
    clients. *hairpins*: the targets that reach themselves.
    """
    slices = tuple(slices)
    return frozenset(
        target
        for destination, port_name, ip_family in _destinations(service, ports)
        for target, endpoint in _targets_of(slices, port_name, ip_family)
        if endpoint.node_name == node
        and target in rules.get(destination, ())
        and target not in hairpins.get(destination, ())
    )


def _destinations(
    service: Service, ports: Iterable[ServicePort] | None
) -> Iterator[tuple[ClusterDestination, str, Family]]:
    """Yields each port of each cluster IP, with the name of the port and the family."""
    chosen = tuple((service.spec.ports or ()) if ports is None else ports)
    for text in service.spec.cluster_ips or (service.spec.cluster_ip,):
        address = parse_lenient(text)
        if address is None:
            continue
        for port in chosen:
            protocol = (port.protocol or "TCP").lower()
            destination = ClusterDestination(str(address), protocol, port.port)
            yield destination, port.name, family(address)


class _Comparison:
    def __init__(self, service: Service, slices: tuple[EndpointSlice, ...], node: str) -> None:
        self._slices = slices
        is_split = any(_SUBSETS & (item.metadata.labels or {}).keys() for item in slices)
        is_local = service.spec.internal_traffic_policy == "Local"
        #: the node whose endpoints alone count
        self._only_at = node if is_local else ""
        self._is_partial = is_split or (is_local and not node)
        self._is_narrowed = self._is_partial or any(
            endpoint.hints for item in slices for endpoint in item.endpoints or ()
        )

    def of(
        self,
        destination: ClusterDestination,
        port_name: str,
        ip_family: Family,
        targets: frozenset[ServedTarget] | None,
    ) -> Iterator[str]:
        pairs = [
            (target, endpoint)
            for target, endpoint in _targets_of(self._slices, port_name, ip_family)
            if self._only_at in ("", endpoint.node_name)
        ]
        ready = {target for target, at in pairs if at.conditions.ready is not False}
        usable = ready | {target for target, at in pairs if _is_still_serving(at)}
        all_there = {target for target, _ in pairs}
        if not targets:
            if ready and not self._is_partial:
                effect = "has no rule for" if targets is None else "refuses"
                yield (
                    f"{effect} {destination}, and "
                    f"{part(len(ready), len(all_there), 'endpoint', 'is')} ready"
                )
            return
        strange, lacking = targets - all_there, ready - targets
        if strange:
            yield f"leads {destination} to {some(sorted(map(str, strange)))}, no endpoint of it"
        elif unready := targets - usable:
            yield f"leads {destination} to {some(sorted(map(str, unready)))}, which is not ready"
        elif lacking and not self._is_narrowed:
            yield f"does not lead {destination} to {some(sorted(map(str, lacking)))}"


def _is_still_serving(endpoint: SliceEndpoint) -> bool:
    """Returns True for an endpoint that is used if none is ready (KEP-1669)."""
    conditions = endpoint.conditions
    return bool(conditions.terminating) and conditions.serving is not False


def _targets_of(
    slices: Iterable[EndpointSlice], port_name: str, ip_family: Family
) -> Iterator[tuple[ServedTarget, SliceEndpoint]]:
    for item in slices:
        if item.address_type != ip_family:
            continue
        for port in item.ports or ():
            if (port.name or "") != port_name or not port.port:
                continue
            for endpoint in item.endpoints or ():
                for text in endpoint.addresses[:1]:
                    if (address := parse_lenient(text)) is not None:
                        yield ServedTarget(str(address), port.port), endpoint
