"""etcd clusters for tests: Debian's etcd on loopback ports, in a folder of the test's own."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.ports import free_port
from tests.waiting import until

START_S_MAX = 60.0


@dataclass
class Member:
    """One etcd process.  ``peer_port`` may lead to it through something that others can cut."""

    name: str
    folder: Path
    port: int
    listen_peer_port: int
    advertised_peer_port: int
    #: NAME=URL,... of all members
    everybody: str = ""
    #: further flags, for TLS
    flags: tuple[str, ...] = ()
    scheme: str = "http"
    #: Else nothing waits for the disk: in tests processes end, never the machine, and a disk that
    #: others keep busy must not make etcd silent.
    durable: bool = False
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def start(self) -> None:
        assert self.process is None, f"{self.name} runs already"
        log = (self.folder / f"{self.name}.log").open("ab")
        command = [
            "etcd",
            "--name",
            self.name,
            "--data-dir",
            str(self.folder / self.name),
            "--listen-client-urls",
            self.url,
            "--advertise-client-urls",
            self.url,
            "--listen-peer-urls",
            f"http://127.0.0.1:{self.listen_peer_port}",
            "--initial-advertise-peer-urls",
            f"http://127.0.0.1:{self.advertised_peer_port}",
            "--initial-cluster",
            self.everybody,
            "--heartbeat-interval",
            "50",
            "--election-timeout",
            "500",
            "--logger",
            "zap",
            "--log-level",
            "warn",
            *(() if self.durable else ("--unsafe-no-fsync",)),
            *self.flags,
        ]
        with log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        """As by the loss of power, as far as the process can tell; one that is paused does nothing
        more, either.
        """
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        assert self.process is not None, f"{self.name} does not run"
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def wait_ready(self) -> None:
        def answers() -> bool:
            assert self.process is not None, f"{self.name} was not started"
            assert self.process.poll() is None, self.account()
            with socket.create_connection(("127.0.0.1", self.port), 5.0):
                return True

        until(answers, ignoring=(OSError,))

    def account(self) -> str:
        """For a person: whether it runs, and what it said last."""
        code = None if self.process is None else self.process.poll()
        state = (
            "does not run"
            if self.process is None
            else "runs"
            if code is None
            else f"exited with {code}"
        )
        log = self.folder / f"{self.name}.log"
        said = log.read_text()[-2000:] if log.exists() else ""
        return f"{self.name} at {self.url} {state}; its log ends with: {said or '(nothing)'}"


def make(folder: Path, count: int) -> list[Member]:
    members = []
    for number in range(count):
        peer = free_port()
        members.append(Member(f"m{number}", folder, free_port(), peer, peer))
    everybody = ",".join(
        f"{each.name}=http://127.0.0.1:{each.advertised_peer_port}" for each in members
    )
    for each in members:
        each.everybody = everybody
    return members


@contextlib.contextmanager
def cluster(folder: Path, count: int, *, durable: bool = False) -> Iterator[list[Member]]:
    """*count* members that run; gone at the end, whatever was done to them."""
    members = make(folder, count)
    try:
        for each in members:
            each.durable = durable
            each.start()
        for each in members:
            each.wait_ready()
        yield members
    except BaseException:
        print(*(each.account() for each in members), sep="\n")
        raise
    finally:
        for each in members:
            each.kill()
