"""Describes how an object changed: the members that differ, with their old and new values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from sliceplane.api.meta import Object
from sliceplane.kit.times import format_micro_time
from sliceplane.watch.cache import Change
from sliceplane.watch.recorder.entries import (
    BatchTaken,
    Changed,
    Ended,
    Entry,
    LoopBegan,
    LoopEnded,
    LoopSynced,
    Marked,
    Reached,
)
from sliceplane.watch.recorder.redact import TOKEN

#: members that every write changes by itself
_BOOKKEEPING: Final = frozenset(
    (
        "metadata.resourceVersion",
        "metadata.generation",
        "metadata.managedFields",
        "apiVersion",
        "kind",
    )
)
#: members that name an element of a list, by priority
_NAMES: Final = ("type", "name", "key", "ip")
_VALUE_CHARACTERS_MAX: Final = 60
_FIELDS_MAX: Final = 4
#: ``event`` in the JSON output, which scripts read, where it is not the name of the class
_EVENTS: Final[dict[type[Entry], str]] = {
    LoopBegan: "LifeBegan",
    LoopSynced: "LifeSynced",
    LoopEnded: "LifeEnded",
    BatchTaken: "Turned",
}


class FieldChange(NamedTuple):
    """``None``: absent."""

    path: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.path} {_value_text(self.old)} -> {_value_text(self.new)}"


def field_changes(old: Object, new: Object) -> tuple[FieldChange, ...]:
    return tuple(change for change in _walk("", old, new) if change.path not in _BOOKKEEPING)


def change_text(change: Change[Object], fields_max: int = _FIELDS_MAX) -> str:
    """Returns ``made``, ``removed``, or the members that differ."""
    if change.old is None:
        return "made"
    if change.new is None:
        return "removed"
    changes = field_changes(change.old, change.new)
    text = ", ".join(map(str, changes[:fields_max]))
    more = f", and {len(changes) - fields_max} more" if len(changes) > fields_max else ""
    return f"{text}{more}" if changes else "nothing that controllers use"


def entry_text(entry: Entry, names: dict[int, str]) -> str:
    """Returns one line for people. *names*: controllers' names by number of the loop, which this
    function keeps.
    """
    when = format_micro_time(entry.at)
    controller = names.get(entry.loop, f"life {entry.loop}")
    match entry:
        case LoopBegan():
            names[entry.loop] = entry.name
            was = f" from a checkpoint of {len(entry.objects)} objects" if entry.checkpoint else ""
            return f"{when} {entry.name} began{was}"
        case LoopSynced():
            return f"{when} {controller} has its caches filled"
        case Changed():
            by = f" by {entry.writer}" if entry.writer else ""
            what = f"{entry.change.resource} {entry.key}"
            return f"{when} {controller} <- {what}: {change_text(entry.change)}{by}"
        case Reached():
            return f"{when} {controller} has all {entry.mark.resource} up to {entry.mark.version}"
        case BatchTaken():
            jobs = "; ".join(f"{job.key}: {', '.join(map(str, job.writes))}" for job in entry.jobs)
            return f"{when} {controller} -> {jobs or 'nothing'}"
        case Ended():
            ended = "done" if entry.error is None else f"failed: {entry.error}"
            return f"{when} {controller} <- {entry.key} {ended}"
        case LoopEnded():
            return f"{when} {controller} ended{f': {entry.fault}' if entry.fault else ''}"
        case Marked():
            return f"{when} {entry.kind}: {entry.text}"
    raise AssertionError(f"{entry!r} is no entry")


def entry_document(entry: Entry, names: dict[int, str]) -> dict[str, Any]:
    """Returns the same as ``entry_text`` for programs."""
    text = entry_text(entry, names)
    event = _EVENTS.get(type(entry), type(entry).__name__)
    document: dict[str, Any] = {"time": format_micro_time(entry.at), "event": event}
    if entry.loop >= 0:
        document |= {"controller": names.get(entry.loop, ""), "life": entry.loop}
    match entry:
        case Changed():
            fields: tuple[FieldChange, ...] = ()
            if entry.change.old is not None and entry.change.new is not None:
                fields = field_changes(entry.change.old, entry.change.new)
            document |= {
                "resource": entry.change.resource,
                "key": entry.key,
                "step": entry.step,
                "writer": entry.writer,
                "change": "made"
                if entry.change.old is None
                else "removed"
                if entry.change.new is None
                else "changed",
                "fields": [
                    {"path": path, "old": _plain(old), "new": _plain(new)}
                    for path, old, new in fields
                ],
            }
        case BatchTaken():
            jobs = [
                {"key": job.key, "writes": [msgspec.to_builtins(write) for write in job.writes]}
                for job in entry.jobs
            ]
            document |= {"room": entry.room, "jobs": jobs}
        case Ended():
            document |= {
                "key": entry.key,
                "error": None if entry.error is None else str(entry.error),
            }
        case _:
            document["text"] = text.partition(" ")[2]
    return document


def _walk(path: str, old: Any, new: Any) -> Iterator[FieldChange]:
    if old is new or old == new:
        return
    if type(old) is type(new) and hasattr(new, "__struct_fields__"):
        for name, encoded_name in zip(
            new.__struct_fields__, new.__struct_encode_fields__, strict=True
        ):
            yield from _walk(
                f"{path}.{encoded_name}" if path else encoded_name,
                getattr(old, name),
                getattr(new, name),
            )
    elif isinstance(new, tuple | list) or isinstance(old, tuple | list):
        yield from _walk_elements(path, old or (), new or ())
    elif isinstance(new, dict) or isinstance(old, dict):
        before, after = old or {}, new or {}
        for name in sorted({*before, *after}):
            # In a template a dictionary is an object, elsewhere it is a map.
            member = (
                f"{path}.{name}" if ".template" in path and name.isalnum() else f"{path}[{name}]"
            )
            yield from _walk(member, before.get(name), after.get(name))
    else:
        yield FieldChange(path, old, new)


def _walk_elements(path: str, old: Sequence[Any], new: Sequence[Any]) -> Iterator[FieldChange]:
    before, after = _named(old), _named(new)
    for name in [*before, *(name for name in after if name not in before)]:
        yield from _walk(f"{path}[{name}]", before.get(name), after.get(name))


def _named(elements: Sequence[Any]) -> dict[str, Any]:
    """Returns elements by the member that identifies them, else by position."""
    named: dict[str, Any] = {}
    for position, element in enumerate(elements):
        named_as = element.get if isinstance(element, dict) else partial(_member, element)
        name = next((str(value) for value in map(named_as, _NAMES) if value), "")
        addresses = named_as("addresses")
        name = str(addresses[0]) if addresses else name or str(position)
        named[name if name not in named else f"{name}/{position}"] = element
    return named


def _member(element: Any, name: str) -> Any:
    return getattr(element, name, None)


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def _value_text(value: Any) -> str:
    if value is None or value == "":
        return "none"
    if isinstance(value, str) and value.startswith(TOKEN):
        return "(not recorded)"
    if isinstance(value, str | int | float):
        text = str(value)
    elif hasattr(value, "__struct_fields__"):
        # An element that was added or removed: its name is in the path.
        return "there"
    else:
        text = msgspec.json.encode(value).decode()
    return (
        text
        if len(text) <= _VALUE_CHARACTERS_MAX
        else f"{text[: _VALUE_CHARACTERS_MAX - 1]}\N{HORIZONTAL ELLIPSIS}"
    )
