"""Endpoints objects of old, as ``sliceplane endpoints audit`` finds them."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.diagnose.explain import edits
from tests.diagnose.explain.edits import CART, Edit, cut
from tests.diagnose.explain.world import AuditFault, World, ago

LEADER = "control-plane.alpha.kubernetes.io/leader"
MANAGED_BY = "endpoints.kubernetes.io/managed-by"
NO_SELECTOR = cut(f"{CART}:spec.selector")
planted = partial(edits.planted, by=AuditFault)
nearly = partial(edits.nearly, by=AuditFault)


def endpoints(*addresses: str, name: str = "cart", manager: str = "", **more: Any) -> Edit:
    """Without *addresses*, those of the Pods."""

    def edit(world: World) -> None:
        ips = addresses or [pod["status"]["podIP"] for pod in world.all("Pod")]
        entry = {"manager": manager, "operation": "Update", "time": ago(600)}
        managed = {"managedFields": [{**entry, "fieldsV1": {"f:subsets": {}}}]} if manager else {}
        subsets = [{"addresses": [{"ip": address} for address in ips]}]
        world.add("Endpoints", "shop", name, meta=managed, subsets=subsets, **more)

    return edit


def annotated(name: str, **annotations: str) -> Edit:
    """Endpoints without an address."""
    meta = {"annotations": annotations}
    return edits.add(f"Endpoints/{name}", meta=meta, subsets=[{"addresses": []}])


planted(
    "L1",
    "the_endpoints_controller_is_off",
    endpoints("10.244.0.77", manager="kube-controller-manager"),
)
nearly(
    "L1 L4",
    "the_endpoints_controller_keeps_them",
    endpoints(manager="kube-controller-manager"),
)
planted("L2", "two_writers_do_not_agree", NO_SELECTOR, endpoints("10.9.0.9"))
nearly("L2", "two_writers_agree", NO_SELECTOR, endpoints())
planted(
    "L3",
    "endpoints_are_left_over",
    endpoints("10.9.0.9", name="old-queue", manager="queue-operator"),
)
nearly("L3", "endpoints_without_a_service_are_a_lock", annotated("old-queue", **{LEADER: "{}"}))
planted("L4", "an_operator_writes_beside_the_controller", endpoints(manager="queue-operator"))
planted(
    "L5",
    "an_operator_writes_for_a_service_without_selector",
    NO_SELECTOR,
    endpoints(manager="queue-operator"),
)
nearly("L5", "it_is_the_clusters_own_service", NO_SELECTOR, endpoints(manager="kube-apiserver"))
planted(
    "L6",
    "a_program_of_old_elects_its_leader",
    annotated(
        "ingress-leader",
        **{LEADER: f'{{"holderIdentity":"ingress-0","renewTime":"{ago(2)}"}}'},
    ),
)
nearly(
    "L6",
    "another_annotation",
    endpoints(),
    edits.put(
        "Endpoints/cart:metadata.annotations",
        {"endpoints.kubernetes.io/last-change-trigger-time": ago(9)},
    ),
)
planted(
    "L7",
    "the_reverse_mirror_serves_old_readers",
    endpoints(labels={MANAGED_BY: "reverse-mirror.sliceplane.dev"}),
)
nearly(
    "L7",
    "the_endpoints_controller_serves_them",
    endpoints(labels={MANAGED_BY: "endpoint-controller"}),
)
