"""LimitRange: defaults, bounds and ratios for new Pods, and what a LimitRange itself may say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.tables import tables

from sliceplane.api.scheme import LimitRanges, Pods
from sliceplane.server.documents import table
from sliceplane.server.documents.protobuf import decode, encode
from sliceplane.server.documents.table.columns import PLAIN

TABLES = tables(__file__)


def limits(*items: Any, name: str = "l") -> Any:
    return {"metadata": {"name": name}, "spec": {"limits": list(items)}}


def pod(*resources: Any, init: tuple[Any, ...] = ()) -> Any:
    def containers(prefix: str, given: tuple[Any, ...]) -> list[Any]:
        return [
            {"name": f"{prefix}{index}", "image": "i", "resources": each}
            for index, each in enumerate(given)
        ]

    spec = {"containers": containers("c", resources)}
    if init:
        spec["initContainers"] = containers("i", init)
    return {"metadata": {"name": "p"}, "spec": spec}


def test_defaults_follow_from_each_other(api: Any) -> None:
    item = {
        "type": "Container",
        "max": {"cpu": "2"},
        "min": {"memory": 64},
        "default": {"memory": "1Gi"},
    }
    api.create(LimitRanges, limits(item))
    (stored,) = api.get(LimitRanges, "l")["spec"]["limits"]
    assert stored["default"] == {"cpu": "2", "memory": "1Gi"}
    assert stored["defaultRequest"] == {"cpu": "2", "memory": "1Gi"}
    assert stored["min"] == {"memory": "64"}


def test_a_pod_gets_defaults_and_is_told(api: Any) -> None:
    api.create(
        LimitRanges,
        limits(
            {
                "type": "Container",
                "default": {"cpu": "1", "memory": "1Gi"},
                "defaultRequest": {"cpu": "100m"},
            }
        ),
    )
    created = json.loads(api.create(Pods, pod({}, {"limits": {"cpu": "2"}}, init=({},))).body)
    first, second = created["spec"]["containers"]
    assert first["resources"] == {
        "limits": {"cpu": "1", "memory": "1Gi"},
        "requests": {"cpu": "100m", "memory": "1Gi"},
    }
    assert second["resources"]["limits"] == {"cpu": "2", "memory": "1Gi"}
    assert second["resources"]["requests"]["cpu"] == "2", "a limit is its own request"
    assert created["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
        "LimitRanger plugin set: cpu, memory request for container c0; memory request for "
        "container c1; cpu, memory request for init container i0; cpu, memory limit for container "
        "c0; memory limit for container c1; cpu, memory limit for init container i0"
    )
    assert created["status"]["qosClass"] == "Burstable"


def test_the_class_of_service_is_told_of_what_the_pod_ends_up_with(api: Any) -> None:
    api.create(LimitRanges, limits({"type": "Container", "default": {"cpu": "1", "memory": "1Gi"}}))
    assert json.loads(api.create(Pods, pod({})).body)["status"]["qosClass"] == "Guaranteed"


CPU = "Container"


@pytest.mark.parametrize(("item", "given", "why"), TABLES["bounds"])
def test_bounds(api: Any, item: Any, given: Any, why: str) -> None:
    api.create(LimitRanges, limits(item))
    if not why:
        api.create(Pods, pod(given, given))
        return
    error = api.fails("create", Pods, pod(given, given))
    assert (error.code, error.message) == (403, f'pods "p" is forbidden: {why}')
    assert api.names(Pods) == []


def test_a_pod_is_as_large_as_its_largest_init_container(api: Any) -> None:
    api.create(LimitRanges, limits({"type": "Pod", "max": {"cpu": "2500m"}}))
    one = {"limits": {"cpu": "1"}}
    api.create(Pods, pod(one, one, init=({"limits": {"cpu": "2500m"}},)))
    error = api.fails("create", Pods, pod(one, one, init=({"limits": {"cpu": "2600m"}},)))
    assert error.message.endswith("maximum cpu usage per Pod is 2500m, but limit is 2600m")


@pytest.mark.parametrize(("item", "complaint"), TABLES["rules"])
def test_rules(api: Any, item: Any, complaint: str) -> None:
    error = api.fails("create", LimitRanges, limits(item))
    assert (error.code, error.message) == (422, f'LimitRange "l" is invalid: spec.{complaint}')


def test_one_item_for_each_type(api: Any) -> None:
    item = {"type": "Pod", "max": {"cpu": "1"}}
    assert api.fails("create", LimitRanges, limits(item, item)).message.endswith(
        'spec.limits[1].type: Duplicate value: ""'
    )


def test_every_form(api: Any) -> None:
    item = {"type": "Container", "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "2"}}
    stored = json.loads(api.create(LimitRanges, limits(item)).body)
    assert decode(encode(stored)) == stored
    shown = table.build(LimitRanges, PLAIN, [stored], api.now, include_object="None")
    assert [column["name"] for column in shown["columnDefinitions"]] == ["Name", "Created At"]
