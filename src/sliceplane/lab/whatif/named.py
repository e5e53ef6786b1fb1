"""The objects that Pods of a what-if name and its state lacks: accounts, and classes of priority
and of running containers.

A server refuses a Pod that names one which is not there. A state has only what endpoints are made
of, so such an object is not there because it was not read, and the cluster of the question has it.
Each is put in its place, with nothing in it that a Pod's readiness or address depends on.
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

#: what the server knows of itself
_BUILT_IN: Final = (DEFAULT_ACCOUNT, *PRIORITY_CLASSES)

Named = tuple[Resource, str, str]


def objects_named(state: ClusterState) -> Iterator[tuple[Resource, str, Document]]:
    """Each with its namespace, once."""
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
