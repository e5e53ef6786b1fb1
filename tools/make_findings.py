"""Write docs/findings/: a page for each cause of the catalogue, with the answer of ``sliceplane explain`` to a planted
fault, and an index.

Run from the root of the repository: ``PYTHONPATH=src:. .venv/bin/python tools/make_findings.py``.
``tests/test_docs.py`` fails if a page is not as this makes it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import tests.explain.faults
from tests.explain.world import PLANTED, AuditFault, Fault

import sliceplane.endpoints_audit.text as audit_text
import sliceplane.explain.text as explain_text
from sliceplane.findings.codes import Cause, catalogue

assert tests.explain.faults, "importing it fills the list"
FINDINGS = Path(__file__).parents[1] / "docs" / "findings"
WIDTH = 100
_SEEN_IN = {
    "objects": "API objects, so on any cluster",
    "reports": "reports of node proxies, so where ours run",
    "kernel": "the kernel of a node: `sliceplane explain --kernel` there",
    "probe": "an active probe: `--probe`",
}


def pages() -> dict[str, str]:
    """Texts by file name."""
    made = {f"{code}.md": _page(code, cause) for code, cause in catalogue().items()}
    return {"index.md": _index(), **made}


def _index() -> str:
    rows = [
        f"| [{code}]({code}.md) | {cause.symptom} | {cause.title} | {cause.severity} |"
        for code, cause in catalogue().items()
    ]
    return "\n".join(
        [
            "# Findings",
            "",
            "What `sliceplane explain` and `sliceplane lint` can name, in the order of the way from a name to an",
            "endpoint. A code never changes its meaning.",
            "",
            "| code | what one sees | cause | severity |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _page(code: str, cause: Cause) -> str:
    lines = [f"# {code}: {cause.title}", "", f"*{cause.severity}; seen in {_SEEN_IN[cause.seen_in]}.*", ""]
    lines += [
        f"**What one sees**: {cause.symptom}.",
        "",
        cause.means.strip(),
        "",
        f"**What to do**: {cause.remedy}",
        "",
    ]
    example = next((fault for fault in PLANTED if fault.code == code), None)
    if example is not None:
        lines += ["```console", _command(example), *_transcript(example).splitlines(), "```", ""]
    if cause.sources:
        lines += ["Where it happened, or is specified:", "", *(f"- {_link(source)}" for source in cause.sources), ""]
    return "\n".join(lines)


def _transcript(fault: Fault) -> str:
    """Without the links that are well: those are the others, and more with every link that joins the chain."""
    if isinstance(fault, AuditFault):
        return audit_text.as_text(fault.report(), WIDTH)
    return explain_text.as_text(replace(fault.answer(), well=()), WIDTH)


def _command(fault: Fault) -> str:
    if isinstance(fault, AuditFault):
        return "$ sliceplane endpoints audit"
    question = fault.answer().question
    if question.kind == "everything":
        return "$ sliceplane lint"
    words = ["$ sliceplane explain", question.kind, question.name]
    words += ["-n", question.namespace] if question.namespace else []
    words += ["--port", question.port] if question.port else []
    words += ["--protocol", question.protocol] if question.protocol else []
    if question.client is not None:
        words += ["--from", str(question.client)]
    return " ".join(words)


def _link(source: str) -> str:
    repository, mark, number = source.partition("#")
    if mark and "/" in repository and not source.startswith("https://"):
        return f"[{source}](https://github.com/{repository}/issues/{number})"
    return f"<{source}>" if source.startswith("https://") else source


def main() -> None:
    FINDINGS.mkdir(exist_ok=True)
    made = pages()
    for path in FINDINGS.glob("*.md"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FINDINGS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
