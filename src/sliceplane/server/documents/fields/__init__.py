"""Owners of the fields of an object, and their effect on the next write (KEP-555).

Promises: ``updated`` and ``applied`` tell the managers of an object after a write, and what an
applied configuration makes of it; sets of fields are the same text as upstream's ``FieldsV1``; what
did not change costs a comparison. Never: changes what it is given; knows a request, a clock or the
store; converts documents between versions.

Read ``sets`` for the algebra, ``shape`` for what counts as one field, it and ``objects`` for the
way between documents and sets, ``managers`` for ``metadata.managedFields``, ``ownership`` for the
rules.
"""

from __future__ import annotations

from sliceplane.server.documents.fields.check import check
from sliceplane.server.documents.fields.managers import (
    Identity,
    MalformedManagers,
    ManagerEntry,
    Managers,
    decode,
    encode,
    identity,
    is_reset,
    received,
    same_but_times,
)
from sliceplane.server.documents.fields.objects import set_of
from sliceplane.server.documents.fields.ownership import (
    Applied,
    Conflict,
    Conflicts,
    OwnedWrite,
    allowed_by_last_applied,
    applied,
    before_first_apply,
    updated,
)
from sliceplane.server.documents.fields.sets import (
    EMPTY,
    FieldSet,
    has,
    of_paths,
    paths,
    renamed,
    show,
)
from sliceplane.server.documents.fields.shape import FieldsChange, StructShape, compare, shape_of

__all__ = [
    "EMPTY",
    "Applied",
    "FieldsChange",
    "Conflict",
    "Conflicts",
    "ManagerEntry",
    "FieldSet",
    "Identity",
    "MalformedManagers",
    "Managers",
    "StructShape",
    "OwnedWrite",
    "allowed_by_last_applied",
    "applied",
    "before_first_apply",
    "check",
    "compare",
    "decode",
    "encode",
    "has",
    "identity",
    "is_reset",
    "of_paths",
    "paths",
    "received",
    "renamed",
    "same_but_times",
    "set_of",
    "shape_of",
    "show",
    "updated",
]
