"""The objects that Pods of a what-if reference but its state lacks: ServiceAccounts,
PriorityClasses and RuntimeClasses.

A server refuses a Pod that references a missing object. A state contains only the inputs of
endpoints, so such an object exists in the cluster but was not read. An empty stand-in is created
for each; no Pod's readiness or address depends on its content.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sliceplane.api.codec import decode_document
from sliceplane.api.meta import Document
from sliceplane.api.scheme import (
    Namespaces,
    PriorityClasses,
    Resource,
    RuntimeClasses,
    ServiceAccounts,
)
from sliceplane.lab.whatif.state import WORKLOADS, ClusterState
from sliceplane.server.registry.admission.service_accounts import DEFAULT_ACCOUNT
from sliceplane.server.registry.kinds.pods.priority_class import PRIORITY_CLASSES

#: names that the server has by itself
_BUILT_IN: Final = (DEFAULT_ACCOUNT, *PRIORITY_CLASSES)

Named = tuple[Resource, str, str]


def objects_named(state: ClusterState) -> Iterator[tuple[Resource, str, Document]]:
    """Yields each referenced object once, with its namespace."""
    namespaces = {record.key.name for record in state.raw(Namespaces)}
    named: dict[Named, Document] = {}
    for resource in WORKLOADS:
        for record in state.raw(resource):
            if record.key.namespace in namespaces:
                template = (decode_document(record.body).get("spec") or {}).get("template") or {}
                named |= _named(record.key.namespace, template.get("spec") or {})
    for (resource, namespace, name), content in named.items():
        if name and name not in _BUILT_IN:
            yield resource, namespace, {"metadata": {"name": name}, **content}


def _named(namespace: str, spec: Document) -> dict[Named, Document]:
    overhead = {"overhead": {"podFixed": spec["overhead"]}} if spec.get("overhead") else {}
    return {
        (ServiceAccounts, namespace, spec.get("serviceAccountName", "")): {
            "automountServiceAccountToken": False
        },
        (PriorityClasses, "", spec.get("priorityClassName", "")): {
            "value": spec.get("priority", 0)
        },
        (RuntimeClasses, "", spec.get("runtimeClassName", "")): {"handler": "none", **overhead},
    }
