"""The relays that report through one relay, and itself (``consume.drain.relays``).

A relay below this one writes a Lease with the reports of its own subtree; all of them become part
of this one's. Of a process that reports through several relays the newest report counts.

**Two processes of one name** find each other's Lease where they write, and take its reports in like
those of a Lease of before a restart. So each reports the other as long as it is alive, and a reader
sees two processes of one name that live at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from sliceplane.api.codec import encode
from sliceplane.api.core import Lease
from sliceplane.api.findings.wording import clipped
from sliceplane.api.requests import Selection
from sliceplane.consume.drain.relays import RelayReport, relay_name, relays_of
from sliceplane.consume.progress import LEASE_DURATION_S, REPORT_LATE_S
from sliceplane.kit.times import time_or_zero
from sliceplane.relay.metrics import Followed

#: bytes of all reports in one Lease, some 40 relays
RELAYS_BYTES_MAX: Final = 12 * 1024
#: seconds by which Leases take different times on their way
ON_THE_WAY_S: Final = 5.0

_Key = tuple[str, str]


def described(own: RelayReport, parents: Mapping[Selection, Followed]) -> RelayReport:
    """Returns *own* with the state of what the relay serves. A URL is reported without a user."""
    served = [(part.resource.plural, parent) for part, parent in parents.items()]
    # Of several parts of one resource the longest silence is reported.
    served.sort(key=lambda each: each[1].silence_s)
    scheme, _, address = own.parent.partition("://")
    troubles = (f"{plural}: {parent.trouble}" for plural, parent in served if parent.trouble)
    return replace(
        own,
        parent=f"{scheme}://{address.rpartition('@')[2]}",
        trouble=clipped(next(troubles, "")),
        watches=sum(len(parent.mirror.hub) for _, parent in served),
        silence={
            plural: round(parent.silence_s, 1) for plural, parent in served if parent.mirror.filled
        },
    )


class _Entry(NamedTuple):
    """A report, and when a Lease brought it last."""

    report: RelayReport
    brought: float


class Subtree:
    """Owned by ``reports.NodeReports``.  Times are seconds since the epoch."""

    def __init__(self, name: str) -> None:
        """*name*: of the relay that writes the Lease."""
        self._name = name
        self._own: RelayReport | None = None
        #: by name and process
        self._others: dict[_Key, _Entry] = {}

    def on_own(self, report: RelayReport) -> None:
        """Notes the state of this process."""
        self._own = report

    def accepts(self, lease: Lease) -> bool:
        """Returns True if there is room for the reports of *lease*."""
        reports = {key: entry.report for key, entry in self._others.items()}
        reports.update((_key(each), each) for each in relays_of(lease))
        return len(encode([*reports.values(), self._own])) <= RELAYS_BYTES_MAX

    def on_lease(self, lease: Lease, now: float) -> None:
        """Notes a Lease of a child, or of this relay's name, if there is room."""
        written = time_or_zero(lease.spec.renew_time)
        is_own = relay_name(lease.metadata.name) == self._name
        for report in relays_of(lease) if self.accepts(lease) else ():
            key = _key(report)
            heard = report.heard if is_own else now - max(written - report.heard, 0.0)
            before = self._others.get(key)
            if before is None or heard > before.report.heard - ON_THE_WAY_S:
                below = report.below or ("" if is_own else self._name)
                known = replace(report, heard=round(heard, 1), below=below)
                self._others[key] = _Entry(known, written if is_own else now)

    def take(self, now: float, kept_s: float) -> list[RelayReport]:
        """Returns the reports to write. One that is older than *kept_s* is dropped, as is one of a
        process that was followed by another.
        """
        if self._own is None:
            return []
        self._others.pop(_key(self._own), None)
        newest = {self._name: self._own.heard}
        for report, _ in self._others.values():
            newest[report.name] = max(report.heard, newest.get(report.name, 0.0))
        reports = [self._own]
        for key, (report, brought) in sorted(self._others.items()):
            is_followed = report.heard < newest[report.name] and now - brought > LEASE_DURATION_S
            if now - report.heard > kept_s or is_followed:
                del self._others[key]
            else:
                is_late = report.is_late or now - brought > REPORT_LATE_S
                reports.append(replace(report, is_late=is_late))
        return reports


def _key(report: RelayReport) -> _Key:
    return report.name, report.process


def lasting(reports: Iterable[RelayReport]) -> list[RelayReport]:
    """Returns *reports* without figures that change all the time, which are no reason to write."""
    return [
        replace(
            each,
            heard=0.0,
            up_s=0.0,
            trouble=each.trouble and "some",
            watches=0,
            nodes=0,
            silence={},
        )
        for each in reports
    ]
