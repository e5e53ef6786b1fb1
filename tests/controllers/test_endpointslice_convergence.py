"""Any history of pods, services, nodes, foreign edits, lagging watches, failed writes and restarts
converges.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from tests.controllers.converging import ConvergingController
from tests.effort import machine
from tests.slices.fake_cluster import make_node, make_pod, make_service, replace
from tests.slices.heuristics import find
from tests.slices.packing_from_nothing import baseline_writes

from sliceplane.api.core import Node, Pod, Service, ServicePort
from sliceplane.api.discovery import (
    LABEL_MANAGED_BY,
    LABEL_REGION,
    LABEL_SERVICE_NAME,
    MANAGED_BY_CONTROLLER,
    EndpointHints,
    EndpointSlice,
    ForZone,
)
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import EndpointSlices, Nodes, Pods, Services
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.slices import oracle
from sliceplane.slices.heuristics.balanced import ANNOTATION_MAX_OVERLOAD
from sliceplane.slices.heuristics.spread_constraints import KEY_HOSTNAME, KEY_REGION, KEY_ZONE
from sliceplane.watch.controller.base import Job

MAX = 3
HEURISTICS = (
    "sliceplane.dev/Balanced",
    "sliceplane.dev/SpreadConstraints",
    "test.dev/TwoZones",
    "test.dev/NoThrees",
    "nobody.dev/None",
)
NUMERIC = (ServicePort(name="http", port=80, target_port=8080),)
NAMED = (
    ServicePort(name="http", port=80, target_port="http"),
    ServicePort(name="x", port=81, target_port="none"),
)

pods = st.fixed_dictionaries(
    {
        "labels": st.sampled_from(({"app": "web"}, {"app": "web", "tier": "a"}, {"app": "db"}, {})),
        "node": st.sampled_from(("n0", "n1", "n2", "")),
        "ready": st.booleans(),
        "terminating": st.booleans(),
        "phase": st.sampled_from(("Running", "Running", "Running", "Failed")),
        "port": st.sampled_from((8080, 9090)),
        "uid": st.sampled_from(("u1", "u2")),
        "hostname": st.sampled_from(("", "", "h")),
        "subdomain": st.just("web"),
        "spread": st.sampled_from(((), (KEY_ZONE,), (KEY_REGION,), (KEY_HOSTNAME,))),
    }
)
services = st.fixed_dictionaries(
    {
        "selector": st.sampled_from(
            ({"app": "web"}, {"app": "web"}, {"app": "web", "tier": "a"}, {"app": "db"}, None)
        ),
        "type": st.sampled_from(("ClusterIP", "ClusterIP", "ClusterIP", "ExternalName")),
        "cluster_ip": st.sampled_from(("10.96.0.1", "None")),
        "ip_families": st.sampled_from((("IPv4",), ("IPv4",), ("IPv4", "IPv6"), ("IPv6",), None)),
        "ports": st.sampled_from((NUMERIC, NUMERIC, NAMED, ())),
        "publish_not_ready_addresses": st.booleans(),
        "traffic_distribution": st.sampled_from(
            (None, "PreferClose", "PreferSameNode", *HEURISTICS)
        ),
        "labels": st.sampled_from(
            (None, {"team": "a"}, {"service.kubernetes.io/headless": "user"})
        ),
        "annotations": st.sampled_from(
            (
                None,
                None,
                {"service.kubernetes.io/topology-mode": "Auto"},
                {ANNOTATION_MAX_OVERLOAD: "100%"},
            )
        ),
        "uid": st.sampled_from(("u1", "u1", "u2")),
    }
)


class Plane(ConvergingController):
    controller: EndpointSliceController
    sync_s = 5.0
    #: of Services that ask for none; "": the feature is off
    subsetting = ""

    def __init__(self) -> None:
        super().__init__()
        self.foreign = self.cluster.put(
            EndpointSlice(
                metadata=ObjectMeta(
                    name="theirs",
                    namespace="shop",
                    uid="f",
                    labels={LABEL_SERVICE_NAME: "web", LABEL_MANAGED_BY: "me"},
                ),
                address_type="IPv4",
            )
        )
        for name, zone in (("n0", "a"), ("n1", "b")):
            self.cluster.put(make_node(name, zone))
        self.cluster.put(make_service())
        for which in range(5):
            self.cluster.put(make_pod(f"p-{which}", node=f"n{which % 2}"))
        self.begin()

    def make(self) -> EndpointSliceController:
        return EndpointSliceController(self.config())

    def config(self) -> EndpointSliceConfig:
        return EndpointSliceConfig(max_endpoints_per_slice=MAX, find_heuristic=find)

    # -- the world

    @rule(which=st.integers(0, 8), over=pods, ip=st.integers(0, 1), six=st.booleans())
    def pod(self, which: int, over: dict[str, Any], ip: int, six: bool) -> None:
        addresses = (f"10.0.{ip}.{which}", *([f"fd00::{ip}:{which}"] if six else []))
        self.cluster.put(make_pod(f"p-{which}", ips=addresses, **over))

    @rule(first=st.integers(0, 5), count=st.integers(2, 6))
    def many_ready_pods(self, first: int, count: int) -> None:
        for which in range(first, first + count):
            self.cluster.put(make_pod(f"p-{which}"))

    @rule(which=st.integers(0, 8))
    def pod_goes(self, which: int) -> None:
        self.cluster.remove(Pods, "shop", f"p-{which}")

    @rule(
        which=st.sampled_from(("n0", "n1", "n2")),
        zone=st.sampled_from(("", "a", "b", "c")),
        cpu=st.sampled_from(("4", "4", "1500m", "0")),
        ready=st.sampled_from((True, True, False)),
        region=st.sampled_from(("", "r1", "r2")),
    )
    def node(self, which: str, zone: str, cpu: str, ready: bool, region: str) -> None:
        labels = {LABEL_REGION: region} if region else {}
        self.cluster.put(make_node(which, zone, cpu=cpu, ready=ready, **labels))

    @rule()
    def zones_are_well(self) -> None:
        for name, zone in (("n0", "a"), ("n1", "b"), ("n2", "c")):
            self.cluster.put(make_node(name, zone))

    @rule(which=st.sampled_from(("n0", "n1", "n2")))
    def node_goes(self, which: str) -> None:
        self.cluster.remove(Nodes, "", which)

    @rule(name=st.sampled_from(("web", "api")), over=services)
    def service(self, name: str, over: dict[str, Any]) -> None:
        self.cluster.put(make_service(name, **over))

    @rule(name=st.sampled_from(("web", "api")), collect=st.booleans())
    def service_goes(self, name: str, collect: bool) -> None:
        self.cluster.remove(Services, "shop", name)
        if collect:
            for each in self.ours():
                if (each.metadata.labels or {}).get(LABEL_SERVICE_NAME) == name:
                    self.cluster.remove(EndpointSlices, "shop", each.metadata.name)

    # -- others who write slices

    def ours(self) -> list[EndpointSlice]:
        found = self.cluster.slices()
        return [
            s
            for s in found
            if (s.metadata.labels or {}).get(LABEL_MANAGED_BY) == MANAGED_BY_CONTROLLER
        ]

    @precondition(lambda self: self.ours())
    @rule(
        which=st.integers(0, 9),
        how=st.sampled_from(
            (
                "delete",
                "drop first",
                "double",
                "stray",
                "label",
                "annotate",
                "disown",
                "unready",
                "hint",
                "end",
                "leave",
            )
        ),
    )
    def edit(self, which: int, how: str) -> None:
        each = self.ours()[which % len(self.ours())]
        meta, endpoints = each.metadata, each.endpoints or ()
        match how:
            case "delete":
                self.cluster.remove(EndpointSlices, "shop", meta.name)
            case "drop first":
                self.cluster.put(replace(each, endpoints=endpoints[1:]))
            case "double":
                other = replace(meta, name=f"{meta.name}x", uid=f"{meta.uid}x")
                self.cluster.put(replace(each, metadata=other))
            case "stray":
                self.cluster.put(
                    replace(
                        each,
                        endpoints=(
                            *endpoints,
                            *(replace(e, target_ref=None) for e in endpoints[:1]),
                        ),
                    )
                )
            case "label":
                self.cluster.put(
                    replace(
                        each, metadata=replace(meta, labels={**(meta.labels or {}), "odd": "1"})
                    )
                )
            case "annotate":
                self.cluster.put(replace(each, metadata=replace(meta, annotations={"note": "1"})))
            case "disown":
                self.cluster.put(replace(each, metadata=replace(meta, owner_references=None)))
            case "unready":
                changed = tuple(replace(e, zone="odd") for e in endpoints)
                self.cluster.put(replace(each, endpoints=changed))
            case "hint":
                odd = EndpointHints(for_zones=(ForZone(name="a"),))
                self.cluster.put(
                    replace(each, endpoints=tuple(replace(e, hints=odd) for e in endpoints))
                )
            case "end":
                self.cluster.put(
                    replace(each, metadata=replace(meta, deletion_timestamp="2026-11-21T10:00:00Z"))
                )
                self.cluster.remove(EndpointSlices, "shop", meta.name)
            case "leave":
                self.cluster.put(
                    replace(each, metadata=replace(meta, labels={LABEL_SERVICE_NAME: "web"}))
                )
                self.cluster.remove(EndpointSlices, "shop", meta.name)

    def judge(self, job: Job) -> None:
        """Never more writes than packing everything anew would make over the same slices."""
        if self.cluster.pending:
            return  # the server has moved on; the same slices are not there to compare with
        believed = self.controller._engine._services[job.key].slices
        if not believed.keys() <= {each.metadata.name for each in self.cluster.slices()}:
            # own creates that others deleted while the watch was broken: no event tells
            # (UNSEEN_TIMEOUT_S)
            return
        service = self.cluster.objects["services", "shop", job.key.partition("/")[2]]
        assert isinstance(service, Service), f"{service!r}"
        if oracle.approach_of(service, self.subsetting) not in ("", "Original"):
            return
        slices = self.cluster.slices()
        baseline = baseline_writes(
            service, self.pods(), self.nodes(), slices, MAX, subsetting=self.subsetting
        )
        assert len(job.writes) <= baseline.total, (
            f"{len(job.writes)} writes, packing makes {baseline}"
        )
        creates = sum(write.verb == "create" for write in job.writes)
        assert creates <= baseline.creates, f"{creates} creates, packing makes {baseline}"

    # -- at rest

    def pods(self) -> list[Pod]:
        return [each for each in self.cluster.objects.values() if isinstance(each, Pod)]

    def nodes(self) -> dict[str, Node]:
        return {
            each.metadata.name: each
            for each in self.cluster.objects.values()
            if isinstance(each, Node)
        }

    def teardown(self) -> None:
        self.settle()
        for each in list(self.cluster.objects.values()):
            if isinstance(each, Service) and oracle.is_active(each):
                oracle.check_converged(
                    each,
                    self.pods(),
                    self.nodes(),
                    self.cluster.slices(),
                    MAX,
                    subsetting=self.subsetting,
                    find=find,
                )
        assert (
            self.cluster.objects["endpointslices.discovery.k8s.io", "shop", "theirs"]
            == self.foreign
        )
        # a restart with everything in place writes nothing
        self.begin()
        before = len(self.cluster.writes)
        self.now, _ = self.cluster.settle(self.controller, self.now)
        assert self.cluster.writes[before:] == [], "a restart wrote what was already so"


TestPlane = Plane.TestCase
TestPlane.settings = machine(100)
