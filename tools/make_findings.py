"""Writes docs/findings/, a page for each cause of the catalogue with the answer of ``sliceplane
explain`` to a planted fault, and the tables of findings in docs/troubleshooting.md.

Run from the root of the repository: ``PYTHONPATH=src:. .venv/bin/python tools/make_findings.py``.
``tests/test_docs.py`` fails if a page is not as this makes it.
"""

from __future__ import annotations

from pathlib import Path

import tests.diagnose.explain.faults
from msgspec.structs import replace
from tests.diagnose.explain.world import PLANTED, AuditFault, Fault

import sliceplane.diagnose.audit.text as audit_text
import sliceplane.diagnose.explain.text as explain_text
from sliceplane.api.findings.codes import Cause, catalogue

assert tests.diagnose.explain.faults, "importing it fills the list"
FINDINGS = Path(__file__).parents[1] / "docs" / "findings"
INDEX = FINDINGS.parent / "troubleshooting.md"
INDEX_BEGIN = "<!-- findings: made by tools/make_findings.py -->\n"
INDEX_END = "<!-- end -->\n"
WIDTH = 100
#: what follows the findings of an answer
_STATE = "\n\nstate "
#: first letter of codes -> part of the path from a name to an endpoint, and symptoms of a fault
#: there
PARTS = {
    "S": (
        "Name and Service",
        "the name is not known, a port is refused, the address leads elsewhere",
    ),
    "B": ("Selection", "there are Pods, and none of them is an endpoint; or one too many is"),
    "R": ("Pods", "Pods do not start, are not ready, or leave"),
    "T": ("Ports and families", "connections to ready Pods are refused"),
    "E": ("Slices and their controllers", "slices do not say what the Pods say, or more than that"),
    "Z": ("Zones and hints", "traffic leaves its zone, or presses into one"),
    "X": ("Policies and ways in", "some clients get through, others do not"),
    "D": ("Rollouts", "connections fail while Pods are replaced"),
    "C": (
        "Names and clients",
        "the name fails and the address works, or one program alone has other endpoints",
    ),
    "N": ("Nodes and kernels", "some nodes use other endpoints than others"),
    "L": ("Endpoints", "programs that read Endpoints have other addresses"),
}
#: where a cause is found, unless in API objects of any cluster
_BY_EVIDENCE = {
    "objects": "",
    "reports": "; found in reports of our node proxies, or relays",
    "kernel": "; found in the kernel of a node: `sliceplane explain --kernel` there",
    "probe": "; found in an active probe: `--probe`",
    "shadow": "; found in the output of `sliceplane controllers --shadow --shadow-output FILE`",
}


def pages() -> dict[str, str]:
    """Returns texts by file name."""
    return {f"{code}.md": _page(code, cause) for code, cause in catalogue().items()}


def indexed(text: str) -> str:
    """Returns *text*, that of ``INDEX``, with its tables built anew."""
    before, _, rest = text.partition(INDEX_BEGIN)
    return f"{before}{INDEX_BEGIN}{_tables()}{INDEX_END}{rest.partition(INDEX_END)[2]}"


def _tables() -> str:
    causes = catalogue()
    assert {code[0] for code in causes} == PARTS.keys(), "each letter is a part"
    lines = [
        f"* [{title}](#{title.lower().replace(',', '').replace(' ', '-')}): {sees}"
        for title, sees in PARTS.values()
    ]
    for letter, (title, _) in PARTS.items():
        lines += [
            "",
            f"### {title}",
            "",
            "| symptom | code | cause | severity |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {cause.symptom} | [{code}](findings/{code}.md) | {cause.title} | {cause.severity} |"
            for code, cause in causes.items()
            if code[0] == letter
        ]
    return "\n".join([*lines, ""])


def _page(code: str, cause: Cause) -> str:
    lines = [
        f"# {code}: {cause.title}",
        "",
        f"*{cause.severity}{_BY_EVIDENCE[cause.evidence]}.*",
        "",
    ]
    lines += [
        f"**Symptom**: {cause.symptom}.",
        "",
        cause.means.strip(),
        "",
        f"**Remedy**: {cause.remedy}",
        "",
    ]
    example = next((fault for fault in PLANTED if fault.code == code), None)
    if example is not None:
        lines += ["```console", _command(example), *_transcript(example).splitlines(), "```", ""]
    if cause.sources:
        lines += ["Sources:", *(f"- {_link(source)}" for source in cause.sources), ""]
    return "\n".join(lines)


def _transcript(fault: Fault) -> str:
    """Returns the answer without the state of the Service and the links that are well: they are the
    same on most pages.
    """
    if isinstance(fault, AuditFault):
        return audit_text.as_text(fault.report(), WIDTH)
    return explain_text.as_text(replace(fault.answer(), well=()), WIDTH).partition(_STATE)[0]


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
    words += ["--probe"] if catalogue()[fault.code].evidence == "probe" else []
    words += ["--shadow FILE"] if catalogue()[fault.code].evidence == "shadow" else []
    words += ["--kernel"] if fault.looks_at_kernel else []
    return " ".join(words)


def _link(source: str) -> str:
    repository, mark, number = source.partition("#")
    if mark and "/" in repository and not source.startswith("https://"):
        return f"<https://github.com/{repository}/issues/{number}>"
    return f"<{source}>" if source.startswith("https://") else source


def main() -> None:
    FINDINGS.mkdir(exist_ok=True)
    made = pages()
    for path in FINDINGS.glob("*.md"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FINDINGS / name).write_text(text, encoding="utf-8")
    INDEX.write_text(indexed(INDEX.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
