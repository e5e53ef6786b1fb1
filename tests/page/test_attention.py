"""What the page keeps of ``lint``: an entry for each sentence, sums, and the worst finding of each
Service.
"""

from __future__ import annotations

from collections import Counter

from sliceplane.api.findings.finding import Finding, ObjectName, TooYoung
from sliceplane.diagnose.explain.question import ExplainQuestion, Explanation
from sliceplane.diagnose.page.attention import ALIKE_MAX, ENTRIES_MAX, attention
from sliceplane.diagnose.page.model import ClusterModel
from sliceplane.diagnose.page.views import Answered, Views


def found(
    code: str, name: str, sentence: str, *, young: bool = False, kind: str = "Service"
) -> Finding:
    subject = ObjectName("services", kind, "shop" if kind == "Service" else "", name)
    return Finding(
        code=code, subject=subject, sentence=sentence, too_young=TooYoung(3, 60) if young else None
    )


def explanation(*findings: Finding, services: int = 1) -> Explanation:
    return Explanation(
        question=ExplainQuestion("everything"),
        findings=findings,
        summary="",
        well=(),
        unchecked=("nodes (why)",),
        missing_rights=(),
        services=services,
        is_blind=False,
    )


def test_findings_of_one_sentence_are_one_entry_with_the_others_names() -> None:
    alike = [found("B1", f"s{number}", "no Pod matches") for number in range(3)]
    apart = [
        found("B1", "t", "no Pod matches in t"),
        found("B1", "young", "no Pod matches", young=True),
    ]
    document = attention(explanation(*alike, *apart, services=5))
    assert [(entry["subject"]["name"], entry["alike"]) for entry in document["findings"]] == [
        ("s0", 3),
        ("t", 1),
        ("young", 1),
    ]
    assert [other["name"] for other in document["findings"][0]["others"]] == ["s1", "s2"]
    others = [{"kind": "Service", "namespace": "shop", "name": name} for name in ("s1", "s2")]
    assert document["findings"][0] == {**alike[0].as_document(), "alike": 3, "others": others}
    assert (document["services"], document["notLookedAt"]) == (5, ["nodes (why)"])
    assert document["sums"] == {"error": 4, "young": 1}


def test_each_service_has_its_worst_finding_and_notes_are_none() -> None:
    findings = [
        found("B1", "a", "no Pod matches"),
        found("D2", "a", "noted"),
        found("D2", "b", "noted"),
        found("N7", "node-1", "gone", kind="Node"),
    ]
    severities = {finding.code: finding.severity for finding in findings}
    assert (severities["B1"], severities["D2"]) == ("error", "note"), "the catalogue's"
    document = attention(explanation(*findings))
    assert document["worst"] == {"shop/a": "error B1"}
    assert [entry["code"] for entry in document["notes"]] == ["D2"]


def test_what_is_kept_is_bounded_however_many_findings_there_are() -> None:
    many = [found("B1", f"s{number}", f"sentence {number}") for number in range(3000)]
    alike = [found("D2", f"s{number}", "noted") for number in range(3000)]
    document = attention(explanation(*many, *alike))
    assert len(document["findings"]) == ENTRIES_MAX
    assert [len(entry["others"]) for entry in document["notes"]] == [ALIKE_MAX]
    assert document["sums"] == Counter({"error": 3000, "note": 3000})


def test_the_view_has_the_entries_and_the_rows_the_worst() -> None:
    document = attention(explanation(found("B1", "a", "no Pod matches")))
    part = Views(ClusterModel()).now(Answered(7.0, document), None, None, ()).parts["lint"]
    assert part is not None
    assert (part["at"], part["problem"], part["sums"]) == (7.0, "", {"error": 1})
    assert set(part["answer"]) == {"services", "findings", "notes", "notLookedAt"}
