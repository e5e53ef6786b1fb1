"""DELETE: replies, finalizers, propagation, grace, preconditions, collections, namespaces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.tables import tables

from sliceplane.api.scheme import ConfigMaps, EndpointSlices, Namespaces, Pods, Services
from sliceplane.server.store.types import EventType

TABLES = tables(__file__)


def body(outcome: Any) -> Any:
    return json.loads(outcome.body)


def pod(**spec: Any) -> Any:
    return {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }


def new_slice(**metadata: Any) -> Any:
    return {"metadata": {"name": "s", **metadata}, "addressType": "IPv4"}


def kinds_of(api: Any) -> list[EventType]:
    return [event.type for event in api.events]


def test_replies(api: Any) -> None:
    uid = body(api.create(EndpointSlices, new_slice()))["metadata"]["uid"]
    outcome = api.delete(EndpointSlices, "s")
    assert (outcome.code, outcome.revision) == (200, api.store.revision)
    assert body(outcome) == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {"name": "s", "group": "discovery.k8s.io", "kind": "endpointslices", "uid": uid},
    }
    api.create(Services, {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}})
    assert body(api.delete(Services, "s"))["kind"] == "Service"
    error = api.fails("delete", Services, "s")
    assert (error.code, error.message) == (404, 'services "s" not found')


def test_the_event_carries_the_deletions_own_version(api: Any) -> None:
    api.create(EndpointSlices, new_slice())
    api.events.clear()
    api.delete(EndpointSlices, "s")
    (event,) = api.events
    assert event.type is EventType.DELETED
    assert json.loads(event.record.body)["metadata"]["resourceVersion"] == str(event.revision)


def test_finalizers_hold_it(api: Any) -> None:
    api.create(EndpointSlices, new_slice(finalizers=["x.io/f"]))
    marked = body(api.delete(EndpointSlices, "s"))
    assert marked["metadata"]["deletionTimestamp"] == "2027-01-15T08:00:00Z"
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 0
    assert marked["metadata"]["generation"] == 2
    api.now += 5
    again = api.delete(EndpointSlices, "s")
    assert (body(again), again.revision) == (marked, 0)


@pytest.mark.parametrize(("given", "policy", "left"), TABLES["propagation"])
def test_propagation(api: Any, given: list[str], policy: Any, left: list[str] | None) -> None:
    api.create(EndpointSlices, new_slice(finalizers=given))
    answer = body(api.delete(EndpointSlices, "s", propagation=policy))
    if left is None:
        assert answer["kind"] == "Status"
        assert api.names(EndpointSlices) == []
    else:
        assert answer["metadata"]["finalizers"] == left


def test_a_foreground_deletion_may_be_turned_into_a_background_one(api: Any) -> None:
    api.create(EndpointSlices, new_slice())
    api.delete(EndpointSlices, "s", propagation="Foreground")
    assert body(api.delete(EndpointSlices, "s", propagation="Background"))["kind"] == "Status"
    assert api.names(EndpointSlices) == []


def test_preconditions(api: Any) -> None:
    created = body(api.create(EndpointSlices, new_slice()))["metadata"]
    error = api.fails("delete", EndpointSlices, "s", precondition_uid="X")
    assert error.code == 409
    assert error.message == (
        'Operation cannot be fulfilled on EndpointSlice.discovery.k8s.io "s": the UID in the '
        "precondition (X) does not "
        f"match the UID in record ({created['uid']}). The object might have been deleted and then "
        "recreated"
    )
    assert error.details == {"name": "s", "group": "discovery.k8s.io", "kind": "EndpointSlice"}
    error = api.fails("delete", EndpointSlices, "s", precondition_resource_version="1")
    assert error.message == (
        'Operation cannot be fulfilled on EndpointSlice.discovery.k8s.io "s": the ResourceVersion '
        "in the precondition "
        f"(1) does not match the ResourceVersion in record ({created['resourceVersion']}). The "
        "object might have been "
        "modified"
    )
    assert (
        api.delete(
            EndpointSlices,
            "s",
            precondition_uid=created["uid"],
            precondition_resource_version=created["resourceVersion"],
        ).code
        == 200
    )


def test_dry_run_removes_nothing(api: Any) -> None:
    api.create(EndpointSlices, new_slice())
    assert body(api.delete(EndpointSlices, "s", dry_run=True))["kind"] == "Status"
    assert body(api.delete(EndpointSlices, "s", dry_run=True, propagation="Foreground"))[
        "metadata"
    ]["finalizers"]
    assert api.names(EndpointSlices) == ["default/s"]


def test_a_running_pod_gets_its_grace(api: Any) -> None:
    api.create(Pods, pod(nodeName="n"))
    marked = body(api.delete(Pods, "p"))["metadata"]
    assert (marked["deletionTimestamp"], marked["deletionGracePeriodSeconds"]) == (
        "2027-01-15T08:00:30Z",
        30,
    )
    assert marked["generation"] == 2
    api.now += 2
    assert api.delete(Pods, "p", grace_period_s=60).revision == 0, "a longer grace is ignored"
    assert api.delete(Pods, "p").revision == 0
    sooner = body(api.delete(Pods, "p", grace_period_s=5))["metadata"]
    assert (sooner["deletionTimestamp"], sooner["deletionGracePeriodSeconds"]) == (
        "2027-01-15T08:00:05Z",
        5,
    )
    assert sooner["generation"] == 2
    api.events.clear()
    last = body(api.delete(Pods, "p", grace_period_s=0))
    assert last["metadata"]["deletionGracePeriodSeconds"] == 0
    assert kinds_of(api) == [EventType.MODIFIED, EventType.DELETED]
    assert api.names(Pods) == []


def test_a_negative_grace_is_one_second(api: Any) -> None:
    api.create(Pods, pod(nodeName="n"))
    assert (
        body(api.delete(Pods, "p", grace_period_s=-4))["metadata"]["deletionGracePeriodSeconds"]
        == 1
    )


@pytest.mark.parametrize("phase", ["", "Succeeded", "Failed"])
def test_pods_that_nothing_runs_go_at_once(api: Any, phase: str) -> None:
    api.create(Pods, pod(**({"nodeName": "n"} if phase else {})))
    if phase:
        api.patch(Pods, "p", {"status": {"phase": phase}}, subresource="status")
    api.events.clear()
    answer = body(api.delete(Pods, "p"))
    assert (answer["kind"], answer["metadata"]["deletionGracePeriodSeconds"]) == ("Pod", 0)
    assert kinds_of(api) == [EventType.MODIFIED, EventType.DELETED]


def test_a_pod_with_a_finalizer_outlives_its_grace(api: Any) -> None:
    api.create(Pods, {**pod(nodeName="n"), "metadata": {"name": "p", "finalizers": ["x.io/f"]}})
    api.delete(Pods, "p")
    held = body(api.delete(Pods, "p", grace_period_s=0))
    assert held["metadata"]["deletionGracePeriodSeconds"] == 0
    assert api.names(Pods) == ["default/p"]
    api.patch(Pods, "p", {"metadata": {"finalizers": None}})
    assert api.names(Pods) == []


def test_losing_the_finalizer_does_not_cut_a_grace_short(api: Any) -> None:
    api.create(Pods, {**pod(nodeName="n"), "metadata": {"name": "p", "finalizers": ["x.io/f"]}})
    api.delete(Pods, "p")
    api.patch(Pods, "p", {"metadata": {"finalizers": None}})
    assert api.names(Pods) == ["default/p"]


def test_collections(api: Any) -> None:
    for name, labels in (("a", {"x": "1"}), ("b", {"x": "2"}), ("c", {"x": "1"})):
        finalizers = ["x.io/f"] if name == "c" else []
        api.create(
            EndpointSlices,
            {**new_slice(), "metadata": {"name": name, "labels": labels, "finalizers": finalizers}},
        )
    listed = api.store.revision
    outcome = api.delete_collection(EndpointSlices, label_selector="x=1")
    answer = body(outcome)
    assert answer["kind"] == "EndpointSliceList"
    assert answer["metadata"] == {"resourceVersion": str(listed)}
    assert [item["metadata"]["name"] for item in answer["items"]] == ["a", "c"]
    assert all(
        "kind" not in item and "deletionTimestamp" not in item["metadata"]
        for item in answer["items"]
    )
    assert api.names(EndpointSlices) == ["default/b", "default/c"]
    assert body(api.delete_collection(EndpointSlices, label_selector="x=9"))["items"] == []
    assert outcome.revision == api.store.revision


def test_namespaces_that_stay(api: Any) -> None:
    for name in ("default", "kube-system", "kube-public"):
        error = api.fails("delete", Namespaces, name)
        assert (
            error.message == f'namespaces "{name}" is forbidden: this namespace may not be deleted'
        )
    assert body(api.delete(Namespaces, "kube-node-lease"))["status"]["phase"] == "Terminating"


def test_the_end_of_a_namespace(api: Any) -> None:
    api.create(Namespaces, {"metadata": {"name": "t"}})
    api.create(ConfigMaps, {"metadata": {"name": "c", "finalizers": ["x.io/f"]}}, namespace="t")
    api.create(EndpointSlices, new_slice(), namespace="t")
    gone = body(api.delete(Namespaces, "t"))
    assert gone["status"]["phase"] == "Terminating"
    assert gone["spec"]["finalizers"] == ["kubernetes"]
    assert "deletionGracePeriodSeconds" not in gone["metadata"]
    assert api.delete(Namespaces, "t").revision == 0
    left = api.registry.remaining("t")
    assert [(item.resource, item.count, item.finalizers) for item in left] == [
        (ConfigMaps, 1, (("x.io/f", 1),)),
        (EndpointSlices, 1, ()),
    ]
    for resource in (ConfigMaps, EndpointSlices):
        api.delete_collection(resource, namespace="t")
    api.patch(ConfigMaps, "c", {"metadata": {"finalizers": None}}, namespace="t")
    assert api.registry.remaining("t") == ()
    api.events.clear()
    outcome = api.update(
        Namespaces, "t", {**gone, "spec": {"finalizers": []}}, subresource="finalize"
    )
    assert outcome.code == 200
    (event,) = api.events
    assert event.type is EventType.DELETED
    assert json.loads(event.record.body)["spec"]["finalizers"] == ["kubernetes"]
    assert api.fails("get", Namespaces, "t").code == 404


def test_finalizing_a_living_namespace_only_takes_the_finalizer(api: Any) -> None:
    api.create(Namespaces, {"metadata": {"name": "t"}})
    kept = body(
        api.update(
            Namespaces,
            "t",
            {"metadata": {"name": "t"}, "spec": {"finalizers": []}},
            subresource="finalize",
        )
    )
    assert "finalizers" not in kept.get("spec", {})
    api.delete(Namespaces, "t")
    api.delete(Namespaces, "t")
    assert api.fails("get", Namespaces, "t").code == 404, (
        "with no finalizer left, the second DELETE removes it"
    )
