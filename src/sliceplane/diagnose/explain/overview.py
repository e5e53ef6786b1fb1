"""``sliceplane check``: a report on a cluster that fits on one screen, for a first look at it.

It adds no judgement. It arranges the findings of ``lint`` and the parts of ``status``: errors are
wrong; warnings and notes are risks, one line for each code; what could not be read or is not
reported is unknown, with the command that makes it visible. ``overview`` builds the report from
what ``status`` reads, ``overview_text`` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from sliceplane.api.findings.codes import SEVERITIES, cause_of
from sliceplane.api.findings.finding import Finding
from sliceplane.api.findings.text import fact, rows, word_of
from sliceplane.api.findings.wording import count, grant_command, part, resources_by_verb, some
from sliceplane.diagnose.explain.case import list_names
from sliceplane.diagnose.explain.investigation import FORBIDDEN
from sliceplane.diagnose.explain.status import PlaneStatus, StatusFacts
from sliceplane.diagnose.explain.status_parts import NODE_NAMESPACE, proxies_by_name, status

#: rows of errors, lines of risks, and lines of unknowns on the screen; JSON has all
ROWS_MAX: Final = 8
_WORD_WIDTH: Final = 9
_MARKS: Final = {"well": "ok", "attention": "problem", "unknown": "unknown"}


class Risk(msgspec.Struct, frozen=True):
    """The warnings or notes of one code."""

    code: str
    severity: str
    title: str
    objects: tuple[str, ...]


class Unknown(msgspec.Struct, frozen=True):
    """A gap in the report. ``remedy``: a command or a clause that closes it, or ""."""

    sentence: str
    remedy: str = ""


class Overview(msgspec.Struct, frozen=True):
    """``nodes``: ``None`` if they may not be read. ``wrong``: errors, and findings too young to
    judge. ``risks``: by severity, then by the number of objects.
    """

    status: PlaneStatus
    nodes: int | None
    wrong: tuple[Finding, ...]
    risks: tuple[Risk, ...]
    unknown: tuple[Unknown, ...]

    def as_document(self) -> dict[str, Any]:
        """Returns the document of ``--output json``."""
        return {
            "state": self.status.state,
            "services": self.status.services,
            "nodes": self.nodes,
            "parts": [{"name": part.name, "state": part.state} for part in self.status.parts],
            "wrong": [finding.as_document() for finding in self.wrong],
            "risks": [msgspec.to_builtins(risk) for risk in self.risks],
            "unknown": [msgspec.to_builtins(gap) for gap in self.unknown],
        }


def overview(facts: StatusFacts) -> Overview:
    findings = facts.lint.findings
    wrong = [finding for finding in findings if _is_wrong(finding)]
    read = status(facts)
    return Overview(
        status=read,
        nodes=None if isinstance(facts.nodes, str) else len(facts.nodes),
        wrong=tuple(wrong),
        risks=_risks([finding for finding in findings if not _is_wrong(finding)]),
        unknown=tuple(_unknown(facts, read)),
    )


def _is_wrong(finding: Finding) -> bool:
    return word_of(finding) in ("error", "young")


def _risks(findings: Sequence[Finding]) -> tuple[Risk, ...]:
    by_code: dict[tuple[str, str], dict[str, None]] = {}
    for finding in findings:
        name = str(finding.subject).removeprefix("Service ")
        by_code.setdefault((finding.severity, finding.code), {})[name] = None
    risks = [
        Risk(code, severity, cause_of(code).title, tuple(names))
        for (severity, code), names in by_code.items()
    ]
    return tuple(
        sorted(risks, key=lambda risk: (SEVERITIES.index(risk.severity), -len(risk.objects)))
    )


def _unknown(facts: StatusFacts, read: PlaneStatus) -> Iterator[Unknown]:
    pages = [page for page in (facts.readyz, facts.metrics) if FORBIDDEN in page.why]
    yield from _missing_rights(read.missing_rights, sees_pages=not pages)
    yield from (Unknown(phrase) for phrase in read.unchecked if FORBIDDEN not in phrase)
    leases = facts.leases[NODE_NAMESPACE]
    if isinstance(facts.nodes, str) or isinstance(leases, str) or not facts.nodes:
        return
    reporting = proxies_by_name(leases)
    silent = [name for name in list_names(facts.nodes) if name not in reporting]
    if silent:
        yield Unknown(
            f"{part(len(silent), len(facts.nodes), 'Node')} reported no progress "
            f"({some(silent)}), so drains and drift cannot be proven there",
            "run 'sliceplane observe' on them (kube-proxy), or 'sliceplane proxy'",
        )


def _missing_rights(rights: Sequence[str], *, sees_pages: bool) -> Iterator[Unknown]:
    """*rights*: "VERB RESOURCE ..."; *sees_pages*: the pages of the server could be read."""
    for verb, resources in resources_by_verb(rights).items():
        yield Unknown(
            f"you may not {verb} {some(sorted(resources))}", grant_command(verb, resources)
        )
    if not sees_pages:
        yield Unknown(
            "you may not get /readyz and /metrics",
            grant_command("get", ("/readyz", "/metrics")),
        )


def overview_text(report: Overview, width: int | None = None) -> str:
    """*width*: columns of the screen; ``None``: lines are of any length."""
    return "\n".join(_lines(report, width))


def _lines(report: Overview, width: int | None) -> Iterator[str]:
    server = next(iter(report.status.parts[0].lines), "the API server's state is unknown")
    yield from fact("cluster", server, width)
    parts = [
        f"{each.name} {_MARKS[each.state]}"
        for each in report.status.parts[1:]
        if not each.is_absent
    ]
    yield from fact("", ", ".join(parts), width)
    nodes = "Nodes unknown" if report.nodes is None else count(report.nodes, "Node")
    yield from fact("checked", f"{count(report.status.services, 'Service')}, {nodes}", width)
    yield ""
    yield from _wrong_lines(report, width)
    yield ""
    yield from _paragraph("risky", [_risk_text(risk) for risk in report.risks], width)
    yield ""
    yield from _paragraph("unknown", [gap.sentence for gap in report.unknown], width)
    for gap in report.unknown:
        if gap.remedy:
            yield from fact("", gap.remedy, None)


def _wrong_lines(report: Overview, width: int | None) -> Iterator[str]:
    """Parts of the cluster that need attention, then errors of Services."""
    sentences = [
        f"{each.name}: {'; '.join(each.lines)}"
        for each in report.status.parts
        if each.state == "attention"
    ]
    if report.wrong:
        sentences.append(_sum(report.wrong))
    if not sentences:
        is_partial = report.status.unchecked or report.status.missing_rights
        sentences.append(f"nothing found{' in what could be read' if is_partial else ''}")
    yield from _paragraph("wrong", sentences, width)
    if report.wrong:
        yield from rows(report.wrong, width, rows_max=ROWS_MAX)
        yield from fact("", "details: sliceplane explain, sliceplane lint", None, word_width=0)


def _sum(findings: Sequence[Finding]) -> str:
    young = sum(finding.too_young is not None for finding in findings)
    text = count(len(findings) - young, "error")
    return text + (f", {young:,} too young to judge" if young else "")


def _risk_text(risk: Risk) -> str:
    return f"{risk.severity} {risk.code}: {risk.title} ({some(risk.objects)})"


def _paragraph(word: str, lines: Sequence[str], width: int | None) -> Iterator[str]:
    if not lines:
        yield from fact(word, "nothing", width)
    for number, line in enumerate(lines[:ROWS_MAX]):
        yield from fact("" if number else word, line, width)
    if len(lines) > ROWS_MAX:
        yield from fact("", f"and {len(lines) - ROWS_MAX} more (--output json has all)", width)
