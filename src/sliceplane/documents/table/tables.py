"""Documents in, a Table document out: for lists, single objects and watch events alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, cast

from sliceplane.api.errors import bad_request, show
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource
from sliceplane.documents.table import access, apps, cluster, events, flowcontrol, network, pods
from sliceplane.documents.table.columns import NAME, Cell, Column, Printer, name_of, text
from sliceplane.documents.table.partial import partial_object

#: what ``row.object`` holds: nothing, PartialObjectMetadata, or the object
IncludeObject = Literal["None", "Metadata", "Object"]


def _plain(document: Document, _now: float) -> tuple[Cell, ...]:
    return name_of(document), text(document, "metadata", "creationTimestamp")


#: for kinds without a printer of their own
_PLAIN: Final = Printer(
    (NAME, Column(name="Created At", type="date", description="When the object was created.")), _plain
)
_PRINTERS: Final[dict[str, Printer]] = {
    **pods.PRINTERS,
    **network.PRINTERS,
    **cluster.PRINTERS,
    **events.PRINTERS,
    **apps.PRINTERS,
    **access.PRINTERS,
    **flowcontrol.PRINTERS,
}


def parse_include_object(value: str) -> IncludeObject:
    """The query parameter ``includeObject``; "" is Metadata.  Raises StatusError 400."""
    if value not in ("", "None", "Metadata", "Object"):
        raise bad_request(
            f"Unable to convert to Table as requested: includeObject: Invalid value: {show(value)}: "
            "must be 'Metadata', 'Object', 'None', or empty"
        )
    return cast("IncludeObject", value or "Metadata")


def columns_of(resource: Resource) -> list[Document]:
    """A new list; the definitions in it are shared and must not be changed."""
    return list(_definitions(resource.key))


@cache
def _definitions(key: str) -> tuple[Document, ...]:
    return tuple(column.definition() for column in _printer(key).columns)


def _printer(key: str) -> Printer:
    return _PRINTERS.get(key, _PLAIN)


def build(
    resource: Resource,
    documents: Iterable[Document],
    now: float,
    *,
    include_object: IncludeObject = "Metadata",
    list_meta: Document | None = None,
    version: str = "v1",
) -> Document:
    """A Table of *documents*, in their order unless their kind has one of its own, with all columns.

    *list_meta* (resourceVersion, continue, remainingItemCount) is the list's; for a single object leave it
    out, then the table has that object's resourceVersion.  *documents* are shared with the table where
    *include_object* asks for them.
    """
    documents = list(documents)
    order = _printer(resource.key).order
    if order is not None:
        documents.sort(key=order)
    if list_meta is None:
        assert len(documents) == 1, f"a table of {len(documents)} objects needs list metadata"
        list_meta = _object_version(documents[0])
    return _View(resource, include_object, version).table(documents, now, list_meta, columns_of(resource))


def build_watch_row(
    resource: Resource,
    document: Document,
    now: float,
    *,
    include_object: IncludeObject = "Metadata",
    with_columns: bool,
    version: str = "v1",
) -> Document:
    """The Table of one watch event, a bookmark's too.  Only the first event of a connection has columns."""
    columns = columns_of(resource) if with_columns else None
    view = _View(resource, include_object, version)
    return view.table([document], now, _object_version(document), columns)


def _object_version(document: Document) -> Document:
    version = text(document, "metadata", "resourceVersion")
    return {"resourceVersion": version} if version else {}


@dataclass(frozen=True, slots=True)
class _View:
    """What was asked for."""

    resource: Resource
    include_object: IncludeObject
    version: str

    def table(
        self, documents: list[Document], now: float, metadata: Document, columns: list[Document] | None
    ) -> Document:
        return {
            "kind": "Table",
            "apiVersion": f"meta.k8s.io/{self.version}",
            "metadata": metadata,
            "columnDefinitions": columns,
            "rows": [self._row(document, now) for document in documents],
        }

    def _row(self, document: Document, now: float) -> Document:
        printer = _printer(self.resource.key)
        cells = printer.cells(document, now)
        assert len(cells) == len(printer.columns), f"{len(cells)} cells for {len(printer.columns)} columns"
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
