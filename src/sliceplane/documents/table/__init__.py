"""Objects as rows for people: the Table and PartialObjectMetadata forms that ``kubectl get`` asks for.

Columns and cells are decided here, on the server, so that every client prints the same; a client hides the
columns whose priority is above 0.  Facts: reference B3 ("Table columns"), controllers 5.5.

- ``columns``: columns, printers, and reading documents that may lack anything.
- ``ages``: durations for people.
- ``pods``, ``network``, ``cluster``, ``events``, ``apps``, ``access``: one family of kinds each.
- ``tables``: documents in, a Table document out.
- ``partial``: metadata only.

A printer never fails: a missing or odd member prints as nothing, since a row that cannot be shown must not
take the whole list with it.  Times are seconds since the epoch.
"""

from __future__ import annotations

from sliceplane.documents.table.partial import partial_list, partial_object
from sliceplane.documents.table.tables import IncludeObject, build, build_watch_row, columns_of, parse_include_object

__all__ = [
    "IncludeObject",
    "build",
    "build_watch_row",
    "columns_of",
    "parse_include_object",
    "partial_list",
    "partial_object",
]
