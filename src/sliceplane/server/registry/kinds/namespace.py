"""Namespace: content goes only into one that exists and stays (``admit_content``); its end takes
two steps.

A DELETE marks it, the namespace controller empties it (``remaining`` says what is left), and the
PUT to ``finalize`` that leaves spec.finalizers empty removes it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from sliceplane.api import codec
from sliceplane.api.core import Namespace
from sliceplane.api.errors import (
    FieldErrors,
    forbidden,
    invalid_value,
    not_found,
    until_error_limit,
)
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import RESOURCES, Namespaces, Resource
from sliceplane.server.documents.table.columns import AGE, NAME, Column, Printer
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.metadata import mark_deleted, validate_finalizer
from sliceplane.server.registry.types import Target
from sliceplane.server.registry.validation.rules import Field, Rules
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key

if TYPE_CHECKING:
    from sliceplane.server.registry.core import Core


NAME_LABEL: Final = "kubernetes.io/metadata.name"
#: made at start; the first three can never be deleted
BOOTSTRAP_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")
IMMORTAL_NAMESPACES: Final = BOOTSTRAP_NAMESPACES[:3]


def _default(document: Document) -> None:
    """Every Namespace carries its name as a label, whatever the client says
    (pkg/apis/core/v1/defaults.go).
    """
    head = document["metadata"]
    if head.get("name"):
        head["labels"] = {**head.get("labels", {}), NAME_LABEL: head["name"]}


def _prepare_create(_core: Core, _target: Target, new: Document) -> None:
    _default(new)  # the name may have been generated
    finalizers = new.setdefault("spec", {}).setdefault("finalizers", [])
    if "kubernetes" not in finalizers:
        finalizers.append("kubernetes")


def _prepare_update(_core: Core, target: Target, new: Document, old: Document) -> None:
    if target.subresource != "finalize":
        kind.keep(new, old, "spec")


def _finalizers(path: str, finalizers: list[str]) -> FieldErrors:
    """As upstream: the list is named, not its entry."""
    errors: FieldErrors = []
    for name in until_error_limit(errors, finalizers):
        errors += validate_finalizer(path, name)
    return errors


def _validate_status(new: Document, _old: Document) -> FieldErrors:
    phase = new.get("status", {}).get("phase", "")
    if "deletionTimestamp" in new["metadata"]:
        if phase != "Terminating":
            detail = "may only be 'Terminating' if `deletionTimestamp` is not empty"
            return [invalid_value("status.Phase", phase, detail)]
    elif phase != "Active":
        return [
            invalid_value(
                "status.Phase", phase, "may only be 'Active' if `deletionTimestamp` is empty"
            )
        ]
    return []


def _admit_delete(name: str) -> None:
    if name in IMMORTAL_NAMESPACES:
        raise forbidden(
            Namespaces.plural, Namespaces.group, name, "this namespace may not be deleted"
        )


def _linger(document: Document, now: float) -> bool:
    """The first DELETE starts its end; from then on its own finalizers hold it."""
    head = document["metadata"]
    if "deletionTimestamp" in head:
        return _has_finalizers(document)
    mark_deleted(head, now, None)
    document["status"] = {**document.get("status", {}), "phase": "Terminating"}
    return True


def _has_finalizers(document: Document) -> bool:
    return bool(document.get("spec", {}).get("finalizers"))


NAMESPACE: Final = kind.Kind(
    resource=Namespaces,
    defaults=_default,
    prepare_create=_prepare_create,
    prepare_update=_prepare_update,
    rules=Rules(Field("spec.finalizers", whole=_finalizers)),
    status=kind.Status(first=lambda _document: {"phase": "Active"}, validate=_validate_status),
    deletion=kind.Deletion(admit=_admit_delete, linger=_linger, is_blocked=_has_finalizers),
    granted=kind.viewed("status"),
    columns=Printer((NAME, Column("Status", "Phase of the namespace.", "status.phase"), AGE)),
)


class RemainingObjects(msgspec.Struct, frozen=True):
    """The objects of one resource that a namespace still has.  ``finalizers`` counts the objects
    that each one holds.
    """

    resource: Resource
    count: int
    finalizers: tuple[tuple[str, int], ...]


def admit_content(store: Store, resource: Resource, head: Document) -> None:
    """Raises a 404 StatusError for a missing namespace, a 403 for one that is going."""
    if not resource.namespaced:
        return
    namespace = head.get("namespace", "")
    record = store.latest(Key(Namespaces.storage_key, "", namespace))
    if record is None:
        raise not_found(Namespaces.plural, Namespaces.group, namespace)
    if codec.decode(record.body, Namespace).metadata.deletion_timestamp is None:
        return
    cause = {
        "reason": "NamespaceTerminating",
        "message": f"namespace {namespace} is being terminated",
        "field": "metadata.namespace",
    }
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    raise forbidden(resource.plural, resource.group, head.get("name", ""), why, [cause])


def remaining(store: Store, namespace: str) -> tuple[RemainingObjects, ...]:
    """Returns all remaining objects of *namespace*, in the order of the scheme; none when it may be
    finalized.
    """
    remaining_objects = []
    for resource in RESOURCES:
        if not resource.namespaced or resource.is_view:
            continue
        count = 0
        holders: Counter[str] = Counter()
        for record in store.iter_latest(resource.storage_key, namespace):
            count += 1
            holders.update(codec.decode(record.body, Object).metadata.finalizers or ())
        if count:
            remaining_objects.append(
                RemainingObjects(resource, count, tuple(sorted(holders.items())))
            )
    return tuple(remaining_objects)
