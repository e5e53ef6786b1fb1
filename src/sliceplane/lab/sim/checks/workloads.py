"""Invariants of workloads, namespaces, quotas and owners."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

from sliceplane.api.apps import Deployment, ReplicaSet
from sliceplane.api.codec import decode
from sliceplane.api.core import Pod
from sliceplane.api.meta import Object
from sliceplane.api.quantity import exact
from sliceplane.api.scheme import (
    ConfigMaps,
    Deployments,
    ReplicaSets,
    ServiceAccounts,
    by_storage_key,
)
from sliceplane.emulation.deployments.rollout import limits
from sliceplane.emulation.templates import controller_uid
from sliceplane.lab.sim.checks.world import Fault, World, is_full
from sliceplane.lab.sim.roster import AUTHORITY
from sliceplane.server.registry.kinds import COUNTED, counted_kind, kind_of, usage
from sliceplane.server.registry.kinds.pods.pod_quota import is_in_scopes


def owners(world: World) -> Iterator[Fault]:
    store = world.view.server.store
    records = [record for name in store.resources() for record in store.list(name).records]
    alive = {record.uid for record in records}
    for record in records:
        if record.owners and not alive.intersection(record.owners):
            yield (
                record.key.name,
                f"{record.key} outlives its owners {record.owners}",
            )


def namespaces(world: World) -> Iterator[Fault]:
    alive = {"", *world.view.namespaces}
    store = world.view.server.store
    for name in store.resources():
        for record in store.list(name).records:
            if record.key.namespace not in alive:
                text = f"{by_storage_key(name).plural}/{record.key.path}"
                yield (
                    record.key.name,
                    f"{text} is in a namespace that is gone or going",
                )


def every_namespace(world: World) -> Iterator[Fault]:
    """Yields namespaces without their ServiceAccount or the certificate authority, unless they are
    being deleted.
    """
    server = world.view.server
    for space in world.view.namespaces:
        if (
            "serviceaccount" in world.controllers
            and server.find(ServiceAccounts, space, "default") is None
        ):
            yield space, f"{space} has no ServiceAccount default"
        if "root-ca" in world.controllers:
            config_map = server.find(ConfigMaps, space, "kube-root-ca.crt")
            if config_map is None or (config_map.get("data") or {}).get("ca.crt") != AUTHORITY:
                yield space, f"{space} is told the authority {config_map}"


def quotas(world: World) -> Iterator[Fault]:
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
            reported = (quota.status.used or {}).get(name)
            if counted_kind(name) is not None and (
                reported is None or exact(reported) != used[name]
            ):
                yield (
                    "limits",
                    f"{quota.metadata.key}: {name} is {used[name]}, told is {reported}",
                )


def orphans(world: World) -> Iterator[Fault]:
    for pods in world.view.pods.values():
        for pod in pods:
            node = pod.spec.node_name
            if node and node not in world.view.nodes and not pod.metadata.finalizers:
                yield (
                    pod.metadata.name,
                    f"Pod {pod.metadata.key} is left, Node {node} is not",
                )


def replicas(world: World) -> Iterator[Fault]:
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
            full = len(mine) < (replica_set.spec.replicas or 0) and is_full(
                view, replica_set.metadata.namespace, "pods"
            )
            if len(mine) != replica_set.spec.replicas and not full:
                yield (
                    replica_set.metadata.name,
                    f"{replica_set.metadata.key} has {len(mine)} of {replica_set.spec.replicas}",
                )


def deployments(world: World) -> Iterator[Fault]:
    """Yields Deployments whose ReplicaSets or status are inconsistent. A rollout may be stuck (a
    full quota, Pods that are kept unready), but only in a consistent state.
    """
    view = world.view
    sets: dict[str, list[ReplicaSet]] = {}
    for record in view.server.records(ReplicaSets):
        item: ReplicaSet = decode(record.body, ReplicaSet)
        owner = controller_uid(item)
        if owner:
            sets.setdefault(owner, []).append(item)
    for record in view.server.records(Deployments):
        deployment: Deployment = decode(record.body, Deployment)
        meta = deployment.metadata
        status = deployment.status
        desired = deployment.spec.replicas or 0
        if meta.deletion_timestamp is not None or meta.namespace not in view.namespaces:
            continue
        mine = sets.get(meta.uid, [])
        surge, unavailable = limits(deployment.spec.strategy, desired)
        requested = sum(item.spec.replicas or 0 for item in mine)
        available = sum(item.status.available_replicas for item in mine)
        # More replicas may be requested if a set was created late and a quota prevents the Pods of
        # the other.
        stuck = available <= desired - unavailable
        if not desired <= requested or (requested > desired + surge and not stuck):
            yield (
                meta.name,
                f"{meta.key} asks for {requested} of {desired} and {surge} more",
            )
        reported = (status.replicas, status.available_replicas, status.observed_generation)
        true = (
            sum(item.status.replicas for item in mine),
            sum(item.status.available_replicas for item in mine),
            meta.generation,
        )
        if reported != true:
            yield (meta.name, f"{meta.key} tells {reported}, and {true} is so")


def addresses(world: World) -> Iterator[Fault]:
    """Yields addresses that two running Pods share; bare Pods reuse addresses of failed ones on
    purpose.
    """
    owners: dict[str, str] = {}
    for pods in world.view.pods.values():
        for pod in pods:
            if pod.has_ended or pod.spec.node_name.startswith("bare-"):
                continue
            for ip in pod.status.ips:
                holder = owners.setdefault(ip, pod.metadata.key)
                if holder != pod.metadata.key:
                    yield (
                        pod.metadata.name,
                        f"{holder} and {pod.metadata.key}: {ip}",
                    )


def _runs_for(pod: Pod, owner: Object) -> bool:
    return pod.is_active and controller_uid(pod) == owner.metadata.uid
