"""Write docs/symptoms.md: what one sees when something is wrong, each with its real output.

Run from the root of the repository: ``PYTHONPATH=src:. .venv/bin/python tools/make_symptoms.py``.
The story is ``tests/e2e/symptoms.py``; ``test_symptoms.py`` plays the same one.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from tests.e2e.symptoms import ROOT, STORY, Player
from tests.ports import free_port

from sliceplane.api.findings.codes import cause_of

DOCUMENT = ROOT / "docs" / "symptoms.md"
OPERATIONS = ROOT / "docs" / "operations.md"
BEGIN = "<!-- symptoms -->\n"
END = "<!-- end of symptoms -->\n"
LINES_MAX = 30

#: beside the document
INDEX = Path("findings") / "index.md"
HEAD = f"""\
# Troubleshooting

Fifteen troubles, each with its real output; what can be wrong with a Service is in [findings]({INDEX}), by
what one sees, and `sliceplane explain` finds which it is. Made by `tools/make_symptoms.py`, which makes each trouble;
`tests/e2e/test_symptoms.py` makes them again. What an alert says is in [alerts](alerts.md); which part keeps what, and
what becomes of it, in [operations](operations.md).
"""
#: of a symptom whose cause is not within a cluster
NO_FINDING = "None: it is told before any Service is looked at"


def anchor(title: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def pages(codes: tuple[str, ...]) -> str:
    links = [f"[{code}](findings/{code}.md) ({cause_of(code).title})" for code in codes]
    return f"\n**Findings.** {', '.join(links) or NO_FINDING}.\n"


def main() -> None:
    parts = [HEAD]
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
                    f"## {symptom.title}\n\n```console\n{console}\n```\n\n"
                    f"**Why.** {symptom.why}\n\n**Do.** {symptom.do}\n{pages(symptom.codes)}"
                )
        finally:
            player.end()
    DOCUMENT.write_text("\n".join(parts), encoding="utf-8")
    text = OPERATIONS.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    listed = "".join(
        f"* [{symptom.title}](symptoms.md#{anchor(symptom.title)})\n" for symptom in STORY
    )
    OPERATIONS.write_text(
        f"{before}{BEGIN}\n{listed}\n{END}{rest.partition(END)[2]}", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
