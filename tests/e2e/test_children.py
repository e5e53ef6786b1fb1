"""Processes that ``sliceplane up`` starts: they end with it, whatever ends it, and hold no more
than they need.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import dns.message
import pytest
from tests.e2e.running import PYTHON_ENVIRONMENT, Plane, running_plane, spawn, stop
from tests.ports import free_port
from tests.process_table import children_of, words_of
from tests.waiting import until

from sliceplane.kit.io.identity import ProcessIdentity, identity

CHILDREN = ("--dns", "127.0.0.1:0", "--xds", "127.0.0.1:0")


def children(plane: Plane) -> list[ProcessIdentity]:
    known = map(identity, children_of(plane.process.pid))
    return [each for each in known if each is not None]


def named(known: list[ProcessIdentity], name: str) -> ProcessIdentity:
    (found,) = (child for child in known if name in words_of(child.pid)[1:])
    return found


def watches_its_parent(child: ProcessIdentity) -> bool:
    """It has the thread that ``lifeline`` starts last."""
    return len(list(Path(f"/proc/{child.pid}/task").iterdir())) > 1


def recordings(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("data/recordings/*.recording"))


@pytest.mark.parametrize("data", ["memory:", ""], ids=["that keeps nothing", "that is kept"])
def test_a_killed_plane_leaves_no_child_and_the_next_one_starts_at_the_same_ports(
    tmp_path: Path, data: str
) -> None:
    """But for the name server of a plane that is kept, which the next one replaces."""
    first = spawn(tmp_path, *CHILDREN, data_dir=data)
    left = children(first)
    assert len(left) == 2
    ports = [flag for child in left for flag in _listening(child)]
    ends = [child for child in left if data or child != named(left, "dns")]
    first.process.kill()
    first.process.communicate()
    until(lambda: not any(child.is_alive for child in ends))
    assert [child for child in left if child.is_alive] == [
        child for child in left if child not in ends
    ]
    with running_plane(tmp_path, *ports, data_dir=data) as second:
        assert len(children(second)) == 2
        assert not any(child.is_alive for child in left)
    _end_name_server(tmp_path)


def _end_name_server(folder: Path) -> None:
    """Of the last plane: a test does not wait until it ends by itself."""
    record = folder / "data" / "children" / "dns.process"
    if record.exists():
        with suppress(ProcessLookupError):
            os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)


class Asking(threading.Thread):
    """Asks a name server for one name, again and again, as a resolver that waits for 2 s and asks
    no second time.
    """

    def __init__(self, port: int) -> None:
        super().__init__()
        self.packet = dns.message.make_query("kubernetes.default.svc.cluster.local.", "A").to_wire()
        self.port = port
        self.answered = 0
        self.failed: list[str] = []
        self.ends = threading.Event()

    def run(self) -> None:
        while not self.ends.is_set():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
                own.settimeout(2.0)
                own.connect(("127.0.0.1", self.port))
                try:
                    own.send(self.packet)
                    answer = dns.message.from_wire(own.recv(4096))
                    assert "10.96.0.1" in str(answer.answer[0])
                    self.answered += 1
                except (OSError, AssertionError, IndexError) as error:
                    self.failed.append(f"after {self.answered}: {error!r}")
            time.sleep(0.002)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_names_are_answered_while_the_plane_is_started_again(
    tmp_path: Path, number: signal.Signals
) -> None:
    port = free_port()
    flags = ("--dns", f"127.0.0.1:{port}")
    first = spawn(tmp_path, *flags)
    (earlier,) = children(first)
    asking = Asking(port)
    asking.start()
    try:
        until(lambda: asking.answered > 100)
        first.process.send_signal(number)
        first.process.communicate()
        while_away = asking.answered
        until(lambda: asking.answered > while_away + 100)
        with running_plane(tmp_path, *flags) as second:
            (now,) = children(second)
            assert now != earlier
            until(lambda: not earlier.is_alive)  # it may end a moment after
            by_the_next = asking.answered
            until(lambda: asking.answered > by_the_next + 100)
    finally:
        asking.ends.set()
        asking.join()
        _end_name_server(tmp_path)
    # The datagram that waits at the earlier one when it is ended is lost, as any may be.
    assert len(asking.failed) <= 1, asking.failed


def test_a_name_server_that_outlives_its_plane_is_in_the_way_of_other_planes_and_named(
    tmp_path: Path,
) -> None:
    port = free_port()
    first = spawn(tmp_path, "--dns", f"127.0.0.1:{port}")
    (left,) = children(first)
    assert stop(first) == 0
    try:
        command = (
            sys.executable,
            "-m",
            "sliceplane",
            "up",
            "--secure-port",
            "0",
            "--data-dir",
            "memory:",
        )
        other = subprocess.run(
            (*command, "--dns", f"127.0.0.1:{port}"),
            env=PYTHON_ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert other.returncode == 1
        assert f"end it with: kill {left.pid}\n" in other.stderr
        assert left.is_alive
    finally:
        _end_name_server(tmp_path)


def _listening(child: ProcessIdentity) -> tuple[str, str]:
    """The flags of ``up`` with the port that a child has."""
    words = words_of(child.pid)
    inodes = {
        os.readlink(file) for file in Path(f"/proc/{child.pid}/fd").iterdir() if file.exists()
    }
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            return f"--{words[3]}", f"127.0.0.1:{int(fields[1].partition(':')[2], 16)}"
    raise AssertionError(f"{words} listens nowhere")


@pytest.mark.parametrize("whole_group", [False, True], ids=["SIGTERM", "SIGTERM to every process"])
def test_a_stop_saves_no_recording_and_takes_the_credentials_along(
    tmp_path: Path, whole_group: bool
) -> None:
    """But for those of the name server, which goes on for a while; it ends where a service manager
    ends all.
    """
    plane = spawn(tmp_path, *CHILDREN)
    credentials = tmp_path / "data" / "children"
    files = [f"{name}.{kind}" for name in ("dns", "xds") for kind in ("kubeconfig", "token")]
    modes = {file.name: oct(file.stat().st_mode & 0o777) for file in credentials.iterdir()}
    assert modes == dict.fromkeys([*files, "dns.process"], "0o600")
    left = children(plane)
    if whole_group:
        os.kill(
            named(left, "xds").pid, signal.SIGSTOP
        )  # which makes the stop last 5 s; by then the other is gone
        for child in left:
            os.kill(child.pid, signal.SIGTERM)
    names = named(left, "dns")
    assert stop(plane) == 0
    assert [child for child in left if child.is_alive] == ([] if whole_group else [names])
    assert recordings(tmp_path) == []
    assert not list(credentials.glob("xds.*"))
    assert "has ended" not in plane.log.read_text()
    if not whole_group:
        os.kill(names.pid, signal.SIGKILL)


def test_a_child_that_ends_by_itself_is_an_incident(tmp_path: Path) -> None:
    with running_plane(tmp_path, *CHILDREN) as plane:
        names = named(children(plane), "dns")
        os.kill(names.pid, signal.SIGTERM)
        (name,) = until(lambda: recordings(tmp_path))
        assert name.endswith("the-process-of-dns-has-ended.recording")
        until(
            lambda: (
                len([child for child in children(plane) if child != names and child.is_alive]) == 2
            )
        )
    _end_name_server(tmp_path)


def test_what_is_in_the_way_of_a_start_is_named(tmp_path: Path) -> None:
    with running_plane(tmp_path) as plane:
        command = (sys.executable, "-m", "sliceplane", "up", "--secure-port", "0", "--data-dir")
        second = subprocess.run(
            (*command, str(tmp_path / "data")),
            env=PYTHON_ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 1
        # In brackets its command, which of a test's plane is the template's that it was forked
        # from.
        assert re.search(rf"process {plane.process.pid} \(.*\) is using it", second.stderr)
        port = plane.url.rpartition(":")[2]
        third = subprocess.run(
            (*command, "memory:", "--dns", f"127.0.0.1:{port}"),
            env=PYTHON_ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert third.returncode == 1
        assert re.search(
            rf"process {plane.process.pid} \(.*\) has it; .*: kill {plane.process.pid}\n",
            third.stderr,
        )
        flags = ("--dns", f"127.0.0.1:{free_port()}", "--xds", f"127.0.0.1:{port}")
        fourth = subprocess.run(
            (*command, str(tmp_path / "other"), *flags), env=PYTHON_ENVIRONMENT, check=False
        )
        assert fourth.returncode == 1
        assert not (tmp_path / "other" / "children" / "dns.process").exists(), (
            "no name server outlives such a start"
        )


def test_a_worker_in_the_middle_of_a_job_ends_with_its_server() -> None:
    script = (
        "import subprocess, sys, time\n"
        "from sliceplane.kit.io.process.lifeline import lifeline\n"
        "environment, descriptors, _ = lifeline()\n"
        "worker = subprocess.Popen((sys.executable, '-m', 'sliceplane.server.io.offload.worker'), "
        "env=environment,\n"
        "                          pass_fds=descriptors, stdin=subprocess.PIPE, "
        "stdout=subprocess.PIPE)\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        (sys.executable, "-c", script), env=PYTHON_ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    worker = identity(int(parent.stdout.readline()))
    assert worker is not None
    until(lambda: watches_its_parent(worker))
    os.kill(worker.pid, signal.SIGSTOP)  # as one that is busy: it reads no pipe
    parent.kill()
    parent.communicate()
    until(lambda: not worker.is_alive)


def test_workers_of_a_simulation_end_with_it(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "sliceplane", "simulate", "--help")
    flags = subprocess.run(
        command, env=PYTHON_ENVIRONMENT, capture_output=True, text=True, check=True
    ).stdout
    assert "--jobs" in flags
    command = (*command[:-1], "--seeds", "1-1000", "--jobs", "2")
    with (tmp_path / "log").open("w") as log:
        parent = subprocess.Popen(command, env=PYTHON_ENVIRONMENT, stdout=log, stderr=log)

    def workers() -> list[ProcessIdentity]:
        found = [
            pid
            for pid in children_of(parent.pid)
            if any("spawn_main" in word for word in words_of(pid))
        ]
        return [known for pid in found if (known := identity(pid)) is not None]

    known = until(
        workers,
        lambda found: len(found) == 2 and all(map(watches_its_parent, found)),
        ignoring=(OSError,),
    )
    parent.kill()
    parent.wait()
    until(lambda: not any(worker.is_alive for worker in known))
