"""Pods that are published before they are ready (publishNotReadyAddresses)."""

from __future__ import annotations

from tests.diagnose.explain.faults.pods import (
    _pod,
    _settled,
    _status,
    _unready,
    no_controller_opens_the_gate,
)
from tests.diagnose.explain.world import World, ago, near_miss, planted, too_young

from sliceplane.diagnose.explain.question import ExplainQuestion


def _published(world: World, since_s: float) -> None:
    world.get("Service", "shop", "cart")["spec"]["publishNotReadyAddresses"] = True
    pod = _pod(world)
    _unready(pod, since_s=since_s)
    pod["status"]["startTime"] = ago(since_s)
    _status(pod).update(ready=False, state={"running": {"startedAt": ago(since_s)}})


@planted("R14")
def one_that_is_not_ready_is_published(world: World) -> None:
    _published(world, 200)


@near_miss("R14")
def one_that_starts_is_published(world: World) -> None:
    _published(world, 20)


@near_miss("R14")
def peers_of_a_headless_service_look_for_one_another(world: World) -> ExplainQuestion:
    _published(world, 200)
    world.get("Service", "shop", "cart")["spec"].update(clusterIP="None", clusterIPs=["None"])
    return ExplainQuestion("everything")


def _all_published(world: World, since_s: float) -> None:
    for number in range(3):
        pod = _pod(world, number)
        _unready(pod, since_s=since_s)
        pod["status"]["startTime"] = ago(since_s)
        _status(pod).update(ready=False, state={"running": {"startedAt": ago(since_s)}})
    world.get("Service", "shop", "cart")["spec"]["publishNotReadyAddresses"] = True
    _settled(world)
    for endpoint in world.get("EndpointSlice", "shop", "cart-x7k2p")["endpoints"]:
        endpoint["conditions"]["ready"] = True  # as the controller writes it of such a Service


@planted("R6")
def none_is_ready_and_all_are_published(world: World) -> None:
    _all_published(world, 200)


@too_young("R6")
def all_start_and_are_published(world: World) -> None:
    _all_published(world, 12)


@near_miss("R6", "R7")
def all_are_ready_and_published(world: World) -> None:
    world.get("Service", "shop", "cart")["spec"]["publishNotReadyAddresses"] = True


@planted("R7")
def gates_are_closed_and_the_pods_are_published(world: World) -> None:
    world.get("Service", "shop", "cart")["spec"]["publishNotReadyAddresses"] = True
    no_controller_opens_the_gate(world)
