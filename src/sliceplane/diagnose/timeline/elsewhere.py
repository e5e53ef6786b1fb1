"""A timeline without a recording, from managedFields and Events.

managedFields have the last change of each member by a manager, to the second, but no earlier ones.
Equal Events are counted in one, and kept for an hour. Former values and effects are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sliceplane.diagnose.timeline.timeline import Line
from sliceplane.kit.times import parse_time

#: the remark for readers of these lines
NOTICE: Final = (
    "nothing is recorded there: this is what managedFields and Events tell, to the second, "
    "without values and effects"
)
_FIELDS_MAX: Final = 4
#: digits of a version: 64 bits
_DIGITS_MAX: Final = 20


def lines_of(
    objects: Iterable[dict[str, Any]], events: Iterable[dict[str, Any]], since: float
) -> list[Line]:
    """Returns the lines in the order of time; within a second in that of versions, which one etcd
    counts for all kinds.
    """
    lines = [
        (line, _version(document)) for document in objects for line in _managed(document, since)
    ]
    lines += [
        (line, _version(event)) for event in events if (line := _event(event, since)) is not None
    ]
    lines.sort(key=lambda entry: (int(entry[0].at), entry[1], entry[0].what))
    return [line for line, _ in lines]


def _version(document: dict[str, Any]) -> int:
    """Returns the version of the last write; 0 if it is no number."""
    text = str(document.get("metadata", {}).get("resourceVersion", ""))
    return int(text) if text.isdecimal() and len(text) <= _DIGITS_MAX else 0


def _line(at: float, author: str, what: str) -> Line:
    return Line(at=at, until=at, author=author, what=what, effect=None, opened=())


def _managed(document: dict[str, Any], since: float) -> Iterable[Line]:
    meta = document.get("metadata", {})
    name = f"{document.get('kind', '')} {meta.get('name', '')}"
    for entry in meta.get("managedFields") or ():
        at = _time(entry.get("time"))
        if at is None or at < since:
            continue
        fields = list(_fields("", entry.get("fieldsV1") or {}))
        names = ", ".join(fields[:_FIELDS_MAX]) + (
            f" and {len(fields) - _FIELDS_MAX} more" if len(fields) > 4 else ""
        )
        yield _line(at, str(entry.get("manager", "")), f"{name}: set {names}")


def _fields(path: str, fields: dict[str, Any]) -> Iterable[str]:
    """Yields members as paths, at most two levels deep."""
    for name, below in fields.items():
        if name.startswith("f:"):
            member = f"{path}.{name[2:]}" if path else name[2:]
            deeper = list(_fields(member, below)) if path.count(".") < 1 else []
            yield from deeper or [member]


def _event(event: dict[str, Any], since: float) -> Line | None:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    at = next((time for time in map(_time, times) if time is not None), None)
    if at is None or at < since:
        return None
    about = event.get("involvedObject") or event.get("regarding") or {}
    count = series.get("count") or event.get("count") or 1
    often = f" ({count} times)" if count > 1 else ""
    author = event.get("reportingComponent") or (event.get("source") or {}).get("component") or ""
    text = event.get("message") or event.get("note") or ""
    return _line(
        at,
        str(author),
        f"{about.get('kind')} {about.get('name')}: {event.get('reason')}: {text}{often}",
    )


def _time(text: Any) -> float | None:
    try:
        return parse_time(text) if isinstance(text, str) else None
    except ValueError:
        return None
