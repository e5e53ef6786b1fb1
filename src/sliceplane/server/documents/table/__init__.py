"""Objects as rows for people: the Table and PartialObjectMetadata forms that ``kubectl get`` asks
for.

Columns and cells are decided here, on the server, so that every client prints the same; a client
hides the columns whose priority is above 0. Which columns a kind has is in its module
(``server.registry.kinds``); here is what they are made with.

- ``columns``: columns, printers, durations for people, and reading documents that may lack
  anything.
- ``tables``: documents in, a Table document out, or metadata alone.

A printer never fails: a missing or odd member prints as nothing, since a row that cannot be shown
must not take the whole list with it. Times are seconds since the epoch.
"""

from __future__ import annotations

from sliceplane.server.documents.table.tables import (
    IncludeObject,
    build,
    build_watch_row,
    columns_of,
    parse_include_object,
    partial_object,
)

__all__ = [
    "IncludeObject",
    "build",
    "build_watch_row",
    "columns_of",
    "parse_include_object",
    "partial_object",
]
