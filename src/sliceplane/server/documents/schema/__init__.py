"""The fields of the kinds: names, types, list keys and patch strategies.

Promises: ``lookup`` finds the schema of a resource; ``unknown_fields`` and ``check_types`` tell
what Go's strict and plain decoding would say of a document, in its words; ``drop_nulls`` is what
Go's decoding does to nulls. A good document costs tens of microseconds (``fast``), a bad one a walk
(``check``). Never: changes a document (but for ``fit``, which is told to), knows a request,
validates values beyond their form (``server.registry.validation`` does that).

``api/schema.json`` holds the facts and is written by ``tools/make_schema.py``; ``api.schema`` tells
its notation.
"""

from __future__ import annotations

from sliceplane.api.schema import (
    SchemaField,
    Struct,
    Type,
    kubernetes_version,
    lookup,
    lookup_kind,
    shape_of,
    struct,
)
from sliceplane.server.documents.schema.check import (
    PROBLEMS_MAX,
    TypeMismatch,
    first_mismatch,
    fit_in,
    type_error,
    unknown_in,
)
from sliceplane.server.documents.schema.fast import accepts
from sliceplane.server.documents.schema.walks import drop_nulls

__all__ = [
    "PROBLEMS_MAX",
    "SchemaField",
    "Struct",
    "Type",
    "TypeMismatch",
    "accepts",
    "check_types",
    "drop_nulls",
    "fit",
    "first_mismatch",
    "kubernetes_version",
    "lookup",
    "lookup_kind",
    "shape_of",
    "struct",
    "type_error",
    "unknown_fields",
]


def unknown_fields(resource_key: str, document: object) -> tuple[str, ...]:
    """``unknown field "spec.foo"`` for each member that the kind does not have, in the order of the
    document.

    At most ``PROBLEMS_MAX``, each once. Null members count: Go reports an unknown name before it
    looks at the value.
    """
    return () if accepts(resource_key, document) else unknown_in(lookup(resource_key), document)


def check_types(resource_key: str, document: object) -> None:
    """Raises a 400, as upstream, if a member of a known name has a JSON type or form that its field
    cannot hold.
    """
    if accepts(resource_key, document):
        return
    schema = lookup(resource_key)
    mismatch = first_mismatch(schema, document)
    if mismatch is not None:
        raise type_error(schema, str(mismatch))


def fit(resource_key: str, document: object) -> None:
    """Make *document*, in place, what Go's decoding would keep of it: without the members that the
    kind does not have (all of them, whatever they are called), and with quantities as text.
    """
    fit_in(lookup(resource_key), document)
