"""A shadow run in words: rows for people, JSON lines for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from sliceplane.api.discovery import MANAGED_BY_CONTROLLER
from sliceplane.kit import columns
from sliceplane.kit.times import format_micro_time
from sliceplane.shadow.ledger import DifferenceLedger, News, StandingDifference

#: rows that a terminal shows; the rest is counted
TABLE_ROWS_MAX = 30
#: a value longer than this is cut in tables; JSON lines have all of it
CELL_CHARACTERS_MAX = 48
#: what follows from a summary without a single slice
NO_CONTROLLER = (
    "Nobody seems to write EndpointSlices here: no slice says that it is managed by\n"
    f"{MANAGED_BY_CONTROLLER}.  Does an EndpointSlice controller run?"
)
HEADER = ("SERVICE", "KIND", "TYPE", "WHERE", "OURS", "THEIRS", "FOR")


@dataclass(frozen=True, slots=True)
class ShadowSummary:
    """Where a run stands.  ``differing``: services of which a difference stands; ``pending``: differences within the
    grace period; ``beyond``: only counted; ``managed``: slices there are of the controller that is compared."""

    services: int
    differing: int
    comparisons: int
    differences: int
    pending: int
    beyond: int
    managed: int

    @property
    def text(self) -> str:
        differences = _count(self.differences + self.beyond, "difference") if self.differences else "no difference"
        waiting = f", {self.pending} younger than the grace period" if self.pending else ""
        some = f"{self.differing} of " if self.differences and self.differing != self.services else ""
        where = f"{some}{_count(self.services, 'service')} after {_count(self.comparisons, 'comparison')}"
        return f"{differences} in {where}{waiting}" + (f"\n{NO_CONTROLLER}" if self.lacks_controller else "")

    @property
    def lacks_controller(self) -> bool:
        """Services lack what is due to them, and no slice says that a controller made it."""
        return bool(self.differences) and not self.managed


def rows(standing: Iterable[StandingDifference], now: float) -> list[tuple[str, ...]]:
    """Differences of one service that have kind and both values in common are one row."""
    groups: dict[tuple[str, str, str, str, str], list[StandingDifference]] = {}
    for entry in standing:
        difference = entry.difference
        group = (entry.key, difference.kind.value, difference.address_type, difference.desired, difference.actual)
        groups.setdefault(group, []).append(entry)
    made: list[tuple[str, ...]] = []
    for (key, kind, family, desired, actual), members in groups.items():
        where = members[0].difference.subject or "the Service"
        if len(members) > 1:
            where += f" and {len(members) - 1} more"
        age = now - min(member.since for member in members)
        made.append((key, kind, family, where, _cut(desired), _cut(actual), f"{age:.0f}s"))
    return made


def table(
    standing: Iterable[StandingDifference], now: float, rows_max: int = TABLE_ROWS_MAX, width: int | None = None
) -> str:
    """*width*: columns of the screen; ``None``: lines are as long as they come."""
    differences = rows(standing, now)
    return "\n".join(columns.table(HEADER, differences, width=width, rows_max=rows_max)) if differences else ""


def line(news: News) -> str:
    """One piece of news for people."""
    difference = news.standing.difference
    where = f" {difference.subject}" if difference.subject else ""
    family = f" {difference.address_type}" if difference.address_type else ""
    head = f"{format_micro_time(news.at)} {news.what} {news.standing.key}{family}{where}: {difference.kind.value}"
    return f"{head}: ours {_cut(difference.desired)}, theirs {_cut(difference.actual)}"


def json_line(news: News) -> bytes:
    """The same for programs."""
    namespace, _, service = news.standing.key.partition("/")
    difference = news.standing.difference
    return msgspec.json.encode(
        {
            "time": format_micro_time(news.at),
            "event": news.what,
            "namespace": namespace,
            "service": service,
            "kind": difference.kind.value,
            "addressType": difference.address_type,
            "subject": difference.subject,
            "desired": difference.desired,
            "actual": difference.actual,
            "since": format_micro_time(news.standing.since),
        }
    )


def json_summary(summary: ShadowSummary, now: float) -> bytes:
    return msgspec.json.encode({"time": format_micro_time(now), "event": "summary", **msgspec.to_builtins(summary)})


def summary_of(ledger: DifferenceLedger, services: int) -> ShadowSummary:
    standing: Sequence[StandingDifference] = tuple(ledger.standing())
    return ShadowSummary(
        services, ledger.differing, ledger.compared, len(standing), ledger.pending, ledger.beyond, ledger.managed
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _cut(text: str) -> str:
    return text if len(text) <= CELL_CHARACTERS_MAX else f"{text[: CELL_CHARACTERS_MAX - 1]}\N{HORIZONTAL ELLIPSIS}"
