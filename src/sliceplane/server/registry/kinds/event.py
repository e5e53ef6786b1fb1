"""Event, as each of its two APIs wants it (pkg/apis/core/validation/events.go).

Both get the stored form and complain with its names, as upstream does. core/v1 takes nearly
anything; events.k8s.io/v1 wants every Event to say who reports what, and lets no client rewrite it
later.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldErrors, invalid_value, required
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Events, EventsV1
from sliceplane.kit.names import check_qualified_name
from sliceplane.server.documents.table.columns import (
    Cell,
    Column,
    Printer,
    mapping,
    name_of,
    number,
    since,
    text,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.validation.rules import IMMUTABLE, Defaults, Rules, of_form

TEXT_MAX: Final = 128
NOTE_MAX: Final = 1024
SERIES_COUNT_MIN: Final = 2
_TYPES: Final = ("Normal", "Warning")
#: only for the older recorder: must not be given, and stay as they are
_DEPRECATED: Final = ("firstTimestamp", "lastTimestamp", "count", "source")
_FIXED: Final = (
    "involvedObject",
    "reason",
    "message",
    *_DEPRECATED,
    "type",
    "eventTime",
    "action",
    "related",
    "reportingComponent",
    "reportingInstance",
)
#: names in errors, where they differ from the stored form's
_NAMES_IN_ERRORS: Final = {"reportingComponent": "reportingController"}
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


#: an Event always prints these, also when they are empty
_DEFAULTS: Final = {
    "involvedObject": {},
    "source": {},
    "reportingComponent": "",
    "reportingInstance": "",
}


def _namespace(_path: str, document: Document) -> FieldErrors:
    """An Event lives in the namespace of what it is about; about something without one, in
    ``default``.
    """
    about = document.get("involvedObject", {}).get("namespace", "")
    namespace = document["metadata"].get("namespace", "")
    mismatch = invalid_value("involvedObject.namespace", about, "does not match event.namespace")
    if document.get("eventTime") is not None:
        # The newer recorder is trusted with a namespace that it names.
        return [mismatch] if not about and namespace not in ("default", "kube-system") else []
    if not about:
        return [mismatch] if namespace not in ("", "default") else []
    return [mismatch] if about != namespace else []


def _now(_path: str, document: Document) -> FieldErrors:
    errors = [] if document.get("eventTime") is not None else [required("eventTime")]
    if document.get("type", "") not in _TYPES:
        errors.append(invalid_value("type", "", f"has invalid value: {document.get('type', '')}"))
    return errors + [
        invalid_value(name, "", "needs to be unset") for name in _DEPRECATED if document.get(name)
    ]


def _validate_v1_update(new: Document, old: Document) -> FieldErrors:
    """Only the series and the metadata move."""
    errors = [
        invalid_value(_NAMES_IN_ERRORS.get(name, name), new.get(name), IMMUTABLE)
        for name in _FIXED
        if (new.get(name) or None) != (old.get(name) or None)
    ]
    if new.get("series") != old.get("series"):
        errors += _series("", new)
    return errors


def _texts(_path: str, document: Document) -> FieldErrors:
    controller: str = document.get("reportingComponent", "")
    errors = [] if controller else [required("reportingController")]
    errors += of_form("reportingController", controller, check_qualified_name)
    for name in ("reportingInstance", "action", "reason"):
        value: str = document.get(name, "")
        if not value:
            errors.append(required(name))
        elif len(value.encode()) > TEXT_MAX:
            errors.append(invalid_value(name, "", f"can have at most {TEXT_MAX} characters"))
    if len(document.get("message", "").encode()) > NOTE_MAX:
        errors.append(invalid_value("message", "", f"can have at most {NOTE_MAX} characters"))
    return errors


def _series(_path: str, document: Document) -> FieldErrors:
    series: Document | None = document.get("series")
    if series is None:
        return []
    errors = []
    if series.get("count", 0) < SERIES_COUNT_MIN:
        errors.append(invalid_value("series.count", "", f"should be at least {SERIES_COUNT_MIN}"))
    if not series.get("lastObservedTime"):
        errors.append(required("series.lastObservedTime"))
    return errors


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
        Column("Last Seen", "Time since the event was last seen."),
        Column("Type", "Normal, or Warning."),
        Column("Reason", "Why, in one word for machines."),
        Column("Object", "The object that the event is about."),
        Column("Subobject", "The part of the object that the event is about.", priority=1),
        Column("Source", "Who tells, and from where.", priority=1),
        Column("Message", "What happened, for people."),
        Column("First Seen", "Time since the event was first seen.", priority=1),
        Column("Count", "How often the event was seen.", priority=1),
        Column("Name", "Name of the event object.", priority=1, format="name"),
    ),
    _cells,
)
#: Events come and go by themselves, and no quota holds them
EVENT: Final = kind.Kind(
    resource=Events,
    defaults=Defaults(_DEFAULTS),
    rules=Rules(_namespace),
    granted=kind.edited(),
    columns=_PRINTER,
)
#: a body has its defaults in the stored form, which is the other kind's
EVENT_V1: Final = kind.Kind(
    resource=EventsV1,
    rules=Rules(_namespace, _texts, _series, _now),
    update_rules=_validate_v1_update,
    columns=_PRINTER,
)
