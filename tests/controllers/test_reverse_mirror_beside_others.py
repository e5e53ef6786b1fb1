"""The reverse mirror beside the mirroring controller, and beside the Endpoints controller: no
circle, no fight.
"""

from __future__ import annotations

from typing import Any

from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Services
from sliceplane.controllers.endpoints import EndpointsController
from sliceplane.controllers.endpointslice import EndpointSliceController
from sliceplane.controllers.endpointslice_mirroring import EndpointSliceMirroringController
from sliceplane.controllers.reverse_mirroring import ReverseMirrorController
from sliceplane.lab.sim.cluster import Cluster

MANAGED_BY = "endpoints.kubernetes.io/managed-by"
OURS = "reverse-mirror.sliceplane.dev"


def manager_of(cluster: Cluster, name: str) -> str:
    labels = cluster.get(EndpointsObjects, name)["metadata"].get("labels", {})
    return str(labels.get(MANAGED_BY, ""))


def make(cluster: Cluster, name: str, **spec: Any) -> None:
    cluster.create(
        Services, {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}
    )


def test_nothing_goes_round_in_a_circle() -> None:
    cluster = Cluster(
        EndpointSliceController(), EndpointSliceMirroringController(), ReverseMirrorController()
    )
    make(cluster, "own")
    labels = {
        "kubernetes.io/service-name": "own",
        "endpointslice.kubernetes.io/managed-by": "somebody",
    }
    listed = [{"addresses": ["10.0.0.1"]}]
    slice_ = {
        "metadata": {"name": "own-x", "labels": labels},
        "addressType": "IPv4",
        "endpoints": listed,
        "ports": [],
    }
    cluster.create(EndpointSlices, slice_)
    make(cluster, "mirrored")
    subset = {"addresses": [{"ip": "10.0.0.2"}], "ports": [{"port": 80}]}
    cluster.create(EndpointsObjects, {"metadata": {"name": "mirrored"}, "subsets": [subset]})
    make(cluster, "selecting", selector={"a": "b"})
    cluster.converge()
    assert {name: manager_of(cluster, name) for name in ("own", "mirrored", "selecting")} == {
        "own": OURS,
        "mirrored": "",
        "selecting": OURS,
    }
    managers = sorted(
        (
            each["metadata"]["labels"]["kubernetes.io/service-name"],
            each["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"].partition(".")[0],
        )
        for each in cluster.list(EndpointSlices)
        if each["metadata"]["name"] != "kubernetes"
    )
    assert managers == [
        ("mirrored", "endpointslicemirroring-controller"),
        ("own", "somebody"),
        ("selecting", "endpointslice-controller"),
    ]
    writes = len(cluster.writes)
    cluster.converge()
    assert len(cluster.writes) == writes
    cluster.delete(EndpointsObjects, "mirrored")
    cluster.converge()
    assert [each["metadata"]["name"] for each in cluster.list(EndpointsObjects)] == [
        "own",
        "selecting",
    ]


def test_the_endpoints_controller_has_the_last_word_while_it_runs() -> None:
    cluster = Cluster(EndpointSliceController(), ReverseMirrorController(), EndpointsController())
    make(cluster, "web", selector={"a": "b"})
    cluster.converge()
    assert manager_of(cluster, "web") == "endpoint-controller"
    cluster.patch(EndpointsObjects, "web", {"metadata": {"labels": {MANAGED_BY: OURS}}})
    cluster.converge()
    assert manager_of(cluster, "web") == "endpoint-controller"
    assert len(cluster.writes) < 20, "they do not fight"
    cluster.replace(EndpointSliceController(), ReverseMirrorController())
    cluster.patch(EndpointsObjects, "web", {"metadata": {"labels": {MANAGED_BY: OURS}}})
    cluster.converge()
    assert manager_of(cluster, "web") == OURS
