"""The format of log lines: logfmt (``text``) for users, or one JSON object (``json``) for programs.

Both begin with the same four keys, in this order: ``timestamp``, ``level``, ``component``,
``event``; other values follow in the order of the call, ``exception`` last. A line is bounded, and
its content can neither control a terminal nor start a second JSON line: parts of a line may come
from untrusted clients. Colours are added last, by this program only, and only to lines whose
beginning is ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sliceplane.kit.terminal_text import printable_lines

FORMATS = ("text", "json")
KEYS = ("timestamp", "level", "component", "event")
LINE_CHARACTERS_MAX = 32 * 1024

#: characters that JSON does not escape, but that affect terminals, bidirectional text or line
#: splitting
_JSON_CONTROL = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
#: characters to which values of a too long line are cut, before they are dropped
_VALUE_CHARACTERS_MAX = 1024

_COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31;1"}
_HEAD = re.compile(
    r"^(?P<time>timestamp=\S+ )(?P<level>level=(?P<name>\w+))(?P<part> component=\S+ )"
    r'(?P<event>event=(?:"(?:[^"\\]|\\.)*"|\S+))'
)


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def as_json(values: Mapping[str, Any]) -> str:
    """Returns one object in one line, which stays valid JSON when it is shortened."""
    line = _dumped(values)
    if len(line) <= LINE_CHARACTERS_MAX:
        return line
    lost = len(line) - LINE_CHARACTERS_MAX
    cut = {key: _cut(value) for key, value in values.items()}
    line = _dumped({**cut, "cut": lost})
    return (
        line
        if len(line) <= LINE_CHARACTERS_MAX
        else _dumped({**{key: cut[key] for key in KEYS if key in cut}, "cut": lost})
    )


def _dumped(values: Mapping[str, Any]) -> str:
    line = json.dumps(values, ensure_ascii=False, default=str)
    return _JSON_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


def _cut(value: Any) -> Any:
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    text = value if isinstance(value, str) else str(value)
    if len(text) <= _VALUE_CHARACTERS_MAX:
        return text
    return (
        f"{text[:_VALUE_CHARACTERS_MAX]}... ({len(text) - _VALUE_CHARACTERS_MAX} characters more)"
    )


def plain_text(values: Mapping[str, Any]) -> str:
    """Returns logfmt without any library: for lines about failures to import it."""
    return " ".join(
        f"{key}={value}"
        if re.fullmatch(r"[\w.:+-]+", str(value))
        else f"{key}={json.dumps(str(value))}"
        for key, value in values.items()
    )


def fit_text(text: str) -> str:
    """Returns *text* with its newline, safe for a terminal."""
    if len(text) > LINE_CHARACTERS_MAX:
        text = (
            f"{text[:LINE_CHARACTERS_MAX]}... ({len(text) - LINE_CHARACTERS_MAX} characters more)\n"
        )
    return printable_lines(text)


def painted(line: str) -> str:
    """Returns a line of ``fit_text`` with colours: the level by severity, the event bold, time and
    component dim.
    """
    head = _HEAD.match(line)
    if head is None:
        return line
    colour = _COLOURS.get(head["name"], "0")
    return (
        f"\x1b[2m{head['time']}\x1b[0m\x1b[{colour}m{head['level']}\x1b[0m\x1b[2m{head['part']}\x1b[0m"
        f"\x1b[1m{head['event']}\x1b[0m{line[head.end() :]}"
    )
