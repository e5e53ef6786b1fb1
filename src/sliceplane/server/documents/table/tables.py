"""Documents in, a Table document out: for lists, single objects and watch events alike."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Literal, cast

import msgspec

from sliceplane.api.errors import bad_request, show
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource
from sliceplane.server.documents.table.columns import Column, Printer, text

#: what ``row.object`` holds: nothing, PartialObjectMetadata, or the object
IncludeObject = Literal["None", "Metadata", "Object"]


def parse_include_object(value: str) -> IncludeObject:
    """The query parameter ``includeObject``; "" is Metadata.  Raises StatusError 400."""
    if value not in ("", "None", "Metadata", "Object"):
        raise bad_request(
            "Unable to convert to Table as requested: includeObject: Invalid value: "
            f"{show(value)}: "
            "must be 'Metadata', 'Object', 'None', or empty"
        )
    return cast("IncludeObject", value or "Metadata")


@cache
def _definitions(columns: tuple[Column, ...]) -> tuple[Document, ...]:
    return tuple(column.definition() for column in columns)


def columns_of(printer: Printer) -> list[Document]:
    """A new list; the definitions in it are shared and must not be changed."""
    return list(_definitions(printer.columns))


def build(
    resource: Resource,
    printer: Printer,
    documents: Iterable[Document],
    now: float,
    *,
    include_object: IncludeObject = "Metadata",
    list_meta: Document | None = None,
    version: str = "v1",
) -> Document:
    """A Table of *documents*, in their order unless their kind has one of its own, with all
    columns.

    *list_meta* (resourceVersion, continue, remainingItemCount) is the list's; for a single object
    leave it out, then the table has that object's resourceVersion. *documents* are shared with the
    table where *include_object* asks for them.
    """
    documents = list(documents)
    if printer.order is not None:
        documents.sort(key=printer.order)
    if list_meta is None:
        assert len(documents) == 1, f"a table of {len(documents)} objects needs list metadata"
        list_meta = _object_version(documents[0])
    return _View(resource, printer, include_object, version).table(
        documents, now, list_meta, columns_of(printer)
    )


def build_watch_row(
    resource: Resource,
    printer: Printer,
    document: Document,
    now: float,
    *,
    include_object: IncludeObject = "Metadata",
    with_columns: bool,
    version: str = "v1",
) -> Document:
    """The Table of one watch event, a bookmark's too.  Only the first event of a connection has
    columns.
    """
    columns = columns_of(printer) if with_columns else None
    view = _View(resource, printer, include_object, version)
    return view.table([document], now, _object_version(document), columns)


def _object_version(document: Document) -> Document:
    version = text(document, "metadata", "resourceVersion")
    return {"resourceVersion": version} if version else {}


class _View(msgspec.Struct, frozen=True):
    """What was asked for."""

    resource: Resource
    printer: Printer
    include_object: IncludeObject
    version: str

    def table(
        self,
        documents: list[Document],
        now: float,
        metadata: Document,
        columns: list[Document] | None,
    ) -> Document:
        return {
            "kind": "Table",
            "apiVersion": f"meta.k8s.io/{self.version}",
            "metadata": metadata,
            "columnDefinitions": columns,
            "rows": [self._row(document, now) for document in documents],
        }

    def _row(self, document: Document, now: float) -> Document:
        printer = self.printer
        cells = printer.cells(document, now)
        assert len(cells) == len(printer.columns), (
            f"{len(cells)} cells for {len(printer.columns)} columns"
        )
        row: Document = {"cells": list(cells)}
        conditions = printer.conditions(document) if printer.conditions else []
        if conditions:
            row["conditions"] = conditions
        row["object"] = self._object(document)
        return row

    def _object(self, document: Document) -> Document | None:
        if self.include_object == "None":
            return None
        if self.include_object == "Metadata":
            return partial_object(document, self.version)
        # items of lists may lack kind and apiVersion; a row's object never does
        return {"kind": self.resource.kind, "apiVersion": self.resource.api_version, **document}


def partial_object(document: Document, version: str = "v1") -> Document:
    """*document*'s metadata (shared, not copied); *version* is that of meta.k8s.io: v1 or
    v1beta1.
    """
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": document.get("metadata") or {},
    }
