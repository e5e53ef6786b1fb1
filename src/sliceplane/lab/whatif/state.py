"""A cluster as records: the initial state of a what-if.

Our snapshots contain records; any other cluster is read by lists, whose objects are converted to
records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from sliceplane.api.codec import decode, decode_document
from sliceplane.api.core import Node, Pod, Service
from sliceplane.api.discovery import LABEL_SERVICE_NAME, LABEL_ZONE, EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.findings.wording import no_such
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import (
    Deployments,
    EndpointSlices,
    Namespaces,
    Nodes,
    Pods,
    ReplicaSets,
    Resource,
    Services,
    StatefulSets,
)
from sliceplane.server.registry.documents import canonical, make_record
from sliceplane.server.store.snapshot import BadSnapshot, SnapshotReader
from sliceplane.server.store.types import Record

#: the inputs of endpoints, and the workloads that create Pods
READ: Final = (
    Namespaces,
    Nodes,
    Services,
    Pods,
    EndpointSlices,
    Deployments,
    ReplicaSets,
    StatefulSets,
)
#: kinds that can be scaled and rolled out
WORKLOADS: Final = (Deployments, StatefulSets, ReplicaSets)

T = TypeVar("T", bound=Object)


class WhatIfError(Exception):
    """The reason why there is no answer, and the remedy, as a sentence."""


class ServiceWorkload(msgspec.Struct, frozen=True):
    """A workload that creates Pods of a Service."""

    resource: Resource
    name: str
    replicas: int

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.name}"


class ClusterState(msgspec.Struct, frozen=True):
    """The records of a cluster. ``revision``: the newest version in it. ``origin``: its source as
    text. ``read_at``: seconds since the epoch; 0: unknown.
    """

    records: tuple[Record, ...]
    revision: int
    origin: str
    read_at: float = 0.0

    def objects(
        self, resource: Resource, projection: type[T], namespace: str = ""
    ) -> tuple[T, ...]:
        return tuple(decode(record.body, projection) for record in self.raw(resource, namespace))

    def raw(self, resource: Resource, namespace: str = "") -> tuple[Record, ...]:
        return tuple(
            record
            for record in self.records
            if record.key.resource == resource.storage_key
            and namespace in ("", record.key.namespace)
        )

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.objects(Nodes, Node)

    @property
    def zone_by_node(self) -> dict[str, str]:
        return {
            node.metadata.name: (node.metadata.labels or {}).get(LABEL_ZONE, "")
            for node in self.nodes
        }

    def pods(self, namespace: str = "") -> tuple[Pod, ...]:
        return self.objects(Pods, Pod, namespace)

    def service(self, namespace: str, name: str) -> Service:
        """Returns a Service. Raises ``WhatIfError`` that suggests the nearest name."""
        services = {service.metadata.key: service for service in self.objects(Services, Service)}
        if service := services.get(f"{namespace}/{name}"):
            return service
        raise WhatIfError(no_such("Service", f"{namespace}/{name}", services))

    def slices(self, namespace: str, service: str) -> list[tuple[str, EndpointSlice]]:
        return [
            (record.key.path, decode(record.body, EndpointSlice))
            for record in self.raw(EndpointSlices, namespace)
            if record.labels.get(LABEL_SERVICE_NAME) == service
        ]

    def workloads(self, service: Service) -> tuple[ServiceWorkload, ...]:
        """Returns the workloads whose Pods the Service selects; ReplicaSets only if no Deployment
        owns them.
        """
        selector = service.spec.selector or {}
        workloads: list[ServiceWorkload] = []
        for resource in WORKLOADS:
            for record in self.raw(resource, service.metadata.namespace):
                document = decode_document(record.body)
                labels = _labels_of_template(document)
                if (
                    selector
                    and not document["metadata"].get("ownerReferences")
                    and selector.items() <= labels.items()
                ):
                    replicas = (document.get("spec") or {}).get("replicas")
                    workloads.append(
                        ServiceWorkload(
                            resource, record.key.name, 1 if replicas is None else replicas
                        )
                    )
        return tuple(workloads)


def _labels_of_template(document: Document) -> dict[str, str]:
    template: Mapping[str, Any] = (document.get("spec") or {}).get("template") or {}
    return (template.get("metadata") or {}).get("labels") or {}


def of_snapshot(lines: Iterable[bytes], name: str, read_at: float = 0.0) -> ClusterState:
    """Reads a snapshot. Raises ``WhatIfError`` unless it is complete and of a supported version."""
    keys = {resource.storage_key for resource in READ}
    try:
        reader = SnapshotReader(lines)
        records = tuple(record for record in reader.records() if record.key.resource in keys)
    except BadSnapshot as error:
        raise WhatIfError(f"{name}: {error}") from error
    return ClusterState(
        records, reader.revision, f"the snapshot {name}, revision {reader.revision}", read_at
    )


def of_lists(
    lists: Mapping[Resource, Sequence[bytes]], revision: int, origin: str, read_at: float = 0.0
) -> ClusterState:
    """Returns the state from the bodies that a server listed at *revision*. Versions are those of
    the cluster if each belongs to one object only.
    """
    documents = [
        (resource, decode_document(body)) for resource in READ for body in lists.get(resource, ())
    ]
    documents.sort(key=lambda item: int(item[1]["metadata"].get("resourceVersion") or 0))
    records: list[Record] = []
    own = 0
    for resource, document in documents:
        own = max(own + 1, int(document["metadata"].get("resourceVersion") or 0))
        try:
            whole = canonical(
                resource, {**document, "kind": resource.kind, "apiVersion": resource.api_version}
            )
        except StatusError as error:
            raise WhatIfError(
                f"{resource.kind} {document['metadata'].get('name')} cannot be read: {error}"
            ) from error
        records.append(make_record(resource, whole, own))
    return ClusterState(tuple(records), max(own, revision), origin, read_at)
