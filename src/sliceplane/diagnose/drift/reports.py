"""Findings about one consumer of slices by the report in its Lease: it stopped, it is behind, its
kernel refuses rules, it receives no events, its cache lost an event, it has a wrong name.

``sliceplane drift``, ``explain`` and ``status`` judge by these functions, so that they agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from sliceplane.api.findings.finding import Evidence, Finding, ObjectName
from sliceplane.api.findings.wording import clipped, lasting, misnamed_proxy, some
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    ANNOTATION_REVISION,
    BEHIND_S,
    LEASE_NAMESPACE,
    Held,
    Place,
)
from sliceplane.diagnose.drift.facts import Listed, ToldNode
from sliceplane.kit.times import format_time

#: the remedy of rules that are not the proxy's
WRITE_ANEW: Final = (
    "restart the node proxy, which writes its rules anew; nft monitor shows who changes them"
)
#: what a proxy reports where rules of its own were gone (``node.io``)
_GONE: Final = "rules were gone"


class Judgement(NamedTuple):
    """A report beside the slices as they are ``now``.  ``missing``: slices that the consumer reads
    and does not hold.
    """

    told: ToldNode
    missing: tuple[Listed, ...]
    now: float

    @property
    def is_late(self) -> bool:
        return self.told.is_late(self.now)

    @property
    def behind_s(self) -> float:
        """Seconds since the oldest write of ``missing``; 0: no slice says when it was written."""
        return max((self.now - item.written for item in self.missing if item.written), default=0.0)

    @property
    def is_behind(self) -> bool:
        """Returns True if a report of all of ``missing`` should have come; also where its age is
        not known.
        """
        return bool(self.missing) and not 0 < self.behind_s <= BEHIND_S

    @property
    def age_s(self) -> float:
        """Seconds since the last report if it is late, else since the consumer has been behind."""
        return self.told.age_s(self.now) if self.is_late else self.behind_s

    @property
    def findings(self) -> tuple[Finding, ...]:
        """N1, N15 or N2: each explains those after it."""
        if self.is_late:
            return (stopped(self.told, self.now),)
        if inputs_since(self.told):
            return (hears_nothing(self.told, self.now),)
        return (behind(self),) if self.is_behind else ()


def judge_report(told: ToldNode, slices: Iterable[Listed], now: float) -> Judgement:
    return Judgement(told, tuple(missing_of(told, slices)), now)


def finding(
    code: str,
    told: ToldNode,
    sentence: str,
    *evidence: Evidence,
    effect: str = "",
    remedy: str = "",
) -> Finding:
    return Finding(
        code=code,
        subject=ObjectName("nodes", "Node", "", told.node) if told.is_proxy else lease_name(told),
        sentence=f"{told.title}: {sentence}",
        evidence=evidence,
        effect=effect,
        remedy=remedy,
    )


def lease_name(told: ToldNode) -> ObjectName:
    return ObjectName("leases.coordination.k8s.io", "Lease", LEASE_NAMESPACE, told.lease)


def in_lease(told: ToldNode, field: str, value: str) -> Evidence:
    return Evidence(subject=lease_name(told), field=field, value=value)


def in_report(told: ToldNode, value: str) -> Evidence:
    return in_lease(told, f"metadata.annotations[{ANNOTATION_PROGRESS}]", value)


def inputs_since(told: ToldNode) -> int:
    return told.report.inputs_since if told.report is not None else 0


def stopped(told: ToldNode, now: float) -> Finding:
    """N1"""
    return finding(
        "N1",
        told,
        f"its {told.words.teller} tells nothing for {lasting(told.age_s(now))}",
        in_lease(told, "spec.renewTime", format_time(told.renewed)),
        effect=told.words.stopped,
        remedy=f"start the {told.words.teller} of {told.node}, or see why it stands still: its "
        "log; if it was taken "
        f"away on purpose, kubectl -n {LEASE_NAMESPACE} delete lease {told.lease}",
    )


def missing_of(told: ToldNode, slices: Iterable[Listed]) -> Iterator[Listed]:
    """The slices that the consumer reads and does not report to hold, as far as those that are
    there show it.
    """
    places = told.report.places() if told.report is not None else {}
    held = {
        reading: at.revision
        for (plural, reading), at in places.items()
        if plural == "endpointslices"
    }
    for item in slices:
        if told.report is None:
            lacks = bool(item.readings) and item.revision > told.revision
        else:
            known = (held[reading] for reading in item.readings if reading in held)
            lacks = item.revision > min(known, default=item.revision)
        if lacks:
            yield item


def behind(judged: Judgement) -> Finding:
    """N2"""
    told, age_s = judged.told, judged.behind_s
    services = list(dict.fromkeys(item.service or item.key for item in judged.missing))
    return finding(
        "N2",
        told,
        f"{lasting(age_s) + ' behind' if age_s else 'behind'}: it does not hold {some(services)}",
        in_lease(told, f"metadata.annotations[{ANNOTATION_REVISION}]", str(told.revision)),
        effect=told.words.behind,
        remedy=(
            f"look at the log of the {told.words.teller} of {told.node}, and its /healthz: its "
            "watch, its writes"
        ),
    )


def of_kernel(told: ToldNode) -> Finding | None:
    """N3; N5 where another program took rules away."""
    problem = next(iter(told.report.problems if told.report is not None else ()), "")
    if not problem:
        return None
    evidence = in_report(told, f"problems: {clipped(problem)}")
    if _GONE in problem:
        effect = "while they were gone, Services were not reached from there"
        return finding("N5", told, clipped(problem), evidence, effect=effect, remedy="nft monitor")
    return finding(
        "N3",
        told,
        clipped(problem),
        evidence,
        effect="its kernel goes on with the rules of before",
        remedy=f"give the kernel of {told.node} what it lacks; its proxy tries again by itself",
    )


def hears_nothing(told: ToldNode, now: float) -> Finding:
    """N15"""
    since = inputs_since(told)
    return finding(
        "N15",
        told,
        f"its inputs are {lasting(now - since)} old: its {told.words.teller} lives, and receives "
        "no events of the API server",
        in_report(told, f"inputs_since: {since}"),
        effect=(
            f"its {told.words.rules} stay as they were then; what changed since does not reach "
            "clients there"
        ),
        remedy="see why its watches fail: the API server that it asks, and the log of the "
        f"{told.words.teller} of {told.node}",
    )


def lost_event(
    told: ToldNode, place: Place, held: Held, than: str, *, digest: str = "", remedy: str
) -> Finding:
    """N4.  *than*: a clause that says what the content differs from; *digest*: the other one."""
    plural, reading = place
    other = f", and the server's is {digest}" if digest else ""
    return finding(
        "N4",
        told,
        f"lost an event: it holds {plural} ({reading}) {held.revision} with another content{than}",
        in_report(told, f"{held.revision} {held.digest}{other}"),
        effect=(
            "it goes on with endpoints that are no more, or without new ones, until that object "
            "changes again"
        ),
        remedy=remedy,
    )


def misnamed(told: ToldNode, nodes: Iterable[str]) -> Finding:
    """N7: no Node has the name of the proxy, which owns no Lease of one."""
    clause, flag = misnamed_proxy(told.node, sorted(nodes))
    return finding(
        "N7",
        told,
        f"its proxy says that it is {told.node}; {clause}",
        in_lease(told, "spec.holderIdentity", told.node),
        effect="hints and local endpoints do not count there: a policy of Local drops everything",
        remedy=f"start the proxy with {flag}",
    )
