"""Change tracking: which Services does the data plane have to look at again, and what are they now.

Events mark Services; nothing is computed until ``take_changes``.  So a thousand events of one Service between two
writes cost one computation (reference A3: computing per event was 80% of a proxy's CPU).

Owned by one caller (a family's data plane); not for several threads.
"""

from __future__ import annotations

from collections.abc import Iterator

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import LABEL_ZONE, EndpointSlice
from sliceplane.kit.ip import Family
from sliceplane.proxy.categorize import categorize
from sliceplane.proxy.model import PortState, ServiceChange, ServiceKey, ServicePort, Topology
from sliceplane.proxy.servicemap import service_ports
from sliceplane.proxy.slicecache import SliceCache


class ServiceTracker:
    """The model of one IP family on one node."""

    def __init__(self, family: Family, node_name: str) -> None:
        self.family: Family = family
        self._services: dict[ServiceKey, tuple[ServicePort, ...]] = {}
        self._slices = SliceCache(family, node_name)
        self._topology = Topology(node=node_name)
        self._changed: set[ServiceKey] = set()

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def pending(self) -> int:
        """How many Services ``take_changes`` would give."""
        return len(self._changed)

    def on_service(self, old: Service | None, new: Service | None) -> tuple[ServiceKey, ...]:
        """A Service came, changed or went; the Services that were marked.  A change of metadata alone marks none."""
        subject = new if new is not None else old
        assert subject is not None, "an event has an old or a new object"
        key = ServiceKey(subject.metadata.namespace, subject.metadata.name)
        ports = service_ports(new, self.family) if new is not None else ()
        if ports == self._services.get(key, ()):
            return ()
        if ports:
            self._services[key] = ports
        else:
            del self._services[key]
        self._changed.add(key)
        return (key,)

    def on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> tuple[ServiceKey, ...]:
        """A slice came, changed or went; the Services that were marked (slices of unknown Services mark none)."""
        subject = new if new is not None else old
        assert subject is not None, "an event has an old or a new object"
        marked = tuple(key for key in self._slices.on_slice(subject.metadata.key, new) if key in self._services)
        self._changed.update(marked)
        return marked

    def on_node(self, node: Node | None) -> tuple[ServiceKey, ...]:
        """This node changed.  Only its zone matters; a change of it marks every Service with slices.

        A deleted node (``None``) keeps the zone that it had: pods may still run on it, and a changed set of
        endpoints would be the worst answer to a mistake (reference A4).
        """
        if node is None:
            return ()
        zone = (node.metadata.labels or {}).get(LABEL_ZONE, "")
        if zone == self._topology.zone:
            return ()
        self._topology = Topology(node=self._topology.node, zone=zone)
        marked = tuple(key for key in self._slices.services() if key in self._services)
        self._changed.update(marked)
        return marked

    def take_changes(self) -> Iterator[ServiceChange]:
        """The newest state of every marked Service, sorted by key; the marks are taken off at once.

        States are computed while iterating, so that a first sync never holds them all; finish before the next event.
        """
        taken = sorted(self._changed)
        self._changed = set()
        return (ServiceChange(key, self.state(key)) for key in taken)

    def state(self, key: ServiceKey) -> tuple[PortState, ...]:
        """What *key* is now, one entry per service port.  O(the Service)."""
        ports = self._services.get(key)
        if ports is None:
            return ()
        endpoints = self._slices.endpoints(key)
        return tuple(PortState(port, categorize(endpoints.get(port.name, ()), port, self._topology)) for port in ports)

    def services(self) -> tuple[ServiceKey, ...]:
        """Every Service that this family serves, sorted.  O(Services)."""
        return tuple(sorted(self._services))

    def check(self) -> None:
        """Every invariant.  O(state)."""
        self._slices.check()
        for key, ports in self._services.items():
            assert ports, f"{key} is kept without ports"
            assert all(port.name.service == key for port in ports), f"{key} holds ports of others: {ports}"
