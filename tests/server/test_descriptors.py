"""A server whose clients take every descriptor that there is: it goes on, stores and logs."""

from __future__ import annotations

import contextlib
import errno
import http.client
import resource
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.tools.process import PlaneProcess
from tests.attack.harness import admin_context, anonymous_context
from tests.waiting import until

from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.logs import output as log_output

LIMIT = 200
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[PlaneProcess]:
    with PlaneProcess(tmp_path, command="apiserver") as found:
        resource.prlimit(found.process.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        yield found


def address(plane: PlaneProcess) -> tuple[str, int]:
    host, _, port = plane.url.removeprefix("https://").rpartition(":")
    return host, int(port)


def admin(plane: PlaneProcess) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection(*address(plane), context=admin_context(plane), timeout=60)


def write(connection: http.client.HTTPSConnection, name: str) -> int:
    body = f'{{"metadata":{{"name":"{name}"}}}}'
    connection.request("POST", CONFIG_MAPS, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def figures(connection: http.client.HTTPSConnection) -> dict[str, float]:
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return {
        line.split()[0]: float(line.split()[1])
        for line in lines
        if line.startswith("sliceplane_") and "{" not in line
    }


def test_idle_strangers_give_way_to_whoever_comes(plane: PlaneProcess) -> None:
    with contextlib.ExitStack() as held, contextlib.closing(admin(plane)) as known:
        assert write(known, "before") == 201
        context = anonymous_context()
        for number in range(2 * LIMIT):
            sock = held.enter_context(socket.create_connection(address(plane), timeout=60))
            if number % 4 == 0:
                held.enter_context(context.wrap_socket(sock))
        with contextlib.closing(admin(plane)) as connection:
            assert write(connection, "after") == 201
        assert write(known, "known") == 201
        found = figures(known)
        assert found["sliceplane_dropped_unauthenticated_connections_total"] >= LIMIT // 4
        assert found["sliceplane_refused_connections_total"] == 0
        assert found["sliceplane_unauthenticated_connections"] < LIMIT


def test_when_all_are_known_new_ones_are_refused_and_storage_goes_on(
    plane: PlaneProcess, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as held, contextlib.closing(admin(plane)) as known:
        context = admin_context(plane)
        assert write(known, "before") == 201
        refused = 0
        for _ in range(LIMIT):
            try:
                sock = held.enter_context(socket.create_connection(address(plane), timeout=60))
                tls = held.enter_context(context.wrap_socket(sock, server_hostname="localhost"))
                tls.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                assert tls.recv(12) == b"HTTP/1.1 200"
            except (ConnectionError, ssl.SSLError):
                refused += 1
        assert LIMIT // 4 <= refused < LIMIT // 2
        for number in range(20):
            assert write(known, f"more-{number}") == 201
        assert figures(known)["sliceplane_refused_connections_total"] == refused
        log_file = tmp_path / "plane.log"
        lines = until(
            log_file.read_text, lambda text: "connections are refused" in text
        ).splitlines(keepends=True)
        (told,) = [line for line in lines if "connections are refused" in line]
        assert "kept for storage and logs" in told
    assert plane.process.poll() is None

    def written() -> int:
        with contextlib.closing(admin(plane)) as connection:
            return write(connection, "again")

    assert until(written, ignoring=(OSError,)) == 201


def test_a_line_is_written_without_a_descriptor_for_the_library(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """structlog is loaded by the first line, which may be the one that says that there is no
    descriptor left.
    """

    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(log_output, "_root", fail)
    get_logger("apiserver").error("connections are refused", why="a reason", limit=200)
    assert log_output.drain(60)
    told = capfd.readouterr().err
    _, _, line = told.partition(" ")  # its time comes first
    assert line.startswith(
        'level=error component=apiserver event="connections are refused" why="a reason" limit=200'
    )
