"""Judges relays by what they report of themselves (``consume.drain.relays``): a tree of rows, and
findings. ``status``, ``explain``, ``drift`` and the page judge by these functions.

A relay is **stopped** if its report is late, **behind** if a resource was silent for more than two
bookmarks, **not ready** for any other reason that it reports unless it is **starting**, **shared**
if two processes report by its name, and **unknown** if the relay above it that reports for it has
stopped. A fault of a relay is reported once, and not for those below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

from sliceplane.api.core import Lease
from sliceplane.api.findings.finding import Evidence, Finding, ObjectName
from sliceplane.api.findings.wording import clipped, count, lasting
from sliceplane.consume.drain.relays import (
    ANNOTATION_RELAYS,
    SILENT_S,
    RelayReport,
    relay_name,
    relays_of,
)
from sliceplane.consume.progress import LEASE_DURATION_S, LEASE_NAMESPACE, REPORT_LATE_S
from sliceplane.kit.columns import table

RelayState = Literal["stopped", "behind", "not ready", "shared", "unknown", "starting", "ready"]
#: the worst first
ORDER: Final[tuple[RelayState, ...]] = get_args(RelayState)
#: states that need no attention
WELL: Final = ("starting", "ready")
#: a relay that is further below has level 1
LEVELS_MAX: Final = 32
#: seconds for which two processes of one name live together while one replaces the other
HAND_OVER_S: Final = 60.0
#: seconds after its start within which a relay may lack a resource
START_S: Final = 60.0


class RelayRow(NamedTuple):
    """``level``: 1 for a relay with no other one above it that reports. ``lease``: the name of the
    Lease that has the report. ``twin``: another process of this name that lives, too; "": none.
    """

    report: RelayReport
    lease: str
    state: RelayState
    level: int
    age_s: float
    twin: str

    @property
    def name(self) -> str:
        return self.report.name

    @property
    def parent(self) -> str:
        """The name of the relay above it, or the URL of its parent."""
        return self.report.below or self.report.parent

    def as_document(self) -> dict[str, Any]:
        report = self.report
        return {
            "name": report.name,
            "parent": self.parent,
            "level": self.level,
            "state": self.state,
            "trouble": report.trouble,
            "zone": report.zone,
            "watches": report.watches,
            "nodes": report.nodes,
            "secondsSilent": report.silence_s,
            "silence": report.silence,
            "secondsSinceReport": round(self.age_s, 1),
            "release": report.release,
            "processes": list(filter(None, (report.process, self.twin))),
        }


def relay_tree(leases: Iterable[Lease], now: float) -> tuple[RelayRow, ...]:
    """Returns the relays that report in *leases*, each behind the one above it; below one relay the
    worst first. *now*: seconds since the epoch.
    """
    processes: dict[str, list[tuple[RelayReport, str]]] = {}
    for lease in leases:
        for report in relays_of(lease):
            processes.setdefault(report.name, []).append((report, lease.metadata.name))
    newest = {
        name: max(found, key=lambda each: (each[0].heard, each[0].process))
        for name, found in processes.items()
    }
    below: dict[str, list[str]] = {}
    for name, (report, _) in sorted(newest.items()):
        below.setdefault(report.below if report.below in newest else "", []).append(name)
    seen: set[str] = set()

    def rows(name: str, level: int, *, is_known: bool) -> list[RelayRow]:
        if name in seen or level > LEVELS_MAX:
            return []  # relays that report to be below each other
        seen.add(name)
        report, lease = newest[name]
        twin = _twin(report, processes[name], now)
        state = _state(report, lease, twin, now) if is_known else "unknown"
        knows = state not in ("stopped", "unknown")
        children = [rows(child, level + 1, is_known=knows) for child in below.get(name, ())]
        found = [row for subtree in sorted(children, key=_badness) for row in subtree]
        return [RelayRow(report, lease, state, level, max(0.0, now - report.heard), twin), *found]

    trees = [rows(name, 1, is_known=True) for name in (*below.get("", ()), *newest)]
    return tuple(row for tree in sorted(trees, key=_badness) for row in tree)


def _badness(rows: list[RelayRow]) -> tuple[int, float]:
    """Sorts subtrees by their worst relay."""
    return min(((ORDER.index(row.state), -row.report.silence_s) for row in rows), default=(0, 0.0))


def _state(report: RelayReport, lease: str, twin: str, now: float) -> RelayState:
    is_writer = report.name == relay_name(lease)
    if now - report.heard > REPORT_LATE_S if is_writer else report.is_late:
        return "stopped"
    if report.silence_s > SILENT_S:
        return "behind"
    if report.trouble:
        return "not ready" if report.up_s > START_S else "starting"
    return "shared" if twin else "ready"


def _twin(newest: RelayReport, found: Iterable[tuple[RelayReport, str]], now: float) -> str:
    """Returns another process of the name that was alive long after the start of *newest*."""
    return next(
        (
            report.process
            for report, _ in found
            if report.process != newest.process
            and min(report.heard - newest.started, newest.heard - report.started) > HAND_OVER_S
            and now - report.heard <= LEASE_DURATION_S
        ),
        "",
    )


def relay_findings(rows: Sequence[RelayRow]) -> Iterator[Finding]:
    """N16 to N19, in the order of *rows*."""
    behind = {row.name for row in rows if row.state == "behind"}
    for row in rows:
        if row.twin:
            yield _finding("N18", row)
        if row.state == "stopped":
            yield _finding("N16", row)
        elif row.name in behind and row.parent not in behind:
            yield _finding("N17", row)
        elif row.state == "not ready" and row.report.watches + row.report.nodes:
            yield _finding("N19", row)


def _finding(code: str, row: RelayRow) -> Finding:
    """The subject is the relay, although it is no object."""
    report, parent = row.report, row.parent
    silence = report.silence
    plural = max(silence, key=lambda each: silence[each], default="")
    forget = "if it was removed on purpose, "
    if row.name == relay_name(row.lease):
        forget += f"kubectl -n {LEASE_NAMESPACE} delete lease {row.lease}"
    else:
        forget += "its parent forgets it after a day"
    sentence, effect, remedy = {
        "N16": (
            f"it has not reported for {lasting(row.age_s)}",
            "its clients have moved, or receive nothing",
            f"start relay {row.name}, or see in its log why it does not reach {parent}; {forget}",
        ),
        "N17": (
            f"nothing has proved for {lasting(report.silence_s)} that it has all {plural} of {parent}",
            "it refuses new watches, and its clients may be behind",
            f"see in the log of relay {row.name} why its watch fails; a second --upstream lets it move",
        ),
        "N18": (
            f"two processes report by this name, {report.process} and {row.twin}",
            "each refuses the other's write, so reports of their nodes are late",
            "give one of them another name: sliceplane relay --aggregate-reports NAME",
        ),
        "N19": (
            f"it is not ready, and has clients: {clipped(report.trouble)}",
            "new clients go elsewhere; those that it has stay, and some of their reads fail",
            f"give relay {row.name} what it lacks, or stop it, so that its clients move",
        ),
    }[code]
    lease = ObjectName("leases.coordination.k8s.io", "Lease", LEASE_NAMESPACE, row.lease)
    field = f"metadata.annotations[{ANNOTATION_RELAYS}]"
    return Finding(
        code=code,
        subject=ObjectName("relays", "Relay", "", row.name),
        sentence=f"relay {row.name}: {sentence}",
        evidence=(Evidence(subject=lease, field=field, value=f"process {report.process}"),),
        effect=f"{effect} ({count(report.watches, 'watch')}, {count(report.nodes, 'node')})",
        remedy=remedy,
    )


def relay_lines(rows: Sequence[RelayRow], rows_max: int) -> tuple[str, ...]:
    """Returns a table of 78 columns, relays below those above them, the worst first."""
    cells = [
        (
            f"{'  ' * (row.level - 1)}{row.name}",
            row.report.zone or "-",
            row.state,
            lasting(row.report.silence_s),
            f"{row.report.watches:,}",
            f"{row.report.nodes:,}",
            lasting(row.age_s),
        )
        for row in rows
    ]
    heads = ("RELAY", "ZONE", "STATE", "SILENT", "WATCHES", "NODES", "AGE")
    more = "--output json has all"
    return tuple(table(heads, cells, width=78, rows_max=rows_max, elsewhere=more))
