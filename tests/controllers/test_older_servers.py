"""Servers of older releases drop what they do not know, and refuse values that came later:
controllers come to rest.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.slices.heuristics import find

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.errors import StatusError, invalid, not_supported
from sliceplane.api.gates import (
    ENDPOINT_SLICE_TERMINATING_CONDITION,
    OLDEST_CLUSTER,
    PREFER_SAME_TRAFFIC_DISTRIBUTION,
    SERVICE_TRAFFIC_DISTRIBUTION,
    TOPOLOGY_AWARE_HINTS,
    Gates,
    Release,
)
from sliceplane.api.scheme import EndpointSlices, Nodes, Pods, Services
from sliceplane.controllers.endpoints import EndpointsController
from sliceplane.controllers.endpointslice import EndpointSliceController
from sliceplane.controllers.endpointslice_mirroring import EndpointSliceMirroringController
from sliceplane.controllers.traffic_distribution import TrafficDistributionController
from sliceplane.lab.sim.cluster import Cluster
from sliceplane.watch.controller.base import Write

AUTO = "service.kubernetes.io/topology-mode"


class Older(Cluster):
    """A server of *release*, as far as Services and EndpointSlices go."""

    def __init__(self, release: Release) -> None:
        self.gates = Gates(release)
        super().__init__(*self.made())

    @staticmethod
    def made() -> tuple[Any, ...]:
        slices, endpoints = EndpointSliceController(), EndpointsController()
        return (
            slices,
            endpoints,
            EndpointSliceMirroringController(),
            TrafficDistributionController(find),
        )

    def execute(self, write: Write) -> bytes:
        if (
            write.resource not in (Services, EndpointSlices)
            or not write.body
            or write.verb == "delete"
        ):
            return super().execute(write)
        document = decode_document(write.body)
        if write.resource is Services:
            self._prune_service(document.get("spec", {}))
        else:
            self._prune_slice(document)
        return super().execute(replace(write, body=encode(document)))

    def _prune_service(self, spec: dict[str, Any]) -> None:
        if not self.gates.enabled(SERVICE_TRAFFIC_DISTRIBUTION):
            spec.pop("trafficDistribution", None)
        value = spec.get("trafficDistribution", "PreferClose")
        if value != "PreferClose" and not self.gates.enabled(PREFER_SAME_TRAFFIC_DISTRIBUTION):
            error = not_supported("spec.trafficDistribution", value, ("PreferClose",))
            raise invalid("", "Service", "web", [error])

    def _prune_slice(self, document: dict[str, Any]) -> None:
        for each in document.get("endpoints") or ():
            if not self.gates.enabled(TOPOLOGY_AWARE_HINTS):
                each.pop("hints", None)
            if each.get("hints") and not self.gates.enabled(PREFER_SAME_TRAFFIC_DISTRIBUTION):
                each["hints"].pop("forNodes", None)


def filled(release: Release, distribution: str, **annotations: str) -> Older:
    cluster = Older(release)
    for number in range(4):
        node = f"n{number}"
        labels = {"topology.kubernetes.io/zone": "ab"[number % 2]}
        cluster.create(Nodes, {"metadata": {"name": node, "labels": labels}})
        ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "4"}}
        cluster.patch(Nodes, node, {"status": ready}, subresource="status")
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
        cluster.create(
            Pods, {"metadata": {"name": f"p{number}", "labels": {"a": "b"}}, "spec": spec}
        )
        ip = f"10.0.0.{number + 1}"
        status = {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": ready["conditions"],
        }
        cluster.patch(Pods, f"p{number}", {"status": status}, subresource="status")
    wanted = {"selector": {"a": "b"}, "ports": [{"port": 80}], "trafficDistribution": distribution}
    cluster.create(
        Services, {"metadata": {"name": "web", "annotations": annotations}, "spec": wanted}
    )
    cluster.converge()
    return cluster


def hinted(cluster: Cluster) -> list[set[str]]:
    (found,) = cluster.list(EndpointSlices)
    return [set(each.get("hints") or ()) for each in found["endpoints"]]


@pytest.mark.parametrize(
    ("release", "distribution", "hints"),
    [
        (OLDEST_CLUSTER, "PreferClose", set()),
        ((1, 30), "PreferClose", set()),
        ((1, 31), "PreferClose", {"forZones"}),
        ((1, 33), "PreferClose", {"forZones"}),
        ((1, 34), "PreferSameZone", {"forZones"}),
        ((1, 34), "PreferSameNode", {"forZones", "forNodes"}),
    ],
)
def test_controllers_come_to_rest_and_write_nothing_after_a_restart(
    release: Release, distribution: str, hints: set[str]
) -> None:
    cluster = filled(release, distribution)
    assert hinted(cluster) == [hints] * 4
    before = len(cluster.writes)
    cluster.replace(*cluster.made())
    cluster.converge()
    assert cluster.writes[before:] == []


def test_the_annotation_works_on_the_oldest_cluster() -> None:
    assert hinted(filled(OLDEST_CLUSTER, "PreferClose", **{AUTO: "Auto"})) == [{"forZones"}] * 4


def test_a_value_that_came_later_is_refused_by_the_server_and_by_nobody_else() -> None:
    with pytest.raises(StatusError, match='Unsupported value: "PreferSameNode"'):
        filled((1, 33), "PreferSameNode")


def test_hints_that_a_server_drops_are_tried_a_time_or_two_more_and_then_left() -> None:
    cluster = filled((1, 23), "PreferClose", **{AUTO: "Auto"})
    assert hinted(cluster) == [set()] * 4, "the endpoints are there all the same"
    slices = [write for _, write in cluster.writes if write.resource is EndpointSlices]
    assert len(slices) <= 3, slices
    cluster.converge(limit_s=3600.0)
    assert [write for _, write in cluster.writes if write.resource is EndpointSlices] == slices


def test_the_oldest_cluster_is_the_first_that_keeps_what_controllers_write_and_the_guide_names_it() -> (
    None
):
    major, minor = OLDEST_CLUSTER
    for gate in (TOPOLOGY_AWARE_HINTS, ENDPOINT_SLICE_TERMINATING_CONDITION):
        assert Gates(OLDEST_CLUSTER).enabled(gate)
    assert not Gates((major, minor - 1)).enabled(TOPOLOGY_AWARE_HINTS)
    text = Path("docs/operations.md").read_text(encoding="utf-8")
    assert f"is **Kubernetes {major}.{minor}**" in text
