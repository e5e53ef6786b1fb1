"""ControllerRevision: what the template of a StatefulSet or DaemonSet was.  Its number alone ever
changes.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldErrors, required
from sliceplane.api.meta import Document
from sliceplane.api.scheme import ControllerRevisions
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    Column,
    Printer,
    number_at,
    objects,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.validation.rules import Field, Rules


def _data(_path: str, document: Document) -> FieldErrors:
    """An empty template is one."""
    return [] if document.get("data") is not None else [required("data", "data is mandatory")]


def _owner(revision: Document) -> str:
    for reference in objects(revision, "metadata", "ownerReferences"):
        if reference.get("controller"):
            group = reference["apiVersion"].rpartition("/")[0]
            return f"{reference['kind'].lower()}{'.' if group else ''}{group}/{reference['name']}"
    return NONE


CONTROLLER_REVISION: Final = kind.Kind(
    resource=ControllerRevisions,
    rules=Rules(_data, Field("revision", minimum=0), Field("data", immutable=True)),
    quota=kind.Quota(),
    granted=kind.viewed(),
    columns=Printer(
        (
            NAME,
            Column("Controller", "Whose template it was.", _owner),
            Column("Revision", "Its number: the highest is the newest.", number_at("revision")),
            AGE,
        )
    ),
)
