"""Clients that ask for much and read nothing: bounded in bytes and time, and everyone else is
served.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator

import pytest
from tests.server.serving import Server, run_plane
from tests.waiting import until

from sliceplane.kit.io.tls.newcomers import ConnectionTiming
from sliceplane.server.io.config import Periods, PlaneConfig
from sliceplane.server.io.requests.limits import Limits

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
OBJECTS, OBJECT_BYTES = 8, 900_000


@contextlib.contextmanager
def large(periods: Periods) -> Iterator[Server]:
    """A server whose list of ConfigMaps is 7 MB long, and which keeps 16 MB for readers."""
    limits = Limits(unsent_bytes_max=16_000_000)
    plane, end = run_plane(
        PlaneConfig(data_dir="memory:", secure_port=0, limits=limits), periods=periods
    )
    found = Server(plane)
    for number in range(OBJECTS):
        body = {"metadata": {"name": f"large-{number}"}, "data": {"a": "x" * OBJECT_BYTES}}
        assert found.request("POST", CONFIG_MAPS, body).code == 201
    try:
        yield found
    finally:
        end()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with large(Periods()) as server:
        yield server


@contextlib.contextmanager
def asking(server: Server) -> Iterator[ssl.SSLSocket]:
    """A connection that asks for the list and reads nothing."""
    with (
        socket.create_connection((server.host, server.port), timeout=60) as raw,
        server.context().wrap_socket(raw, server_hostname="localhost") as tls,
    ):
        tls.sendall(f"GET {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        yield tls


def unsent(server: Server) -> float:
    lines = server.get("/metrics").body.decode().splitlines()
    return next(
        float(line.split()[1])
        for line in lines
        if line.startswith('sliceplane_shared_held{what="unsent-bytes"}')
    )


def test_responses_that_nobody_takes_are_bounded_together(server: Server) -> None:
    with asking(server) as first, asking(server):
        until(lambda: unsent(server) > 2 * OBJECTS * OBJECT_BYTES)
        refused = server.get(CONFIG_MAPS)
        assert (refused.code, refused.headers["Retry-After"]) == (429, "1")
        # What is small goes through.
        assert server.get("/api/v1/namespaces").code == 200
        received = 0
        while received < OBJECTS * OBJECT_BYTES:
            received += len(first.recv(1 << 20))
        until(lambda: unsent(server) < 2 * OBJECTS * OBJECT_BYTES)
        assert server.get(CONFIG_MAPS).code == 200
    until(lambda: unsent(server) == 0)


def test_a_client_that_takes_nothing_is_cut_off() -> None:
    with (
        large(Periods(connections=ConnectionTiming(stalled_s=0.2))) as server,
        asking(server) as client,
    ):
        received = len(client.recv(1))
        until(lambda: server.plane.listener.connections, lambda count: count == 0)
        assert unsent(server) == 0
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := client.recv(1 << 20):
                received += len(data)
            assert received < OBJECTS * OBJECT_BYTES
