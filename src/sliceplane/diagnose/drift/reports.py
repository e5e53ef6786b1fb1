"""Findings about one consumer of slices from the report in its Lease: it stopped, it is behind, its
kernel refuses rules, it receives no events, its cache lost an event, its name is wrong.

``sliceplane drift``, ``explain`` and ``status`` judge by these functions, so that they agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from sliceplane.api.findings.finding import Evidence, Finding, ObjectName
from sliceplane.api.findings.wording import clipped, lasting, misnamed_proxy, some
from sliceplane.consume.drain.relayed import ANNOTATION_NODES
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    ANNOTATION_REVISION,
    LEASE_NAMESPACE,
    AppliedRevision,
    Scope,
)
from sliceplane.diagnose.drift.facts import LeaseReport, Listed
from sliceplane.kit.times import format_time

#: the remedy if the kernel's rules are not the proxy's
REWRITE_RULES: Final = (
    "restart the node proxy, which rewrites its rules; nft monitor shows what changes them"
)
#: the words of a proxy's report if its rules were removed (``node.io``)
_RULES_GONE: Final = "rules were gone"
#: the words of an observer's report if another program's proxy is behind (``node.observing``)
_OTHER_IS_BEHIND: Final = ("its proxy still sends", "its proxy does not send")


class Judgement(NamedTuple):
    """A report compared with the slices at ``now``. ``missing``: slices that the consumer reads and
    has not applied.
    """

    consumer: LeaseReport
    missing: tuple[Listed, ...]
    now: float

    @property
    def is_late(self) -> bool:
        return self.consumer.is_late(self.now)

    @property
    def behind_s(self) -> float:
        """Seconds since the oldest write of ``missing``; 0: no slice has the time of its write."""
        return max((self.now - item.written for item in self.missing if item.written), default=0.0)

    @property
    def is_behind(self) -> bool:
        """Returns True if a report of all of ``missing`` is overdue, or if their age is unknown."""
        return bool(self.missing) and not 0 < self.behind_s <= self.consumer.behind_after_s

    @property
    def age_s(self) -> float:
        """Seconds since the last report if it is late, else since the consumer has been behind."""
        return self.consumer.age_s(self.now) if self.is_late else self.behind_s

    @property
    def findings(self) -> tuple[Finding, ...]:
        """N1, N15 or N2, in this order: each explains the later ones."""
        if self.is_late:
            return (stopped(self.consumer, self.now),)
        if inputs_since(self.consumer):
            return (disconnected(self.consumer, self.now),)
        return (behind(self),) if self.is_behind else ()


def judge_report(consumer: LeaseReport, slices: Iterable[Listed], now: float) -> Judgement:
    return Judgement(consumer, tuple(missing_of(consumer, slices)), now)


def finding(
    code: str,
    consumer: LeaseReport,
    sentence: str,
    *evidence: Evidence,
    effect: str = "",
    remedy: str = "",
) -> Finding:
    return Finding(
        code=code,
        subject=ObjectName("nodes", "Node", "", consumer.node)
        if consumer.is_proxy
        else lease_name(consumer),
        sentence=f"{consumer.title}: {sentence}",
        evidence=evidence,
        effect=effect,
        remedy=remedy,
    )


def lease_name(consumer: LeaseReport) -> ObjectName:
    return ObjectName("leases.coordination.k8s.io", "Lease", LEASE_NAMESPACE, consumer.lease)


def in_lease(consumer: LeaseReport, field: str, value: str) -> Evidence:
    return Evidence(subject=lease_name(consumer), field=field, value=value)


def in_report(consumer: LeaseReport, value: str) -> Evidence:
    annotation = ANNOTATION_NODES if consumer.relayed.lease else ANNOTATION_PROGRESS
    return in_lease(consumer, f"metadata.annotations[{annotation}]", value)


def inputs_since(consumer: LeaseReport) -> int:
    return consumer.report.inputs_since if consumer.report is not None else 0


def stopped(consumer: LeaseReport, now: float) -> Finding:
    """N1"""
    own = f"start the {consumer.wording.program} of {consumer.node}, or see in its log why it hangs"
    remedy = f"{own}; if it was removed on purpose, kubectl -n {LEASE_NAMESPACE} delete lease"
    if consumer.relayed.vouched:
        remedy = f"see why the relay of {consumer.lease} does not report"
    elif consumer.relayed.lease:
        remedy = f"{own}, or its connection to the relay of {consumer.lease}"
    else:
        remedy = f"{remedy} {consumer.lease}"
    return finding(
        "N1",
        consumer,
        f"its {consumer.wording.program} has not reported for {lasting(consumer.age_s(now))}",
        in_lease(consumer, "spec.renewTime", format_time(consumer.renewed)),
        effect=consumer.wording.stopped,
        remedy=remedy,
    )


def missing_of(consumer: LeaseReport, slices: Iterable[Listed]) -> Iterator[Listed]:
    """Yields the slices that the consumer reads and has not reported as applied. Deleted slices are
    not considered.
    """
    applied_by_scope = consumer.report.applied_by_scope() if consumer.report is not None else {}
    applied = {
        selection: at.revision
        for (plural, selection), at in applied_by_scope.items()
        if plural == "endpointslices"
    }
    for item in slices:
        if consumer.report is None:
            lacks = bool(item.selections) and item.revision > consumer.revision
        else:
            revisions = (
                applied[selection] for selection in item.selections if selection in applied
            )
            lacks = item.revision > min(revisions, default=item.revision)
        if lacks:
            yield item


def behind(judged: Judgement) -> Finding:
    """N2"""
    consumer, age_s = judged.consumer, judged.behind_s
    services = list(dict.fromkeys(item.service or item.key for item in judged.missing))
    return finding(
        "N2",
        consumer,
        f"{lasting(age_s) + ' behind' if age_s else 'behind'}: it does not hold {some(services)}",
        in_lease(consumer, f"metadata.annotations[{ANNOTATION_REVISION}]", str(consumer.revision)),
        effect=consumer.wording.behind,
        remedy=(
            f"look at the log of the {consumer.wording.program} of {consumer.node}, and its "
            "/healthz: its watch, its writes"
        ),
    )


def of_kernel(consumer: LeaseReport) -> Finding | None:
    """N3; N5 if another program removed rules."""
    problem = next(iter(consumer.report.problems if consumer.report is not None else ()), "")
    if not problem:
        return None
    evidence = in_report(consumer, f"problems: {clipped(problem)}")
    if consumer.report is not None and consumer.report.observed:
        return _of_observed(consumer, clipped(problem), evidence)
    if _RULES_GONE in problem:
        effect = "while they were gone, Services were unreachable from there"
        return finding(
            "N5", consumer, clipped(problem), evidence, effect=effect, remedy="nft monitor"
        )
    return finding(
        "N3",
        consumer,
        clipped(problem),
        evidence,
        effect="its kernel keeps its previous rules",
        remedy=f"give the kernel of {consumer.node} what it lacks; its proxy retries by itself",
    )


def _of_observed(consumer: LeaseReport, problem: str, evidence: Evidence) -> Finding:
    """N2 if another program's proxy is behind, N5 if its rules are absent or edited."""
    is_behind = problem.startswith(_OTHER_IS_BEHIND)
    return finding(
        "N2" if is_behind else "N5",
        consumer,
        problem,
        evidence,
        effect=(
            consumer.wording.behind
            if is_behind
            else "connections from there go elsewhere, or nowhere"
        ),
        remedy=f"see the log of kube-proxy on {consumer.node}: is it stopped, or without events?",
    )


def disconnected(consumer: LeaseReport, now: float) -> Finding:
    """N15"""
    since = inputs_since(consumer)
    return finding(
        "N15",
        consumer,
        f"its inputs are {lasting(now - since)} old: its {consumer.wording.program} runs, but "
        "receives no events from the API server",
        in_report(consumer, f"inputs_since: {since}"),
        effect=(
            f"its {consumer.wording.rules} are outdated: later changes do not reach clients there"
        ),
        remedy="see why its watches fail: its API server, and the log of the "
        f"{consumer.wording.program} of {consumer.node}",
    )


def lost_event(
    consumer: LeaseReport,
    scope: Scope,
    applied: AppliedRevision,
    than: str,
    *,
    digest: str = "",
    remedy: str,
) -> Finding:
    """N4. *than*: a clause about what the content differs from; *digest*: the server's."""
    plural, selection = scope
    other = f", and the server's is {digest}" if digest else ""
    return finding(
        "N4",
        consumer,
        f"lost an event: it holds {plural} ({selection}) {applied.revision} with another "
        f"content{than}",
        in_report(consumer, f"{applied.revision} {applied.digest}{other}"),
        effect=("it uses removed endpoints, or lacks new ones, until that object changes again"),
        remedy=remedy,
    )


def misnamed(consumer: LeaseReport, nodes: Iterable[str]) -> Finding:
    """N7: no Node has the name of the proxy, which owns no Lease of one."""
    clause, flag = misnamed_proxy(consumer.node, sorted(nodes))
    return finding(
        "N7",
        consumer,
        f"its proxy says that it is {consumer.node}; {clause}",
        in_lease(consumer, "spec.holderIdentity", consumer.node),
        effect="hints and local endpoints do not count there: a policy of Local drops everything",
        remedy=f"start the proxy with {flag}",
    )
