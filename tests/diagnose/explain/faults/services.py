"""The Service itself."""

from __future__ import annotations

from tests.diagnose.explain.world import World, add_service, ago, near_miss, planted

from sliceplane.diagnose.explain.question import ExplainQuestion


def _dialled(port: str, protocol: str = "") -> ExplainQuestion:
    return ExplainQuestion("service", "cart", "shop", port=port, protocol=protocol)


@planted("S1")
def it_is_in_another_namespace(world: World) -> ExplainQuestion:
    add_service(world, "payments", "store")
    return ExplainQuestion("service", "payments", "shop")


@planted("S1")
def its_name_is_mistyped(_: World) -> ExplainQuestion:
    return ExplainQuestion("service", "carts", "shop")


@near_miss("S1")
def the_reader_may_not_list_services(world: World) -> None:
    world.refuse.add("services")


@planted("S2")
def clients_dial_the_target_port(_: World) -> ExplainQuestion:
    return _dialled("8080")


@planted("S3")
def clients_dial_another_protocol(_: World) -> ExplainQuestion:
    return _dialled("80", "UDP")


@near_miss("S2", "S3")
def clients_dial_a_name(_: World) -> ExplainQuestion:
    return _dialled("http", "TCP")


@near_miss("S2", "S3")
def both_protocols_are_there(world: World) -> ExplainQuestion:
    ports = world.get("Service", "shop", "cart")["spec"]["ports"]
    ports.append({"name": "quic", "port": 80, "protocol": "UDP", "targetPort": 8080})
    return _dialled("80", "UDP")


@planted("S1")
def its_namespace_is_being_deleted(world: World) -> None:
    world.drop("Service", "shop", "cart")
    world.get("Namespace", "", "shop")["metadata"]["deletionTimestamp"] = ago(60)
