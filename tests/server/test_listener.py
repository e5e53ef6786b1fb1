"""Connections over time: heads that never come, certificates that expire while the server runs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator

import pytest
from tests.server.serving import Server, run_plane, serving
from tests.waiting import until

from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.io.tls.newcomers import ConnectionTiming
from sliceplane.server.io.config import Periods, PlaneConfig
from sliceplane.server.io.connections import connection as connection_module
from sliceplane.server.io.connections.listener import bind
from sliceplane.server.io.plane import ServerPlane
from sliceplane.watch.io.service import PlaneService, ServiceContext


@pytest.fixture(scope="module")
def impatient() -> Iterator[Server]:
    """Waits for nothing for long, but for a client that is held up a moment."""
    with serving(
        Periods(connections=ConnectionTiming(request_head_s=1.0, keep_alive_s=1.0, unread_s=1.0))
    ) as server:
        yield server


def test_a_connection_that_never_asks_is_closed(impatient: Server) -> None:
    server = impatient
    for sent in (b"", b"GET /version HTTP/1.1\r\nHost: "):
        # On a busy machine it may be closed before the handshake has ended; a time-out is an error.
        with (
            contextlib.suppress(ConnectionError, ssl.SSLError),
            socket.create_connection((server.host, server.port), timeout=120) as raw,
            server.context().wrap_socket(raw, server_hostname="localhost") as tls,
        ):
            tls.sendall(sent)
            assert tls.recv(1000) == b""


def test_certificates_are_renewed_while_the_server_runs(kept: PlaneConfig) -> None:
    ahead = 0.0
    plane, end = run_plane(
        kept, clock=lambda: time.time() + ahead, periods=Periods(certificates_s=0.05)
    )
    server = Server(plane)

    def serial() -> bytes:
        context = ssl._create_unverified_context()
        with (
            socket.create_connection((server.host, server.port)) as raw,
            context.wrap_socket(raw) as tls,
        ):
            return tls.getpeercert(binary_form=True) or b""

    try:
        first, kubeconfig = serial(), plane.kubeconfig.read_bytes()
        assert serial() == first
        ahead = 340 * 86_400.0
        until(serial, lambda now: now != first)
        until(plane.kubeconfig.read_bytes, lambda now: now != kubeconfig)
    finally:
        end()


def test_a_new_authority_is_trusted_at_once(kept: PlaneConfig) -> None:
    """The kubeconfig that is written then must work at the server that wrote it, without a
    restart.
    """
    plane, end = run_plane(kept, periods=Periods(certificates_s=0.05))
    server = Server(plane)
    try:
        assert server.get("/version").code == 200
        kubeconfig = plane.kubeconfig.read_bytes()
        plane.pki.ca_file.unlink()
        until(plane.kubeconfig.read_bytes, lambda now: now != kubeconfig)
        assert Server(plane).get("/api/v1/namespaces").code == 200
    finally:
        end()


def test_ipv6() -> None:
    try:
        bind("::1", 0).close()
    except StartError:
        pytest.skip("no IPv6 here")
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0, bind_address="::1"))
    try:
        assert plane.url.startswith("https://[::1]:")
        with socket.create_connection(("::1", int(plane.url.rpartition(":")[2]))) as raw:
            context = ssl.create_default_context(cafile=str(plane.pki.ca_file))
            with context.wrap_socket(raw, server_hostname="::1") as tls:
                tls.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                assert tls.recv(1000).startswith(b"HTTP/1.1 200")
    finally:
        end()


class Recorder:
    """A service that writes down what happens to it."""

    def __init__(
        self, name: str, log: list[str], url: Callable[[], str], *, fail: bool = False
    ) -> None:
        self.name = name
        self._url = url
        self._log = log
        self._fail = fail

    async def start(self, context: ServiceContext) -> None:
        # The server answers by now, and says that more is to come.
        host, _, port = self._url().removeprefix("https://").rpartition(":")
        tls = ssl.create_default_context(cadata=context.authority)
        reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 500"), answer
        assert b"[-]informer-sync failed" in answer
        writer.close()
        await writer.wait_closed()
        self._log.append(f"start {self.name}")
        if self._fail:
            raise RuntimeError(self.name)

    async def drain(self) -> None:
        self._log.append(f"drain {self.name}")

    async def stop(self) -> None:
        self._log.append(f"stop {self.name}")


async def test_services_start_in_order_and_stop_in_reverse() -> None:
    log: list[str] = []
    services: tuple[PlaneService, ...] = (
        Recorder("a", log, lambda: plane.url),
        Recorder("b", log, lambda: plane.url),
    )
    plane = ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), services)
    await plane.start()
    await plane.drain()
    await plane.stop()
    await plane.stop()
    assert log == ["start a", "start b", "drain b", "drain a", "stop b", "stop a"]


async def test_a_service_that_fails_to_start_stops_everything() -> None:
    log: list[str] = []
    services: tuple[PlaneService, ...] = (
        Recorder("a", log, lambda: plane.url),
        Recorder("b", log, lambda: plane.url, fail=True),
        Recorder("c", log, lambda: plane.url),
    )
    plane = ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), services)
    with pytest.raises(RuntimeError, match="b"):
        await plane.start()
    assert log == ["start a", "start b", "drain b", "drain a", "stop b", "stop a"]
    assert not plane.data_dir.path.exists()
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", int(plane.url.rpartition(":")[2]))


def _talk(server: Server, *parts: bytes, quiet_s: float = 5.0) -> bytes:
    """What the server says until it closes the connection; sending stops when it does not take
    more.
    """
    context = server.context()
    said = b""
    with (
        socket.create_connection((server.host, server.port), timeout=quiet_s) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as tls,
    ):
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            for part in parts:
                tls.sendall(part)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while received := tls.recv(65536):
                said += received
    return said


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET /livez HTTP/1.1\r\nX: ", b"y" * 100_000),
        (b"GET /", b"y" * 100_000),
        (b"GET /livez HTTP/1.1\r\n", b"X-A: b\r\n" * 10_000),
    ],
)
def test_a_head_without_end_is_refused(server: Server, start: bytes, more: bytes) -> None:
    assert _talk(server, start, *[more] * 20).startswith(b"HTTP/1.1 431 ")


def test_trailers_without_end_are_cut(server: Server) -> None:
    head = b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert _talk(server, head, b"2\r\n{}\r\n0\r\nX-A: ", *[b"y" * 100_000] * 20) == b""


def test_a_later_head_must_come_in_time_too(impatient: Server) -> None:
    said = _talk(
        impatient, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /livez HTTP/1.1\r\nHost: "
    )
    assert said.count(b"HTTP/1.1 200 OK") == 1


def test_empty_lines_do_not_keep_a_connection_alive(impatient: Server) -> None:
    assert b" 200 OK" in _talk(impatient, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n\r\n")


def test_a_body_that_was_answered_unread_must_end(
    server: Server, impatient: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
    assert b" 405 " in _talk(impatient, head, b"some")
    monkeypatch.setattr(connection_module, "UNREAD_BYTES_MAX", 100_000)
    head = b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    _talk(server, head, *[b"2710\r\n" + b"y" * 10_000 + b"\r\n"] * 100)


def test_a_body_that_was_answered_unread_does_not_cost_the_connection(server: Server) -> None:
    head = b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n"
    last = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    said = _talk(server, head, b"x" * 300_000, last)
    assert (said.count(b" 405 "), said.count(b" 200 OK")) == (1, 1)
