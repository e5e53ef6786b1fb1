"""A selector comes and goes, a Service becomes a name and a Service again: three controllers over
the real registry.

After every write that anybody makes, whoever reads the Service's slices finds endpoints.
"""

from __future__ import annotations

from typing import Any

import pytest

from sliceplane.api.meta import Document
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Nodes, Pods, Services
from sliceplane.controllers.endpoints import EndpointsConfig, EndpointsController
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.controllers.endpointslice_mirroring import (
    EndpointSliceMirroringController,
    MirroringConfig,
)
from sliceplane.controllers.objects.garbage_collector import GarbageCollector
from sliceplane.controllers.service_syncs import FirstSync
from sliceplane.lab.sim.cluster import Cluster
from sliceplane.slices.succession import HAND_OVER_TIMEOUT_S, SelectorChanges
from sliceplane.watch.controller.base import Write

MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
NATIVE, MIRRORED = "endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"


class Watched(Cluster):
    """Notes, after every write, which addresses the Service has."""

    def __init__(
        self, changes: SelectorChanges = SelectorChanges.HAND_OVER, *, order: int = 0, seed: int = 1
    ) -> None:
        self.least: int | None = None
        first_sync = FirstSync()
        controllers = [
            EndpointSliceController(EndpointSliceConfig(selector_changes=changes)),
            EndpointsController(EndpointsConfig(selector_changes=changes), first_sync),
            EndpointSliceMirroringController(MirroringConfig(selector_changes=changes), first_sync),
        ]
        turned = controllers[order % 3 :] + controllers[: order % 3]
        super().__init__(*turned, GarbageCollector(), seed=seed)

    def execute(self, write: Write) -> bytes:
        answer = super().execute(write)
        if self.least is not None:
            self.least = min(self.least, len(self.addresses()))
        return answer

    def web(self) -> list[Document]:
        found = self.list(EndpointSlices)
        return [
            each
            for each in found
            if each["metadata"]["labels"].get("kubernetes.io/service-name") == "web"
        ]

    def addresses(self) -> set[str]:
        return {
            a
            for each in self.web()
            for endpoint in each["endpoints"]
            for a in endpoint["addresses"]
        }

    def managers(self) -> set[str]:
        return {each["metadata"]["labels"][MANAGED_BY] for each in self.web()}

    def service(self, **spec: Any) -> None:
        self.patch(Services, "web", {"spec": spec})


def begin(*args: Any, families: tuple[str, ...] = ("IPv4", "IPv6"), **kwargs: Any) -> Watched:
    cluster = Watched(*args, **kwargs)
    cluster.create(Nodes, {"metadata": {"name": "n1"}})
    spec = {
        "selector": {"app": "web"},
        "ports": [{"port": 80, "targetPort": 8080}],
        "ipFamilies": list(families),
    }
    policy = "RequireDualStack" if len(families) == 2 else "SingleStack"
    cluster.create(
        Services, {"metadata": {"name": "web"}, "spec": {**spec, "ipFamilyPolicy": policy}}
    )
    for number in range(3):
        container = {"name": "main", "image": "x"}
        pod = {
            "metadata": {"name": f"p-{number}", "labels": {"app": "web"}},
            "spec": {"nodeName": "n1"},
        }
        pod["spec"]["containers"] = [container]  # type: ignore[index]  # a Pod
        cluster.create(Pods, pod)
        ips = [{"ip": f"10.0.0.{number + 1}"}, {"ip": f"fd00::{number + 1}"}]
        status = {"phase": "Running", "podIP": ips[0]["ip"], "podIPs": ips}
        status["conditions"] = [{"type": "Ready", "status": "True"}]
        cluster.patch(Pods, f"p-{number}", {"status": status}, subresource="status")
    cluster.converge()
    assert len(cluster.addresses()) == 3 * len(families)
    assert cluster.managers() == {NATIVE}
    return cluster


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("seed", [1, 2])
def test_kubernetes_103804_a_selector_goes_and_comes_and_traffic_has_somewhere_to_go(
    order: int, seed: int
) -> None:
    """kubernetes/kubernetes#103804, #105987: and no foreign slice is left behind."""
    cluster = begin(order=order, seed=seed, families=("IPv4",))
    cluster.least = len(cluster.addresses())
    for _ in range(2):
        cluster.service(selector=None)
        cluster.converge(limit_s=5)
        assert cluster.managers() == {MIRRORED}
        assert len(cluster.addresses()) == 3
        cluster.service(selector={"app": "web"})
        cluster.converge(limit_s=5)
        assert cluster.managers() == {NATIVE}
        cluster.check()
    assert cluster.least == 3
    cluster.converge()
    revision = cluster.store.revision
    cluster.converge(limit_s=3600)
    assert cluster.store.revision == revision, "at rest nothing is written"


def test_second_family_has_no_mirror_and_goes_after_a_while() -> None:
    """Endpoints hold one family alone, so nobody takes over the other one's slices."""
    cluster = begin()
    cluster.least = len(cluster.addresses())
    cluster.service(selector=None)
    cluster.converge(limit_s=HAND_OVER_TIMEOUT_S - 5)
    assert {each["addressType"] for each in cluster.web()} == {"IPv4", "IPv6"}
    cluster.converge()
    assert [each["addressType"] for each in cluster.web()] == ["IPv4"]
    assert cluster.managers() == {MIRRORED}


def test_user_takes_over_and_gives_back() -> None:
    cluster = begin(families=("IPv4",))
    cluster.service(selector=None)
    cluster.converge()
    own = {"subsets": [{"addresses": [{"ip": "192.0.2.7"}], "ports": [{"port": 8080}]}]}
    cluster.patch(EndpointsObjects, "web", own)
    cluster.converge()
    assert cluster.addresses() == {"192.0.2.7"}
    cluster.delete(EndpointsObjects, "web")
    cluster.converge()
    assert cluster.web() == []
    cluster.service(selector={"app": "web"})
    cluster.converge()
    assert cluster.addresses() == {"10.0.0.1", "10.0.0.2", "10.0.0.3"}
    assert cluster.managers() == {NATIVE}


def test_kubernetes_103804_external_name_and_back_leaves_nothing_behind() -> None:
    """kubernetes/kubernetes#103804, #125354."""
    cluster = begin(families=("IPv4",))
    for _ in range(2):
        none = dict.fromkeys(("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"))
        cluster.service(type="ExternalName", externalName="example.org", **none)
        cluster.converge()
        assert cluster.web() == []
        assert [each["metadata"]["name"] for each in cluster.list(EndpointsObjects)] == []
        cluster.service(type="ClusterIP", externalName=None)
        cluster.converge()
        assert cluster.addresses() == {"10.0.0.1", "10.0.0.2", "10.0.0.3"}
        assert cluster.managers() == {NATIVE}


def test_custom_endpoints_of_a_service_that_gets_a_selector() -> None:
    cluster = Watched()
    cluster.create(Nodes, {"metadata": {"name": "n1"}})
    cluster.create(Services, {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}})
    own = {
        "metadata": {"name": "web"},
        "subsets": [{"addresses": [{"ip": "192.0.2.7"}], "ports": [{"port": 80}]}],
    }
    cluster.create(EndpointsObjects, own)
    cluster.converge()
    assert cluster.addresses() == {"192.0.2.7"}
    cluster.service(selector={"app": "web"})
    cluster.converge()
    assert cluster.addresses() == set(), (
        "no Pod is selected: the Service has no endpoints, and says so"
    )
    assert cluster.managers() == {NATIVE}
    cluster.delete(Services, "web")
    cluster.converge()
    assert (cluster.web(), cluster.list(EndpointsObjects)) == ([], [])


def test_upstreams_way() -> None:
    """What users were bitten by, kept for who relies on it."""
    cluster = begin(SelectorChanges.UPSTREAM, families=("IPv4",))
    cluster.service(selector=None)
    cluster.converge()
    assert cluster.managers() == {NATIVE, MIRRORED}
    cluster.service(selector={"app": "web"})
    cluster.converge()
    assert cluster.managers() == {NATIVE}


def test_everything_restarts_in_the_middle() -> None:
    for cut in range(8):
        cluster = begin(families=("IPv4",))
        cluster.least = 3
        cluster.service(selector=None)
        for _ in range(cut):
            cluster._work()
        first_sync = FirstSync()
        cluster.replace(
            EndpointSliceController(),
            EndpointsController(None, first_sync),
            EndpointSliceMirroringController(None, first_sync),
            GarbageCollector(),
        )
        cluster.converge()
        assert cluster.managers() == {MIRRORED}, f"cut {cut}"
        assert cluster.least == 3
