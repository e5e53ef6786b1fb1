"""Derives a row for each node, and findings, from the facts.

A name server or an xDS server that reports its progress (``--progress-lease``) has a row, too,
without a kernel. The progress of an xDS server is that of its slowest client.

**Stopped** is a node whose report is late. **Behind** is one whose version is below that of an
object that it reads, if the object was written more than ``behind_after_s`` ago: a proxy reports
every 10 s. **Lost an event** is one whose digest at its version is not that of the server's objects at that
version. **Kernel differs** is one whose proxy reports it in its Lease, or on its pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sliceplane.api.findings.finding import Finding, rank
from sliceplane.api.findings.wording import count, lasting, some
from sliceplane.api.meta import revision_of
from sliceplane.consume.progress import AppliedRevision, Scope
from sliceplane.diagnose.drift import reports
from sliceplane.diagnose.drift.answer import ORDER, Drift, DriftRow, State
from sliceplane.diagnose.drift.facts import DriftFacts, LeaseReport, Listed, ProxyPages
from sliceplane.diagnose.drift.relays import relay_findings
from sliceplane.emulation.nodes import LABEL_EMULATED
from sliceplane.watch.digest import digest_of_versions

#: objects that a sentence names
NAMED_MAX: Final = 3
#: state of the row of a consumer, by code
_STATES: Final[dict[str, State]] = {
    "N1": "stopped",
    "N2": "behind",
    "N3": "kernel differs",
    "N4": "lost an event",
    "N5": "kernel differs",
    "N15": "behind",
}


def past_versions_to_read(facts: DriftFacts) -> tuple[tuple[str, int], ...]:
    """Returns the resources and versions whose objects must be read to compare digests, those of
    most nodes first.
    """
    counts: dict[tuple[str, int], int] = {}
    for consumer in facts.consumers:
        for scope, applied in _applied_by_scope(consumer).items():
            objects = facts.at(scope, applied.revision)
            is_compared = applied.revision and applied.digest
            if is_compared and (isinstance(objects, str) or _digest(objects) != applied.digest):
                counts[scope[0], applied.revision] = counts.get((scope[0], applied.revision), 0) + 1
    return tuple(sorted(counts, key=lambda at: (-counts[at], at)))


def judge(facts: DriftFacts) -> Drift:
    rows: list[DriftRow] = []
    findings = list(relay_findings(facts.relays))
    unread: list[str] = list(facts.unread)
    names = {node.metadata.name for node in facts.nodes} if facts.nodes is not None else None
    for consumer in sorted(facts.consumers, key=lambda consumer: consumer.title):
        row, node_findings, missing = _judge_node(facts, consumer)
        rows.append(row)
        findings += node_findings
        unread += missing
        if names and consumer.node not in names and not consumer.owner and consumer.is_proxy:
            findings.append(reports.misnamed(consumer, names))
    reporting = {
        name
        for consumer in facts.consumers
        if consumer.is_proxy
        for name in (consumer.node, consumer.owner)
    }
    silent = sorted(name for name in (names or set()) - reporting if facts.node in ("", name))
    emulated = {
        node.metadata.name
        for node in facts.nodes or ()
        if LABEL_EMULATED in (node.metadata.labels or {})
    }
    for name in silent:
        if name in emulated:
            rows.append(DriftRow(name, "emulated", 0, 0, 0.0, None, "-", "-"))
        else:
            rows.append(
                DriftRow(name, "never told", 0, 0, 0.0, None, "not looked at", "not looked at")
            )
    unreported = [name for name in silent if name not in emulated]
    if unreported:
        unread.append(
            f"{some(unreported)}: everything (no report of 'sliceplane observe', for nodes with "
            "kube-proxy, or of 'sliceplane proxy')"
        )
    if number := len(emulated.intersection(silent)):
        unread.append(f"{count(number, 'emulated node')}: no proxy and no kernel, so no rules")
    rows.sort(key=lambda row: (ORDER.index(row.state), row.node))
    return Drift(
        tuple(rows), tuple(sorted(findings, key=rank)), tuple(dict.fromkeys(unread)), facts.relays
    )


def _judge_node(
    facts: DriftFacts, consumer: LeaseReport
) -> tuple[DriftRow, list[Finding], list[str]]:
    pages = facts.pages.get(consumer.node, ProxyPages()) if consumer.is_proxy else ProxyPages()
    _, slices = facts.now_of.get("endpointslices", (0, ()))
    concerned = [item for item in slices if not facts.service or item.service == facts.service]
    judged = reports.judge_report(consumer, concerned, facts.now)
    cache, lost, unread = _cache(facts, consumer, pages)
    kernel, broken = _kernel(consumer, pages)
    findings = [*judged.findings, *(finding for finding in (lost, broken) if finding is not None)]
    states: set[State] = {_STATES[finding.code] for finding in findings}
    if judged.missing and not judged.is_behind and not judged.findings:
        states.add("catching up")
        age = lasting(judged.behind_s)
        unread.insert(
            0,
            f"{consumer.title}: too young to judge ({age} behind; judged after "
            f"{lasting(consumer.behind_after_s)})",
        )
    if (cache == "not looked at" and lost is None) or kernel == "not looked at":
        states.add("unknown")
    if pages.why:
        unread.append(f"{consumer.node}: its proxy's pages ({pages.why})")
    if pages.rules_why:
        unread.append(f"{consumer.node}: rules ({pages.rules_why})")
    row = DriftRow(
        node=consumer.title,
        state=next((state for state in ORDER if state in states), ORDER[-1]),
        revision=consumer.revision,
        behind=len(judged.missing),
        behind_s=judged.behind_s,
        report_age_s=consumer.age_s(facts.now),
        cache=cache,
        kernel=kernel if consumer.is_proxy else "-",
    )
    return row, findings, unread


def _applied_by_scope(consumer: LeaseReport) -> dict[Scope, AppliedRevision]:
    return consumer.report.applied_by_scope() if consumer.report is not None else {}


def _cache(
    facts: DriftFacts, consumer: LeaseReport, pages: ProxyPages
) -> tuple[str, Finding | None, list[str]]:
    """Returns the cell of the table, a finding, and why the cache could not be compared."""
    if consumer.report is None:
        return (
            "not looked at",
            None,
            [f"{consumer.title}: its cache (its {consumer.wording.program} reports no digest)"],
        )
    why: list[str] = []
    for scope, applied in _applied_by_scope(consumer).items():
        objects = facts.at(scope, applied.revision)
        if isinstance(objects, str):
            why.append(f"{consumer.title}: its cache ({objects})")
        elif not applied.digest:
            why.append(f"{consumer.title}: its cache (its relay reports no digest)")
        elif _digest(objects) != applied.digest and applied.revision:
            return "differs", _lost(consumer, scope, applied, objects, pages), why
    return ("not looked at", None, why) if why else ("equal", None, [])


def _digest(objects: tuple[Listed, ...]) -> str:
    return digest_of_versions((item.key, item.version) for item in objects)


def _kernel(consumer: LeaseReport, pages: ProxyPages) -> tuple[str, Finding | None]:
    if pages.rules:
        more = f", and {len(pages.rules) - 1} more" if len(pages.rules) > 1 else ""
        return "differs", reports.finding(
            "N5", consumer, f"{pages.rules[0]}{more}", remedy=reports.REWRITE_RULES
        )
    problem = reports.of_kernel(consumer)
    if problem is not None:
        return "differs", problem
    if pages.is_deep and pages.rules is None:
        return "not looked at", None
    return "equal" if pages.rules is not None else "as told", None


def _lost(
    consumer: LeaseReport,
    scope: Scope,
    applied: AppliedRevision,
    objects: tuple[Listed, ...],
    pages: ProxyPages,
) -> Finding:
    theirs = pages.objects.get("/".join(scope))
    return reports.lost_event(
        consumer,
        scope,
        applied,
        "" if theirs is None else f": {_differences(objects, theirs, applied.revision)}",
        digest=_digest(objects),
        remedy=f"restart the {consumer.wording.program} of this node: it lists everything again",
    )


def _differences(ours: tuple[Listed, ...], theirs: Mapping[str, str], revision: int) -> str:
    """Names the first few objects that differ. Versions after *revision* do not count."""
    version_by_key = {item.key: item.version for item in ours}
    phrases = []
    for key in sorted(version_by_key.keys() | theirs.keys()):
        version, other = version_by_key.get(key), theirs.get(key)
        if version != other and revision_of(other or "") <= revision:
            phrases.append(
                f"{key} is missing"
                if other is None
                else f"{key} is gone and it keeps {other}"
                if version is None
                else f"{key} is {version} and it keeps {other}"
            )
    more = f" and {len(phrases) - NAMED_MAX} more" if len(phrases) > NAMED_MAX else ""
    return (", ".join(phrases[:NAMED_MAX]) + more) if phrases else "by now it is equal"
