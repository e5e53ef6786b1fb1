"""What one event costs, counted in calls and not in seconds: the same beside ten Services and
beside two thousand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.slices.fake_cluster import make_node, make_pod, make_service, replace

from sliceplane.api.core import Pod
from sliceplane.slices.endpoints.engine import EndpointsEngine
from sliceplane.slices.engine import SliceEngine
from sliceplane.slices.pod_routes import Touched

SIZES = (10, 2000)


def calls(work: Callable[[], object]) -> int:
    """How many functions are called, built-in ones too."""
    counted = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return counted


def cost_of_a_flip(engine: Any, services: int) -> int:
    """Of a Pod that one of *services* selects; all of them have a label pair in common."""
    for number in range(services):
        engine.on_service(
            make_service(f"s{number}", selector={"part-of": "shop", "app": f"app-{number}"})
        )
    labels = {"part-of": "shop", "app": "app-7"}
    old = replace_version(make_pod("p-1", labels=labels), "1")
    new = replace_version(make_pod("p-1", labels=labels, ready=False), "2")
    if isinstance(engine, SliceEngine):
        engine.on_node(None, make_node("n0", "a"))
    engine.on_pod(None, old)
    touched: list[Touched] = []
    spent = calls(lambda: touched.append(engine.on_pod(old, new)))
    assert touched[0].urgent == ("shop/s7",)
    return spent


def replace_version(pod: Pod, version: str) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, resource_version=version))


@pytest.mark.parametrize("make", [SliceEngine, EndpointsEngine])
def test_kubernetes_134739_a_pod_event_costs_the_same_in_a_namespace_of_any_size(
    make: Callable[[], Any],
) -> None:
    small, large = (cost_of_a_flip(make(), services) for services in SIZES)
    assert large <= small + 5, (
        f"{small} calls beside {SIZES[0]} Services, {large} beside {SIZES[1]}"
    )
