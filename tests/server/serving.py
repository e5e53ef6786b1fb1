"""A real server on a free port, in a thread of its own, for tests that talk to it over TLS."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sliceplane.lab.testing.thread import PlaneThread
from sliceplane.server.io.config import Periods, PlaneConfig
from sliceplane.server.io.connections.local import Readers
from sliceplane.server.io.plane import ServerPlane
from sliceplane.watch.io.service import PlaneService


@dataclass
class Reply:
    code: int
    headers: Mapping[str, str]
    body: bytes
    #: every value of each header
    all_headers: list[tuple[str, str]] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.all_headers if key.lower() == name.lower()]


class Server:
    """A running plane and ways to talk to it.  Every ``request`` has a connection of its own unless
    one is given.
    """

    def __init__(self, plane: ServerPlane) -> None:
        self.plane = plane
        self.host, _, port = plane.url.removeprefix("https://").rpartition(":")
        self.port = int(port)
        #: with our certificate and without, for all connections
        self._contexts: dict[bool, ssl.SSLContext] = {}

    def context(self, *, certificate: bool = True) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.plane.pki.ca_file))
        if certificate:
            context.load_cert_chain(self.plane.pki.admin_file, self.plane.pki.admin_key_file)
        return context

    def connect(self, *, certificate: bool = True) -> http.client.HTTPSConnection:
        if certificate not in self._contexts:
            self._contexts[certificate] = self.context(certificate=certificate)
        context = self._contexts[certificate]
        return http.client.HTTPSConnection(self.host, self.port, context=context, timeout=60)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        certificate: bool = True,
        connection: http.client.HTTPSConnection | None = None,
        **headers: str,
    ) -> Reply:
        """*body*: bytes as they are, anything else as JSON; header names with ``_`` for ``-``."""
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        opened = connection or self.connect(certificate=certificate)
        try:
            opened.request(method, path, raw, sent)
            answer = opened.getresponse()
            content = answer.read()
            return Reply(answer.status, answer.headers, content, answer.getheaders())
        finally:
            if connection is None:
                opened.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.request("GET", path, **headers)


def with_readers(plane: ServerPlane) -> Readers:
    """The processes of ``--readers``."""
    from sliceplane.relay.io.readers import ReaderProcesses

    return ReaderProcesses(plane, ("warning", "text", False))


def run_plane(
    config: PlaneConfig,
    clock: Callable[[], float] = time.time,
    services: tuple[PlaneService, ...] = (),
    periods: Periods | None = None,
) -> tuple[ServerPlane, Callable[[], None]]:
    """A started plane in a thread with a loop of its own, and how to stop it."""
    plane = ServerPlane(config, services, clock=clock, periods=periods, readers=with_readers)
    thread = PlaneThread(plane)
    thread.start()
    return plane, thread.stop


def complaints(err: str) -> list[str]:
    """Lines of a log without what a server says of a machine that is busy: nothing is wrong with
    it.
    """
    return [line for line in err.splitlines() if 'event="the event loop was held"' not in line]


@contextmanager
def serving(periods: Periods | None = None, **config: Any) -> Iterator[Server]:
    """A server of its own that keeps nothing, and waits or is configured otherwise than
    production's.
    """
    plane, end = run_plane(
        PlaneConfig(data_dir="memory:", secure_port=0, **config), periods=periods
    )
    try:
        yield Server(plane)
    finally:
        end()


class Stream:
    """An open watch, read event by event."""

    def __init__(self, server: Server, path: str, **headers: str) -> None:
        self._connection = server.connect()
        self._connection.request(
            "GET", path, headers={key.replace("_", "-"): value for key, value in headers.items()}
        )
        self.response: http.client.HTTPResponse = self._connection.getresponse()

    def next(self) -> dict[str, Any]:
        line = self.response.readline()
        assert line.endswith(b"\n"), f"the stream ended: {line!r}"
        event: dict[str, Any] = json.loads(line)
        return event

    def ended(self) -> bool:
        return self.response.readline() == b""

    def close(self) -> None:
        self.response.close()
        self._connection.close()


@contextmanager
def watching(server: Server, path: str, **headers: str) -> Iterator[Stream]:
    stream = Stream(server, path, **headers)
    try:
        yield stream
    finally:
        stream.close()


CM = "/api/v1/namespaces/default/configmaps"
ES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def endpoint_slice(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"]}],
        "ports": [],
    }


def assert_status(reply: Reply, code: int, reason: str, message: str) -> None:
    body = reply.json
    assert (reply.code, body.get("reason", ""), body["message"]) == (code, reason, message)
    assert (body["kind"], body["status"], body["code"]) == ("Status", "Failure", code)
