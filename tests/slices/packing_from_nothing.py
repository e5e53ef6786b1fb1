"""The packing of upstream, recomputed from nothing: how many writes would it make over the same
slices?

The incremental engine must never make more.  Plain and slow, beside ``slices.oracle``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.discovery import EndpointSlice, SliceEndpoint
from sliceplane.api.meta import ObjectReference
from sliceplane.slices import oracle
from sliceplane.slices.oracle_plugins import is_plugin


@dataclass(frozen=True, slots=True)
class Writes:
    creates: int = 0
    updates: int = 0
    deletes: int = 0

    @property
    def total(self) -> int:
        return self.creates + self.updates + self.deletes


def baseline_writes(
    service: Service,
    pods: Iterable[Pod],
    nodes: Mapping[str, Node],
    slices: Iterable[EndpointSlice],
    max_endpoints: int,
    *,
    subsetting: str = "",
) -> Writes:
    """The writes of one sync over *slices*.  Knows of approach Original only.

    Three deliberate differences from upstream are in here, too: labels are compared whole, hints of
    unready endpoints are compared, and a slice that the service does not own never counts as its
    placeholder.

    With topology-mode Auto, and with heuristics, the hints decide, too, which slices are written.
    Then only what the packing itself creates is counted, and every live slice as updated: a bound
    that says nothing of updates.
    """
    live = sorted(
        (
            endpoint_slice
            for endpoint_slice in slices
            if oracle.is_ours(endpoint_slice, service)
            and endpoint_slice.metadata.deletion_timestamp is None
        ),
        key=lambda endpoint_slice: endpoint_slice.metadata.name,
    )
    if not oracle.is_active(service):
        return Writes(
            deletes=len(live)
        )  # see ``succession``: what a Service left behind goes, at once or in time
    auto = oracle.is_auto(service) or is_plugin(service)
    if auto:
        live = [oracle.without_hints(endpoint_slice) for endpoint_slice in live]
    pods = list(pods)
    types = oracle.address_types(service)
    creates = 0
    updates = 0
    deletes = sum(endpoint_slice.address_type not in types for endpoint_slice in live)
    for address_type in types:
        mine = [
            endpoint_slice for endpoint_slice in live if endpoint_slice.address_type == address_type
        ]
        groups = oracle.desired(service, address_type, pods, nodes)
        made = _Packing(
            service,
            [s for s in mine if oracle.is_owned(s, service)],
            groups,
            max_endpoints,
            subsetting,
        )
        foreign = sum(not oracle.is_owned(endpoint_slice, service) for endpoint_slice in mine)
        recycled = min(made.creates, made.deletes)
        creates += 0 if service.metadata.deletion_timestamp else made.creates - recycled
        updates += made.updates + recycled
        deletes += made.deletes - recycled + foreign
    return Writes(creates, len(live) if auto else updates, deletes)


class _Packing:
    """``staging/src/k8s.io/endpointslice/reconciler.go``, for the owned slices of one address
    type.
    """

    def __init__(
        self,
        service: Service,
        owned: list[EndpointSlice],
        groups: oracle.Groups,
        max_endpoints: int,
        subsetting: str,
    ) -> None:
        self._labels = oracle.labels_of(service, subsetting)
        self._max = max_endpoints
        self.creates = 0
        self.updates = 0
        self.deletes = 0
        by_ports: dict[oracle.PortSet, list[EndpointSlice]] = {}
        for endpoint_slice in owned:
            by_ports.setdefault(oracle.port_set(endpoint_slice.ports or ()), []).append(
                endpoint_slice
            )
        for ports, endpoints in groups.items():
            self._pack(by_ports.get(ports, []), endpoints)
        unwanted = [
            endpoint_slice
            for ports, listed in by_ports.items()
            if ports not in groups
            for endpoint_slice in listed
        ]
        self.deletes += len(unwanted)
        if self.deletes == len(owned) and not self.creates:
            kept = [
                s
                for s in unwanted
                if not s.ports and not s.endpoints and s.metadata.labels == self._labels
            ]
            if len(owned) == 1 and kept:
                self.deletes -= 1
            else:
                self.creates += 1

    def _pack(self, existing: list[EndpointSlice], endpoints: list[SliceEndpoint]) -> None:
        waiting = {_same(endpoint): endpoint for endpoint in endpoints}
        written: list[int] = []
        unchanged: list[int] = []
        for endpoint_slice in existing:
            kept = 0
            differs = False
            for endpoint in endpoint_slice.endpoints or ():
                fresh = waiting.pop(_same(endpoint), None)
                kept += fresh is not None
                differs = differs or (fresh is not None and fresh != endpoint)
            if kept < len(endpoint_slice.endpoints or ()) or differs:
                if kept:
                    written.append(kept)
                else:
                    self.deletes += 1
            elif endpoint_slice.metadata.labels != self._labels:
                written.append(kept)
            else:
                unchanged.append(kept)
        left = len(waiting)
        for count in sorted(written, reverse=True):
            left -= min(left, max(self._max - count, 0))
        self.updates += len(written)
        while left:
            fitting = [
                count for count in unchanged if left < self._max and count + left <= self._max
            ]
            if fitting:
                self.updates += 1
                return
            self.creates += 1
            left -= min(left, self._max)


def _same(endpoint: SliceEndpoint) -> tuple[object, ...]:
    """Identity of an endpoint, as upstream keeps it."""
    target = endpoint.target_ref or ObjectReference()
    return tuple(sorted(endpoint.addresses)), endpoint.hostname or "", target.namespace, target.name
