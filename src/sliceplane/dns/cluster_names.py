"""The objects of a cluster that names lead to, kept by their changes; ``dns.view`` answers from
them.

``apply`` costs what changed. Owned by one ``dns.view``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from sliceplane.api.core import Namespace, Node, Pod, Service
from sliceplane.api.discovery import ANNOTATION_TRIGGER_TIME, LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.dns.locations import ClientLocations
from sliceplane.dns.pods import PodNames, PodsByAddress
from sliceplane.dns.reverse import Reverse
from sliceplane.dns.service import NamedService
from sliceplane.dns.wire import LABEL_MAX, labels_of, name_of
from sliceplane.kit.containers import adjust_count
from sliceplane.kit.ip import Network
from sliceplane.kit.metrics import Metrics, exponential_buckets
from sliceplane.kit.times import parse_time
from sliceplane.watch.cache import Change

TTL_S: Final = 5
#: as upstream has them for this indicator of sig-scalability
_PROGRAMMING_BUCKETS: Final = exponential_buckets(0.001, 2, 20)


class ZoneConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``domains``: names of zones, each with the whole cluster. ``addresses``: the server's, for
    ``ns.dns``. ``namespaces``: all if empty. ``reverse_cidrs``: names of their addresses are ours,
    even if no object has them. ``own_node``: the Node of all clients of a node's own server.
    """

    domains: tuple[str, ...] = ("cluster.local",)
    ttl_s: int = TTL_S
    pods: PodNames = "disabled"
    namespaces: tuple[str, ...] = ()
    reverse_cidrs: tuple[Network, ...] = ()
    addresses: tuple[str, ...] = ()
    zone_answers: bool = True
    client_zones: tuple[tuple[Network, str], ...] = ()
    own_node: str = ""


class ClusterNames:
    """Services with their slices, Pods, Namespaces and Nodes, as far as they have names."""

    def __init__(self, config: ZoneConfig) -> None:
        self.config: Final = config
        self.zones: Final = tuple(name_of(domain).lower() for domain in config.domains)
        self._zone_labels: Final = tuple((zone, labels_of(zone)) for zone in self.zones)
        self.reverse: Final = Reverse(config.reverse_cidrs)
        self.locations: Final = ClientLocations(config.client_zones, self.reverse.locality_of)
        self._services: dict[bytes, NamedService] = {}
        self._pods: Final = PodsByAddress()
        self._namespaces: dict[str, bool] = {}
        self._services_in: dict[str, int] = {}
        #: of the SOA: seconds since the epoch of the last change
        self.serial = 0
        self.metrics = Metrics()
        self._programmed = self.metrics.histograms(
            "coredns_kubernetes_dns_programming_duration_seconds",
            "From the change of a Pod or Service until its name leads there.",
            _PROGRAMMING_BUCKETS,
            "service_kind",
        )
        self.metrics.computed(
            "gauge", "sliceplane_dns_records", "Names by kind.", self._counts, "kind"
        )

    # -- changes

    def apply(self, changes: Iterable[Change[Object]], now: float) -> set[NamedService]:
        """Applies all *changes* at once and returns the Services concerned."""
        touched: set[NamedService] = set()
        for change in changes:
            self.serial = int(now)
            subject = change.object
            match subject:
                case Service():
                    touched |= self._on_service(subject, present=change.new is not None)
                case EndpointSlice():
                    touched |= self._on_slice(change, now)
                case Pod():
                    self._pods.on_pod(*change.typed(Pod))
                case Namespace():
                    self._namespaces.pop(subject.metadata.name, None)
                    if change.new is not None:
                        self._namespaces[subject.metadata.name] = True
                case Node():
                    self.locations.on_node(
                        subject.metadata.name, None if change.new is None else subject
                    )
                case _:
                    raise AssertionError(f"no names come of {change.resource}")
        for named in touched:
            if named.is_empty:
                self._services.pop(named.relative, None)
        return touched

    def _on_service(self, service: Service, *, present: bool) -> set[NamedService]:
        named = self._named(service.metadata.namespace, service.metadata.name)
        if named is None:
            return set()
        self.reverse.on_cluster_addresses(named, present=False)
        was = named.service is not None
        named.on_service(service if present else None)
        self.reverse.on_cluster_addresses(named, present=True)
        adjust_count(self._services_in, named.namespace, present - was)
        return {named}

    def _on_slice(self, change: Change[Object], now: float) -> set[NamedService]:
        old, new = change.typed(EndpointSlice)
        key = change.object.metadata.key
        touched: set[NamedService] = set()
        before = None if old is None else self._service_of(old)
        after = None if new is None else self._service_of(new)
        if before is not None and before is not after:
            self.reverse.on_hosts(before, before.on_slice(key, None))
            touched.add(before)
        if after is not None and new is not None:
            changes = after.on_slice(key, new)
            self.reverse.on_hosts(after, changes)
            touched.add(after)
            if changes and old is not None:
                self._observe(after, new, now)
        return touched

    def _observe(self, named: NamedService, new: EndpointSlice, now: float) -> None:
        triggered = (new.metadata.annotations or {}).get(ANNOTATION_TRIGGER_TIME, "")
        if triggered and named.kind == "headless" and named.service is not None:
            kind = (
                "headless_with_selector"
                if named.service.spec.selector
                else "headless_without_selector"
            )
            try:
                self._programmed.of(kind).observe(max(0.0, now - parse_time(triggered)))
            except ValueError:
                return

    def _service_of(self, subject: EndpointSlice) -> NamedService | None:
        name = (subject.metadata.labels or {}).get(LABEL_SERVICE_NAME, "")
        return self._named(subject.metadata.namespace, name) if name else None

    def _named(self, namespace: str, name: str) -> NamedService | None:
        """Returns ``None`` if it can have no name of ours."""
        if self.config.namespaces and namespace not in self.config.namespaces:
            return None
        if not (0 < len(name.encode()) <= LABEL_MAX and 0 < len(namespace.encode()) <= LABEL_MAX):
            return None
        named = NamedService(namespace, name)
        return self._services.setdefault(named.relative, named)

    def _counts(self) -> list[tuple[tuple[str], float]]:
        services = [named for named in self._services.values() if named.exists]
        hosts = sum(len(named.hosts) for named in services)
        return [(("host",), hosts), (("service",), len(services))]

    def service(self, namespace: str, name: str) -> Service | None:
        named = self._services.get(NamedService(namespace, name).relative)
        return None if named is None else named.service

    def has_namespace(self, name: str) -> bool:
        return name in self._namespaces or name in self._services_in
