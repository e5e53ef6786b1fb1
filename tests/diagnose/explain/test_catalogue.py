"""Every cause of the catalogue is named first where it was planted, and silent where it
nearly was.
"""

from __future__ import annotations

import re

import pytest
import tests.diagnose.explain.faults
from tests.diagnose.explain.world import NEARLY, PLANTED, YOUNG, Fault, healthy

from sliceplane.api.findings.codes import catalogue
from sliceplane.diagnose.explain.text import as_text

assert tests.diagnose.explain.faults, "importing it fills the lists"
ISSUE = re.compile(r"[\w.-]+/[\w.-]+#\d+")


@pytest.mark.parametrize("fault", PLANTED, ids=str)
def test_a_planted_fault_is_named_first(fault: Fault) -> None:
    findings = fault.findings()
    assert findings, "nothing was found"
    assert findings[0].code == fault.code, [finding.code for finding in findings]
    assert findings[0].remedy, "a finding says what to do"


@pytest.mark.parametrize("fault", NEARLY, ids=str)
def test_a_near_miss_is_silent(fault: Fault) -> None:
    assert fault.code not in [
        finding.code for finding in fault.findings() if finding.too_young is None
    ]


@pytest.mark.parametrize("fault", YOUNG, ids=str)
def test_what_is_too_young_to_judge_is_said_with_its_age(fault: Fault) -> None:
    answer = fault.answer()
    (finding,) = [finding for finding in answer.findings if finding.code == fault.code]
    assert finding.too_young is not None
    assert 0 <= finding.too_young.age_seconds < finding.too_young.judged_after_seconds
    assert answer.cause is None, answer.cause
    text = as_text(answer)
    assert "too young to judge; ask again in" in text.splitlines()[0]
    assert "nothing is wrong" not in text
    assert re.search(rf"^young +{fault.code} .* old; judged after ", text, re.MULTILINE), text


def test_nothing_is_found_in_a_healthy_cluster() -> None:
    answer = healthy().explain()
    assert not answer.findings
    assert not answer.unchecked


@pytest.mark.parametrize("fault", [*PLANTED, *NEARLY, *YOUNG], ids=str)
def test_a_service_without_a_ready_endpoint_is_never_well(fault: Fault) -> None:
    """Whatever else is planted: it has a cause, is too young to judge, or could not be looked
    at.
    """
    world = healthy()
    fault.plant(world)
    for service in world.all("Service"):
        metadata, spec = service["metadata"], service["spec"]
        labels = {"kubernetes.io/service-name": metadata["name"]}
        slices = [
            document
            for document in world.all("EndpointSlice")
            if document["metadata"]["namespace"] == metadata["namespace"]
            and labels.items() <= document["metadata"].get("labels", {}).items()
        ]
        endpoints = [
            endpoint for document in slices for endpoint in document.get("endpoints") or ()
        ]
        if spec.get("type") == "ExternalName":
            continue
        if not any(
            endpoint.get("conditions", {}).get("ready") is not False for endpoint in endpoints
        ):
            answer = world.explain(metadata["name"], metadata["namespace"])
            assert answer.cause or answer.too_young or answer.is_blind, as_text(answer)


@pytest.mark.parametrize("faults", [PLANTED, NEARLY], ids=["planted", "nearly"])
def test_every_cause_is_tested_both_ways(faults: list[Fault]) -> None:
    assert {fault.code for fault in faults} == set(catalogue())


@pytest.mark.parametrize("code", catalogue())
def test_a_cause_is_said_in_plain_sentences(code: str) -> None:
    cause = catalogue()[code]
    assert not cause.title.endswith("."), "a title is no sentence"
    assert cause.means.strip().endswith(".")
    assert cause.remedy.strip().endswith(".")
    assert cause.symptom
    for source in cause.sources:
        assert source.startswith(("https://", "KEP-")) or ISSUE.fullmatch(source), source
