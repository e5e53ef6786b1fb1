"""Words that sentences of findings share: how long ago, how many, which name was meant, a patch as a command."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sliceplane.kit.times import parse_time

#: names that a sentence has at most
NAMES_MAX: Final = 3
#: characters of a message that is quoted
MESSAGE_MAX: Final = 160
#: of 1: how alike a name must be to be the one that was meant (one wrong letter of three, two of eight)
_ALIKE_MIN: Final = 0.66


def some(names: Sequence[str], most: int = NAMES_MAX) -> str:
    """``a, b, c and 4 more``"""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def count(number: int, one: str, many: str = "") -> str:
    """``1 Pod``, ``3 Pods``, ``no Pod``"""
    if number == 0:
        return f"no {one}"
    return f"1 {one}" if number == 1 else f"{number:,} {many or one + 's'}"


def clipped(text: str, most: int = MESSAGE_MAX) -> str:
    """Of a message of somebody else's the beginning, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3].rstrip() + "..."


def pairs_text(labels: Mapping[str, str]) -> str:
    """``app=web,tier=front``, as a label selector has it."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def lasting(seconds: float) -> str:
    """``8 s``, ``14 min``, ``3 h``, ``9 d``"""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def since(text: str | None, now: float) -> float | None:
    """Seconds since the RFC 3339 time *text*; ``None`` where it is none."""
    try:
        return now - parse_time(text) if text else None
    except ValueError:
        return None


def nearest(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """Those of *names* that are like *name* and not it, the likest first."""
    ranked = sorted((-difflib.SequenceMatcher(None, name, other).ratio(), other) for other in set(names) - {name})
    return tuple(other for likeness, other in ranked if -likeness >= _ALIKE_MIN)[:NAMES_MAX]


def patch(namespace: str, resource: str, name: str, change: dict[str, Any]) -> str:
    """A command that merges *change*; *namespace* "": cluster scope."""
    where = f"-n {namespace} " if namespace else ""
    text = json.dumps(change, separators=(",", ":"))
    return f"kubectl {where}patch {resource} {name} --type merge -p '{text}'"
