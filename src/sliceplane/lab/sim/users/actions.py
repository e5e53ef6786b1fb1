"""Further actions of users and machines in the ``full`` workload: zones, hints, subsets, owners,
quotas.

Nodes have CPUs and conditions, Services request hints in every possible way, objects get random
owners, and a quota refuses further slices for a while.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.discovery import LABEL_ZONE
from sliceplane.api.meta import Document
from sliceplane.api.scheme import ConfigMaps, EndpointSlices, Nodes, Pods, ResourceQuotas, Services
from sliceplane.lab.sim.roster import ZONES
from sliceplane.lab.sim.users.workload import BARE_NODES, POLICIES, Action, SimulatedWorkload
from sliceplane.slices.subsets import ANNOTATION_SUBSETTING

MODE: Final = "service.kubernetes.io/topology-mode"
OLDER_MODE: Final = "service.kubernetes.io/topology-aware-hints"
DISTRIBUTIONS: Final = (
    None,
    "PreferClose",
    "PreferSameNode",
    "sliceplane.dev/Balanced",
    "sliceplane.dev/SpreadConstraints",
    "example.com/Unknown",
)
APPROACHES: Final = (None, "Original", "PreferZone", "RequireZone", "Whatever")
CPUS: Final = ("1", "2", "500m", "4", "0")
QUOTA_SLICES: Final = "count/endpointslices.discovery.k8s.io"
SLICES_AMPLE: Final = 200
SLICES_TIGHT_MAX: Final = 6
THINGS_MAX: Final = 8
_OPENED_MAX_S: Final = 60.0
#: seconds after which the quota's controller has usually written the new status
_FOLLOWED_S: Final = 1.0
_LABEL_ROLE = "node-role.kubernetes.io/control-plane"
_UID_OF_NO_OBJECT = "00000000-0000-4000-8000-00000000000{}"


def begin(workload: SimulatedWorkload) -> None:
    """Initializes the Nodes; called once after the workload's own ``begin``."""
    for which in range(BARE_NODES):
        workload.write(
            "patch", Nodes, "", _node_status("2", ready=True), f"bare-{which}", subresource="status"
        )


# Nodes and hints


def _node_status(cpu: str, *, ready: bool) -> Document:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {
        "status": {"allocatable": {"cpu": cpu}, "capacity": {"cpu": cpu}, "conditions": [condition]}
    }


def change_node(workload: SimulatedWorkload) -> None:
    """Changes the size and readiness of a Node."""
    rng = workload.rng
    change = _node_status(CPUS[rng.below(len(CPUS))], ready=rng.below(4) > 0)
    workload.patch(Nodes, workload.pick(Nodes), change, "status")


def recover_nodes(workload: SimulatedWorkload) -> None:
    """Makes all Nodes ready and sets their zones, as hints need."""
    for which, node in enumerate(workload.server.documents(Nodes)):
        workload.patch(Nodes, node, _node_status("2", ready=True), "status")
        workload.patch(
            Nodes, node, {"metadata": {"labels": {LABEL_ZONE: ZONES[which % len(ZONES)]}}}
        )


def change_node_role(workload: SimulatedWorkload) -> None:
    role = "" if workload.rng.below(3) == 0 else None
    workload.patch(Nodes, workload.pick(Nodes), {"metadata": {"labels": {_LABEL_ROLE: role}}})


def request_hints(workload: SimulatedWorkload) -> None:
    rng = workload.rng
    which = rng.below(4)
    if which == 0:
        change: Document = {
            "metadata": {"annotations": {MODE: ("Auto", "auto", "Disabled", None)[rng.below(4)]}}
        }
    elif which == 1:
        change = {
            "metadata": {
                "annotations": {OLDER_MODE: ("Auto", "Disabled", None, None)[rng.below(4)]}
            }
        }
    else:
        change = {"spec": {"trafficDistribution": DISTRIBUTIONS[rng.below(len(DISTRIBUTIONS))]}}
    workload.patch(Services, workload.users_service(), change)


def request_subsets(workload: SimulatedWorkload) -> None:
    approach = APPROACHES[workload.rng.below(len(APPROACHES))]
    workload.patch(
        Services,
        workload.users_service(),
        {"metadata": {"annotations": {ANNOTATION_SUBSETTING: approach}}},
    )


def add_pods(workload: SimulatedWorkload) -> None:
    """Creates enough Pods for a large Service."""
    for _ in range(4):
        workload.add_pod()


# Owners


def _things(workload: SimulatedWorkload, namespace: str) -> list[Document]:
    objects = workload.server.documents(ConfigMaps, namespace)
    return [thing for thing in objects if thing["metadata"]["name"].startswith("thing-")]


def _owners(workload: SimulatedWorkload, namespace: str) -> list[Document]:
    """Returns one or two owners that mostly exist; the others were deleted, never existed, or are
    in another namespace.
    """
    rng = workload.rng
    space = "" if rng.below(8) == 0 else namespace
    candidates = _things(workload, space) + workload.server.documents(Services, space)
    candidates += workload.server.documents(Pods, space)
    owners: dict[str, Document] = {}
    for _ in range(1 + rng.below(2)):
        if candidates and rng.below(5):
            chosen = candidates[rng.below(len(candidates))]
            kind = chosen["kind"]
            name = chosen["metadata"]["name"]
            uid = chosen["metadata"]["uid"]
        else:
            kind = "ConfigMap"
            name = f"thing-{rng.below(4)}"
            uid = _UID_OF_NO_OBJECT.format(rng.below(4))
        owner = {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}
        if rng.below(3) == 0:
            owner["blockOwnerDeletion"] = True
        owners[uid] = owner
    return list(owners.values())


def create_thing(workload: SimulatedWorkload) -> None:
    rng = workload.rng
    namespace = workload.somewhere()
    head: Document = {"name": f"thing-{rng.below(THINGS_MAX)}"}
    if rng.below(2):
        head["ownerReferences"] = _owners(workload, namespace)
    workload.write(
        "create", ConfigMaps, namespace, {"metadata": head, "data": {"n": str(rng.below(9))}}
    )


def delete_thing(workload: SimulatedWorkload) -> None:
    thing = workload.choose(_things(workload, ""))
    if thing is not None:
        workload.delete(ConfigMaps, thing, propagationPolicy=POLICIES[workload.rng.below(3)])


def change_owners(workload: SimulatedWorkload) -> None:
    """Changes the owners of a ConfigMap, a bare Pod, a Service or a foreign slice; they may own
    each other.
    """
    rng = workload.rng
    server = workload.server
    candidates = [(ConfigMaps, thing) for thing in _things(workload, "")]
    candidates += [(Pods, pod) for pod in workload.bare_pods()][:6]
    slices = server.documents(EndpointSlices)
    candidates += [
        (EndpointSlices, item) for item in slices if item["metadata"]["name"].startswith("theirs-")
    ]
    service = workload.users_service()
    if service is not None:
        candidates.append((Services, service))
    if not candidates:
        return
    resource, chosen = candidates[rng.below(len(candidates))]
    mine = chosen["metadata"]["uid"]
    owners = [
        owner
        for owner in _owners(workload, chosen["metadata"]["namespace"])
        if owner["uid"] != mine
    ]
    workload.patch(
        resource, chosen, {"metadata": {"ownerReferences": owners if rng.below(4) else None}}
    )


def spoil_authority(workload: SimulatedWorkload) -> None:
    objects = workload.server.documents(ConfigMaps)
    chosen = workload.choose(
        [item for item in objects if item["metadata"]["name"] == "kube-root-ca.crt"]
    )
    if chosen is None:
        return
    which = workload.rng.below(3)
    if which == 0:
        workload.delete(ConfigMaps, chosen)
    else:
        workload.patch(ConfigMaps, chosen, {"data": {"ca.crt": "another"} if which == 1 else None})


# Quotas


def bind_quota(workload: SimulatedWorkload) -> None:
    """Lets the quota refuse further slices in namespace shop for a while, or until another action
    opens it.
    """
    limit = workload.rng.below(SLICES_TIGHT_MAX)
    if _limit_slices(workload, limit) and workload.rng.below(3):
        workload.scheduler.after(
            workload.rng.uniform(0.0, _OPENED_MAX_S), lambda: open_quota(workload)
        )


def open_quota(workload: SimulatedWorkload) -> None:
    """Opens the quota; after long failure a controller waits for a change, so users make one."""
    if _limit_slices(workload, SLICES_AMPLE):
        _note_opened(workload)
        workload.scheduler.after(_FOLLOWED_S, lambda: _check_opened(workload, late=False))


def _check_opened(workload: SimulatedWorkload, *, late: bool) -> None:
    """Checks the quota's status, which decides: if it stays unwritten for long, users make another
    change.
    """
    quota = workload.server.find(ResourceQuotas, "shop", "limits")
    if quota is None or quota["spec"]["hard"].get(QUOTA_SLICES) != str(SLICES_AMPLE):
        return
    if quota.get("status", {}).get("hard", {}).get(QUOTA_SLICES) != str(SLICES_AMPLE):
        workload.scheduler.after(_FOLLOWED_S, lambda: _check_opened(workload, late=True))
    elif late:
        _note_opened(workload)


def _note_opened(workload: SimulatedWorkload) -> None:
    for service in workload.server.documents(Services, "shop"):
        note = {"metadata": {"annotations": {"opened": f"{workload.scheduler.now:.3f}"}}}
        workload.patch(Services, service, note)


def _limit_slices(workload: SimulatedWorkload, most: int) -> bool:
    quota = workload.server.find(ResourceQuotas, "shop", "limits")
    return workload.patch(ResourceQuotas, quota, {"spec": {"hard": {QUOTA_SLICES: str(most)}}})


FULL_ACTIONS: Final[tuple[Action, ...]] = (
    (8, change_node, False),
    (4, recover_nodes, False),
    (2, change_node_role, False),
    (14, request_hints, False),
    (8, request_subsets, False),
    (4, add_pods, False),
    (6, create_thing, False),
    (5, delete_thing, False),
    (8, change_owners, False),
    (2, spoil_authority, False),
    (3, bind_quota, False),
    (2, open_quota, False),
)
