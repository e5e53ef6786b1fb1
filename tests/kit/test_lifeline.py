"""Children end with their parent, however that ends; ports and processes have names."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.e2e.running import ROOT
from tests.waiting import until

from sliceplane.kit.io import identity
from sliceplane.kit.io.identity import ProcessIdentity, command_of, holder_of

PYTHON = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
#: starts a child in the way of the program, says which, and waits to be killed
PARENT = """
import subprocess, sys, time
from sliceplane.kit.io.process.lifeline import lifeline
environment, descriptors, _ = lifeline()
child = subprocess.Popen((sys.executable, "-c", sys.argv[1]), env=environment, pass_fds=descriptors)
print(child.pid, flush=True)
time.sleep(600)
"""
CHILD = """
from sliceplane.kit.io.process import lifeline
import time
{}
lifeline.end_with_parent()
print("watching", flush=True)
time.sleep(600)
"""
#: starts a foreign program whose group must not outlive it
FOREIGN = """
import subprocess, sys, time
from sliceplane.kit.io.process.orphans import ended_with_us
program = subprocess.Popen(("sh", "-c", sys.argv[1]), start_new_session=True)
with ended_with_us(program.pid, float(sys.argv[2])):
    print(program.pid, flush=True)
    time.sleep(600)
"""


def started(script: str, *arguments: str) -> tuple[subprocess.Popen[str], ProcessIdentity]:
    parent = subprocess.Popen(
        (sys.executable, "-c", script, *arguments), env=PYTHON, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    known = identity.identity(int(parent.stdout.readline()))
    assert known is not None
    return parent, known


def watching(parent: subprocess.Popen[str]) -> None:
    assert parent.stdout is not None
    assert parent.stdout.readline() == "watching\n", "the child is past its start"


def killed(parent: subprocess.Popen[str]) -> None:
    parent.kill()
    parent.wait()
    assert parent.stdout is not None
    parent.stdout.close()  # which the child has, too


@pytest.mark.parametrize(
    "without",
    [
        "lifeline._set_death_signal = lambda: None",
        "lifeline.threading.Thread.start = lambda _: None",
    ],
)
def test_a_child_ends_with_its_parent_by_the_pipe_alone_and_by_the_signal_alone(
    without: str,
) -> None:
    parent, child = started(PARENT, CHILD.format(without))
    watching(parent)
    assert child.is_alive
    killed(parent)
    until(lambda: not child.is_alive)


def test_a_child_with_a_grace_outlives_its_parent_by_that_and_no_longer() -> None:
    parent, child = started(PARENT.replace("lifeline()", "lifeline(2)"), CHILD.format("pass"))
    time.sleep(0.5)  # the child is past its start
    killed(parent)
    ended = time.monotonic()
    until(lambda: not child.is_alive)
    assert time.monotonic() - ended > 1.5


def test_a_child_that_is_stopped_ends_too() -> None:
    parent, child = started(PARENT, CHILD.format("pass"))
    watching(parent)
    os.kill(child.pid, signal.SIGSTOP)
    killed(parent)
    until(lambda: not child.is_alive)


def test_a_child_whose_parent_was_gone_before_it_could_look_ends() -> None:
    reading, writing = os.pipe()
    environment = {**PYTHON, "SLICEPLANE_PARENT": f"{os.getpid() + 1}:{reading}:0"}
    command = (sys.executable, "-c", CHILD.format("pass"))
    done = subprocess.run(command, env=environment, pass_fds=(reading,), check=False, timeout=60)
    os.close(reading)
    os.close(writing)
    assert done.returncode == 75


def test_the_group_of_a_foreign_program_does_not_outlive_us(tmp_path: Path) -> None:
    said = tmp_path / "said"
    # The first shell ends at SIGTERM; the process that it started does not.
    inner = f"trap 'echo term >> {said}' TERM; echo $$ > {said}; while :; do sleep 0.1; done"
    parent, program = started(FOREIGN, f'sh -c "{inner}" & wait', "1.0")
    pid = until(lambda: said.read_text().split(), ignoring=(FileNotFoundError,))[0]
    stubborn = identity.identity(int(pid))
    assert stubborn is not None
    killed(parent)
    until(lambda: "term" in said.read_text())
    until(lambda: not program.is_alive and not stubborn.is_alive)


def test_an_id_that_means_another_process_is_left_alone() -> None:
    other = subprocess.Popen(("sleep", "600"), start_new_session=True)
    try:
        standby = subprocess.Popen(
            (sys.executable, "-I", "-S", str(ROOT / "src/sliceplane/kit/io/process/orphans.py")),
            stdin=subprocess.PIPE,
        )
        standby.communicate(f"{other.pid} 12345 0.0\n".encode(), timeout=60)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_process_is_known_by_its_start() -> None:
    own = identity.identity(os.getpid())
    assert own is not None
    assert own.is_alive
    for other in (
        ProcessIdentity(own.pid, own.start + 1, own.boot),
        ProcessIdentity(own.pid, own.start, "another boot"),
        ProcessIdentity(2**22 + 1, own.start, own.boot),
    ):
        assert not other.is_alive
    ended = subprocess.Popen(("sleep", "600"))
    known = identity.identity(ended.pid)
    assert known is not None
    ended.kill()
    until(lambda: not known.is_alive)  # a zombie: it was not waited for
    ended.wait()


def test_who_has_a_port_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        clause = holder_of("127.0.0.1", port)
        assert clause.startswith(f"process {os.getpid()} (")
        assert clause.endswith(f"if it should not run, end it with: kill {os.getpid()}")
        assert holder_of("0.0.0.0", port) == clause
        assert holder_of("127.0.0.2", port) == ""
    assert holder_of("127.0.0.1", port) == ""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("::1", 0))
        assert str(os.getpid()) in holder_of("::1", datagrams.getsockname()[1])


def test_a_leftover_of_an_earlier_plane_is_called_one() -> None:
    script = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 0)); "
        "print(s.getsockname()[1], flush=True);"
        "time.sleep(600)"
    )
    environment = {**PYTHON, "SLICEPLANE_PARENT": f"{os.getpid() + 1}:3"}
    with subprocess.Popen(
        (sys.executable, "-c", script), env=environment, stdout=subprocess.PIPE, text=True
    ) as left:
        assert left.stdout is not None
        clause = holder_of("127.0.0.1", int(left.stdout.readline()))
        left.kill()
    assert clause.endswith(
        f"a child of an earlier `sliceplane up` that is gone; end it with: kill {left.pid}"
    )


def test_our_own_commands_are_told_in_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "_PROC", tmp_path)
    for number, (words, told) in enumerate(
        (
            (
                ("/venv/bin/python", "-m", "sliceplane", "dns", "--listen=127.0.0.1:53"),
                "sliceplane dns",
            ),
            (("/venv/bin/python", "/venv/bin/sliceplane", "up"), "sliceplane up"),
            (("sshd: \x1b[31mroot", "x" * 200), "sshd:  [31mroot " + "x" * 65),
        ),
        1,
    ):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cmdline").write_text("".join(f"{word}\0" for word in words))
        assert command_of(number) == told[:80]
    assert command_of(99) == ""
