"""One query, from the objects to the answer.

The caller (``diagnose.io.tracing``) passes the lists that are cheap, then reads the slices of
``pending_services`` until none is left. That takes at most two rounds: the Services that claim the
packet's destination; then those that claim an address of one of their endpoints, since a packet
that was translated to an endpoint still passes the checks for Services without endpoints. Nothing
is translated twice, so no other Service can affect the packet.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sliceplane.api.discovery import LABEL_FOR_REGION, LABEL_FOR_ZONE, LABEL_HEADLESS, EndpointSlice
from sliceplane.api.gates import Gates
from sliceplane.api.selectors import parse_labels
from sliceplane.consume.model import API_SERVICE, ServiceKey, canonical_of
from sliceplane.consume.selections import common_selector, own_selectors, reads_slices
from sliceplane.diagnose.trace.cluster import TracedCluster
from sliceplane.diagnose.trace.question import Question
from sliceplane.diagnose.trace.route import Flight, resolve
from sliceplane.node.context import RulesConfig
from sliceplane.node.nft.objects import contents_of
from sliceplane.node.nft.table import nft_plane
from sliceplane.node.nft.trace import Trail, trails
from sliceplane.node.plane import NodePlaneConfig


class TracedProxy(msgspec.Struct, frozen=True):
    """The settings of the node proxy that its rules depend on."""

    rules: RulesConfig = msgspec.field(default_factory=RulesConfig)
    gates: Gates = msgspec.field(default_factory=Gates)


class Inquiry:
    """One query; see the module. Call ``pending_services`` and ``on_slices`` until no Service is
    pending, then ``run``.
    """

    def __init__(self, question: Question, cluster: TracedCluster, settings: TracedProxy) -> None:
        """Raises ``question.Unanswerable``."""
        self.cluster = cluster
        self.settings = settings
        self.flight: Flight = resolve(question, cluster)
        packet = self.flight.packet
        self._first = cluster.claimants(self.flight.family, [(packet.daddr, packet.dport)])
        if API_SERVICE in cluster.by_key and self._is_claimed(packet.daddr):
            self._first |= {API_SERVICE}  # no Service may claim its endpoints' addresses
        self._slices: dict[ServiceKey, tuple[EndpointSlice, ...]] = {}

    def _is_claimed(self, ip: str) -> bool:
        """Returns True if a Service claims *ip* for clients outside."""
        family = self.flight.family
        return any(
            ip in (*port.external_ips, *port.vips)
            for key in self._first
            for port in self.cluster.ports(key, family)
        )

    def pending_services(self) -> tuple[ServiceKey, ...]:
        """Returns the Services whose slices must be read next, sorted; empty: ``run`` may be
        called.
        """
        missing = self._first - self._slices.keys()
        if not missing:
            behind = self.cluster.claimants(self.flight.family, self._endpoints())
            missing = behind - self._slices.keys()
        return tuple(sorted(missing))

    def _endpoints(self) -> Iterable[tuple[str, int]]:
        for key in sorted(self._first):
            for endpoint_slice in self._slices[key]:
                ports = [port.port or 0 for port in endpoint_slice.ports or ()]
                for endpoint in endpoint_slice.endpoints or ():
                    ip = (
                        canonical_of(endpoint.addresses[0], self.flight.family)
                        if endpoint.addresses
                        else None
                    )
                    if ip is not None:
                        yield from ((ip, port) for port in ports)

    def on_slices(self, key: ServiceKey, slices: Iterable[EndpointSlice]) -> None:
        """Takes all slices that are labelled for the Service *key*."""
        self._slices[key] = tuple(sorted(slices, key=lambda each: each.metadata.name))

    @property
    def services(self) -> tuple[ServiceKey, ...]:
        """Returns the Services that can affect the answer, sorted."""
        return tuple(sorted(self._slices))

    def slices(self, key: ServiceKey) -> tuple[EndpointSlice, ...]:
        """Returns the slices as they were read, sorted by name."""
        return self._slices.get(key, ())

    def why_unread(self, each: EndpointSlice) -> str:
        """Returns why the node's proxy does not read a slice (KEP-2030); "" if it does."""
        gates = self.settings.gates
        labels = each.metadata.labels or {}
        selectors = (common_selector(gates), *own_selectors(gates, self.flight.node))
        if not reads_slices(gates) or any(parse_labels(text).matches(labels) for text in selectors):
            return ""
        if LABEL_HEADLESS in labels:
            return f"label {LABEL_HEADLESS}"
        subsets = [
            f"{label}={labels[label]}"
            for label in (LABEL_FOR_ZONE, LABEL_FOR_REGION)
            if label in labels
        ]
        return f"for others: {', '.join(subsets)}"

    def run(self) -> Run:
        """Builds the node's table and sends the packet."""
        assert not self.pending_services(), f"slices of {self.pending_services()} were not read"
        return Run(self)


class Run:
    """The node's data plane with only the Services of the query, and all trails of the packet."""

    def __init__(self, inquiry: Inquiry) -> None:
        flight = inquiry.flight
        name = flight.node.metadata.name
        self.plane = nft_plane(
            flight.family, NodePlaneConfig(node_name=name, rules=inquiry.settings.rules)
        )
        for node in inquiry.cluster.nodes:
            self.plane.on_any_node(node.metadata.name, node, 0.0)
        self.plane.on_node(flight.node, 0.0)
        self.plane.on_interfaces(tuple(sorted(flight.own)), 0.0)
        for service_cidr in inquiry.cluster.service_cidrs:
            self.plane.on_service_cidr(service_cidr.metadata.name, service_cidr, 0.0)
        for key in inquiry.services:
            self.plane.on_service(None, inquiry.cluster.by_key[key], 0.0)
            for endpoint_slice in inquiry.slices(key):
                if not inquiry.why_unread(endpoint_slice):
                    self.plane.on_slice(None, endpoint_slice, 0.0)
        self.plane.on_synced(0.0)
        transaction = self.plane.take_transaction(0.0)
        assert transaction is not None, "a first transaction is never empty"
        self.plane.on_success(0.0)
        self.table = contents_of(transaction)
        self.trails: tuple[Trail, ...] = trails(self.table, flight.packet, flight.path, flight.own)
