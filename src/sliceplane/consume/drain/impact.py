"""The effect of a drain on Services: ready endpoints of each port, now and without the Pods.

EndpointSlices of every manager count, headless Services' too: DNS has no address left where a node
proxy has no endpoint left. An endpoint that two slices contain while it moves counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sliceplane.api.core import Service, ServicePort
from sliceplane.api.discovery import LABEL_HEADLESS, LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.consume.drain.answer import PortImpact
from sliceplane.consume.drain.departure import DrainSubject, PortKey, subject_finder
from sliceplane.watch.cache import Change

#: stands for an empty list of ports, as headless Services may have
_NO_PORT: Final[PortKey] = ("", "")
#: Service, port and address family
_PortId = tuple[str, PortKey, str]


def emptied(impacts: Iterable[PortImpact]) -> tuple[PortImpact, ...]:
    """Returns the ports that lose their last ready endpoint."""
    return tuple(impact for impact in impacts if not impact.left)


class _Ready:
    """Ready endpoints of one port: the Node of each, by the uid of its Pod or its address."""

    def __init__(self) -> None:
        self.nodes: dict[str, str] = {}
        self.leaving: set[str] = set()

    def remaining(self) -> dict[str, str]:
        return {
            endpoint: node for endpoint, node in self.nodes.items() if endpoint not in self.leaving
        }


class ServiceImpacts:
    """Follows slices and Services.  Answers cost O(endpoints of the slices that they are about)."""

    def __init__(self) -> None:
        self._slices: dict[str, EndpointSlice] = {}
        self._services: dict[str, Service] = {}
        #: ports that must keep a ready endpoint, and their Services
        self._guarded: dict[_PortId, PortImpact] = {}
        self._guarded_services: frozenset[str] = frozenset()
        #: slices of these Services changed since the last call of ``emptied``
        self._is_changed = False

    def on_change(self, change: Change[Object]) -> None:
        for version in (change.old, change.new):
            if isinstance(version, EndpointSlice):
                self._slices.pop(version.metadata.key, None)
                self._is_changed = self._is_changed or service_of(version) in self._guarded_services
        if isinstance(change.new, EndpointSlice):
            self._slices[change.new.metadata.key] = change.new
        elif isinstance(change.new, Service):
            self._services[change.new.metadata.key] = change.new

    def of(self, subjects: Iterable[DrainSubject]) -> tuple[PortImpact, ...]:
        """Returns the ports that lose a ready endpoint if *subjects* are drained, in order."""
        ports = _ready_by_port(self._slices.values(), subjects)
        return tuple(
            self._impact(port_id, ports[port_id])
            for port_id in sorted(ports)
            if ports[port_id].leaving
        )

    def protect(self, subjects: Iterable[DrainSubject]) -> None:
        """Selects the ports of *subjects*: from now on ``emptied`` returns those that lose every
        other ready endpoint.
        """
        ports = _ready_by_port(self._slices.values(), subjects)
        self._guarded = {
            port_id: self._impact(port_id, port) for port_id, port in ports.items() if port.leaving
        }
        self._guarded_services = frozenset(service for service, _, _ in self._guarded)
        self._is_changed = True

    def emptied(self, subjects: Iterable[DrainSubject]) -> tuple[PortImpact, ...]:
        """Returns the protected ports that have no other ready endpoint; empty if no slice changed
        since the last call.
        """
        if not self._is_changed:
            return ()
        self._is_changed = False
        slices = (
            endpoint_slice
            for endpoint_slice in self._slices.values()
            if service_of(endpoint_slice) in self._guarded_services
        )
        ports = _ready_by_port(slices, subjects)
        return tuple(
            impact
            for port_id, impact in sorted(self._guarded.items())
            if port_id in ports and not ports[port_id].remaining()
        )

    def headless(self, subjects: Iterable[DrainSubject]) -> list[str]:
        """Returns the headless Services of *subjects*."""
        find = subject_finder(subjects)
        headless = (
            endpoint_slice
            for endpoint_slice in self._slices.values()
            if LABEL_HEADLESS in (endpoint_slice.metadata.labels or {})
        )
        return sorted(
            {
                service_of(endpoint_slice)
                for endpoint_slice in headless
                if any(
                    find(endpoint_slice.metadata.namespace, endpoint)
                    for endpoint in endpoint_slice.endpoints or ()
                )
            }
        )

    def _impact(self, port_id: _PortId, port: _Ready) -> PortImpact:
        service, key, family = port_id
        cached = self._services.get(service)
        spec = None if cached is None else cached.spec
        remaining = port.remaining()
        lost = {port.nodes[endpoint] for endpoint in port.leaving} - {*remaining.values(), ""}
        is_local = spec is not None and "Local" in (
            spec.internal_traffic_policy,
            spec.external_traffic_policy,
        )
        nodes = tuple(sorted(lost)) if is_local and remaining else ()
        text = _port_text(key, () if spec is None else spec.ports or ())
        return PortImpact(service, text, family, len(port.nodes), len(remaining), nodes)


def service_of(endpoint_slice: EndpointSlice) -> str:
    """Returns the key of the slice's Service, or ""."""
    name = (endpoint_slice.metadata.labels or {}).get(LABEL_SERVICE_NAME, "")
    return f"{endpoint_slice.metadata.namespace}/{name}" if name else ""


def _ready_by_port(
    slices: Iterable[EndpointSlice], subjects: Iterable[DrainSubject]
) -> dict[_PortId, _Ready]:
    find = subject_finder(subjects)
    ports: dict[_PortId, _Ready] = {}
    for endpoint_slice in slices:
        service = service_of(endpoint_slice)
        if not service:
            continue
        keys = [
            (port.name or "", port.protocol or "TCP") for port in endpoint_slice.ports or ()
        ] or [_NO_PORT]
        counted = [
            ports.setdefault((service, key, endpoint_slice.address_type), _Ready()) for key in keys
        ]
        for endpoint in endpoint_slice.endpoints or ():
            if endpoint.conditions.ready is False:
                continue
            target = endpoint.target_ref
            identity = (
                target.uid if target is not None and target.uid else "".join(endpoint.addresses[:1])
            )
            is_leaving = find(endpoint_slice.metadata.namespace, endpoint) is not None
            for port in counted:
                port.nodes[identity] = endpoint.node_name or ""
                if is_leaving:
                    port.leaving.add(identity)
    return ports


def _port_text(key: PortKey, ports: Sequence[ServicePort]) -> str:
    """Returns the name of a port, or its number and protocol if the Service may be read."""
    name, protocol = key
    if name or key == _NO_PORT:
        return name
    number = next(
        (
            f"{port.port}/"
            for port in ports
            if not port.name and (port.protocol or "TCP") == protocol
        ),
        "",
    )
    return f"{number}{protocol}"
