"""Write docs/kubectl.md, every step of the kubectl tour with its real output, and the transcripts of docs/hints.md.

Run from the root of the repository: ``PYTHONPATH=src:. .venv/bin/python tools/make_transcripts.py``.
With the argument ``hints``, only the latter.  The steps are those that ``tests/e2e/test_kubectl_tour.py`` and
``test_hint_story.py`` drive, so what the documents show is what is tested.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.e2e.hint_story import FLAGS, STORY, run
from tests.e2e.running import running_plane
from tests.e2e.tour import TOUR, Step, run_step

DOCUMENT = Path(__file__).parents[1] / "docs" / "kubectl.md"
HINTS = DOCUMENT.with_name("hints.md")
#: everything after it in ``HINTS`` is made here
MARK = "<!-- transcripts -->\n"
LINES_MAX = 60

HEAD = """\
# kubectl against Sliceplane

What an unmodified kubectl 1.37 prints against `sliceplane up --emulate --emulate-nodes 2 --zones zone-a,zone-b`.
Made by `tools/make_transcripts.py`; `tests/e2e/test_kubectl_tour.py` drives the same steps.
Long outputs are cut, with a mark.
"""


def transcript(step: Step, stdout: str, stderr: str) -> str:
    lines = []
    if step.stdin:
        lines += [f"$ kubectl {step.args} <<EOF", *step.stdin.rstrip().splitlines(), "EOF"]
    else:
        lines.append(f"$ {''.join(f'{k}={v!r} ' for k, v in step.environment.items())}kubectl {step.args}")
    if step.meanwhile:
        lines.append(f"# meanwhile: kubectl {step.meanwhile}")
    said = [*stdout.rstrip().splitlines(), *stderr.rstrip().splitlines()]
    if len(said) > LINES_MAX:
        said = [*said[:LINES_MAX], f"... ({len(said) - LINES_MAX} more lines)"]
    return "\n".join([*lines, *said])


def write_hints() -> None:
    parts = [HINTS.read_text(encoding="utf-8").partition(MARK)[0] + MARK]
    with (
        tempfile.TemporaryDirectory(prefix="sliceplane-hints-") as folder,
        running_plane(Path(folder), *FLAGS) as plane,
    ):
        for chapter in STORY:
            shown = [
                f"$ {step.command}\n{run(plane, step)}" if not step.hidden else run(plane, step) and ""
                for step in chapter.steps
            ]
            text = f"{chapter.text}\n\n" if chapter.text else ""
            blocks = "\n\n".join(f"```console\n{block.rstrip()}\n```" for block in shown if block)
            parts.append(f"### {chapter.title}\n\n{text}{blocks}\n")
    HINTS.write_text("\n".join(parts), encoding="utf-8")


def main() -> None:
    write_hints()
    if sys.argv[1:] != ["hints"]:
        write_tour()


def write_tour() -> None:
    parts = [HEAD]
    with (
        tempfile.TemporaryDirectory(prefix="sliceplane-transcripts-") as folder,
        running_plane(Path(folder), "--emulate", "--emulate-nodes", "2", "--zones", "zone-a,zone-b") as plane,
    ):
        for chapter in TOUR:
            parts.append(f"\n## {chapter.title}\n")
            for step in chapter.steps:
                done = run_step(plane, step)
                parts.append(f"```console\n{transcript(step, done.stdout, done.stderr)}\n```\n")
    DOCUMENT.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
