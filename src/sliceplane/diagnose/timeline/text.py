"""Lines of a timeline for people and for programs.

For a program that reads text a line is one row. On a screen it is a block of the screen's width:
time and author, the change, the transitions of Pods, the effects. A line that is opened has a row
for each change in it, and a row for each Pod with the times of its transitions: a rollout of a
hundred Pods is a hundred rows, not six hundred.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from sliceplane.api.findings.wording import count
from sliceplane.diagnose.timeline.timeline import (
    POD_TRANSITIONS,
    Line,
    Membership,
    TimelineEffect,
    TimelineSent,
)
from sliceplane.kit.columns import table
from sliceplane.kit.terminal_text import printable
from sliceplane.kit.times import format_micro_time

_UNKNOWN: Final = "?"
#: a shorter duration is not shown
_DURATION_S_MIN: Final = 0.05
_INDENT: Final = "  "
_WIDTH_MIN: Final = 40


def line_text(line: Line, *, opened: bool = False, width: int | None = None) -> str:
    """*opened*: with its parts. *width*: of the screen; ``None``: all in one row."""
    line = _harmless(line)
    rows = list(_block(line, width)) if width is not None else [_row(line)]
    if opened and len(line.opened) > 1:
        rows += _opened(line, width)
    return "\n".join(rows)


def _harmless(line: Line) -> Line:
    """Returns *line* with printable names and values: none of them may begin a row of its own."""
    opened = tuple(
        sub._replace(author=printable(sub.author), what=printable(sub.what)) for sub in line.opened
    )
    return replace(
        line,
        author=printable(line.author),
        what=printable(line.what),
        pods=printable(line.pods),
        opened=opened,
    )


def line_document(line: Line) -> dict[str, Any]:
    effect = line.effect or TimelineEffect()
    sent = effect.sent
    return {
        "time": format_micro_time(line.at),
        "until": format_micro_time(line.until),
        "who": line.author,
        "what": "; ".join(_what(line)),
        "slices": None if line.effect is None else effect.slices,
        "writes": effect.writes,
        "bytes": effect.size_bytes,
        "sent": None
        if sent is None
        else {"fewest": sent.fewest, "most": sent.most, "bytes": sent.size_bytes},
        "nodes": {name: round(seconds, 3) for name, seconds in sorted(effect.nodes.items())},
        "nodesKnown": effect.nodes_total,
        "followed": "; ".join(_followed(line)),
        "opened": [
            {"time": format_micro_time(sub.at), "who": sub.author, "what": sub.what}
            for sub in line.opened
        ],
    }


def membership_text(membership: Membership) -> str:
    rows = [
        f"- {member} {state}"
        for member, state in membership.before.items()
        if member not in membership.after
    ]
    rows += [
        f"+ {member} {state}"
        for member, state in membership.after.items()
        if member not in membership.before
    ]
    rows += [
        f"  {member} {state} -> {membership.after[member]}"
        for member, state in membership.before.items()
        if membership.after.get(member, state) != state
    ]
    same = sum(membership.after.get(member) == state for member, state in membership.before.items())
    rows.append(
        f"{same} of {len(membership.before)} endpoints as they were, {len(membership.after)} then"
    )
    return "\n".join(rows)


def _row(line: Line) -> str:
    what = "; ".join(_what(line))
    return (
        f"{format_micro_time(line.at)} {line.author or _UNKNOWN:<24} "
        f"{'; '.join([what + _during(line), *_followed(line)])}"
    )


def _block(line: Line, width: int) -> Iterator[str]:
    changes = f": {count(len(line.opened), 'change')}" if len(line.opened) > 1 else ""
    yield f"{format_micro_time(line.at)} {line.author or _UNKNOWN}{changes}{_during(line)}"
    for part in (*_what(line), "; ".join(_followed(line))):
        yield from _wrapped(part, width)


def _wrapped(text: str, width: int | None) -> list[str]:
    if width is None:
        return [_INDENT + text]
    room = max(width, _WIDTH_MIN)
    return textwrap.wrap(
        text, room, initial_indent=_INDENT, subsequent_indent=2 * _INDENT, break_on_hyphens=False
    )


def _what(line: Line) -> list[str]:
    return [line.what, line.pods] if line.pods else [line.what]


def _during(line: Line) -> str:
    duration_s = line.until - line.at
    return f" in {duration_s:.1f} s" if duration_s >= _DURATION_S_MIN else ""


def _opened(line: Line, width: int | None) -> list[str]:
    """Returns rows for changes, then for Pods. A Pod has only its transitions, no other change of
    its status.
    """
    pods: dict[str, dict[str, list[float]]] = {}
    rows: list[str] = []
    for sub in line.opened:
        after = sub.at - line.at
        if sub.became:
            pods.setdefault(sub.pod, {}).setdefault(sub.became, []).append(after)
        elif not sub.pod or not sub.status_only:
            rows += _wrapped(f"{_after([after])} {sub.author or _UNKNOWN}: {sub.what}", width)
    transitions = [
        transition
        for transition in POD_TRANSITIONS
        if any(transition in became for became in pods.values())
    ]
    if pods:
        cells = [
            (name, *(_after(became.get(transition, [])) for transition in transitions))
            for name, became in pods.items()
        ]
        rows += table(("Pod", *transitions), cells, indent=_INDENT, width=width)
    return rows


def _after(times: list[float]) -> str:
    if not times:
        return ""
    often = f" ({len(times)} times)" if len(times) > 1 else ""
    return f"+{times[-1]:.2f} s{often}"


def _followed(line: Line) -> list[str]:
    effect = line.effect
    if effect is None:
        return []
    if not effect.slices:
        return [
            "what followed is in the next line" if line.next_at < line.until else "no slice changed"
        ]
    parts = [_slices(effect)]
    if effect.sent is not None:
        parts.append(_sent_text(effect.sent))
    if effect.nodes_total:
        reported = f"{len(effect.nodes)} of {effect.nodes_total} nodes reported"
        if effect.nodes:
            last = max(effect.nodes, key=lambda name: effect.nodes[name])
            reported += f", the last {last} after {effect.nodes[last]:.1f} s"
        parts.append(reported)
    return parts


def _slices(effect: TimelineEffect) -> str:
    slices = count(effect.slices, "slice")
    writes = f" in {count(effect.writes, 'write')}" if effect.writes > effect.slices else ""
    # Writes and deletions by others have no recorded size.
    return f"{slices}{writes}{f', {_bytes(effect.size_bytes)}' if effect.size_bytes else ''}"


def _sent_text(sent: TimelineSent) -> str:
    """Describes to how many watchers each event was sent. They may differ each time, so the most is
    "up to". A watcher that requests protobuf or a table receives fewer bytes than were written.
    """
    if not sent.most:
        return "sent to no watcher"
    most = count(sent.most, "watcher")
    return (
        f"{_bytes(sent.size_bytes)} sent to {most if sent.fewest == sent.most else f'up to {most}'}"
    )


def _bytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1000:.1f} kB"
