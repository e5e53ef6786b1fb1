"""Run the commands of a guide in the order in which a person pastes them, and keep what they print.

A guide is a Markdown document whose ``console`` blocks are one session: what begins with ``$`` is
typed into one shell, what a command exports stays. A command goes on over a line end after ``\\``,
``|`` or inside a here-document. A comment on the line before a block says what is special:

- ``<!-- stays -->``: its last command goes on running, as in a terminal of its own, until the guide ends;
- ``<!-- ends with N -->``: its last command must end with this exit code instead of 0;
- ``<!-- not run: WHY -->``: it is only shown;
- ``<!-- on a laptop -->``, alone or before the others (``<!-- on a laptop, stays -->``): it is typed into a second
  shell, of a machine that has an address, ``LAPTOP``, and a ``/etc/resolv.conf`` of its own.

A line ``...`` in an output stands for what is left out. ``refreshed`` makes the outputs anew and
leaves out as much; ``shape`` is what must stay the same from run to run: numbers, random names and
the width of columns may change. The shell lives in a network namespace, a home and a folder of its
own, so it needs root and meets no other plane.

``PYTHONPATH=src:. .venv/bin/python tools/guides.py [FILE ...]``, from the root of the repository,
writes the outputs.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
GUIDES = (ROOT / "README.md", *(ROOT / "docs" / name for name in ("tour.md", "deploy.md")))
#: what is typed: guides, and pages with commands among others
TYPED = (*GUIDES, ROOT / "docs" / "hints.md")
#: what ``tools/make_transcripts.py`` writes after it is no guide
TRANSCRIPTS = "<!-- transcripts -->"
#: what a guide may use of the repository, beside what it makes itself
SHOWN = ("demo", "deploy", "docs", "examples", "src", ".venv")
COMMAND_S = 300.0
#: what goes on running has said what it says at its start when it was silent for so long: for a
#: short time if that is as many lines as the guide shows, and for a long one if a guide is made
#: anew and it says less
SILENCE_S = 1.0
LONG_SILENCE_S = 30.0
#: what is left running has so long to end; an agent would wait longer for a server that ended
#: before it
END_S = 3.0
#: the other end of its wire leads nowhere
LAPTOP = """ip link add wlan0 type veth peer name air && ip link set air up
ip address add 198.51.100.7/24 dev wlan0 && ip link set wlan0 up && ip route add default via 198.51.100.1
cp /etc/resolv.conf ~/resolv.conf && mount --bind ~/resolv.conf "$(readlink -f /etc/resolv.conf)"
"""

_BLOCK = re.compile(
    r"^(?:<!-- (?P<laptop>on a laptop)?(?:, )?(?P<mark>stays|ends with \d+|not run: [^\n]*?)? -->\n)?"
    r"```console\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
#: what the shell says, sooner or later, of a program that was killed
_JOB = re.compile(r"^bash: line \d+: +\d+ (?:Killed|Terminated) .*\n", re.MULTILINE)
#: kubectl's log if its own end cancels a watch whose event is on its way (client-go): the answer is
#: the line after it
_CANCELLED = re.compile(
    r'^I\d{4} .* reflector\.go:\d+\] "Warning: watch ended with error" .*context canceled.*\n',
    re.MULTILINE,
)
_HERE = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
#: what changes from run to run, in this order, and what ``shape`` puts there
_CHANGES = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"\s+", " "),
        (r"\b(demo|web)((?:-[a-z]+)*)(-[a-z0-9]{8,10})?-[a-z0-9]{5}\b", r"\1\2-NAME"),
        (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
        (r"\b(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|[0-9a-f]{8})\b", "ID"),
        (
            r"^[0-9a-f]{4,8}(?=, \d+, \d+, \d)",
            "ID",
        ),  # etcdctl prints a hash without its leading zeros
        (r"\b(?:\d+[hms]){1,3}(?= |$)", "AGE"),
        (r"\d[\d.,:]*", "N"),
        (r"\bzone-[abc]\b", "ZONE"),
    )
)


@dataclass(frozen=True)
class Step:
    command: str
    output: tuple[str, ...]
    stays: bool = False
    code: int = 0


def steps(block: str, mark: str = "") -> list[Step]:
    """The commands of one block, each with what is shown below it."""
    made: list[tuple[list[str], list[str]]] = []
    open_until: str | None = None
    goes_on = False
    for line in block.splitlines():
        if goes_on or open_until is not None:
            made[-1][0].append(line)
            if line.strip() == open_until:
                open_until = None
            goes_on = open_until is None and line.endswith(("\\", "|"))
        elif line.startswith("$ "):
            made.append(([line[2:]], []))
            here = _HERE.search(line)
            open_until = here[1] if here else None
            goes_on = here is None and line.endswith(("\\", "|"))
        else:
            made[-1][1].append(line)
    commands = [Step("\n".join(command), tuple(said)) for command, said in made]
    code = int(mark.removeprefix("ends with ")) if mark.startswith("ends with") else 0
    return [*commands[:-1], replace(commands[-1], stays=mark == "stays", code=code)]


class Terminal:
    """One shell that remembers, as a person's; owner of the programs that it leaves running. It has
    a network of its own unless *network* is a command that runs it in another one.
    """

    def __init__(
        self,
        folder: Path,
        network: tuple[str, ...] = ("unshare", "--net"),
        **environment: str,
    ) -> None:
        work = folder / "sliceplane"
        home = folder / "home"
        work.mkdir()
        home.mkdir()
        run = folder / "run"
        run.mkdir(mode=0o700)
        for name in SHOWN:
            (work / name).symlink_to(ROOT / name)
        self._folder = folder
        self._log = folder / "stays.log"
        kept = {name: os.environ[name] for name in ("LANG", "TERM") if name in os.environ}
        path = f"{ROOT}/.venv/bin:{os.environ['PATH']}:/usr/sbin:/sbin"
        self._shell = subprocess.Popen(
            [
                *network,
                "unshare",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "bash",
                "--norc",
                "--noprofile",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=work,
            # a reader's pytest has not the plug-ins of our tests
            env={
                **kept,
                "HOME": str(home),
                # sockets of agents, which others of this user would find in /tmp
                "XDG_RUNTIME_DIR": str(run),
                "PATH": path,
                "COLUMNS": "150",
                "USER": "you",
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYTEST_PLUGINS": "sliceplane.pytest_plugin",
                "PYTEST_ADDOPTS": "-o console_output_style=classic",  # no padding up to COLUMNS
                **environment,
            },
        )
        self._home = str(home)
        if network[0] == "unshare":
            # Named network namespaces are files: those of a guide end with its mount namespace.
            self.run(Step("mkdir -p /run/netns && mount -t tmpfs netns /run/netns", ()))
        self.run(Step("ip link set lo up", ()))

    def run(self, step: Step, seconds: float = COMMAND_S) -> list[str]:
        """What it prints; an end with another code than the step's is an ``AssertionError`` with
        all that it said.
        """
        if step.stays:
            self._log.write_bytes(b"")
            self._ask(f"{{ {step.command}\n}} </dev/null >{self._log} 2>&1 &", seconds)
            return self._told(self._settled(step, seconds))
        code, said = self._ask(f"{{ {step.command}\n}} </dev/null", seconds)
        assert code == step.code, f"$ {step.command}\nended with {code}:\n{said}"
        return self._told(said)

    def _ask(self, script: str, seconds: float) -> tuple[int, str]:
        mark = secrets.token_hex(8)
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{script}\nprintf '%s %s\\n' {mark} $?\n".encode())
        self._shell.stdin.flush()
        said = b""
        end = time.monotonic() + seconds
        while not (done := re.search(rf"{mark} (\d+)\n".encode(), said)):
            readable, _, _ = select.select(
                [self._shell.stdout], [], [], max(0.0, end - time.monotonic())
            )
            more = os.read(self._shell.stdout.fileno(), 65536) if readable else b""
            assert more, f"no end after {seconds:.0f} s:\n{script}\n{said.decode()}{self._logs()}"
            said += more
        return int(done[1]), said[: done.start()].decode()

    def _logs(self) -> str:
        """The ends of what programs in the background have said: one of them is why a step does not
        end.
        """
        files = sorted({*self._folder.glob("*.log"), *(self._folder / "sliceplane").glob("*.log")})
        return "".join(
            f"\n--- {file.name}\n{file.read_text(errors='replace')[-2000:]}" for file in files
        )

    def _settled(self, step: Step, seconds: float) -> str:
        end = time.monotonic() + seconds
        changed = time.monotonic()
        said = ""
        while True:
            if (now := self._log.read_text()) != said:
                changed = time.monotonic()
                said = now
            # what it logs is for the operator of the moment, not for a guide
            lines = [line for line in said.splitlines() if not line.startswith("timestamp=")]
            whole = len(lines) >= max(1, len(step.output))
            if lines and time.monotonic() >= changed + (SILENCE_S if whole else LONG_SILENCE_S):
                return "\n".join(lines)
            assert time.monotonic() < end, f"$ {step.command}\nsays nothing"
            time.sleep(0.05)

    def _told(self, said: str) -> list[str]:
        said = _CANCELLED.sub("", _JOB.sub("", said.replace(self._home, "/home/you")))
        return [line.rstrip() for line in said.rstrip("\n").splitlines()]

    def close(self) -> None:
        """End the shell and all that it left running: no process outlives the first of its PID
        namespace.
        """
        with contextlib.suppress(AssertionError):
            self._ask("kill -TERM -1; wait", END_S)
        self._shell.kill()
        self._shell.communicate()


@contextlib.contextmanager
def terminal(*network: str, **environment: str) -> Iterator[Terminal]:
    """A shell in a folder of its own; *network* and *environment* as of ``Terminal``."""
    with tempfile.TemporaryDirectory(prefix="sliceplane-guide-") as folder:
        opened = Terminal(Path(folder), network or ("unshare", "--net"), **environment)
        try:
            yield opened
        finally:
            opened.close()


def commands(text: str) -> Iterator[Step]:
    """The steps of the blocks that are run, in order, whichever shell they are for."""
    for block in _BLOCK.finditer(text.partition(TRANSCRIPTS)[0]):
        mark = block["mark"] or ""
        if not mark.startswith("not run"):
            yield from steps(block["text"], mark)


def sessions(text: str) -> Iterator[tuple[re.Match[str], list[tuple[Step, list[str]]]]]:
    """The blocks that are run, in order: each step with what it says now."""
    with contextlib.ExitStack() as stack:
        terminals: dict[bool, Terminal] = {}
        for block in _BLOCK.finditer(text.partition(TRANSCRIPTS)[0]):
            mark = block["mark"] or ""
            if mark.startswith("not run"):
                continue
            laptop = block["laptop"] is not None
            if laptop not in terminals:
                shell = terminals[laptop] = stack.enter_context(terminal())
                if laptop:
                    shell.run(Step(LAPTOP, ()))
            yield (
                block,
                [(step, terminals[laptop].run(step)) for step in steps(block["text"], mark)],
            )


def cut(shown: tuple[str, ...], real: list[str]) -> list[str]:
    """*real* with as much left out as in *shown*."""
    if "..." not in shown:
        return real
    before = shown.index("...")
    after = len(shown) - 1 - shown.index("...")
    return [*real[:before], "...", *(real[-after:] if after else ())]


def shape(lines: tuple[str, ...] | list[str]) -> list[str]:
    """What of an output stays from run to run."""
    made: list[str] = []
    for line in lines:
        for pattern, instead in _CHANGES:
            line = pattern.sub(instead, line)
        if line.strip():
            made.append(line.strip())
    return made


def refreshed(text: str) -> str:
    """*text* with the output of each command as it is now."""
    parts: list[str] = []
    done = 0
    for block, ran in sessions(text):
        lines = [
            line for step, said in ran for line in (f"$ {step.command}", *cut(step.output, said))
        ]
        parts += [text[done : block.start("text")], "\n".join(lines), "\n"]
        done = block.end("text")
    return "".join([*parts, text[done:]])


def main() -> None:
    for path in [Path(name).resolve() for name in sys.argv[1:]] or TYPED:
        path.write_text(refreshed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
