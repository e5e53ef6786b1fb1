"""Heads of requests: how large they may be, what counts as a part of them, and what remains of
them.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from tests.growth.measure import Run, assert_linear
from tests.server.serving import Server, serving
from tests.waiting import until
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from sliceplane.kit.io.tls.unauthenticated import ConnectionTiming
from sliceplane.server.io.config import Periods
from sliceplane.server.io.connections import connection as connection_module
from sliceplane.server.io.connections.connection import (
    AUTHENTICATED_HEAD,
    UNAUTHENTICATED_HEAD,
    HttpConnection,
)
from sliceplane.server.io.requests.limits import Limits
from sliceplane.server.io.requests.request import _joined

REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REFUSAL = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Connection: close\r\n\r\n431 Request Header Fields Too Large"
)


def dial(server: Server, *, certificate: bool = False) -> ssl.SSLSocket:
    raw = socket.create_connection((server.host, server.port), timeout=60)
    return server.context(certificate=certificate).wrap_socket(raw, server_hostname="localhost")


def read_all(tls: ssl.SSLSocket) -> bytes:
    said = b""
    while data := tls.recv(65536):
        said += data
    return said


def talk(server: Server, sent: bytes, *, certificate: bool = False) -> bytes:
    with dial(server, certificate=certificate) as tls:
        tls.sendall(sent)
        return read_all(tls)


def head(*fields: bytes, last: bool = True) -> bytes:
    close = (b"Connection: close",) if last else ()
    return b"\r\n".join((b"GET /livez HTTP/1.1", b"Host: x", *close, *fields, b"", b""))


def token(server: Server) -> bytes:
    return server.plane.data_dir.tokens.read_bytes().partition(b",")[0]


def test_so_many_headers_are_taken_from_strangers_and_no_more(server: Server) -> None:
    fields = [b"X-%d: y" % number for number in range(UNAUTHENTICATED_HEAD.fields - 2)]
    assert talk(server, head(*fields)).startswith(b"HTTP/1.1 200 ")
    assert talk(server, head(*fields, b"X-One: more")) == REFUSAL


@pytest.mark.parametrize("where", ["url", "one header", "many headers"])
def test_so_large_heads_are_taken_from_strangers_and_no_larger(server: Server, where: str) -> None:
    def made(size: int) -> bytes:
        match where:
            case "url":
                return head().replace(b"/livez", b"/livez?" + b"y" * size)
            case "one header":
                return head(b"X-A: " + b"y" * size)
        return head(*(b"X-A: " + b"y" * (size // 64) for _ in range(64)))

    assert talk(server, made(UNAUTHENTICATED_HEAD.size - 1024)).startswith(b"HTTP/1.1 200 ")
    assert talk(server, made(UNAUTHENTICATED_HEAD.size + 1024)) == REFUSAL


def test_who_has_authenticated_may_send_larger_heads(server: Server) -> None:
    """By certificate at once, by token from the second request on: selectors and Impersonate-Extra
    may be long.
    """
    large = head(
        *(b"X-%d: " % number + b"y" * 1000 for number in range(AUTHENTICATED_HEAD.fields - 100))
    )
    assert talk(server, large, certificate=True).startswith(b"HTTP/1.1 200 ")
    known = b"Authorization: Bearer " + token(server)
    with dial(server) as tls:
        tls.sendall(head(known, last=False))
        assert tls.recv(65536).startswith(b"HTTP/1.1 200 ")
        tls.sendall(large)
        assert read_all(tls).startswith(b"HTTP/1.1 200 ")
    assert talk(server, large) == REFUSAL
    assert talk(server, head(*[b"a:b"] * AUTHENTICATED_HEAD.fields), certificate=True) == REFUSAL


def test_a_refused_head_is_counted(server: Server) -> None:
    before = server.plane.listener.refused_heads.value
    talk(server, head(*[b"a:b"] * 200))
    assert server.plane.listener.refused_heads.value == before + 1
    lines = server.get("/metrics").body.decode().splitlines()
    assert f"sliceplane_refused_heads_total {before + 1}.0" in lines


def test_heads_that_wait_behind_an_unfinished_answer_have_one_bound_together(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream reads on behind itself, and pipelined heads would pile up."""
    monkeypatch.setattr(connection_module, "AUTHENTICATED_HEAD", UNAUTHENTICATED_HEAD)
    monkeypatch.setattr(connection_module, "PIPELINED_REQUESTS_MAX", 1_000_000)
    with dial(server, certificate=True) as tls:
        tls.sendall(b"GET /api/v1/namespaces?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert tls.recv(15) == b"HTTP/1.1 200 OK"
        with pytest.raises((ConnectionError, ssl.SSLError, TimeoutError)):  # noqa: PT012  # whichever is first
            for _ in range(64):
                tls.sendall(head(b"X-A: " + b"y" * 10_000, last=False))
            tls.settimeout(60)
            while tls.recv(65536):
                pass
            raise ConnectionError


def test_equal_headers_are_joined_in_linear_time() -> None:
    """Each value was added to a copy of all before it: a megabyte of them held the loop for
    seconds.
    """

    def make(count: int) -> Run:
        return partial(_joined, [(b"a", b"b" * 10)] * count)

    assert make(1000)() == {b"a": b", ".join([b"b" * 10] * 1000)}
    assert_linear(make, 160_000)
    assert _joined([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]) == {b"a": b"1, 3", b"b": b"2"}


@pytest.mark.parametrize("trailer", [b"Impersonate-User: ghost", b"Authorization: Bearer nonsense"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_trailer_is_no_header(server: Server, trailer: bytes, at_once: bool) -> None:
    """A proxy that strips headers strips no trailers (RFC 9110 6.5.1)."""
    certificate = not trailer.startswith(b"Auth")
    start = (
        f"POST {REVIEWS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: "
        "close\r\n"
        "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    ).encode()
    with dial(server, certificate=certificate) as tls:
        if at_once:
            tls.sendall(start + trailer + b"\r\n\r\n")
        else:
            tls.sendall(start + trailer[:5])
            assert talk(server, head()), "what was sent before has arrived, too"
            tls.sendall(trailer[5:] + b"\r\n\r\n")
        said = read_all(tls)
    if certificate:
        assert said.startswith(b"HTTP/1.1 201 ")
        assert b"sliceplane-admin" in said
    else:
        assert said.startswith(b"HTTP/1.1 403 "), "an unknown token would be 401"
    assert b"ghost" not in said


def test_trailers_are_as_few_as_headers(server: Server) -> None:
    start = b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    with dial(server) as tls:
        tls.sendall(start + b"a:b\r\n" * 200 + b"\r\n")
        assert b" 200 " not in read_all(tls)


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


REQUESTS = {
    "nothing": b"",
    "half a head": b"GET /livez HTTP/1.1\r\nX-A: " + b"y" * 50_000,
    "a head that is too large": head(*[b"a:b"] * 200),
    "no HTTP": b"\0\0\0\0\r\n\r\n",
    "an answer": head(last=False),
    "an answer and the end": head(),
    "a refusal": head(last=False).replace(b"/livez", b"/api/v1/secrets"),
    "a bad token": head(b"Authorization: Bearer nonsense", last=False),
    "what is not there": head(b"X-A: b", last=False).replace(b"/livez", b"/apis/none/v1/nothing"),
    "several requests": head(last=False) * 3,
    "an unfinished body": b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nsome",
    "a body of a "
    "refused "
    "request": b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
}


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("certificate", [False, True])
@pytest.mark.parametrize("sent", REQUESTS.values(), ids=REQUESTS)
def test_nothing_of_a_closed_connection_waits_for_the_collector(
    server: Server, sent: bytes, certificate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections of strangers would pile up between two runs of it, each with all that it held."""
    remembered: list[weakref.ref[object]] = []
    made = HttpConnection.connection_made

    def remember(self: HttpConnection, transport: asyncio.Transport) -> None:
        made(self, transport)
        remembered.append(weakref.ref(self))
        remembered.append(weakref.ref(self.flow))

    start = HttpConnection._start_asgi_task

    def remember_request(self: HttpConnection, cycle: RequestResponseCycle, app: Any) -> None:
        start(self, cycle, app)
        remembered.append(weakref.ref(cycle))

    monkeypatch.setattr(HttpConnection, "connection_made", remember)
    monkeypatch.setattr(HttpConnection, "_start_asgi_task", remember_request)
    for _ in range(3):
        with dial(server, certificate=certificate) as tls:
            tls.sendall(sent)
            tls.settimeout(0.1)
            try:
                while tls.recv(65536):
                    pass
            except (TimeoutError, ssl.SSLError, ConnectionError):
                pass

    # A request of somebody else, so that the loop's own last references move on.
    def left() -> list[Any]:
        assert talk(server, head(), certificate=certificate)
        return [held() for held in remembered[:-6] if held() is not None]

    until(left, lambda held: held == [])
    assert len(remembered) >= 6


def test_a_client_that_takes_no_answers_is_cut_off() -> None:
    """Small answers too: a pipeline of them waited for ever, and held its connection."""
    with (
        serving(Periods(connections=ConnectionTiming(stalled_s=0.3))) as server,
        socket.socket() as raw,
    ):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(60)
        raw.connect((server.host, server.port))
        with server.context(certificate=False).wrap_socket(raw, server_hostname="localhost") as tls:
            tls.sendall(head(last=False))
            assert tls.recv(10)
            before = server.plane.listener.connections
            with pytest.raises((ConnectionError, ssl.SSLError, TimeoutError)):  # noqa: PT012  # it sends until it cannot
                while True:
                    tls.sendall(head(last=False).replace(b"/livez", b"/readyz?verbose"))
            until(lambda: server.plane.listener.connections, lambda open_now: open_now < before)


def test_the_head_of_an_answered_request_is_let_go(server: Server) -> None:
    """Thirty thousand idle connections held a megabyte each."""
    large = head(*(b"X-%d: " % number + b"y" * 1000 for number in range(900)), last=False)
    with dial(server, certificate=True) as tls:
        tls.sendall(large)
        assert tls.recv(65536).startswith(b"HTTP/1.1 200 ")
        (connection,) = [
            known for known in gc.get_objects() if type(known) is HttpConnection and known.cycle
        ]
        until(lambda: connection.scope, lambda scope: scope == {})
        assert connection.headers == []
        assert connection.cycle.scope == {}
        tls.sendall(head())
        assert read_all(tls).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("where", ["headers", "selector"])
def test_what_watches_keep_of_their_requests_is_shared_by_account(where: str) -> None:
    """A watch was one of so many, whatever its head had."""
    path = b"/api/v1/namespaces?watch=1"
    fields = (
        [b"X-%d: " % number + b"y" * 1000 for number in range(900)] if where == "headers" else []
    )
    if where == "selector":
        path += b"&labelSelector=" + b",".join(b"!k%d" % number for number in range(6000))
    sent = head(*fields, last=False).replace(b"/livez", path)
    limits = Limits(watch_bytes_max=3_000_000)
    with serving(limits=limits) as server, ExitStack() as stack:
        answers = []
        for _ in range(4):
            tls = stack.enter_context(dial(server, certificate=True))
            tls.sendall(sent)
            answers.append(tls.recv(12))
        assert answers[0] == b"HTTP/1.1 200"
        assert answers[-1] == b"HTTP/1.1 429"
        held = held_watch_bytes(server)
        assert 1_500_000 < held <= 3_000_000
        stack.close()
        until(lambda: held_watch_bytes(server), (0).__eq__)


def held_watch_bytes(server: Server) -> int:
    lines = server.get("/metrics").body.decode().splitlines()
    name = 'sliceplane_shared_held{what="watch-bytes"} '
    return int(float(next(line for line in lines if line.startswith(name)).removeprefix(name)))
