"""The findings that need attention, for the page: the answer of ``lint`` without the members that
no view shows.

A cluster may have a finding for each of thousands of Services. Findings with one sentence become
one entry here, before they are converted to documents, and the rest of the answer is not kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from sliceplane.api.findings.finding import Finding, name_document
from sliceplane.api.findings.text import word_of
from sliceplane.diagnose.explain.question import Explanation

#: entries for errors and warnings, and entries for notes; and names in one entry
ENTRIES_MAX: Final = 200
ALIKE_MAX: Final = 50


def attention(explanation: Explanation) -> dict[str, Any]:
    """Returns the document of ``Views.now`` and ``Views.services``: entries with the worst first,
    how many findings there are of each severity ("young": too young to judge), and the worst
    finding by Service ("NAMESPACE/NAME").
    """
    findings = explanation.findings
    worst: dict[str, str] = {}
    for finding in findings:
        subject = finding.subject
        if subject.kind == "Service" and finding.severity != "note":
            worst.setdefault(
                f"{subject.namespace}/{subject.name}", f"{finding.severity} {finding.code}"
            )
    return {
        "services": explanation.services,
        "sums": dict(sorted(Counter(map(word_of, findings)).items())),
        "findings": _entries(finding for finding in findings if word_of(finding) != "note"),
        "notes": _entries(finding for finding in findings if word_of(finding) == "note"),
        "notLookedAt": list(explanation.unchecked),
        "worst": worst,
    }


def _entries(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Returns one entry for all findings with one sentence, like ``api.findings.text.rows``: the
    first finding, the ``others`` that it also applies to, and the number of findings ``alike``.
    """
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((word_of(finding), finding.code, finding.sentence), []).append(finding)
    return [
        {
            **first.as_document(),
            "alike": 1 + len(others),
            "others": [name_document(other.subject) for other in others[:ALIKE_MAX]],
        }
        for first, *others in list(groups.values())[:ENTRIES_MAX]
    ]
