"""What connections from here find."""

from __future__ import annotations

from tests.diagnose.explain.world import World, near_miss, planted


def _addresses(world: World) -> list[str]:
    return [pod["status"]["podIP"] for pod in world.all("Pod")]


def _undeclared(world: World) -> None:
    """The Service leads to 9999, which no Pod declares."""
    world.get("Service", "shop", "cart")["spec"]["ports"][0]["targetPort"] = 9999
    world.get("EndpointSlice", "shop", "cart-x7k2p")["ports"][0]["port"] = 9999


@planted("T6")
def programs_listen_on_loopback(world: World) -> None:
    world.unopened = {f"{address}:8080": "refused" for address in _addresses(world)}


@near_miss("T6", "T1")
def every_connection_is_open(world: World) -> None:
    world.unopened = {}


@near_miss("T6")
def nothing_answers_from_here(world: World) -> None:
    world.unopened = {f"{address}:8080": "silent" for address in _addresses(world)}


@near_miss("T1")
def a_port_that_is_not_declared_is_open(world: World) -> None:
    _undeclared(world)
    world.unopened = {}


@near_miss("T6")
def a_port_that_is_not_declared_refuses(world: World) -> None:
    _undeclared(world)
    world.unopened = {f"{address}:9999": "refused" for address in _addresses(world)}
