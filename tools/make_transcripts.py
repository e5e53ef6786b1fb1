"""Writes the transcripts of docs/hints.md and docs/operations.md.

Run from the root of the repository: ``PYTHONPATH=src:. .venv/bin/python
tools/make_transcripts.py``, with the argument ``hints`` or ``timeline`` for one of them.
``tests/e2e/test_hint_story.py`` drives the same steps, so the document shows what is tested.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.hint_story import DOCUMENTED, FLAGS, STORY, run
from tests.e2e.running import running_plane

ROOT = Path(__file__).parents[1]
HINTS = ROOT / "docs" / "hints.md"
RECORDER = ROOT / "docs" / "operations.md"
#: everything after it in ``HINTS`` is made here
MARK = "<!-- transcripts -->\n"
#: in ``RECORDER`` the transcript is between the two
TIMELINE_MARKS = ("<!-- made by tools/make_transcripts.py -->\n", "<!-- end -->\n")
TIMELINE_WATCHERS = 3
#: until Pods have ended and slices are written, and until watches are open
TIMELINE_REST_S = 5
TIMELINE_BEFORE = (
    "create deployment web --image=nginx:1 --replicas=100",
    "expose deployment web --port=80",
    "rollout status deployment/web",
)
TIMELINE_AFTER = ("set image deployment/web nginx=nginx:2", "rollout status deployment/web")


def write_hints() -> None:
    parts = [HINTS.read_text(encoding="utf-8").partition(MARK)[0] + MARK]
    with (
        tempfile.TemporaryDirectory(prefix="sliceplane-hints-") as folder,
        running_plane(Path(folder), *FLAGS) as plane,
    ):
        for chapter in STORY:
            shown = [
                f"$ {step.command}\n{run(plane, step)}"
                if not step.hidden
                else run(plane, step) and ""
                for step in chapter.steps
            ]
            if chapter.title not in DOCUMENTED:
                continue
            text = f"{chapter.text}\n\n" if chapter.text else ""
            blocks = "\n\n".join(f"```console\n{block.rstrip()}\n```" for block in shown if block)
            parts.append(f"### {chapter.title}\n\n{text}{blocks}\n")
    HINTS.write_text("\n".join(parts), encoding="utf-8")


def write_timeline() -> None:
    """A rollout of 100 Pods, with watchers, as ``sliceplane timeline`` tells it on a screen of 80
    columns.
    """
    with (
        tempfile.TemporaryDirectory(prefix="sliceplane-timeline-") as folder,
        running_plane(Path(folder), "--emulate", "--emulate-nodes", "3") as plane,
        contextlib.ExitStack() as stack,
    ):
        kubectl = [plane.kubectl, "--kubeconfig", plane.kubeconfig]

        def run_steps(steps: tuple[str, ...]) -> None:
            for step in steps:
                command = [*kubectl, *step.split()]
                subprocess.run(
                    command, env=plane.environment, check=True, capture_output=True, timeout=60
                )
            time.sleep(TIMELINE_REST_S)

        run_steps(TIMELINE_BEFORE)
        for _ in range(TIMELINE_WATCHERS):
            watch = [*kubectl, "get", "endpointslices", "--watch", "--output=name"]
            watcher = stack.enter_context(
                subprocess.Popen(watch, env=plane.environment, stdout=subprocess.DEVNULL, text=True)
            )
            stack.callback(watcher.terminate)
        time.sleep(TIMELINE_REST_S)
        run_steps(TIMELINE_AFTER)
        sliceplane = [sys.executable, "-m", "sliceplane", "timeline", "service", "web"]
        environment = {
            **plane.environment,
            "COLUMNS": "80",
            "PYTHONPATH": str(ROOT / "src"),
        }
        shown = subprocess.run(
            sliceplane, env=environment, check=True, capture_output=True, text=True
        ).stdout
    before, _, rest = RECORDER.read_text(encoding="utf-8").partition(TIMELINE_MARKS[0])
    after = rest.partition(TIMELINE_MARKS[1])[2]
    block = f"```console\n$ sliceplane timeline service web\n{shown.rstrip()}\n```\n"
    RECORDER.write_text(
        f"{before}{TIMELINE_MARKS[0]}{block}{TIMELINE_MARKS[1]}{after}", encoding="utf-8"
    )


def main() -> None:
    names = sys.argv[1:] or ["hints", "timeline"]
    for name, write in (("hints", write_hints), ("timeline", write_timeline)):
        if name in names:
            write()


if __name__ == "__main__":
    main()
