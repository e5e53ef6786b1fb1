"""A world for ``MeasuredZonesController``: nodes that count connections, a Service with endpoints,
and what the greatest load of an endpoint is. Virtual time; the controller is the production one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from math import sqrt
from random import Random
from typing import Any

from tests.slices.fake_cluster import make_node

from sliceplane.api.codec import decode, decode_document, encode
from sliceplane.api.core import Lease, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import EndpointSlices, Leases, Nodes, Resource, Services
from sliceplane.consume.demand import MEASURED, write_demand
from sliceplane.consume.progress import ANNOTATION_DEMAND, LEASE_PREFIX
from sliceplane.controllers.measured.controller import CONDITION, MeasuredZonesController
from sliceplane.controllers.measured.decision import HintInputs
from sliceplane.slices.heuristics.measured import ANNOTATION_SHARES
from sliceplane.slices.heuristics.sharing import Cost, cost_of
from sliceplane.slices.heuristics.types import ServiceView, ZoneView
from sliceplane.slices.hinting.topology import ZoneShares
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Write

UID = "3f9a12c0-0000-0000-0000-000000000000"
STEP_S = 10.0
#: endpoints by zone, and shares of the demand
TWELVE = {"a": 12, "b": 12, "c": 12}
EVEN = {"a": 34.0, "b": 33.0, "c": 33.0}
SKEWED = {"a": 80.0, "b": 15.0, "c": 5.0}
PLAIN = ServiceView(namespace="shop", name="web")


def poisson(rng: Random, mean: float) -> int:
    """A number of independent events; beyond 50, the normal distribution is as good."""
    if mean > 50:
        return max(0, round(rng.gauss(mean, sqrt(mean))))
    total, events = rng.expovariate(1.0), 0
    while total < mean:
        total, events = total + rng.expovariate(1.0), events + 1
    return events


class MeasuredWorld:
    """Zones with two nodes each, which report every ten seconds, one after the other."""

    def __init__(
        self,
        endpoints: Mapping[str, int],
        annotations: Mapping[str, str] | None = None,
        *,
        seed: int = 1,
        nodes: int = 2,
        **spec: Any,
    ) -> None:
        self.rng = Random(seed)
        self.now = 1_000_000.0
        self.endpoints = dict(endpoints)
        self.nodes = nodes
        self.versions = count(1)
        self.objects: dict[tuple[str, str], Object] = {}
        self.totals: dict[str, int] = {}
        self.silent: set[str] = set()
        #: times at which the shares, or the condition, were written
        self.writes: list[float] = []
        self.status_writes: list[float] = []
        self.notes: list[str] = []
        self.service: dict[str, Any] = {
            "metadata": {
                "name": "web",
                "namespace": "shop",
                "uid": UID,
                "annotations": dict(annotations or {}),
            },
            "spec": {"selector": {"app": "web"}, "trafficDistribution": MEASURED, **spec},
            "status": {},
        }
        self.start()

    def start(self) -> None:
        """Starts the controller, or another one after it."""
        self.controller = MeasuredZonesController()
        for resource in (Nodes, Leases, EndpointSlices, Services):
            for key, each in self.objects.items():
                if key[0] == resource.key:
                    self.controller.on_change(Change(resource.key, None, each), self.now)
        if not self.objects:
            for zone in self.endpoints:
                self.zone(zone)
            self.put_slice()
            self.put_service()
        self.controller.on_synced(self.now)

    def zone(self, zone: str) -> None:
        for number in range(self.nodes):
            self.put(Nodes, make_node(f"{zone}-{number}", zone))

    def put(self, resource: Resource, new: Object | None, name: str = "") -> None:
        name = new.metadata.name if new is not None else name
        old = self.objects.pop((resource.key, name), None)
        if new is not None:
            self.objects[resource.key, name] = new
        if old is not None or new is not None:
            self.controller.on_change(Change(resource.key, old, new), self.now)

    def put_slice(self) -> None:
        endpoints = [
            {"addresses": ["10.0.0.1"], "conditions": {"ready": True}, "zone": zone}
            for zone, number in self.endpoints.items()
            for _ in range(number)
        ]
        labels = {
            "kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        }
        document = {
            "metadata": {"name": "web-1", "namespace": "shop", "labels": labels},
            "addressType": "IPv4",
            "endpoints": endpoints,
        }
        self.put(EndpointSlices, decode(encode(document), EndpointSlice))

    def put_service(self) -> bytes:
        self.service["metadata"]["resourceVersion"] = str(next(self.versions))
        body = encode(self.service)
        self.put(Services, decode(body, Service))
        return body

    def annotate(self, name: str, value: str | None) -> None:
        self.service["metadata"]["annotations"][name] = value
        if value is None:
            del self.service["metadata"]["annotations"][name]
        self.put_service()

    def report(self, node: str, text: str | None = None) -> None:
        """Renews the Lease of *node*."""
        demand = write_demand({UID[:8]: self.totals[node]}) if text is None else text
        meta = ObjectMeta(
            name=f"{LEASE_PREFIX}{node}",
            namespace="kube-node-lease",
            annotations={ANNOTATION_DEMAND: demand},
        )
        self.put(Leases, Lease(metadata=meta))

    def report_requests(self, key: str, text: str) -> None:
        """Renews the Lease *key*, of an xDS server or a view."""
        namespace, _, name = key.partition("/")
        meta = ObjectMeta(name=name, namespace=namespace, annotations={ANNOTATION_DEMAND: text})
        self.put(Leases, Lease(metadata=meta))

    def run(self, seconds: float, demand: Mapping[str, float]) -> None:
        """Connections per second by zone, for *seconds*."""
        nodes = [(zone, f"{zone}-{n}") for zone in self.endpoints for n in range(self.nodes)]
        for _ in range(round(seconds / STEP_S)):
            for zone, node in nodes:
                self.now += STEP_S / len(nodes)
                if node not in self.silent:
                    mean = demand.get(zone, 0.0) / self.nodes * STEP_S
                    self.totals[node] = self.totals.get(node, 0) + poisson(self.rng, mean)
                    self.report(node)
            self.work()

    def work(self) -> None:
        while jobs := self.take():
            for job in jobs:
                answers = tuple(map(self.perform, job.writes))
                self.controller.on_done(Done(job, answers), self.now)

    def take(self) -> tuple[Any, ...]:
        work = self.controller.take_work(self.now, 10)
        self.notes += [f"{note.reason}: {note.note}" for note in work.notes]
        return work.jobs

    def perform(self, write: Write) -> bytes:
        assert (write.verb, write.resource, write.name) == ("patch", Services, "web")
        change = decode_document(write.body)
        assert change["metadata"].pop("uid") == UID
        if write.subresource:
            self.status_writes.append(self.now)
            conditions = {each["type"]: each for each in change["status"]["conditions"]}
            gone = [name for name, each in conditions.items() if "$patch" in each]
            kept = {each["type"]: each for each in self.service["status"].get("conditions", [])}
            self.service["status"] = {
                "conditions": [v for k, v in (kept | conditions).items() if k not in gone]
            }
            return self.put_service()
        self.writes.append(self.now)
        ((name, value),) = change["metadata"]["annotations"].items()
        assert name == ANNOTATION_SHARES
        self.annotate(name, value)
        return encode(self.service)

    # -- what can be seen

    @property
    def shares(self) -> str:
        return str(self.service["metadata"]["annotations"].get(ANNOTATION_SHARES, ""))

    @property
    def condition(self) -> tuple[str, str]:
        for each in self.service["status"].get("conditions", []):
            if each["type"] == CONDITION:
                return each["status"], each["reason"]
        return "", ""

    @property
    def views(self) -> tuple[ZoneView, ...]:
        zones: ZoneShares = self.controller._zones
        return zones.views

    def cost(self, demand: Mapping[str, float], shares: str | None = None) -> Cost:
        """The cost of the hints in effect for *demand*."""
        view = ServiceView(
            namespace="shop", name="web", annotations=self.service["metadata"]["annotations"]
        )
        whole = sum(demand.values())
        parts = {zone: demand.get(zone, 0.0) / whole for zone in self.endpoints}
        inputs = HintInputs(view, {z: n for z, n in self.endpoints.items() if n}, self.views)
        return inputs.cost(self.shares if shares is None else shares, parts)

    def least_crossing(self, demand: Mapping[str, float], overload: float = 0.2) -> float:
        """The linear programme's optimum: what zones cannot carry themselves within the bound."""
        whole, total = sum(demand.values()), sum(self.endpoints.values())
        return sum(
            max(0.0, demand.get(zone, 0.0) / whole - (1 + overload) * count / total)
            for zone, count in self.endpoints.items()
        )

    def same_zone(self, demand: Mapping[str, float]) -> Cost:
        """The cost of PreferSameZone."""
        whole, total = sum(demand.values()), sum(self.endpoints.values())
        placement = {zone: {(zone,): number} for zone, number in self.endpoints.items() if number}
        return cost_of(
            placement, {zone: demand.get(zone, 0) / whole * total for zone in self.endpoints}
        )
