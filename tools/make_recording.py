"""Write docs/recording.svg: real commands in a pseudo-terminal, and what they print, as a picture
that plays once.

``PYTHONPATH=src:. .venv/bin/python tools/make_recording.py``, from the root of the repository, as
root: the shells live in a network namespace, a home and a folder of their own. Two terminals, as a
person has: one for the plane, one for the questions. Lines light up as they came, pauses are cut to
what a reader waits for; in the end all of it is lit, and so it is at once for readers who do not
want motion. The picture needs no script, no font and nothing else.
"""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from tools.guides import ROOT, SHOWN

PICTURE = ROOT / "docs" / "recording.svg"
TITLE = "sliceplane"
COLUMNS = 112
LINES = 60
PLANE = "sliceplane up --emulate --emulate-nodes 2 --zones zone-a,zone-b"
QUESTIONS = (
    "kubectl apply -f demo/manifest.yaml",
    "kubectl wait --for=condition=TrafficDistributionProgrammed service/demo-svc",
    "sliceplane trace --from node/node-2 --to demo-svc | head -6",
    """kubectl patch service demo-svc --type merge -p '{"spec":{"trafficDistribution":null}}'""",
    "sliceplane trace --from node/node-2 --to demo-svc | head -1",
)
PROMPT = "$ "
STEP_S = 60.0
#: pauses as they are shown
READ_S = 0.9
ANSWER_MIN_S = 0.15
ANSWER_MAX_S = 1.2
#: a character cell, and what is around the text
WIDE = 8.0
HIGH = 18.0
MARGIN = 16.0
TOP = 34.0

_SGR = re.compile(r"\x1b\[([\d;]*)m")
_OTHER = re.compile(r"\x1b\[[?\d;]*[A-Za-ln-z]|\x1b[=>]|\r")
_COLOURS = dict(
    zip(
        "01234567",
        ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"),
        strict=True,
    )
)


@dataclass(frozen=True)
class Said:
    """A command, its output line by line, and how long that took."""

    command: str
    output: tuple[str, ...]
    seconds: float


@contextmanager
def namespace() -> Iterator[list[str]]:
    """How to run a program in a network namespace that has a loopback device."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep 600"],
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        yield ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
    finally:
        holder.kill()
        holder.communicate()


class Shell:
    """One shell at a pseudo-terminal."""

    def __init__(self, prefix: list[str], work: Path, home: Path) -> None:
        self._home = str(home)
        self._end, theirs = pty.openpty()
        environment = {
            "HOME": str(home),
            "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}:/usr/sbin:/sbin",
            "PS1": PROMPT,
            "TERM": "xterm",
            "COLUMNS": str(COLUMNS),
        }
        setup = f"stty -echo cols {COLUMNS} rows {LINES}; exec bash --norc --noprofile --noediting"
        self._process = subprocess.Popen(
            [*prefix, "setsid", "--ctty", "sh", "-c", setup],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=work,
            env=environment,
        )
        os.close(theirs)
        self._until(PROMPT)

    def _until(self, mark: str) -> str:
        said = ""
        end = time.monotonic() + STEP_S
        while not said.endswith(mark) and not re.search(
            rf"^\s*{re.escape(mark)}.*\n", said, re.MULTILINE
        ):
            readable, _, _ = select.select([self._end], [], [], max(0.0, end - time.monotonic()))
            assert readable, f"no {mark!r} within {STEP_S:.0f} s:\n{said}"
            said += os.read(self._end, 65536).decode()
            said = _OTHER.sub("", said)
        return said

    def run(self, command: str, until: str = PROMPT) -> Said:
        """The output up to the next prompt, or to the line that begins with *until*."""
        began = time.monotonic()
        os.write(self._end, f"{command}\n".encode())
        said = self._until(until).removesuffix(PROMPT).replace(self._home, "/home/you")
        return Said(
            command,
            tuple(line.rstrip() for line in said.rstrip().splitlines()),
            time.monotonic() - began,
        )

    def close(self) -> None:
        """Interrupt what runs, and leave."""
        os.write(self._end, b"\x03")
        self._until(PROMPT)
        os.write(self._end, b"exit\n")
        os.set_blocking(self._end, False)
        try:
            self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._end)


def record() -> list[list[Said]]:
    """What the two terminals showed."""
    with tempfile.TemporaryDirectory(prefix="sliceplane-recording-") as name, namespace() as prefix:
        work = Path(name, "work")
        home = Path(name, "home")
        home.mkdir()
        work.mkdir()
        for shown in SHOWN:
            (work / shown).symlink_to(ROOT / shown)
        shells = [Shell(prefix, work, home) for _ in range(2)]
        try:
            plane = shells[0].run(PLANE, until="to stop:")
            shells[1].run("export KUBECONFIG=~/.local/share/sliceplane/admin.kubeconfig")
            return [[plane], [shells[1].run(question) for question in QUESTIONS]]
        finally:
            for shell in reversed(shells):
                shell.close()


# The picture


def spans(line: str) -> str:
    """A line's text with its colours as ``tspan``."""
    made = ""
    classes = ""
    for position, part in enumerate(_SGR.split(line)):
        if position % 2:
            codes = part.split(";")
            names = [
                _COLOURS[code[1]]
                for code in codes
                if len(code) == 2 and code[0] in "39" and code[1] in _COLOURS
            ]
            classes = " ".join([*names, *(["bold"] if "1" in codes else [])])
        elif part:
            made += f'<tspan class="{classes}">{escape(part)}</tspan>' if classes else escape(part)
    return made


def picture(terminals: list[list[Said]]) -> str:
    rows: list[str] = []
    line = 0
    at = 0.3

    def add(text: str, plain: str, kind: str) -> None:
        nonlocal line
        y = TOP + MARGIN + HIGH * (line + 0.75)
        rows.append(
            f'<text class="{kind}" x="{MARGIN:g}" y="{y:g}" textLength="{len(plain) * WIDE:g}"'
            f' style="animation-delay:{at:.2f}s">{text}</text>'
        )
        line += 1

    for number, terminal in enumerate(terminals):
        if number:
            y = TOP + MARGIN + HIGH * (line + 0.5)
            rows.append(f'<path class="rule" d="M0 {y:g}H{2 * MARGIN + COLUMNS * WIDE:g}"/>')
            line += 1
        for said in terminal:
            add(
                f'<tspan class="prompt">$</tspan> {escape(said.command)}',
                PROMPT + said.command,
                "command",
            )
            at += min(max(said.seconds, ANSWER_MIN_S), ANSWER_MAX_S)
            for output in said.output:
                if output:
                    add(spans(output), _SGR.sub("", output), "output")
                else:
                    line += 1
                at += 0.04
            at += READ_S
    width = 2 * MARGIN + COLUMNS * WIDE
    height = TOP + 2 * MARGIN + HIGH * line
    spoken = escape("\n".join(f"$ {said.command}" for terminal in terminals for said in terminal))
    dots = "".join(f'<circle cx="{18 + 18 * i}" cy="17" r="5.5" class="dot{i}"/>' for i in range(3))
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="what how">
<title id="what">{TITLE}: a plane in one terminal, questions in another</title>
<desc id="how">{spoken}</desc>
{STYLE}
<rect class="window" width="{width:g}" height="{height:g}" rx="10"/>
{dots}<text class="name" x="{width / 2:g}" y="22">{TITLE}</text>
{chr(10).join(rows)}
</svg>
"""


STYLE = """\
<style>
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }
.window { fill: #16181d } .rule { stroke: #3a3f4b; stroke-dasharray: 4 4 }
.dot0 { fill: #ff5f57 } .dot1 { fill: #febc2e } .dot2 { fill: #28c840 }
.name { fill: #8b93a3; text-anchor: middle } .output { fill: #c3c9d5 } .command { fill: #fff; font-weight: 600 }
.prompt, .green { fill: #7ed491 } .red { fill: #ff7b72 } .yellow { fill: #e8c35a } .blue { fill: #79b0ff }
.magenta { fill: #d9a0ff } .cyan { fill: #6fd3e0 } .white { fill: #fff }
.black { fill: #6b7280 } .bold { font-weight: 600 }
@media (prefers-reduced-motion: no-preference) {
.command, .output { animation: appear .15s linear both } @keyframes appear { from { opacity: .45 } }
}
</style>"""


if __name__ == "__main__":
    PICTURE.write_text(picture(record()), encoding="utf-8")
