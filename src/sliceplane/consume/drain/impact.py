"""The effect of a drain on Services: ready endpoints of each port, now and without the Pods.

EndpointSlices of every manager count, headless Services' too: DNS has no address left where a node
proxy has no endpoint left. An endpoint that two slices show while it moves counts once.
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
_Place = tuple[str, PortKey, str]


def emptied(impacts: Iterable[PortImpact]) -> tuple[PortImpact, ...]:
    """The ports that lose their last ready endpoint."""
    return tuple(impact for impact in impacts if not impact.left)


class _Ready:
    """Ready endpoints of one port: the Node of each, by the uid of its Pod or its address."""

    def __init__(self) -> None:
        self.nodes: dict[str, str] = {}
        self.leaving: set[str] = set()

    def left(self) -> dict[str, str]:
        return {
            endpoint: node for endpoint, node in self.nodes.items() if endpoint not in self.leaving
        }


class ServiceImpacts:
    """Follows slices and Services.  Answers cost O(endpoints of the slices that they are about)."""

    def __init__(self) -> None:
        self._slices: dict[str, EndpointSlice] = {}
        self._services: dict[str, Service] = {}
        #: ports that must keep a ready endpoint, and the Services that they are of
        self._guarded: dict[_Place, PortImpact] = {}
        self._guarded_services: frozenset[str] = frozenset()
        #: slices of these Services changed since ``emptied`` looked
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
        """The ports that lose a ready endpoint if *subjects* leave, in order."""
        ports = _ready_by_port(self._slices.values(), subjects)
        return tuple(
            self._impact(place, ports[place]) for place in sorted(ports) if ports[place].leaving
        )

    def guard(self, subjects: Iterable[DrainSubject]) -> None:
        """From now on ``emptied`` names the ports of *subjects* that lose every other ready
        endpoint.
        """
        ports = _ready_by_port(self._slices.values(), subjects)
        self._guarded = {
            place: self._impact(place, port) for place, port in ports.items() if port.leaving
        }
        self._guarded_services = frozenset(service for service, _, _ in self._guarded)
        self._is_changed = True

    def emptied(self, subjects: Iterable[DrainSubject]) -> tuple[PortImpact, ...]:
        """Looks only if a slice changed since it looked last."""
        if not self._is_changed:
            return ()
        self._is_changed = False
        slices = (
            seen for seen in self._slices.values() if service_of(seen) in self._guarded_services
        )
        ports = _ready_by_port(slices, subjects)
        return tuple(
            impact
            for place, impact in sorted(self._guarded.items())
            if place in ports and not ports[place].left()
        )

    def headless(self, subjects: Iterable[DrainSubject]) -> list[str]:
        """The headless Services of *subjects*."""
        find = subject_finder(subjects)
        headless = (
            seen for seen in self._slices.values() if LABEL_HEADLESS in (seen.metadata.labels or {})
        )
        return sorted(
            {
                service_of(seen)
                for seen in headless
                if any(find(seen.metadata.namespace, endpoint) for endpoint in seen.endpoints or ())
            }
        )

    def _impact(self, place: _Place, port: _Ready) -> PortImpact:
        service, key, family = place
        known = self._services.get(service)
        spec = None if known is None else known.spec
        left = port.left()
        lost = {port.nodes[endpoint] for endpoint in port.leaving} - {*left.values(), ""}
        is_local = spec is not None and "Local" in (
            spec.internal_traffic_policy,
            spec.external_traffic_policy,
        )
        nodes = tuple(sorted(lost)) if is_local and left else ()
        text = _port_text(key, () if spec is None else spec.ports or ())
        return PortImpact(service, text, family, len(port.nodes), len(left), nodes)


def service_of(seen: EndpointSlice) -> str:
    """The key of the Service that the slice is of, or ""."""
    name = (seen.metadata.labels or {}).get(LABEL_SERVICE_NAME, "")
    return f"{seen.metadata.namespace}/{name}" if name else ""


def _ready_by_port(
    slices: Iterable[EndpointSlice], subjects: Iterable[DrainSubject]
) -> dict[_Place, _Ready]:
    find = subject_finder(subjects)
    ports: dict[_Place, _Ready] = {}
    for seen in slices:
        service = service_of(seen)
        if not service:
            continue
        keys = [(port.name or "", port.protocol or "TCP") for port in seen.ports or ()] or [
            _NO_PORT
        ]
        counted = [ports.setdefault((service, key, seen.address_type), _Ready()) for key in keys]
        for endpoint in seen.endpoints or ():
            if endpoint.conditions.ready is False:
                continue
            target = endpoint.target_ref
            identity = (
                target.uid if target is not None and target.uid else "".join(endpoint.addresses[:1])
            )
            leaves = find(seen.metadata.namespace, endpoint) is not None
            for port in counted:
                port.nodes[identity] = endpoint.node_name or ""
                if leaves:
                    port.leaving.add(identity)
    return ports


def _port_text(key: PortKey, ports: Sequence[ServicePort]) -> str:
    """``http``; of a port without a name its number and protocol, if the Service may be read."""
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
