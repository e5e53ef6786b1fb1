"""From what was read to a row for each node, and findings.

A name server or an xDS server that tells how far it is (``--progress-lease``) is one of the rows,
without a kernel; an xDS server is as far as all its clients are.

**Stopped** is a node whose report is late. **Behind** is one whose version is below that of an
object that it reads, if the object was written more than ``BEHIND_S`` ago: a proxy reports every 10
s. **Lost an event** is one whose digest at its version is not that of the server's objects at that
version. **Kernel differs** where the proxy says so in its Lease, or where it was found when asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sliceplane.api.findings.finding import Finding, rank
from sliceplane.api.findings.wording import count, lasting
from sliceplane.api.meta import revision_of
from sliceplane.consume.progress import BEHIND_S, Held, Place
from sliceplane.diagnose.drift import reports
from sliceplane.diagnose.drift.answer import ORDER, Drift, DriftRow, State
from sliceplane.diagnose.drift.facts import DriftFacts, Listed, Look, ToldNode
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


def wanted_past(facts: DriftFacts) -> tuple[tuple[str, int], ...]:
    """Resources and versions whose objects must be read to compare digests; those of most nodes
    first.
    """
    counts: dict[tuple[str, int], int] = {}
    for told in facts.told:
        for place, held in _places(told).items():
            objects = facts.at(place, held.revision)
            if held.revision and (isinstance(objects, str) or _digest(objects) != held.digest):
                counts[place[0], held.revision] = counts.get((place[0], held.revision), 0) + 1
    return tuple(sorted(counts, key=lambda at: (-counts[at], at)))


def judge(facts: DriftFacts) -> Drift:
    rows: list[DriftRow] = []
    findings: list[Finding] = []
    unseen: list[str] = list(facts.unread)
    names = {node.metadata.name for node in facts.nodes} if facts.nodes is not None else None
    for told in sorted(facts.told, key=lambda told: told.title):
        row, found, missing = _judge_node(facts, told)
        rows.append(row)
        findings += found
        unseen += missing
        if names and told.node not in names and not told.owner and told.is_proxy:
            findings.append(reports.misnamed(told, names))
    told_of = {name for told in facts.told if told.is_proxy for name in (told.node, told.owner)}
    silent = sorted(name for name in (names or set()) - told_of if facts.node in ("", name))
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
            unseen.append(f"{name}: everything (no proxy of ours has ever told anything there)")
    if number := len(emulated.intersection(silent)):
        unseen.append(f"{count(number, 'emulated node')}: no proxy and no kernel, so no rules")
    rows.sort(key=lambda row: (ORDER.index(row.state), row.node))
    return Drift(tuple(rows), tuple(sorted(findings, key=rank)), tuple(dict.fromkeys(unseen)))


def _judge_node(facts: DriftFacts, told: ToldNode) -> tuple[DriftRow, list[Finding], list[str]]:
    look = facts.looks.get(told.node, Look()) if told.is_proxy else Look()
    _, slices = facts.now_of.get("endpointslices", (0, ()))
    concerned = [item for item in slices if not facts.service or item.service == facts.service]
    judged = reports.judge_report(told, concerned, facts.now)
    cache, lost, unseen = _cache(facts, told, look)
    kernel, broken = _kernel(told, look)
    findings = [*judged.findings, *(found for found in (lost, broken) if found is not None)]
    states: set[State] = {_STATES[found.code] for found in findings}
    if judged.missing and not judged.is_behind and not judged.findings:
        states.add("catching up")
        age = lasting(judged.behind_s)
        unseen.insert(
            0, f"{told.title}: too young to judge ({age} behind; judged after {lasting(BEHIND_S)})"
        )
    if (cache == "not looked at" and lost is None) or kernel == "not looked at":
        states.add("unknown")
    if look.why:
        unseen.append(f"{told.node}: its proxy's pages ({look.why})")
    if look.rules_why:
        unseen.append(f"{told.node}: rules ({look.rules_why})")
    row = DriftRow(
        node=told.title,
        state=next((state for state in ORDER if state in states), ORDER[-1]),
        revision=told.revision,
        behind=len(judged.missing),
        behind_s=judged.behind_s,
        told_s=told.age_s(facts.now),
        cache=cache,
        kernel=kernel if told.is_proxy else "-",
    )
    return row, findings, unseen


def _places(told: ToldNode) -> dict[Place, Held]:
    return told.report.places() if told.report is not None else {}


def _cache(facts: DriftFacts, told: ToldNode, look: Look) -> tuple[str, Finding | None, list[str]]:
    """A word, a finding, and why something was not looked at."""
    if told.report is None:
        return (
            "not looked at",
            None,
            [f"{told.title}: its cache (its {told.words.teller} tells no digest)"],
        )
    why: list[str] = []
    for place, held in _places(told).items():
        objects = facts.at(place, held.revision)
        if isinstance(objects, str):
            why.append(f"{told.title}: its cache ({objects})")
        elif _digest(objects) != held.digest and held.revision:
            return "differs", _lost(told, place, held, objects, look), why
    return ("not looked at", None, why) if why else ("equal", None, [])


def _digest(objects: tuple[Listed, ...]) -> str:
    return digest_of_versions((item.key, item.version) for item in objects)


def _kernel(told: ToldNode, look: Look) -> tuple[str, Finding | None]:
    if look.rules:
        more = f", and {len(look.rules) - 1} more" if len(look.rules) > 1 else ""
        return "differs", reports.finding(
            "N5", told, f"{look.rules[0]}{more}", remedy=reports.WRITE_ANEW
        )
    problem = reports.of_kernel(told)
    if problem is not None:
        return "differs", problem
    if look.is_deep and look.rules is None:
        return "not looked at", None
    return "equal" if look.rules is not None else "as told", None


def _lost(
    told: ToldNode, place: Place, held: Held, objects: tuple[Listed, ...], look: Look
) -> Finding:
    theirs = look.objects.get("/".join(place))
    return reports.lost_event(
        told,
        place,
        held,
        "" if theirs is None else f": {_differences(objects, theirs, held.revision)}",
        digest=_digest(objects),
        remedy=f"restart the {told.words.teller} of this node: it lists anew",
    )


def _differences(ours: tuple[Listed, ...], theirs: Mapping[str, str], revision: int) -> str:
    """The first few objects that differ.  What the node has learned since *revision* is none
    of it.
    """
    there = {item.key: item.version for item in ours}
    words = []
    for key in sorted(there.keys() | theirs.keys()):
        version, other = there.get(key), theirs.get(key)
        if version != other and revision_of(other or "") <= revision:
            words.append(
                f"{key} is missing"
                if other is None
                else f"{key} is gone and it keeps {other}"
                if version is None
                else f"{key} is {version} and it keeps {other}"
            )
    more = f" and {len(words) - NAMED_MAX} more" if len(words) > NAMED_MAX else ""
    return (", ".join(words[:NAMED_MAX]) + more) if words else "by now it is equal"
