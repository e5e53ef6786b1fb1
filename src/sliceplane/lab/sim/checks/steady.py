"""No gap: a Pod that stays ready stays published, whatever else happens.

At a quiet point everything has converged, so the endpoints that are ready then are *steady*. An
endpoint stops being steady when its Pod, its Node or its Service changes, or another writer edits
the Service's slices. It stays unsteady until the next quiet point: a controller with an old cache
may act on old state in good faith. While an endpoint is steady, every commit of a slice must leave
it published, with its ports, in its address type.
"""

from __future__ import annotations

from typing import NamedTuple

from sliceplane.api.codec import decode
from sliceplane.api.core import Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.scheme import EndpointSlices, Namespaces, Nodes, Pods, Services
from sliceplane.lab.sim.checks.view import View, service_of
from sliceplane.lab.sim.server import Server
from sliceplane.server.store.types import EventType, Record, StoreEvent
from sliceplane.slices import oracle


class Broken(Exception):
    """A violated invariant. ``subject``: the text to search for in the trace."""

    def __init__(self, invariant: str, subject: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant
        self.subject = subject
        self.message = message


class Published(NamedTuple):
    pod: str
    uid: str
    address_type: str
    ports: oracle.PortSet


def _spec(record: Record | None) -> object:
    return None if record is None else decode(record.body, Service).spec


class Steady:
    """Owned by one simulation; a listener of its server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._steady: dict[str, set[Published]] = {}

    def begin(self, view: View) -> None:
        """Takes the steady endpoints of a quiet point."""
        self._steady = {}
        for service in view.lasting_services():
            desired = self._desired(service, view) & self._published(service.metadata.key)
            if desired:
                self._steady[service.metadata.key] = desired

    def disturb(self, service: str) -> None:
        """Notes that another writer changed a slice of *service*."""
        self._steady.pop(service, None)

    @staticmethod
    def _desired(service: Service, view: View) -> set[Published]:
        if not oracle.is_active(service):
            return set()
        desired: set[Published] = set()
        pods = view.pods.get(service.metadata.namespace, ())
        for address_type in oracle.address_types(service):
            for ports, endpoints in oracle.desired(service, address_type, pods, view.nodes).items():
                desired.update(
                    Published(
                        endpoint.target_ref.name, endpoint.target_ref.uid, address_type, ports
                    )
                    for endpoint in endpoints
                    if endpoint.conditions.ready and endpoint.target_ref is not None
                )
        return desired

    def _published(self, service: str) -> set[Published]:
        published: set[Published] = set()
        for record in self._server.records(EndpointSlices, service.partition("/")[0]):
            observed = decode(record.body, EndpointSlice)
            if service_of(observed) == service:
                ports = oracle.port_set(observed.ports or ())
                published.update(
                    Published(
                        endpoint.target_ref.name,
                        endpoint.target_ref.uid,
                        observed.address_type,
                        ports,
                    )
                    for endpoint in observed.endpoints or ()
                    if endpoint.conditions.ready and endpoint.target_ref is not None
                )
        return published

    def on_commit(self, event: StoreEvent) -> None:
        """Raises ``Broken``."""
        key = event.record.key
        if key.resource == EndpointSlices.storage_key:
            self._on_slice(event)
        elif key.resource in (
            Pods.storage_key,
            Services.storage_key,
            Nodes.storage_key,
            Namespaces.storage_key,
        ):
            self._restrict(event)

    def _restrict(self, event: StoreEvent) -> None:
        """Removes endpoints that are no longer steady after a change of their inputs."""
        if not self._steady:
            return
        changed = event.record.key
        view = View(self._server)
        if changed.resource == Services.storage_key and _spec(event.previous) != _spec(
            event.record
        ):
            self._steady.pop(changed.path, None)
        if changed.resource == Nodes.storage_key and event.type is not EventType.MODIFIED:
            # The Node may have been deleted and created again, or the reverse: with
            # publishNotReadyAddresses no endpoint shows that (seed 40136).
            elsewhere = {
                pod.metadata.uid
                for pods in view.pods.values()
                for pod in pods
                if pod.spec.node_name != changed.name
            }
            for name, steady in self._steady.items():
                self._steady[name] = {
                    published for published in steady if published.uid in elsewhere
                }
        by_key = {service.metadata.key: service for service in view.lasting_services()}
        for name in sorted(self._steady):
            if changed.namespace and changed.namespace != name.partition("/")[0]:
                continue
            service = by_key.get(name)
            remaining = (
                self._desired(service, view) & self._steady[name] if service is not None else set()
            )
            if remaining:
                self._steady[name] = remaining
            else:
                del self._steady[name]

    def _on_slice(self, event: StoreEvent) -> None:
        records = [event.record] if event.previous is None else [event.previous, event.record]
        for name in sorted({service_of(decode(record.body, EndpointSlice)) for record in records}):
            steady = self._steady.get(name)
            if steady is None:
                continue
            lost = sorted(
                (published.pod, published.address_type)
                for published in steady - self._published(name)
            )
            if lost:
                pod, address_type = lost[0]
                text = (
                    f"{event.type.value} of slice {event.record.key.path} at revision "
                    f"{event.revision}"
                )
                raise Broken(
                    "no-lost-endpoint",
                    pod,
                    f"{name} lost the ready {address_type} endpoint of Pod {pod} by {text}",
                )
