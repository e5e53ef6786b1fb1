"""Writes the problems with their real output into docs/troubleshooting.md.

Run from the root of the repository: ``PYTHONPATH=src:. .venv/bin/python tools/make_symptoms.py``.
The scenario is ``tests/e2e/symptoms.py``; ``test_symptoms.py`` plays the same one.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.e2e.symptoms import ROOT, STORY, Player
from tests.ports import free_port

from sliceplane.api.findings.codes import cause_of

DOCUMENT = ROOT / "docs" / "troubleshooting.md"
BEGIN = "<!-- symptoms: made by tools/make_symptoms.py -->\n"
END = "<!-- end of symptoms -->\n"
LINES_MAX = 30
#: for a symptom whose cause is not in a cluster
NO_FINDING = "None: the command fails before it reads a Service"


def pages(codes: tuple[str, ...]) -> str:
    links = [f"[{code}](findings/{code}.md) ({cause_of(code).title})" for code in codes]
    return f"\n**Findings.** {', '.join(links) or NO_FINDING}.\n"


def main() -> None:
    parts = []
    with tempfile.TemporaryDirectory(prefix="sliceplane-symptoms-") as folder:
        player = Player(Path(folder), free_port())
        player.begin()
        try:
            for symptom in STORY:
                blocks = []
                for step in symptom.steps:
                    lines = player.play(step).splitlines()
                    cut = [*lines[:LINES_MAX], *(["..."] if len(lines) > LINES_MAX else [])]
                    blocks.append("\n".join([f"$ {player.shown(step)}", *cut]))
                console = "\n".join(blocks)
                parts.append(
                    f"### {symptom.title}\n\n```console\n{console}\n```\n\n"
                    f"**Why.** {symptom.why}\n\n**Do.** {symptom.do}\n{pages(symptom.codes)}"
                )
        finally:
            player.end()
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    made = "\n".join(parts)
    DOCUMENT.write_text(f"{before}{BEGIN}{made}{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
