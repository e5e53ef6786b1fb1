"""Endpoints objects of old, as ``sliceplane endpoints audit`` finds them."""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.world import AuditFault, World, ago, near_miss, planted

LEADER = "control-plane.alpha.kubernetes.io/leader"
REVERSE = {"endpoints.kubernetes.io/managed-by": "reverse-mirror.sliceplane.dev"}


def _endpoints(
    world: World, *addresses: str, name: str = "cart", manager: str = "", **more: Any
) -> None:
    subsets = [{"addresses": [{"ip": address} for address in addresses]}]
    entry = {
        "manager": manager,
        "operation": "Update",
        "time": ago(600),
        "fieldsV1": {"f:subsets": {}},
    }
    meta = {**more.pop("meta", {}), **({"managedFields": [entry]} if manager else {})}
    world.add("Endpoints", "shop", name, meta=meta, subsets=subsets, **more)


def _pods(world: World) -> list[str]:
    return [pod["status"]["podIP"] for pod in world.all("Pod")]


def _no_selector(world: World) -> None:
    del world.get("Service", "shop", "cart")["spec"]["selector"]


@planted("L1", AuditFault)
def the_endpoints_controller_is_off(world: World) -> None:
    _endpoints(world, "10.244.0.77", manager="kube-controller-manager")


@near_miss("L1", "L4", named_by=AuditFault)
def the_endpoints_controller_keeps_them(world: World) -> None:
    _endpoints(world, *_pods(world), manager="kube-controller-manager")


@planted("L2", AuditFault)
def two_writers_do_not_agree(world: World) -> None:
    _no_selector(world)
    _endpoints(world, "10.9.0.9")


@near_miss("L2", named_by=AuditFault)
def two_writers_agree(world: World) -> None:
    _no_selector(world)
    _endpoints(world, *_pods(world))


@planted("L3", AuditFault)
def endpoints_are_left_over(world: World) -> None:
    _endpoints(world, "10.9.0.9", name="old-queue", manager="queue-operator")


@near_miss("L3", named_by=AuditFault)
def endpoints_without_a_service_are_a_lock(world: World) -> None:
    _endpoints(world, name="old-queue", meta={"annotations": {LEADER: "{}"}})


@planted("L4", AuditFault)
def an_operator_writes_beside_the_controller(world: World) -> None:
    _endpoints(world, *_pods(world), manager="queue-operator")


@planted("L5", AuditFault)
def an_operator_writes_for_a_service_without_selector(world: World) -> None:
    _no_selector(world)
    _endpoints(world, *_pods(world), manager="queue-operator")


@near_miss("L5", named_by=AuditFault)
def it_is_the_clusters_own_service(world: World) -> None:
    _no_selector(world)
    _endpoints(world, *_pods(world), manager="kube-apiserver")


@planted("L6", AuditFault)
def a_program_of_old_elects_its_leader(world: World) -> None:
    record = f'{{"holderIdentity":"ingress-0","renewTime":"{ago(2)}"}}'
    _endpoints(world, name="ingress-leader", meta={"annotations": {LEADER: record}})


@near_miss("L6", named_by=AuditFault)
def another_annotation(world: World) -> None:
    _endpoints(
        world,
        *_pods(world),
        meta={"annotations": {"endpoints.kubernetes.io/last-change-trigger-time": ago(9)}},
    )


@planted("L7", AuditFault)
def the_reverse_mirror_serves_old_readers(world: World) -> None:
    _endpoints(world, *_pods(world), labels=REVERSE)


@near_miss("L7", named_by=AuditFault)
def the_endpoints_controller_serves_them(world: World) -> None:
    _endpoints(
        world, *_pods(world), labels={"endpoints.kubernetes.io/managed-by": "endpoint-controller"}
    )
