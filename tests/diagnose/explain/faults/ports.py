"""From a port of the Service to a port of each Pod."""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.faults.proxies import a_proxy_uses_the_long_name_of_its_host
from tests.diagnose.explain.world import World, near_miss, planted, write_slice


def _port(world: World, **change: Any) -> None:
    world.get("Service", "shop", "cart")["spec"]["ports"][0].update(change)


def _containers(world: World) -> list[dict[str, Any]]:
    return [pod["spec"]["containers"][0] for pod in world.all("Pod")]


@planted("T1")
def the_target_port_is_declared_by_none(world: World) -> None:
    _port(world, targetPort=9999)


@near_miss("T1")
def pods_declare_no_port_at_all(world: World) -> None:
    _port(world, targetPort=9999)
    for container in _containers(world):
        container["ports"] = []


@near_miss("T1")
def the_probe_answers_on_a_port_that_is_not_declared(world: World) -> None:
    _port(world, targetPort=9999)
    for container in _containers(world):
        container["readinessProbe"]["httpGet"]["port"] = 9999


@planted("T2")
def two_of_three_pods_have_no_port_of_that_name(world: World) -> None:
    _port(world, targetPort="http")
    for container in _containers(world)[1:]:
        container["ports"][0]["name"] = "web"


@near_miss("T2", "T3", "T4")
def every_pod_has_the_name(world: World) -> None:
    _port(world, targetPort="http")


@planted("T3")
def the_target_port_is_in_quotes(world: World) -> None:
    _port(world, targetPort="8080")


@near_miss("T3")
def a_container_port_is_really_called_so(world: World) -> None:
    _port(world, targetPort="80a")
    for container in _containers(world):
        container["ports"][0]["name"] = "80a"


@planted("T4")
def the_name_is_a_sidecars_and_the_controller_is_old(world: World) -> None:
    _sidecars(world)
    for endpoint_slice in world.all("EndpointSlice"):
        endpoint_slice["ports"] = []


@near_miss("T4", "T2")
def the_name_is_a_sidecars_and_the_slice_has_it(world: World) -> None:
    _sidecars(world)


def _sidecars(world: World) -> None:
    _port(world, targetPort="https")
    for pod in world.all("Pod"):
        ports = [{"name": "https", "containerPort": 8443, "protocol": "TCP"}]
        pod["spec"]["initContainers"] = [
            {"name": "proxy", "restartPolicy": "Always", "ports": ports}
        ]


@planted("T5")
def an_own_slice_has_an_unnamed_port(world: World) -> None:
    _without_selector(world)["ports"][0]["name"] = ""


@planted("T5")
def an_own_slice_beside_a_selector_has_another_port_name(world: World) -> None:
    """Named before the selector that matches nothing (B1) and a proxy with a strange name (N7)."""
    a_proxy_uses_the_long_name_of_its_host(world)
    endpoint_slice = _by_hand(world)
    endpoint_slice["ports"][0]["name"] = "pg"
    world.get("Service", "shop", "cart")["spec"]["selector"] = {"app": "postgres"}


@near_miss("T5")
def an_own_slice_beside_a_selector_has_the_same_name(world: World) -> None:
    _by_hand(world)
    world.get("Service", "shop", "cart")["spec"]["selector"] = {"app": "postgres"}


@near_miss("T5")
def the_slice_is_made_of_pods(world: World) -> None:
    """A change of the port's name that the controller has not written yet."""
    world.get("EndpointSlice", "shop", "cart-x7k2p")["ports"][0]["name"] = "web"


def _by_hand(world: World) -> dict[str, Any]:
    endpoint_slice = world.get("EndpointSlice", "shop", "cart-x7k2p")
    del endpoint_slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"]
    endpoint_slice["metadata"].pop("ownerReferences")
    return endpoint_slice


@near_miss("T5")
def an_own_slice_has_the_same_name(world: World) -> None:
    _without_selector(world)


def _without_selector(world: World) -> dict[str, Any]:
    del world.get("Service", "shop", "cart")["spec"]["selector"]
    return _by_hand(world)


@planted("T7")
def the_service_is_of_ipv6_and_its_pods_are_not(world: World) -> None:
    spec = world.get("Service", "shop", "cart")["spec"]
    spec.update(
        ipFamilies=["IPv4", "IPv6"],
        ipFamilyPolicy="RequireDualStack",
        clusterIPs=[spec["clusterIP"], "fd00::5"],
    )


@near_miss("T7")
def some_pods_have_both_families(world: World) -> None:
    the_service_is_of_ipv6_and_its_pods_are_not(world)
    for pod in world.all("Pod"):
        pod["status"]["podIPs"].append({"ip": "fd01::7"})
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    write_slice(world, "cart")


@planted("T2")
def the_name_is_of_another_protocol(world: World) -> None:
    _port(world, targetPort="http")
    for container in _containers(world):
        container["ports"][0]["protocol"] = "UDP"
