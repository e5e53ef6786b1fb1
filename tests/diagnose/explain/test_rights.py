"""A reader with fewer rights: nothing is found that more rights do not confirm, and nothing is
called well unseen.
"""

from __future__ import annotations

from typing import Final

import pytest
import tests.diagnose.explain.faults
from tests.diagnose.explain.world import NEARLY, PLANTED, AuditFault, Fault, World, healthy
from tests.effort import scaled

from sliceplane.diagnose.explain.objects import READABLES
from sliceplane.diagnose.explain.question import ExplainQuestion, Explanation
from sliceplane.diagnose.explain.text import as_text

assert tests.diagnose.explain.faults, "importing it fills the lists"
PLURALS = sorted({readable.resource.plural for readable in READABLES})
#: without the right to list the first, the second is found in the place of a finding that says
#: more; it is as true
LESS: Final = {
    ("deployments", "B1"),
    ("endpoints", "E18"),
    ("endpointslices", "R11"),
    ("endpointslices", "T1"),
    ("leases", "E1"),
    ("nodes", "N1"),
    ("pods", "E18"),
    ("pods", "T6"),
}
#: what most checks read; the others are refused in ``healthy`` worlds alone
REFUSED: Final = {
    "deployments",
    "endpoints",
    "endpointslices",
    "leases",
    "namespaces",
    "nodes",
    "pods",
    "services",
}
WORLDS = {fault.plant: fault for fault in (*PLANTED, *NEARLY) if not isinstance(fault, AuditFault)}
OF_ONE = ExplainQuestion("service", "cart", "shop")


def _asked(fault: Fault, refused: str = "") -> tuple[World, Explanation]:
    world = healthy()
    question = fault.plant(world) or OF_ONE
    world.refuse |= {refused} - {""}
    return world, world.ask(question)


@pytest.mark.parametrize(
    "number", range(len(WORLDS)), ids=[str(fault) for fault in WORLDS.values()]
)
def test_a_right_that_is_missing_makes_no_finding(number: int) -> None:
    """A finding may be lost with what shows it.  It never appears, since something is "not there"
    that was not read.
    """
    fault = list(WORLDS.values())[number]
    world, whole = _asked(fault)
    known = {(finding.code, str(finding.subject)) for finding in whole.findings}
    plurals = sorted(
        {selection.resource.plural for selection in world.asked} & REFUSED - world.refuse
    )
    # The quick run takes one of them, each world another.
    for plural in plurals if scaled(100) >= 30 else plurals[number % max(1, len(plurals)) :][:1]:
        strange = [
            finding
            for finding in _asked(fault, plural)[1].findings
            if (finding.code, str(finding.subject)) not in known
            and (plural, finding.code) not in LESS
        ]
        assert not strange, (
            f"without the right to list {plural}: {strange[0].code} {strange[0].sentence}"
        )


@pytest.mark.parametrize(
    "question",
    [
        OF_ONE,
        ExplainQuestion("everything"),
        ExplainQuestion("pod", "cart-0", "shop"),
        ExplainQuestion("node", "node-1"),
        ExplainQuestion("zone", "zone-a"),
    ],
    ids=str,
)
@pytest.mark.parametrize("plural", PLURALS)
def test_what_was_not_read_is_named_with_verb_resource_and_namespace(
    question: ExplainQuestion, plural: str
) -> None:
    world = healthy()
    world.refuse.add(plural)
    answer = world.ask(question)
    assert not answer.findings, answer.findings
    text = as_text(answer)
    assert ("nothing is wrong\n" not in f"{text}\n") == bool(answer.unchecked or answer.is_blind), (
        text
    )
    for right in answer.missing_rights:
        assert right.startswith(f"list {plural}"), right
        assert (
            " in namespace " in right or right.endswith("in all namespaces") or plural in _CLUSTERED
        ), right


_CLUSTERED = {
    readable.resource.plural for readable in READABLES if not readable.resource.namespaced
}


def _blind(kind: str, name: str = "", *, without: str) -> Explanation:
    world = healthy()
    world.refuse.add(without)
    return world.ask(ExplainQuestion(kind, name, "shop" if kind in ("service", "pod") else ""))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "name", "without"),
    [
        ("service", "cart", "services"),
        ("service", "cart", "endpointslices"),
        ("everything", "", "services"),
        ("everything", "", "endpointslices"),
        ("pod", "cart-0", "pods"),
        ("pod", "cart-0", "services"),
        ("node", "node-1", "nodes"),
        ("zone", "zone-a", "nodes"),
        ("zone", "zone-a", "services"),
        ("zone", "zone-a", "endpointslices"),
    ],
)
def test_nothing_is_well_without_what_the_question_is_about(
    kind: str, name: str, without: str
) -> None:
    answer = _blind(kind, name, without=without)
    assert answer.is_blind
    assert as_text(answer).startswith("unknown  ")
