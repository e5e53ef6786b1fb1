"""What must hold at every quiet point, by name.

Each is a small function of the world that raises ``Broken``; ``INVARIANTS`` is the list that
reports and ``docs/invariants.md`` go by. Others hold all the time and are checked where they
happen: ``no-lost-endpoint`` (``steady``), ``told-is-never-held`` and ``held-within-bound``
(``removals``), ``no-premature-collection`` (``collection``), ``no-part-fails`` and ``quiescence``
(``simulation``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final, Protocol

import msgspec

from sliceplane.api.apps import Deployment, ReplicaSet
from sliceplane.api.codec import decode
from sliceplane.api.core import Pod, Service
from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.quantity import exact
from sliceplane.api.scheme import (
    ConfigMaps,
    Deployments,
    ReplicaSets,
    ServiceAccounts,
    by_storage_key,
)
from sliceplane.emulation.rollout import limits
from sliceplane.lab.sim.endpoints_invariants import check_endpoints, check_mirror
from sliceplane.lab.sim.proxies import Proxies
from sliceplane.lab.sim.roster import AUTHORITY, Setup
from sliceplane.lab.sim.server import Server
from sliceplane.lab.sim.steady import Broken
from sliceplane.lab.sim.view import View, service_of
from sliceplane.server.registry.kinds import COUNTED, counted_kind, kind_of, usage
from sliceplane.server.registry.kinds.pod_quota import is_in_scopes
from sliceplane.slices import oracle
from sliceplane.slices.heuristics.shipped import find_shipped


class Checked(Protocol):
    """A process, as far as invariants look at it."""

    actor: str

    def check(self) -> None: ...

    def stale(self, server: Server) -> str:
        """What its caches show otherwise than the server; "" if nothing."""


SLICES_COUNTED: Final = "count/endpointslices.discovery.k8s.io"
ACCEPTED: Final = "TrafficDistributionAccepted"
PROGRAMMED: Final = "TrafficDistributionProgrammed"
HONORED: Final = "TrafficDistributionHonored"
CONDITIONS: Final = (ACCEPTED, PROGRAMMED, HONORED)
#: writes of controllers between two quiet points, without anything happening and for each thing
#: that does
WRITES_BASE, WRITES_PER_INPUT = 500, 10


class World(msgspec.Struct, frozen=True):
    """At a quiet point.  ``inputs`` and ``writes``: since the one before."""

    view: View
    setup: Setup
    controllers: Sequence[str]
    processes: Sequence[Checked]
    inputs: int
    writes: int
    #: in the ``full`` workload
    proxies: Proxies | None


def _converged(world: World) -> None:
    view = world.view
    for service in view.lasting_services():
        space = service.metadata.namespace
        if oracle.is_active(service) and not _is_full(view, space, SLICES_COUNTED):
            try:
                oracle.check_converged(
                    *(
                        service,
                        view.pods.get(space, ()),
                        view.nodes,
                        view.slices.get(space, ()),
                        world.setup.max_endpoints,
                    ),
                    subsetting=world.setup.subsetting.value,
                )
            except AssertionError as error:
                raise Broken("convergence", service.metadata.key, str(error)) from error


def _merged(world: World) -> None:
    """Slices of one kind: no fewer could hold their endpoints."""
    if not world.setup.defragment or "endpointslice" not in world.controllers:
        return
    view = world.view
    for service in view.lasting_services():
        space = service.metadata.namespace
        if not oracle.is_active(service) or _is_full(view, space, SLICES_COUNTED):
            continue
        groups: dict[tuple[str, oracle.PortSet, str], list[int]] = {}
        for endpoint_slice in view.slices.get(space, ()):
            if service_of(endpoint_slice) == service.metadata.key:
                group = (
                    endpoint_slice.address_type,
                    oracle.port_set(endpoint_slice.ports or ()),
                    oracle.subset_of(endpoint_slice),
                )
                groups.setdefault(group, []).append(len(endpoint_slice.endpoints or ()))
        for (kind, _, zone), fills in sorted(
            groups.items(), key=lambda item: (item[0][0], item[0][2], item[1])
        ):
            least = max(1, -(-sum(fills) // world.setup.max_endpoints))
            if len(fills) > least:
                what = (
                    f"{service.metadata.key} {kind} {zone} keeps {sorted(fills)} in {len(fills)} "
                    "slices"
                )
                raise Broken("slices-merged", service.metadata.key, f"{what} and needs {least}")


def _per_namespace(world: World) -> None:
    """A ServiceAccount and the authority in each namespace that is not going."""
    server = world.view.server
    for space in world.view.namespaces:
        if (
            "serviceaccount" in world.controllers
            and server.find(ServiceAccounts, space, "default") is None
        ):
            raise Broken("every-namespace", space, f"{space} has no ServiceAccount default")
        if "root-ca" in world.controllers:
            config_map = server.find(ConfigMaps, space, "kube-root-ca.crt")
            if config_map is None or (config_map.get("data") or {}).get("ca.crt") != AUTHORITY:
                raise Broken(
                    "every-namespace", space, f"{space} is told the authority {config_map}"
                )


def _conditions(world: World) -> None:
    """From the Service, its slices and the fact that all node proxies hold all that there is, or
    that there is none.
    """
    if "traffic-distribution" not in world.controllers:
        return
    view = world.view
    for service in view.lasting_services():
        slices = [
            endpoint_slice
            for endpoint_slice in view.slices.get(service.metadata.namespace, ())
            if (endpoint_slice.metadata.labels or {}).get(LABEL_SERVICE_NAME)
            == service.metadata.name
        ]
        conditions = {
            condition.type: condition
            for condition in service.status.conditions or ()
            if condition.type in CONDITIONS
        }
        statuses = {name: condition.status for name, condition in conditions.items()}
        wanted = _wanted_conditions(service, slices, proxies=world.proxies is not None)
        if statuses != wanted:
            raise Broken(
                "conditions-true",
                service.metadata.key,
                f"{service.metadata.key}: {statuses}, must be {wanted}",
            )
        for name, condition in sorted(conditions.items()):
            if (condition.observed_generation or 0) != service.metadata.generation:
                what = (
                    f"{service.metadata.key} {name} is of generation "
                    f"{condition.observed_generation}"
                )
                raise Broken(
                    "conditions-true",
                    service.metadata.key,
                    f"{what}, not {service.metadata.generation}",
                )


def _wanted_conditions(
    service: Service, slices: Sequence[EndpointSlice], *, proxies: bool
) -> dict[str, str]:
    asked = service.spec.traffic_distribution
    if not asked:
        return {}
    if oracle.is_auto(service) or ("/" in asked and isinstance(find_shipped(asked), str)):
        return {ACCEPTED: "False", PROGRAMMED: "False"}
    ready = [
        endpoint
        for endpoint_slice in slices
        for endpoint in endpoint_slice.endpoints or ()
        if endpoint.conditions.ready is not False
    ]
    programmed = bool(ready) and all(
        endpoint.hints is not None and bool(endpoint.hints.for_zones or endpoint.hints.for_nodes)
        for endpoint in ready
    )
    conditions = {ACCEPTED: "True", PROGRAMMED: str(programmed)}
    if programmed and service.spec.cluster_ip not in ("", "None"):
        conditions[HONORED] = "True" if proxies else "Unknown"
    return conditions


def _no_duplicates(world: World) -> None:
    """But where a quota refuses the slice that the rest of a move waits for: what has moved is
    shown twice then.
    """
    seen: Counter[tuple[str, ...]] = Counter()
    active = {
        service.metadata.key
        for service in world.view.lasting_services()
        if oracle.is_active(service)
    }
    for space, slices in world.view.slices.items():
        full = _is_full(world.view, space, SLICES_COUNTED)
        for endpoint_slice in slices:
            if service_of(endpoint_slice) in active and not full:
                seen.update(
                    (
                        service_of(endpoint_slice),
                        endpoint_slice.address_type,
                        endpoint.target_ref.uid,
                        repr(sorted(endpoint.addresses)),
                    )
                    for endpoint in endpoint_slice.endpoints or ()
                    if endpoint.target_ref is not None
                )
    for (service, kind, uid, addresses), count in sorted(seen.items()):
        if count > 1:
            raise Broken(
                "no-duplicate-endpoint",
                service,
                f"{service} {kind} has {addresses} of {uid} {count} times",
            )


def _maximum(world: World) -> None:
    for slices in world.view.slices.values():
        for endpoint_slice in slices:
            count = len(endpoint_slice.endpoints or ())
            if service_of(endpoint_slice) and count > world.setup.max_endpoints:
                raise Broken(
                    "slice-maximum",
                    endpoint_slice.metadata.name,
                    f"{endpoint_slice.metadata.key} has {count} endpoints",
                )


def _bounded_writes(world: World) -> None:
    """Generous: a namespace's end alone is a write for each object.  What it finds is a loop that
    ends by luck.
    """
    most = WRITES_BASE + WRITES_PER_INPUT * world.inputs
    if world.writes > most:
        raise Broken(
            "bounded-writes", "", f"{world.writes} writes after {world.inputs} changes and faults"
        )


def _owners(world: World) -> None:
    if "garbage-collector" not in world.controllers:
        return
    store = world.view.server.store
    everything = [record for name in store.resources() for record in store.list(name).records]
    alive = {record.uid for record in everything}
    for record in everything:
        if record.owners and not alive.intersection(record.owners):
            raise Broken(
                "no-dead-owner",
                record.key.name,
                f"{record.key} outlives its owners {record.owners}",
            )


def _deleted_services(world: World) -> None:
    """Slices that lost their owner to another writer before the Service went have none any more."""
    if not {"garbage-collector", "endpointslice"} <= set(world.controllers):
        return
    keys = {service.metadata.key for service in world.view.services}
    for slices in world.view.slices.values():
        for endpoint_slice in slices:
            service = service_of(endpoint_slice)
            if service and service not in keys and endpoint_slice.metadata.owner_references:
                raise Broken(
                    "deleted-services-leave-nothing",
                    endpoint_slice.metadata.name,
                    f"{endpoint_slice.metadata.key} of {service}",
                )


def _quotas(world: World) -> None:
    if "resourcequota" not in world.controllers:
        return
    server = world.view.server
    for quota in world.view.quotas:
        used: dict[str, Fraction] = defaultdict(Fraction)
        for resource in COUNTED:
            for record in server.records(resource, quota.metadata.namespace):
                item = decode(record.body, resource.projection)
                if is_in_scopes(quota.spec, kind_of(resource).quota.traits(item)):
                    for name, number in usage(resource, item).items():
                        used[name] += number
        for name in sorted(quota.spec.hard or {}):
            said = (quota.status.used or {}).get(name)
            if counted_kind(name) is not None and (said is None or exact(said) != used[name]):
                raise Broken(
                    "quotas-true",
                    "limits",
                    f"{quota.metadata.key}: {name} is {used[name]}, told is {said}",
                )


def _orphans(world: World) -> None:
    if "pod-garbage-collector" not in world.controllers:
        return
    for pods in world.view.pods.values():
        for pod in pods:
            node = pod.spec.node_name
            if node and node not in world.view.nodes and not pod.metadata.finalizers:
                raise Broken(
                    "no-orphaned-pod",
                    pod.metadata.name,
                    f"Pod {pod.metadata.key} is left, Node {node} is not",
                )


def _replicas(world: World) -> None:
    if not {"replicaset", "garbage-collector"} <= set(world.controllers):
        return
    view = world.view
    for record in view.server.records(ReplicaSets):
        replica_set: ReplicaSet = decode(record.body, ReplicaSet)
        if (
            replica_set.metadata.deletion_timestamp is None
            and replica_set.metadata.namespace in view.namespaces
        ):
            mine = [
                pod
                for pod in view.pods.get(replica_set.metadata.namespace, ())
                if _runs_for(pod, replica_set)
            ]
            full = len(mine) < (replica_set.spec.replicas or 0) and _is_full(
                view, replica_set.metadata.namespace, "pods"
            )
            if len(mine) != replica_set.spec.replicas and not full:
                raise Broken(
                    "replicas",
                    replica_set.metadata.name,
                    f"{replica_set.metadata.key} has {len(mine)} of {replica_set.spec.replicas}",
                )


def _deployments(world: World) -> None:
    """A rollout may be stuck (a full quota, Pods that are held unready), but never between two
    states of its own.
    """
    if not {"deployment", "replicaset", "garbage-collector"} <= set(world.controllers):
        return
    view = world.view
    sets: dict[str, list[ReplicaSet]] = {}
    for record in view.server.records(ReplicaSets):
        item: ReplicaSet = decode(record.body, ReplicaSet)
        for owner_reference in item.metadata.owner_references or ():
            if owner_reference.controller:
                sets.setdefault(owner_reference.uid, []).append(item)
    for record in view.server.records(Deployments):
        deployment: Deployment = decode(record.body, Deployment)
        meta = deployment.metadata
        status = deployment.status
        wanted = deployment.spec.replicas or 0
        if meta.deletion_timestamp is not None or meta.namespace not in view.namespaces:
            continue
        mine = sets.get(meta.uid, [])
        surge, unavailable = limits(deployment.spec.strategy, wanted)
        asked = sum(item.spec.replicas or 0 for item in mine)
        available = sum(item.status.available_replicas for item in mine)
        # More may be asked for where a set's create came late, and a quota keeps the other's Pods
        # from being made.
        stuck = available <= wanted - unavailable
        if not wanted <= asked or (asked > wanted + surge and not stuck):
            raise Broken(
                "deployments-true",
                meta.name,
                f"{meta.key} asks for {asked} of {wanted} and {surge} more",
            )
        reported = (status.replicas, status.available_replicas, status.observed_generation)
        true = (
            sum(item.status.replicas for item in mine),
            sum(item.status.available_replicas for item in mine),
            meta.generation,
        )
        if reported != true:
            raise Broken(
                "deployments-true", meta.name, f"{meta.key} tells {reported}, and {true} is so"
            )


def _is_full(view: View, namespace: str, what: str) -> bool:
    """A quota lets no further one of *what* in."""
    return any(
        exact((quota.status.used or {}).get(what, 0)) >= exact((quota.spec.hard or {})[what])
        for quota in view.quotas
        if quota.metadata.namespace == namespace and what in (quota.spec.hard or {})
    )


def _addresses(world: World) -> None:
    """Bare Pods take over addresses of failed ones on purpose."""
    if "kubelet" not in world.controllers:
        return
    owners: dict[str, str] = {}
    for pods in world.view.pods.values():
        for pod in pods:
            if pod.has_ended or pod.spec.node_name.startswith("bare-"):
                continue
            for ip in pod.status.ips:
                holder = owners.setdefault(ip, pod.metadata.key)
                if holder != pod.metadata.key:
                    raise Broken(
                        "one-address-one-pod",
                        pod.metadata.name,
                        f"{holder} and {pod.metadata.key}: {ip}",
                    )


def _runs_for(pod: Pod, owner: Object) -> bool:
    return pod.is_active and any(
        owner_reference.uid == owner.metadata.uid and owner_reference.controller
        for owner_reference in pod.metadata.owner_references or ()
    )


def _namespaces(world: World) -> None:
    if not {"namespace", "garbage-collector"} <= set(world.controllers):
        return
    alive = {"", *world.view.namespaces}
    store = world.view.server.store
    for name in store.resources():
        for record in store.list(name).records:
            if record.key.namespace not in alive:
                what = f"{by_storage_key(name).plural}/{record.key.path}"
                raise Broken(
                    "namespaces-end",
                    record.key.name,
                    f"{what} is in a namespace that is gone or going",
                )


def _endpoints(world: World) -> None:
    if "endpoints" in world.controllers:
        for service in _unlimited(world.view, "count/endpoints"):
            check_endpoints(world.view, service, world.view.endpoints.get(service.metadata.key))


def _mirrors(world: World) -> None:
    if "endpointslice-mirroring" in world.controllers:
        for service in _unlimited(world.view, SLICES_COUNTED):
            check_mirror(world.view, service, world.view.endpoints.get(service.metadata.key))


def _unlimited(view: View, counted: str) -> list[Service]:
    """Services in whose Namespace no quota keeps a controller from its work."""
    return [
        service
        for service in view.lasting_services()
        if not _is_full(view, service.metadata.namespace, counted)
    ]


def _caches(world: World) -> None:
    for process in world.processes:
        stale = process.stale(world.view.server)
        if stale:
            raise Broken("caches-current", process.actor, f"{process.actor}: {stale}")


def _marks(world: World) -> None:
    if world.proxies is not None:
        world.proxies.check()


def _checks(world: World) -> None:
    for process in world.processes:
        process.check()
    world.view.server.check()


#: name -> (what it says, how it is checked)
INVARIANTS: Final[dict[str, tuple[str, Callable[[World], None]]]] = {
    "consistent-state": (
        "every controller's, the store's, the registry's and the hub's check() passes",
        _checks,
    ),
    "caches-current": ("every informer's cache is what the server holds", _caches),
    "convergence": ("slices show exactly what the oracle says", _converged),
    "endpoints-true": ("Endpoints say what a fresh start would write", _endpoints),
    "mirror-true": ("mirrored slices have the addresses of their Endpoints", _mirrors),
    "no-duplicate-endpoint": ("no endpoint is listed twice", _no_duplicates),
    "slice-maximum": ("no slice has more endpoints than allowed", _maximum),
    "bounded-writes": ("writes are in proportion to what happened", _bounded_writes),
    "no-dead-owner": ("no object outlives all its owners", _owners),
    "deleted-services-leave-nothing": (
        "no slice is left of a Service that is gone",
        _deleted_services,
    ),
    "namespaces-end": ("a deleted namespace goes, with all that was in it", _namespaces),
    "quotas-true": ("a quota's status counts what there is", _quotas),
    "one-address-one-pod": ("no two running Pods have one address", _addresses),
    "no-orphaned-pod": ("no Pod outlives its Node", _orphans),
    "replicas": ("a ReplicaSet has the Pods that it asks for", _replicas),
    "deployments-true": (
        "a Deployment's sets want what it wants, and its status counts them",
        _deployments,
    ),
    "slices-merged": ("with defragmentation no slice is kept that others have room for", _merged),
    "every-namespace": (
        "every namespace has its ServiceAccount and knows the authority",
        _per_namespace,
    ),
    "mark-reaches-all": (
        "every node proxy tells the newest version and the digest of the server's state",
        _marks,
    ),
    "conditions-true": ("conditions of traffic distribution tell what slices show", _conditions),
}
#: checked where they happen
ALWAYS: Final[dict[str, str]] = {
    "no-lost-endpoint": "a Pod that stays ready stays published at every commit",
    "told-is-never-held": "what a Pod says itself is never held back from slices",
    "held-within-bound": "an endpoint that no Pod said to be gone is held no longer than its bound",
    "no-premature-collection": "the garbage collector deletes nothing that has an owner",
    "no-part-fails": "no controller, store or hub raises",
    "one-leader": "of several instances one leads, never two at a time",
    "mark-never-early": "no node proxy tells a version that its kernel does not hold",
    "mark-digest-true": "a digest is told that the server's state had at that version",
    "mark-late-by-one-report": "what a kernel holds is told with the next report",
    "no-false-alarm": "no controller says that a cache lost an event",
    "quiescence": "without faults and changes writes end within bounded time, for good",
}
