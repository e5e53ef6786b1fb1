"""Any history of Pods, Services, foreign edits, lagging watches, failed writes and restarts
converges to what a plain recomputation says.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.controllers.converging import ConvergingController
from tests.controllers.endpoints_plane import custom
from tests.effort import machine
from tests.slices.fake_cluster import make_pod, make_service, replace

from sliceplane.api.core import Endpoints, Pod, Service, ServicePort
from sliceplane.api.discovery import LABEL_ENDPOINTS_MANAGED_BY, LABEL_SKIP_MIRROR
from sliceplane.api.scheme import EndpointsObjects, Pods, Services
from sliceplane.controllers.endpoints import EndpointsController
from sliceplane.kit.ip import family, parse_lenient

NUMERIC = (ServicePort(name="http", port=80, target_port=8080),)
NAMED = (
    ServicePort(name="http", port=80, target_port="http"),
    ServicePort(name="x", port=81, target_port=9000),
)

pods = st.fixed_dictionaries(
    {
        "labels": st.sampled_from(({"app": "web"}, {"app": "web", "tier": "a"}, {"app": "db"}, {})),
        "node": st.sampled_from(("n0", "")),
        "ready": st.booleans(),
        "terminating": st.booleans(),
        "phase": st.sampled_from(("Running", "Running", "Running", "Failed")),
        "port": st.sampled_from((8080, 9090)),
        "uid": st.sampled_from(("u1", "u2")),
        "hostname": st.sampled_from(("", "", "h")),
        "subdomain": st.just("web"),
    }
)
services = st.fixed_dictionaries(
    {
        "selector": st.sampled_from(
            ({"app": "web"}, {"app": "web"}, {"app": "web", "tier": "a"}, {"app": "db"}, None)
        ),
        "type": st.sampled_from(("ClusterIP", "ClusterIP", "ClusterIP", "ExternalName")),
        "cluster_ip": st.sampled_from(("10.96.0.1", "None")),
        "ip_families": st.sampled_from((("IPv4",), ("IPv4", "IPv6"), ("IPv6",), None)),
        "ports": st.sampled_from((NUMERIC, NAMED, ())),
        "publish_not_ready_addresses": st.booleans(),
        "labels": st.sampled_from(
            (None, {"team": "a"}, {"service.kubernetes.io/headless": "user"})
        ),
        "uid": st.sampled_from(("u1", "u1", "u2")),
    }
)
Meaning = dict[tuple[object, ...], dict[tuple[str, str], tuple[object, ...]]]


def desired(service: Service, all_pods: list[Pod]) -> Meaning:
    """Port by port: which addresses, and what is said of each.  As ``pkg/controller/endpoint`` has
    it upstream.
    """
    found: Meaning = {}
    spec = service.spec
    for pod in all_pods:
        if any((pod.metadata.labels or {}).get(k) != v for k, v in (spec.selector or {}).items()):
            continue
        if pod.status.phase in ("Failed", "Succeeded") or not (
            pod.status.pod_ip or pod.status.pod_ips
        ):
            continue
        if pod.metadata.deletion_timestamp and not spec.publish_not_ready_addresses:
            continue
        wanted = spec.ip_families[0] if spec.ip_families else None
        for text in (spec.cluster_ip, pod.status.pod_ip):
            parsed = parse_lenient(text)
            wanted = wanted or (parsed and family(parsed)) or None
        ips = [
            str(parsed) for each in pod.status.pod_ips or () if (parsed := parse_lenient(each.ip))
        ]
        ips = [ip for ip in ips if family(parse_lenient(ip)) == wanted]  # type: ignore[arg-type]  # they parse
        if not ips:
            continue
        is_ready = any(
            c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ()
        )
        ready = spec.publish_not_ready_addresses or is_ready
        host = pod.spec.hostname if pod.spec.subdomain == service.metadata.name else ""
        said = (ready, host, pod.spec.node_name or None, pod.metadata.name)
        for port in _ports(service, pod):
            found.setdefault(port, {})[ips[0], pod.metadata.uid] = said
    return found


def _ports(service: Service, pod: Pod) -> list[tuple[object, ...]]:
    if not service.spec.ports:
        return [("all",)] if service.spec.cluster_ip == "None" else []
    named = {
        (p.name, p.protocol): p.container_port
        for c in pod.spec.containers or ()
        for p in c.ports or ()
    }
    found = []
    for port in service.spec.ports:
        target = port.target_port
        number = named.get((target, port.protocol)) if isinstance(target, str) else target
        if number is not None:
            found.append((port.name, port.protocol, number))
    return found


def shown(endpoints: Endpoints) -> Meaning:
    found: Meaning = {}
    for subset in endpoints.subsets or ():
        for port in subset.ports or (None,):
            key: tuple[object, ...] = (
                ("all",) if port is None else (port.name, port.protocol, port.port)
            )
            assert key not in found, f"{key} is in two subsets"
            found[key] = {}
            for ready, side in ((True, subset.addresses), (False, subset.not_ready_addresses)):
                for each in side or ():
                    assert each.target_ref is not None, f"{each} has no target"
                    said = (ready, each.hostname, each.node_name, each.target_ref.name)
                    found[key][each.ip, each.target_ref.uid] = said
    return found


class Plane(ConvergingController):
    controller: EndpointsController
    sync_s = 2.0
    last_write = 0

    def __init__(self) -> None:
        super().__init__()
        self.cluster.put(make_service())
        self.cluster.put(make_service("theirs", selector=None))
        self.theirs = self.cluster.put(custom("theirs"))
        for which in range(4):
            self.cluster.put(make_pod(f"p-{which}"))
        self.begin()

    def make(self) -> EndpointsController:
        return EndpointsController()

    # -- the world

    @rule(which=st.integers(0, 8), over=pods, ip=st.integers(0, 1), six=st.booleans())
    def pod(self, which: int, over: dict[str, Any], ip: int, six: bool) -> None:
        addresses = (f"10.0.{ip}.{which}", *([f"fd00::{ip}:{which}"] if six else []))
        self.cluster.put(make_pod(f"p-{which}", ips=addresses, **over))

    @rule(which=st.integers(0, 8))
    def pod_goes(self, which: int) -> None:
        self.cluster.remove(Pods, "shop", f"p-{which}")

    @rule(name=st.sampled_from(("web", "api")), over=services)
    def service(self, name: str, over: dict[str, Any]) -> None:
        self.cluster.put(make_service(name, **over))

    @rule(name=st.sampled_from(("web", "api")))
    def service_goes(self, name: str) -> None:
        self.cluster.remove(Services, "shop", name)

    @rule(
        name=st.sampled_from(("web", "api")),
        how=st.sampled_from(("delete", "empty", "label", "annotate", "put")),
    )
    def edit(self, name: str, how: str) -> None:
        found = self.cluster.objects.get((EndpointsObjects.key, "shop", name))
        if not isinstance(found, Endpoints):
            if how == "put" and (Services.key, "shop", name) in self.cluster.objects:
                self.cluster.put(custom(name))
            return
        match how:
            case "delete":
                self.cluster.remove(EndpointsObjects, "shop", name)
            case "empty":
                self.cluster.put(replace(found, subsets=None))
            case "label":
                labels = {**(found.metadata.labels or {}), "odd": "1"}
                self.cluster.put(replace(found, metadata=replace(found.metadata, labels=labels)))
            case "annotate":
                self.cluster.put(
                    replace(found, metadata=replace(found.metadata, annotations={"note": "1"}))
                )

    # -- at rest

    def teardown(self) -> None:
        self.settle()
        objects = self.cluster.objects
        all_pods = [each for each in objects.values() if isinstance(each, Pod)]
        for name in ("web", "api"):
            service = objects.get((Services.key, "shop", name))
            found = objects.get((EndpointsObjects.key, "shop", name))
            ours = found is not None and LABEL_ENDPOINTS_MANAGED_BY in (found.metadata.labels or {})
            if not isinstance(service, Service):
                assert not ours, f"{name} has no Service and is ours"
            elif service.spec.selector and service.spec.type != "ExternalName":
                assert isinstance(found, Endpoints), f"{name} has no Endpoints"
                assert shown(found) == desired(service, all_pods)
                assert (found.metadata.labels or {})[LABEL_SKIP_MIRROR] == "true"
                assert "odd" not in (found.metadata.labels or {})
            else:
                assert not ours, f"{name} has no selector and was not handed over"
        assert objects[EndpointsObjects.key, "shop", "theirs"] == self.theirs
        # a restart with everything in place writes nothing but the end of strays
        self.begin()
        before = len(self.cluster.writes)
        self.now, _ = self.cluster.settle(self.controller, self.now)
        assert [
            write.verb for write in self.cluster.writes[before:] if write.verb != "delete"
        ] == []


TestPlane = Plane.TestCase
TestPlane.settings = machine(120)
