"""Fifty watchers that open a stream and read nothing: others are answered as before, and what waits
is bounded.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator

import pytest
from tests.server.serving import Server, run_plane

from sliceplane.server.io.config import Periods
from sliceplane.server.io.plane import PlaneConfig

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
WATCHERS, WRITES, OBJECT_BYTES = 50, 60, 100_000


@pytest.fixture
def server() -> Iterator[Server]:
    """It cuts no watch off: what waited for a slow one would wait for ever."""
    plane, end = run_plane(
        PlaneConfig(data_dir="memory:", secure_port=0), periods=Periods(stalled_watch_s=3600.0)
    )
    yield Server(plane)
    end()


@contextlib.contextmanager
def watching(server: Server) -> Iterator[ssl.SSLSocket]:
    """A watch whose client has a small window and reads no more than the head."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.settimeout(60)
    raw.connect((server.host, server.port))
    with server.context().wrap_socket(raw, server_hostname="localhost") as tls:
        tls.sendall(f"GET {CONFIG_MAPS}?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert tls.recv(15).startswith(b"HTTP/1.1 200")
        yield tls


def others_are_answered(server: Server) -> None:
    """Writes of small objects, and reads."""
    connection = server.connect()
    with contextlib.closing(connection):
        for number in range(15):
            body = {"metadata": {"generateName": "small-"}, "data": {"n": str(number)}}
            assert server.request("POST", CONFIG_MAPS, body, connection=connection).code == 201
            assert (
                server.request("GET", "/api/v1/namespaces/default", connection=connection).code
                == 200
            )


def test_others_do_not_notice(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(WATCHERS):
            stack.enter_context(watching(server))
        assert len(server.plane.hub) == WATCHERS
        others_are_answered(server)
        for number in range(WRITES):
            body = {"metadata": {"name": f"large-{number}"}, "data": {"a": "x" * OBJECT_BYTES}}
            assert server.request("POST", CONFIG_MAPS, body).code == 201
        # 6 MB for each of them, and none takes any: those queues that are full are closed.
        others_are_answered(server)


def test_what_waits_for_them_is_bounded(server: Server) -> None:
    with watching(server):
        (slow,) = (one for one, _ in server.plane.hub._watchers.values())
        for number in range(200):
            body = {"metadata": {"name": f"large-{number}"}, "data": {"a": "x" * OBJECT_BYTES}}
            assert server.request("POST", CONFIG_MAPS, body).code == 201
            if slow.closed:
                break
            assert slow.size <= slow.bound + 2 * OBJECT_BYTES
        assert slow.closed, f"200 objects of {OBJECT_BYTES} bytes fit into {slow.bound}"
        assert slow.error is not None
        assert slow.error.code == 410
