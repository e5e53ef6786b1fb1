"""What happens when Pods come and go."""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.world import World, ago, near_miss, planted, write_slice

AWS = "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type"


def _containers(world: World) -> list[dict[str, Any]]:
    return [pod["spec"]["containers"][0] for pod in world.all("Pod")]


@planted("D1")
def there_is_no_readiness_probe(world: World) -> None:
    for container in _containers(world):
        del container["readinessProbe"]


@near_miss("D1")
def the_sidecar_alone_has_none(world: World) -> None:
    for pod in world.all("Pod"):
        pod["spec"]["containers"].append({"name": "log", "image": "log"})


@planted("D2")
def there_is_no_pre_stop_hook(world: World) -> None:
    for container in _containers(world):
        del container["lifecycle"]


@near_miss("D2", "D3")
def the_hook_runs_a_command(world: World) -> None:
    for container in _containers(world):
        container["lifecycle"] = {
            "preStop": {"exec": {"command": ["/bin/sh", "-c", "sleep 5 && quit"]}}
        }


@planted("D3")
def the_hook_takes_the_whole_grace(world: World) -> None:
    for pod in world.all("Pod"):
        pod["spec"]["terminationGracePeriodSeconds"] = 30
        pod["spec"]["containers"][0]["lifecycle"] = {
            "preStop": {"exec": {"command": ["sh", "-c", "sleep 60"]}}
        }


@planted("D4")
def everything_is_recreated(world: World) -> None:
    world.get("Deployment", "shop", "cart")["spec"]["strategy"] = {"type": "Recreate"}


@planted("D4")
def all_may_be_unavailable(world: World) -> None:
    _rolling(world, "100%")


@near_miss("D4")
def a_third_may_be_unavailable(world: World) -> None:
    _rolling(world, "34%")


@near_miss("D4")
def two_of_three_may_be_unavailable(world: World) -> None:
    _rolling(world, 2)


def _rolling(world: World, away: str | int) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": away, "maxSurge": 1}}
    world.get("Deployment", "shop", "cart")["spec"]["strategy"] = strategy


@planted("D5")
def the_balancer_leads_to_pods_without_gates(world: World) -> None:
    world.get("Service", "shop", "cart")["metadata"]["annotations"] = {AWS: "ip"}


@near_miss("D5")
def the_balancer_leads_to_nodes(world: World) -> None:
    world.get("Service", "shop", "cart")["metadata"]["annotations"] = {AWS: "instance"}


@planted("D6")
def every_pod_terminates(world: World) -> None:
    _leaving(world, 3)


@near_miss("D6")
def some_pods_terminate(world: World) -> None:
    _leaving(world, 2)


def _leaving(world: World, number: int) -> None:
    for pod in list(world.all("Pod"))[:number]:
        pod["metadata"].update(deletionTimestamp=ago(-52), deletionGracePeriodSeconds=60)
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    write_slice(world, "cart")
