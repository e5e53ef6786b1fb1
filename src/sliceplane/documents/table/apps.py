"""Deployments and ReplicaSets."""

from __future__ import annotations

from typing import Final

import msgspec

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document, LabelSelector
from sliceplane.api.selectors import from_label_selector
from sliceplane.documents.table.ages import age
from sliceplane.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    Cell,
    Column,
    Printer,
    mapping,
    name_of,
    number,
    objects,
    text,
)


def _deployment(deployment: Document, now: float) -> tuple[Cell, ...]:
    return (
        name_of(deployment),
        f"{number(deployment, 'status', 'readyReplicas')}/{number(deployment, 'spec', 'replicas')}",
        number(deployment, "status", "updatedReplicas"),
        number(deployment, "status", "availableReplicas"),
        age(deployment, now),
        *_template_cells(deployment),
    )


def _replica_set(replica_set: Document, now: float) -> tuple[Cell, ...]:
    return (
        name_of(replica_set),
        number(replica_set, "spec", "replicas"),
        number(replica_set, "status", "replicas"),
        number(replica_set, "status", "readyReplicas"),
        age(replica_set, now),
        *_template_cells(replica_set),
    )


def _template_cells(document: Document) -> tuple[str, str, str]:
    containers = objects(document, "spec", "template", "spec", "containers")
    return (
        ",".join(text(container, "name") for container in containers),
        ",".join(text(container, "image") for container in containers),
        _selector(mapping(document, "spec", "selector")),
    )


def _selector(selector: Document) -> str:
    try:
        return str(from_label_selector(msgspec.convert(selector, LabelSelector))) or NONE
    except (StatusError, msgspec.ValidationError):
        return "<error>"


_WIDE: Final = (
    Column(name="Containers", priority=1, description="Names of the template's containers."),
    Column(name="Images", priority=1, description="Images of the template's containers."),
    Column(name="Selector", priority=1, description="Labels that select the pods."),
)

PRINTERS: Final = {
    "deployments.apps": Printer(
        (
            NAME,
            Column(name="Ready", description="Pods that are ready, of those that are wanted."),
            Column(name="Up-to-date", description="Pods made from the newest template."),
            Column(name="Available", description="Pods that have been ready for long enough."),
            AGE,
            *_WIDE,
        ),
        _deployment,
    ),
    "replicasets.apps": Printer(
        (
            NAME,
            Column(name="Desired", type="integer", description="Pods that are wanted."),
            Column(name="Current", type="integer", description="Pods that there are."),
            Column(name="Ready", type="integer", description="Pods that are ready."),
            AGE,
            *_WIDE,
        ),
        _replica_set,
    ),
}
