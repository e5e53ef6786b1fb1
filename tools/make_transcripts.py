"""Write docs/kubectl.md, every step of the kubectl tour with its real output, and the transcripts
of docs/hints.md and docs/recorder.md.

Run from the root of the repository: ``PYTHONPATH=src:. .venv/bin/python
tools/make_transcripts.py``. With the argument ``hints`` or ``timeline``, only those of the one or
the other. The steps of the first two are those that ``tests/e2e/test_kubectl_tour.py`` and
``test_hint_story.py`` drive, so what the documents show is what is tested.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.hint_story import FLAGS, STORY, run
from tests.e2e.running import running_plane
from tests.e2e.tour import TOUR, Step, run_step

DOCUMENT = Path(__file__).parents[1] / "docs" / "kubectl.md"
HINTS = DOCUMENT.with_name("hints.md")
RECORDER = DOCUMENT.with_name("recorder.md")
#: everything after it in ``HINTS`` is made here
MARK = "<!-- transcripts -->\n"
LINES_MAX = 60
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
        lines.append(
            f"$ {''.join(f'{k}={v!r} ' for k, v in step.environment.items())}kubectl {step.args}"
        )
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
                f"$ {step.command}\n{run(plane, step)}"
                if not step.hidden
                else run(plane, step) and ""
                for step in chapter.steps
            ]
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
            "PYTHONPATH": str(DOCUMENT.parents[1] / "src"),
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
    what = sys.argv[1:] or ["hints", "timeline", "tour"]
    for name, write in (("hints", write_hints), ("timeline", write_timeline), ("tour", write_tour)):
        if name in what:
            write()


def write_tour() -> None:
    parts = [HEAD]
    with (
        tempfile.TemporaryDirectory(prefix="sliceplane-transcripts-") as folder,
        running_plane(
            Path(folder), "--emulate", "--emulate-nodes", "2", "--zones", "zone-a,zone-b"
        ) as plane,
    ):
        for chapter in TOUR:
            parts.append(f"\n## {chapter.title}\n")
            for step in chapter.steps:
                done = run_step(plane, step)
                parts.append(f"```console\n{transcript(step, done.stdout, done.stderr)}\n```\n")
    DOCUMENT.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
