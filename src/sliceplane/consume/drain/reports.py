"""Reports on demand in a server's memory: the last reports of consumers, and the revisions that
barriers require.

There are two requests that the server leaves open, and no write. A *consumer* (a node proxy, for
example) posts its report to ``PROGRESS_PATH/NAMESPACE/NAME``, the key of its Lease. The server
answers when a barrier requires more than the report has, with the required revisions; when the
consumer has applied them it posts again. A *barrier* posts to ``PROGRESS_PATH`` the revisions that
it requires and the number of the last answer that it received. The server answers with the reports
since then, when there is one.

Which consumers exist follows from Leases, not from this memory. So it may be lost, or be another
server's: that delays a barrier and never makes it wrong. A report counts as the Lease does, and
needs the same right: to patch that Lease.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.requests import Write
from sliceplane.api.scheme import EndpointSlices, Leases, Services
from sliceplane.consume.progress import (
    LEASE_NAMESPACE,
    REPORTS_PER_S,
    SMALL_CLUSTER_NODES,
    ProgressReport,
    Scope,
)
from sliceplane.consume.selections import required_revision

#: seconds between two questions about many nodes
LARGE_CLUSTER_PAUSE_S: Final = 0.25
#: seconds for which a request stays open at most, and for which a consumer's does
WAIT_S_MAX: Final = 60.0
CONSUMER_WAIT_S: Final = 50.0
#: seconds for which a barrier's does; its next question has further requirements
BARRIER_WAIT_S: Final = 0.2
_PAUSE_S: Final = 0.005
#: seconds after which an annotation requests reports of nodes that have not reported: they may be
#: another server's clients
MEMORY_S: Final = 0.5
#: consumers whose reports are retained; the oldest report is dropped first
CONSUMERS_MAX: Final = 20_000
#: bytes of all reports together; beyond it the oldest are dropped, too
REPORTS_BYTES_MAX: Final = 64 * 1024 * 1024
BODY_BYTES_MAX: Final = 64 * 1024
#: questions that count at the same time
QUESTIONS_MAX: Final = 1_000
#: revisions in one question: at most one for each resource and selection
SCOPES_MAX: Final = 64
#: memory of a report: bytes for each byte of its body, and in addition
_BYTES_EACH: Final = 4
_BYTES_BESIDE: Final = 1024


class Versions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Revisions by resource and selection."""

    endpointslices: dict[str, int] = {}
    services: dict[str, int] = {}

    def revisions_by_scope(self) -> dict[Scope, int]:
        resources = ((EndpointSlices, self.endpointslices), (Services, self.services))
        return {
            (resource.plural, name): version
            for resource, by_selection in resources
            for name, version in by_selection.items()
        }


def versions_of(revisions_by_scope: Mapping[Scope, int]) -> Versions:
    by_resource: dict[str, dict[str, int]] = {EndpointSlices.plural: {}, Services.plural: {}}
    for (plural, name), version in sorted(revisions_by_scope.items()):
        by_resource[plural][name] = version
    return Versions(by_resource[EndpointSlices.plural], by_resource[Services.plural])


class ConsumerPost(msgspec.Struct, frozen=True, rename="camel"):
    """The report that a consumer posts."""

    report: ProgressReport
    wait_seconds: float = 0.0


class ConsumerAnswer(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The answer to a consumer: the revisions that it must have applied when it posts again; none
    if the time is over. ``spread_seconds``: the time over which consumers spread their posts.
    """

    versions: Versions = Versions()
    spread_seconds: int = 0


class BarrierQuestion(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The question that a barrier posts. ``after``: the number of the last answer that it
    received.
    """

    versions: Versions = Versions()
    after: int = 0
    wait_seconds: float = 0.0


class BarrierAnswer(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The answer to a barrier: new reports by the key of the Lease."""

    number: int = 0
    reports: dict[str, ProgressReport] = {}


posts: Final = msgspec.json.Decoder(ConsumerPost)
questions: Final = msgspec.json.Decoder(BarrierQuestion)
consumer_answers: Final = msgspec.json.Decoder(ConsumerAnswer)
barrier_answers: Final = msgspec.json.Decoder(BarrierAnswer)


def pause_s(nodes: int) -> float:
    """Returns the seconds between an answer and the next question, so that reports accumulate."""
    return _PAUSE_S if nodes <= SMALL_CLUSTER_NODES else LARGE_CLUSTER_PAUSE_S


def question(goal: Mapping[Scope, int], after: int) -> Write:
    """Returns the question for *goal*; the refusal of a server without such a memory is
    tolerated.
    """
    body = encode(BarrierQuestion(versions_of(goal), after, BARRIER_WAIT_S))
    none_here = ("NotFound", "Forbidden", "MethodNotAllowed")
    return Write(
        verb="ask", resource=Leases, namespace=LEASE_NAMESPACE, body=body, tolerate=none_here
    )


class _StoredReport(NamedTuple):
    number: int
    report: ProgressReport
    size_bytes: int


class _OpenQuestion(NamedTuple):
    until: float
    revisions_by_scope: dict[Scope, int]


class Reports:
    """Owned by one server.  *number*: the first number of a report, higher than any before a
    restart.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        #: by key of the Lease, the newest last
        self._stored: OrderedDict[str, _StoredReport] = OrderedDict()
        self._bytes = 0
        self._questions: list[_OpenQuestion] = []
        self._required: dict[Scope, int] = {}

    def __len__(self) -> int:
        return len(self._stored)

    def on_report(self, name: str, report: ProgressReport, body_bytes: int = 0) -> None:
        """Stores *report*. *body_bytes*: the size of its request."""
        self._number += 1
        stored = _StoredReport(self._number, report, _BYTES_BESIDE + _BYTES_EACH * body_bytes)
        before = self._stored.pop(name, None)
        self._bytes += stored.size_bytes - (before.size_bytes if before is not None else 0)
        self._stored[name] = stored
        while len(self._stored) > CONSUMERS_MAX or self._bytes > REPORTS_BYTES_MAX:
            _, oldest = self._stored.popitem(last=False)
            self._bytes -= oldest.size_bytes

    def check(self) -> None:
        size_bytes = sum(stored.size_bytes for stored in self._stored.values())
        assert self._bytes == size_bytes <= REPORTS_BYTES_MAX, (
            f"{self._bytes} are counted, {size_bytes} are stored"
        )

    def on_question(self, received: BarrierQuestion, now: float) -> None:
        """Notes a question. It counts while its request is open, and a little longer: until the
        next one arrives.
        """
        until = now + min(received.wait_seconds, WAIT_S_MAX) + 1.0
        self._questions = [
            open_question for open_question in self._questions if open_question.until > now
        ][-QUESTIONS_MAX + 1 :]
        self._questions.append(_OpenQuestion(until, received.versions.revisions_by_scope()))
        self._required = {}
        for open_question in self._questions:
            for scope, version in open_question.revisions_by_scope.items():
                self._required[scope] = max(version, self._required.get(scope, 0))

    def answer_consumer(self, name: str, now: float) -> ConsumerAnswer | None:
        """Returns the revisions that barriers require and *name* has not reported; ``None``: there
        are none.
        """
        if not self._questions or self._questions[-1].until <= now or name not in self._stored:
            return None
        revisions = self._stored[name].report.revisions()
        missing = {scope: required_revision(scope, self._required) for scope in revisions}
        missing = {
            scope: version for scope, version in missing.items() if revisions[scope] < version
        }
        if not missing:
            return None
        return ConsumerAnswer(
            versions_of(missing),
            0 if len(self) <= SMALL_CLUSTER_NODES else -(-len(self) // REPORTS_PER_S),
        )

    def since(self, number: int) -> BarrierAnswer:
        """Returns the reports after *number*.  O(reports after it)."""
        reports: dict[str, ProgressReport] = {}
        for name in reversed(self._stored):
            stored = self._stored[name]
            if stored.number <= number <= self._number:
                break
            reports[name] = stored.report
        return BarrierAnswer(self._number, dict(sorted(reports.items())))
