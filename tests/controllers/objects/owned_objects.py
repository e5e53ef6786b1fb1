"""Objects that own one another, for tests of the garbage collector."""

from __future__ import annotations

from typing import Any

from tests.slices.fake_cluster import FakeCluster

from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.meta import Object, ObjectMeta, OwnerReference
from sliceplane.api.scheme import ConfigMaps, Nodes, Pods, Resource, Services

KINDS: dict[str, tuple[Resource, type[Object]]] = {
    "Service": (Services, Service),
    "Pod": (Pods, Pod),
    "ConfigMap": (ConfigMaps, Object),
    "Node": (Nodes, Node),
}
SPACES = ("shop", "shop", "other")


def owned_by(kind: str, name: str, uid: str, *, blocks: bool = False) -> OwnerReference:
    return OwnerReference(
        api_version="v1", kind=kind, name=name, uid=uid, block_owner_deletion=blocks or None
    )


def make(
    kind: str, name: str, uid: str, *owners: OwnerReference, namespace: str = "shop", **meta: Any
) -> Object:
    resource, projection = KINDS[kind]
    namespace = namespace if resource.namespaced else ""
    return projection(
        metadata=ObjectMeta(
            name=name, namespace=namespace, uid=uid, owner_references=owners or None, **meta
        )
    )


def put(cluster: FakeCluster, each: Object) -> None:
    kind = next(k for k, (_, projection) in KINDS.items() if type(each) is projection)
    cluster.put(each, KINDS[kind][0])


def names(cluster: FakeCluster) -> list[str]:
    return sorted(name for _, _, name in cluster.objects)
