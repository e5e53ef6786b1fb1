"""Event, as each of its two APIs wants it (reference B16).

Both get the stored form and complain with its names, as upstream does.  core/v1 takes nearly anything;
events.k8s.io/v1 wants every Event to say who reports what, and lets nobody rewrite it later.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldError, invalid_value, required
from sliceplane.api.meta import Document
from sliceplane.kit.names import check_qualified_name
from sliceplane.registry.validation.metadata import IMMUTABLE

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
#: names in complaints, where they are not the stored form's
_SAID: Final = {"reportingComponent": "reportingController"}


def validate_event(document: Document) -> list[FieldError]:
    """An Event lives in the namespace of what it is about; about something without one, in ``default``."""
    about = document.get("involvedObject", {}).get("namespace", "")
    namespace = document["metadata"].get("namespace", "")
    mismatch = invalid_value("involvedObject.namespace", about, "does not match event.namespace")
    if document.get("eventTime") is not None:
        # The newer recorder is trusted with a namespace that it names.
        return [mismatch] if not about and namespace not in ("default", "kube-system") else []
    if not about:
        return [mismatch] if namespace not in ("", "default") else []
    return [mismatch] if about != namespace else []


def validate_event_update(new: Document, old: Document) -> list[FieldError]:  # noqa: ARG001
    return validate_event(new)


def validate_v1_event(document: Document) -> list[FieldError]:
    """A new Event of events.k8s.io/v1."""
    errors = validate_event(document)
    errors += _texts(document)
    errors += _series(document)
    if document.get("eventTime") is None:
        errors.append(required("eventTime"))
    if document.get("type", "") not in _TYPES:
        errors.append(invalid_value("type", "", f"has invalid value: {document.get('type', '')}"))
    errors += [invalid_value(name, "", "needs to be unset") for name in _DEPRECATED if document.get(name)]
    return errors


def validate_v1_event_update(new: Document, old: Document) -> list[FieldError]:
    """Only the series and the metadata move."""
    errors = [
        invalid_value(_SAID.get(name, name), new.get(name), IMMUTABLE)
        for name in _FIXED
        if (new.get(name) or None) != (old.get(name) or None)
    ]
    if new.get("series") != old.get("series"):
        errors += _series(new)
    return errors


def _texts(document: Document) -> list[FieldError]:
    controller: str = document.get("reportingComponent", "")
    errors = [] if controller else [required("reportingController")]
    errors += [invalid_value("reportingController", controller, each) for each in check_qualified_name(controller)]
    for name in ("reportingInstance", "action", "reason"):
        value: str = document.get(name, "")
        if not value:
            errors.append(required(name))
        elif len(value.encode()) > TEXT_MAX:
            errors.append(invalid_value(name, "", f"can have at most {TEXT_MAX} characters"))
    if len(document.get("message", "").encode()) > NOTE_MAX:
        errors.append(invalid_value("message", "", f"can have at most {NOTE_MAX} characters"))
    return errors


def _series(document: Document) -> list[FieldError]:
    series: Document | None = document.get("series")
    if series is None:
        return []
    errors = []
    if series.get("count", 0) < SERIES_COUNT_MIN:
        errors.append(invalid_value("series.count", "", f"should be at least {SERIES_COUNT_MIN}"))
    if not series.get("lastObservedTime"):
        errors.append(required("series.lastObservedTime"))
    return errors
