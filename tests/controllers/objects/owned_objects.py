"""Objects that own one another, for tests of the garbage collector."""

from __future__ import annotations

from typing import Any

from tests.controllers.controller_plane import ControllerPlane
from tests.slices.fake_cluster import FakeCluster

from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.meta import Object, ObjectMeta, OwnerReference
from sliceplane.api.scheme import ConfigMaps, Nodes, Pods, Resource, Services
from sliceplane.controllers.objects.garbage_collector import GarbageCollector

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


class Plane(ControllerPlane):
    """A garbage collector, and the objects that a test makes."""

    controller: GarbageCollector
    now = 0.0

    def make(self) -> GarbageCollector:
        return GarbageCollector()

    def add(self, kind: str, name: str, uid: str, *owners: OwnerReference, **meta: Any) -> None:
        """The cache does not show it yet."""
        put(self.cluster, make(kind, name, uid, *owners, **meta))

    def delete(self, resource: Resource, name: str, policy: str = "Background") -> None:
        """The cache has all that was before, and does not show the deletion yet."""
        self.deliver()
        self.cluster.delete(resource, "shop" if resource.namespaced else "", name, policy)

    def names(self) -> list[str]:
        return names(self.cluster)

    def owners(self, name: str) -> tuple[OwnerReference, ...] | None:
        """Those of a ConfigMap of shop."""
        return self.cluster.objects["configmaps", "shop", name].metadata.owner_references


def names(cluster: FakeCluster) -> list[str]:
    return sorted(name for _, _, name in cluster.objects)
