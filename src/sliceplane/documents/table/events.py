"""Events, in both of their APIs: the members have other names and mean the same (reference B16)."""

from __future__ import annotations

from typing import Final

from sliceplane.api.meta import Document
from sliceplane.documents.table.ages import since
from sliceplane.documents.table.columns import Cell, Column, Printer, mapping, name_of, number, text

#: core/v1 name to events.k8s.io/v1 name
_OTHER_NAMES: Final = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}


def _cells(event: Document, now: float) -> tuple[Cell, ...]:
    event = {name: event.get(name, event.get(other)) for name, other in _OTHER_NAMES.items()} | {
        name: value for name, value in event.items() if name not in _OTHER_NAMES
    }
    first = since(text(event, "firstTimestamp") or text(event, "eventTime"), now)
    last = since(text(event, "lastTimestamp"), now) if text(event, "lastTimestamp") else first
    count = number(event, "count") or 1
    series = mapping(event, "series")
    if series:
        last = since(text(series, "lastObservedTime"), now)
        count = number(series, "count")
    return (
        last,
        text(event, "type"),
        text(event, "reason"),
        _object(mapping(event, "involvedObject")),
        text(event, "involvedObject", "fieldPath"),
        _source(event),
        text(event, "message").strip(),
        first,
        count,
        name_of(event),
    )


def _object(reference: Document) -> str:
    kind = text(reference, "kind").lower()
    name = text(reference, "name")
    return f"{kind}/{name}" if name else kind


def _source(event: Document) -> str:
    component = text(event, "source", "component") or text(event, "reportingComponent")
    host = text(event, "source", "host") or text(event, "reportingInstance")
    return f"{component}, {host}" if host else component


_PRINTER: Final = Printer(
    (
        Column(name="Last Seen", description="Time since the event was last seen."),
        Column(name="Type", description="Normal, or Warning."),
        Column(name="Reason", description="Why, in one word for machines."),
        Column(name="Object", description="The object that the event is about."),
        Column(name="Subobject", priority=1, description="The part of the object that the event is about."),
        Column(name="Source", priority=1, description="Who tells, and from where."),
        Column(name="Message", description="What happened, for people."),
        Column(name="First Seen", priority=1, description="Time since the event was first seen."),
        Column(name="Count", priority=1, description="How often the event was seen."),
        Column(name="Name", priority=1, format="name", description="Name of the event object."),
    ),
    _cells,
)

PRINTERS: Final = {"events": _PRINTER, "events.events.k8s.io": _PRINTER}
