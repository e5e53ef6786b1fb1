"""A server with ``--readers`` as processes: kubectl, ``kill -9`` of a reader under watchers, and the
end of the server.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.process_table import children_of, words_of
from tests.relay.relaying import IN_DEFAULT
from tests.relay.test_readers import put
from tests.replicated.conftest import etcd
from tests.replicated.members import Member
from tests.server.serving import Server, complaints
from tests.server.test_cli_serving import running
from tests.server.test_http_access import KUBECTL
from tests.waiting import until

from sliceplane.server.io.keys.pki import Pki

__all__ = ["etcd"]
WATCHERS = 12
PATH = f"{IN_DEFAULT}?labelSelector=colour%3Dred"


def children(pid: int) -> list[int]:
    """The processes of the server *pid*, but for workers of large bodies."""
    return [child for child in children_of(pid) if "sliceplane.relay.io.reader" in words_of(child)]


def is_there(pid: int) -> bool:
    """A zombie, which its parent has not waited for, is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclass
class Plane:
    process: subprocess.Popen[str]
    server: Server
    kubeconfig: Path

    def readers(self) -> list[int]:
        return children(self.process.pid)

    def kubectl(self, *arguments: str) -> str:
        assert KUBECTL is not None
        done = subprocess.run(
            [KUBECTL, "--kubeconfig", str(self.kubeconfig), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextlib.contextmanager
def plane_of(*flags: str) -> Iterator[Plane]:
    arguments = ("apiserver", "--secure-port", "0", "--log-level", "warning", *flags)
    with running(*arguments) as (process, url, kubeconfig):
        certificates = SimpleNamespace(url=url, pki=Pki(kubeconfig.parent / "pki"))
        yield Plane(process, Server(certificates), kubeconfig)  # type: ignore[arg-type]


@pytest.fixture
def plane() -> Iterator[Plane]:
    with plane_of("--data-dir", "memory:", "--readers", "2") as started:
        yield started


@dataclass
class Watch(threading.Thread):
    """A client that follows slices, and resumes as clients do; see ``check``."""

    server: Server
    #: of one watch after the other: the version from which it began, and its events
    runs: list[tuple[int, list[tuple[int, str]]]] = field(default_factory=list)
    lists: int = 0
    is_over: bool = False

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def __hash__(self) -> int:
        return id(self)

    @property
    def version(self) -> int:
        """The newest that it knows."""
        began, events = self.runs[-1] if self.runs else (0, [])
        return events[-1][0] if events else began

    def run(self) -> None:
        since = 0
        while not self.is_over:
            with contextlib.suppress(OSError, http.client.HTTPException):
                since = self._follow(since or self._list())

    def _list(self) -> int:
        self.lists += 1
        return int(self.server.get(PATH).json["metadata"]["resourceVersion"])

    def _follow(self, since: int) -> int:
        """Returns the version to resume at; 0: list again."""
        opened = self.server.connect()
        try:
            opened.request("GET", f"{PATH}&watch=true&resourceVersion={since}")
            answer = opened.getresponse()
            if answer.status != 200:
                return 0
            events: list[tuple[int, str]] = []
            self.runs.append((since, events))
            for line in answer:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    assert event["object"]["code"] == 410, event
                    return 0
                metadata = event["object"]["metadata"]
                events.append((int(metadata["resourceVersion"]), metadata["name"]))
        except ConnectionResetError:
            pass
        finally:
            opened.close()
        return self.version

    def check(self, history: list[tuple[int, str]]) -> None:
        """Each watch has exactly what happened between its begin and its last event."""
        for began, events in self.runs:
            end = events[-1][0] if events else began
            assert events == [event for event in history if began < event[0] <= end]


def test_watchers_of_a_killed_reader_resume_and_others_notice_nothing(plane: Plane) -> None:
    watches = [Watch(plane.server) for _ in range(WATCHERS)]
    for watch in watches:
        watch.start()
    until(lambda: all(watch.runs for watch in watches))
    history = []

    def write(count: int) -> None:
        for number in range(count):
            name = f"s-{number % 5}"
            history.append((put(plane.server, name, colour="red", n=str(len(history))), name))

    write(20)
    first, second = plane.readers()
    os.kill(first, signal.SIGKILL)
    until(lambda: len(plane.readers()) == 2 and first not in plane.readers())
    assert second in plane.readers(), "the other one goes on"
    write(20)
    until(lambda: all(watch.version == history[-1][0] for watch in watches))
    for watch in watches:
        watch.is_over = True
        watch.check(history)
    runs = sorted(len(watch.runs) for watch in watches)
    # Each client is at one of two processes by a hash: hardly ever all at one.
    assert runs[0] == 1, runs
    assert runs[-1] > 1, runs
    assert all(watch.lists == 1 for watch in watches), "the new process brings what they missed"
    until(lambda: "readers ok" in plane.server.get("/readyz?verbose").body.decode())
    restarts = "sliceplane_reader_restarts_total"
    assert f'{restarts}{{process="server"}} 1.0' in plane.server.get("/metrics").body.decode()


def test_no_reader_is_left_when_the_server_is_killed(plane: Plane) -> None:
    readers = plane.readers()
    assert len(readers) == 2
    plane.process.kill()
    until(lambda: not any(map(is_there, readers)))

    def is_refused() -> bool:
        with pytest.raises(OSError, match=r"refused|reset") as error:
            plane.server.get("/livez")
        return isinstance(error.value, ConnectionRefusedError)

    until(is_refused)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_streams_and_processes(plane: Plane, how: signal.Signals) -> None:
    readers = plane.readers()
    streams = [
        (opened, _answer(opened, path))
        for path in (PATH, "/api/v1/configmaps?")
        for opened in [plane.server.connect()]
    ]
    for reader in readers:
        os.kill(reader, how)  # as a terminal and a service manager do to all processes
    plane.process.send_signal(how)
    for opened, answer in streams:
        answer.read()  # an answer that is cut off raises
        opened.close()
    out, err = plane.process.communicate(timeout=60)
    assert (plane.process.returncode, complaints(err)) == (0, [])
    assert "stopped" in out
    assert not any(map(is_there, readers))


def _answer(opened: http.client.HTTPSConnection, path: str) -> http.client.HTTPResponse:
    opened.request("GET", f"{path}&watch=true")
    answer = opened.getresponse()
    assert answer.status == 200
    return answer


def test_clients_leave_before_the_end(tmp_path: Path) -> None:
    flags = ("--readers", "1", "--shutdown-delay-duration", "5s")
    with plane_of("--data-dir", str(tmp_path / "data"), *flags) as plane:
        opened = plane.server.connect()
        assert plane.server.request("GET", PATH, connection=opened).headers["connection"] is None
        plane.process.terminate()

        def last() -> Any:
            reply = plane.server.request("GET", PATH, connection=opened)
            assert reply.code == 200
            return reply.headers["connection"] == "close"

        until(last)
        assert "shutdown" in plane.server.get("/readyz").body.decode()


def test_kubectl_sees_one_server(plane: Plane, tmp_path: Path) -> None:
    assert "sliceplane-admin" in plane.kubectl("auth", "whoami")
    for number in range(4):
        plane.kubectl("create", "service", "clusterip", f"web-{number}", "--tcp", "80")
        names = plane.kubectl("get", "services", "-o", "name").split()
        assert f"service/web-{number}" in names
    plane.kubectl("label", "service", "web-1", "colour=red")
    assert "web-1" in plane.kubectl("get", "services", "-l", "colour=red")
    assert "web-1" in plane.kubectl("describe", "service", "web-1")
    plane.kubectl("delete", "service", "web-1", "--wait")
    assert "web-1" not in plane.kubectl("get", "services", "-o", "name")
    plane.kubectl("create", "configmap", "passed", "--from-literal=a=b")
    assert "passed" in plane.kubectl("get", "configmaps", "--watch=false")
    assert "endpointslices" in plane.kubectl("api-resources")
    began = time.monotonic()
    plane.kubectl("wait", "--for=jsonpath={.spec.ports[0].port}=80", "service/web-2")
    assert time.monotonic() - began < 30
    with pytest.raises(AssertionError, match="not found"):
        plane.kubectl("exec", "nobody", "--", "true")


def test_readers_of_two_servers_over_one_etcd(etcd: Member, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    flags = ("--etcd", etcd.url, "--etcd-prefix", "/readers", "--readers", "1")
    with plane_of("--data-dir", str(first), *flags) as one:
        shutil.copytree(first / "pki", second / "pki")
        shutil.copy(first / "tokens.csv", second / "tokens.csv")
        with plane_of("--data-dir", str(second), *flags) as other:
            for number in range(20):
                version = put(one.server, "shared", n=str(number))
                listed = other.server.get(IN_DEFAULT).json
                assert int(listed["metadata"]["resourceVersion"]) >= version
                labels = [item["metadata"]["labels"] for item in listed["items"]]
                assert {"n": str(number)} in labels
