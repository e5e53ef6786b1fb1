"""Metrics of the EndpointSlice controller and of work queues: names, labels, buckets and figures of
upstream.
"""

from __future__ import annotations

from typing import Any

from tests.controllers.controller_plane import ControllerPlane
from tests.slices.fake_cluster import make_node, make_pod, make_service

from sliceplane.api.core import Pod
from sliceplane.api.errors import StatusError, conflict, internal
from sliceplane.api.scheme import Pods, Services
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.kit.io.pages import expose
from sliceplane.kit.metrics import Distribution, Histogram
from sliceplane.kit.workqueue import WorkQueue, queue_families
from sliceplane.watch.controller.base import Done, Measured


class Plane(ControllerPlane):
    controller: EndpointSliceController

    def __init__(self, *pods: Pod, **service: Any) -> None:
        nodes = (make_node(name, zone) for name, zone in (("n0", "a"), ("n1", "b")))
        super().__init__(*nodes, make_service(**service), *pods)

    def make(self) -> EndpointSliceController:
        return EndpointSliceController(EndpointSliceConfig(max_endpoints_per_slice=3))

    def figures(self) -> dict[str, Any]:
        """``name{labels}`` -> value; of a histogram (observations, sum)."""
        found = {}
        for family in self.controller.samples(self.now):
            for sample in family.samples:
                value = sample.value
                labels = ",".join(sample.labels)
                name = family.name.removeprefix("endpoint_slice_controller_") + (
                    f"{{{labels}}}" if labels else ""
                )
                found[name] = (
                    (sum(value.counts), value.total) if isinstance(value, Distribution) else value
                )
        return found


def test_a_controller_can_be_measured() -> None:
    assert isinstance(EndpointSliceController(), Measured)


def test_gauges_follow_services_and_pods() -> None:
    plane = Plane(*(make_pod(f"p-{n}") for n in range(7)))
    plane.settle()
    names = ("endpoints_desired", "num_endpoint_slices", "desired_endpoint_slices")
    assert [plane.figures()[name] for name in names] == [7, 3, 3]
    for number in (1, 2, 4):
        plane.cluster.remove(Pods, "shop", f"p-{number}")
    plane.settle()
    assert [plane.figures()[name] for name in names] == [4, 3, 2]
    plane.cluster.put(make_service("empty", selector={"app": "none"}, ip_families=("IPv4", "IPv6")))
    plane.settle()
    assert [plane.figures()[name] for name in names] == [4, 5, 4]  # a placeholder for each family
    for name in ("web", "empty"):
        plane.cluster.remove(Services, "shop", name)
    plane.settle()
    assert [plane.figures()[name] for name in names] == [0, 0, 0]


def test_syncs_and_changes_are_counted() -> None:
    plane = Plane(*(make_pod(f"p-{n}") for n in range(4)))
    plane.settle()
    figures = plane.figures()
    assert figures["changes{create}"] == 2
    assert figures["endpoints_added_per_sync"][1] == 4
    for number in range(4):
        plane.cluster.remove(Pods, "shop", f"p-{number}")
    plane.settle()
    figures = plane.figures()
    assert (figures["changes{update}"], figures["changes{delete}"]) == (1, 1)
    assert figures["endpoints_removed_per_sync"][1] == 4
    assert figures["endpointslices_changed_per_sync{Disabled,}"][1] == 4
    assert "syncs{error}" not in figures


def test_failures_are_counted_and_their_writes_are_not() -> None:
    plane = Plane(make_pod("p-1"))
    (job,) = plane.controller.take_work(plane.now, 1).jobs
    plane.controller.on_done(Done(job, (), internal("no")), plane.now)
    figures = plane.figures()
    assert figures["syncs{error}"] == 1
    assert not [name for name in figures if name.startswith(("changes", "endpointslices_changed"))]
    assert figures["workqueue_retries_total{endpoint_slice}"] == 1


def test_a_stale_cache_is_counted() -> None:
    plane = Plane(make_pod("p-1"))
    plane.settle()
    plane.cluster.put(make_pod("p-2"))
    plane.cluster.deliver(plane.controller, plane.now)
    (job,) = plane.controller.take_work(plane.now, 1).jobs
    refused: StatusError = conflict("endpointslices", "discovery.k8s.io", "x", "no")
    plane.controller.on_done(Done(job, (), refused), plane.now)
    plane.controller.take_work(plane.now + 1, 1)
    assert plane.figures()["syncs{stale}"] == 1


def test_traffic_distribution_labels() -> None:
    plane = Plane(
        make_pod("p-0"), make_pod("p-1", node="n1"), traffic_distribution="PreferSameNode"
    )
    plane.settle()
    auto = {"service.kubernetes.io/topology-mode": "Auto"}
    plane.cluster.put(make_service("a", annotations=auto, traffic_distribution="PreferClose"))
    plane.cluster.put(make_service("b", traffic_distribution="Odd"))
    plane.settle()
    figures = plane.figures()
    assert figures["services_count_by_traffic_distribution{PreferSameNode}"] == 1
    assert [name for name in figures if name.startswith("services_count")] == [
        "services_count_by_traffic_distribution{PreferSameNode}"
    ]
    assert figures["endpointslices_changed_per_sync{Disabled,PreferSameNode}"][1] == 1
    assert figures["endpointslices_changed_per_sync{Auto,}"][1] == 1
    plane.cluster.put(make_service())
    plane.settle()
    assert plane.figures()["services_count_by_traffic_distribution{PreferSameNode}"] == 0


def test_names_kinds_and_buckets() -> None:
    found = {family.name: family for family in EndpointSliceController().samples(0.0)}
    prefix = "endpoint_slice_controller_"
    kinds = {
        name.removeprefix(prefix): each.kind
        for name, each in found.items()
        if name.startswith(prefix)
    }
    assert kinds == {
        "changes": "counter",
        "desired_endpoint_slices": "gauge",
        "endpoints_added_per_sync": "histogram",
        "endpoints_desired": "gauge",
        "endpoints_removed_per_sync": "histogram",
        "endpointslices_changed_per_sync": "histogram",
        "num_endpoint_slices": "gauge",
        "services_count_by_traffic_distribution": "gauge",
        "syncs": "counter",
    }
    value = found[f"{prefix}endpoints_added_per_sync"].samples[0].value
    assert isinstance(value, Distribution)
    assert value.bounds == tuple(2.0 * 2**k for k in range(15))


def test_a_queue_measures_waiting_and_work() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", 10.0)
    queue.add("b", 10.0)
    queue.get(12.0)
    queue.get(13.0)
    shown = {family.name: family.samples[0].value for family in queue_families("q", queue, 15.0)}
    assert shown["workqueue_unfinished_work_seconds"] == 5.0
    assert shown["workqueue_longest_running_processor_seconds"] == 3.0
    assert shown["workqueue_adds_total"] == 2
    queue.done("a", 15.0)
    shown = {family.name: family.samples[0].value for family in queue_families("q", queue, 15.0)}
    waited, worked = (
        shown["workqueue_queue_duration_seconds"],
        shown["workqueue_work_duration_seconds"],
    )
    assert isinstance(waited, Distribution)
    assert isinstance(worked, Distribution)
    assert (sum(waited.counts), waited.total) == (2, 5.0)
    assert (sum(worked.counts), worked.total) == (1, 3.0)


def test_a_histogram_counts_up_to_and_with_its_bounds() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.read() == Distribution((1.0, 2.0), (2, 2, 1), 7.5)


def test_the_text_has_upstreams_names() -> None:
    plane = Plane(make_pod("p-0"))
    plane.settle()
    lines = expose(plane.controller.samples(plane.now))[0].decode().splitlines()
    assert "# TYPE endpoint_slice_controller_changes counter" in lines
    assert 'endpoint_slice_controller_changes{operation="create"} 1.0' in lines
    assert "# TYPE workqueue_adds_total counter" in lines
    assert 'endpoint_slice_controller_endpoints_added_per_sync_bucket{le="2.0"} 2.0' in lines
    assert "endpoint_slice_controller_endpoints_added_per_sync_sum 1.0" in lines
    labels = '{topology="Disabled",traffic_distribution=""}'
    assert f"endpoint_slice_controller_endpointslices_changed_per_sync_count{labels} 2.0" in lines
