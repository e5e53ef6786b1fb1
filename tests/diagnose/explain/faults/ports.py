"""From a port of the Service to a port of each Pod, and what connections from here find."""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.edits import (
    CART,
    SLICE,
    Edit,
    cut,
    nearly,
    planted,
    pods,
    put,
    rewritten,
)
from tests.diagnose.explain.faults.proxies import LONG_NAME

CONTAINER = "Pod:spec.containers.0"


def target(port: int | str) -> Edit:
    return put(f"{CART}:spec.ports.0.targetPort", port)


planted("T1", "the_target_port_is_declared_by_none", target(9999))
nearly("T1", "pods_declare_no_port_at_all", target(9999), put(f"{CONTAINER}.ports", []))
nearly(
    "T1",
    "the_probe_answers_on_a_port_that_is_not_declared",
    target(9999),
    put(f"{CONTAINER}.readinessProbe.httpGet.port", 9999),
)
planted(
    "T2",
    "two_of_three_pods_have_no_port_of_that_name",
    target("http"),
    *(put(f"Pod/cart-{number}:spec.containers.0.ports.0.name", "web") for number in (1, 2)),
)
nearly("T2 T3 T4", "every_pod_has_the_name", target("http"))
planted("T3", "the_target_port_is_in_quotes", target("8080"))
nearly(
    "T3",
    "a_container_port_is_really_called_so",
    target("80a"),
    put(f"{CONTAINER}.ports.0.name", "80a"),
)
PORTS = [{"name": "https", "containerPort": 8443, "protocol": "TCP"}]
SIDECARS = (
    target("https"),
    put("Pod:spec.initContainers", [{"name": "proxy", "restartPolicy": "Always", "ports": PORTS}]),
)
planted(
    "T4", "the_name_is_a_sidecars_and_the_controller_is_old", *SIDECARS, put(f"{SLICE}:ports", [])
)
nearly("T4 T2", "the_name_is_a_sidecars_and_the_slice_has_it", *SIDECARS)

# Slices kept by hand

NO_SELECTOR = cut(f"{CART}:spec.selector")
POSTGRES = put(f"{CART}:spec.selector", {"app": "postgres"})


def by_hand(world: Any) -> None:
    metadata = world.get("EndpointSlice", "shop", "cart-x7k2p")["metadata"]
    del metadata["labels"]["endpointslice.kubernetes.io/managed-by"]
    del metadata["ownerReferences"]


def port_name(name: str) -> Edit:
    return put(f"{SLICE}:ports.0.name", name)


planted("T5", "an_own_slice_has_an_unnamed_port", NO_SELECTOR, by_hand, port_name(""))
planted(  # Named before the selector that matches nothing (B1), and a proxy's strange name (N7).
    "T5",
    "an_own_slice_beside_a_selector_has_another_port_name",
    LONG_NAME,
    by_hand,
    port_name("pg"),
    POSTGRES,
)
nearly("T5", "an_own_slice_beside_a_selector_has_the_same_name", by_hand, POSTGRES)
nearly(  # A change of the port's name that the controller has not written yet.
    "T5", "the_slice_is_made_of_pods", port_name("web")
)
nearly("T5", "an_own_slice_has_the_same_name", NO_SELECTOR, by_hand)

# Families and protocols

DUAL = planted(
    "T7",
    "the_service_is_of_ipv6_and_its_pods_are_not",
    put(f"{CART}:spec", ipFamilies=["IPv4", "IPv6"], ipFamilyPolicy="RequireDualStack"),
    put(f"{CART}:spec.clusterIPs", ["10.96.0.2", "fd00::5"]),
)
nearly(
    "T7",
    "some_pods_have_both_families",
    DUAL,
    pods(lambda pod: pod["status"]["podIPs"].append({"ip": "fd01::7"})),
    rewritten,
)
planted(
    "T2",
    "the_name_is_of_another_protocol",
    target("http"),
    put(f"{CONTAINER}.ports.0.protocol", "UDP"),
)

# Connections from here


def unopened(outcome: str, port: int = 8080) -> Edit:
    """Connections to the three Pods end so."""
    outcomes = {f"10.244.0.{number}:{port}": outcome for number in (3, 4, 5)}
    return lambda world: setattr(world, "unopened", outcomes if outcome else {})


UNDECLARED = (target(9999), put(f"{SLICE}:ports.0.port", 9999))
planted("T6", "programs_listen_on_loopback", unopened("refused"))
nearly("T6 T1", "every_connection_is_open", unopened(""))
nearly("T6", "nothing_answers_from_here", unopened("silent"))
nearly("T1", "a_port_that_is_not_declared_is_open", *UNDECLARED, unopened(""))
UNDECLARED_REFUSES = nearly(
    "T6", "a_port_that_is_not_declared_refuses", *UNDECLARED, unopened("refused", 9999)
)
