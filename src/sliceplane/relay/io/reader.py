"""One process of ``--readers``: ``python -m sliceplane.relay.io.reader``.

It is a relay of the server that started it (``readers``). It inherits a listening socket of the
server's port, verifies client certificates as the server would, and asks the server about tokens
and rights. What it does not serve from memory goes over the Unix socket of the server, with the
client's token, or with the certificate that it verified here. So there is no request that cannot be
passed on, and no page that is its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pickle
import resource
import signal
import socket
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.errors import StatusError
from sliceplane.api.users import bearer_token
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.logs.output import configure
from sliceplane.kit.io.process.free_memory import bound_heap
from sliceplane.kit.io.process.lifeline import end_with_parent
from sliceplane.kit.io.tls.acceptor import RESERVED_DESCRIPTORS
from sliceplane.relay.io.children import Children
from sliceplane.relay.io.parent import Parent
from sliceplane.relay.io.passing import Passage, passed
from sliceplane.relay.io.readers import (
    DRAIN,
    METRICS_PAGE,
    METRICS_PERIOD_S,
    OWN_PEER,
    PROGRESS_PAGE,
    RESOURCES,
    STOP,
    ReaderConfig,
)
from sliceplane.relay.io.relay import Relay, RelayConfig
from sliceplane.relay.io.upstream import ParentClient
from sliceplane.server.io.connections.local import PEER_HEADER, Peer
from sliceplane.server.io.requests.limits import OverCapacity
from sliceplane.server.io.requests.request import Request
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.connection import Connection, Fixed

_log = get_logger("reader")


class OwnServer(Parent):
    """The server tells how far its events are, so a consistent read waits for no bookmark."""

    async def _ask_version(self) -> int:
        query = self.mirror.resource.storage_key, self.mirror.store.revision
        page = await self._client.post(PROGRESS_PAGE, encode(query))
        seen, revision = msgspec.json.decode(page, type=tuple[int, int])
        self.mirror.on_progress(seen, revision)
        return revision


class LocalPassage(Passage):
    """Passes requests on to the server, with the certificates of its clients."""

    takes_all = True

    def __init__(self, children: Children, *parents: Any, **bounds: Any) -> None:
        """*parents* and *bounds*: as of ``Passage``."""
        super().__init__(*parents, **bounds)
        self._children = children

    def can_pass(self, request: Request) -> bool:
        return True

    async def _account(self, request: Request) -> str:
        """Returns the user, as the server counts."""
        certificate = request.certificate
        if certificate is not None and certificate.counts(self._clock()):
            return certificate.user.name
        token = bearer_token(request.headers.get(b"authorization", b""))
        user = await self._children.user_of(token) if token else None
        if user is None:  # the server refuses it, or knows what an anonymous user may
            return request.client_address
        if not request.connection.authenticated(user):
            raise OverCapacity
        return user.name

    def _trust(self, request: Request, status: int) -> None:
        """The account was counted before."""

    def _fields(self, request: Request, scope: Any, host: bytes) -> Iterable[tuple[bytes, bytes]]:
        yield b"Host", request.headers.get(b"host", host)
        yield from (field for field in passed(scope["headers"]) if field[0] != PEER_HEADER)
        yield PEER_HEADER, Peer(request.certificate, scope.get("client")).header()


class ReaderRelay(Relay):
    """A relay of the server that started this process."""

    parent_type = OwnServer

    def __init__(self, config: ReaderConfig) -> None:
        plane = config.plane
        headers = ((PEER_HEADER.decode(), OWN_PEER.header().decode()),)
        super().__init__(
            Connection(
                server="http://server",
                ssl_context=None,
                credentials=Fixed(),
                socket_path=str(config.socket_path),
                headers=headers,
            ),
            RelayConfig(
                bind_address=plane.bind_address,
                port=plane.secure_port,
                cert_file=config.cert_file,
                key_file=config.key_file,
                client_ca_file=config.authorities_file,
                front_proxies=plane.front_proxies,
                resources=RESOURCES,
                history_keep_s=plane.history_keep_s,
                limits=plane.limits,
                gates=plane.gates,
                audit=plane.audit,
                anonymous=plane.anonymous,
            ),
            sock=socket.socket(fileno=config.descriptor),
        )
        # Each request takes a descriptor of the server, which needs some of its own.
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = descriptors - min(RESERVED_DESCRIPTORS, descriptors // 4)
        self._passed_max = min(plane.limits.connections_max, room // plane.readers)
        self._page = f"{METRICS_PAGE}reader-{config.number}"

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:  # the server ends its streams, which is no fault
            task.cancel()
        await super().__aexit__(*error)

    def _make_passage(self, children: Children) -> Passage:
        return LocalPassage(
            children,
            self._connections,
            self.siblings,
            self.name,
            passed_max=self._passed_max,
            bodies_bytes_max=self.config.limits.bodies_bytes_max,
        )

    async def _begin(self, client: ParentClient) -> None:
        """Clients wait in the queue of the socket until memory is filled."""
        self.front.knows_protobuf = True
        await self.wait_ready()
        self._spawn(self._send_metrics(client), "metrics")

    async def _send_metrics(self, client: ParentClient) -> None:
        while True:
            try:
                await client.post(self._page, pickle.dumps(self.metrics.families()))
            except (StatusError, Unreachable) as error:
                _log.warning("the server did not take metrics", problem=str(error))
            await asyncio.sleep(METRICS_PERIOD_S)


async def _serve(config: ReaderConfig) -> None:
    loop = asyncio.get_running_loop()
    async with ReaderRelay(config) as reader:
        gc.freeze()
        working = asyncio.create_task(reader.run())
        loop.add_signal_handler(STOP, working.cancel)
        loop.add_signal_handler(DRAIN, reader.listener.drain)
        with contextlib.suppress(asyncio.CancelledError):
            await working


def main() -> None:
    """Reads the configuration from stdin."""
    end_with_parent()
    # ^C at the terminal and the like are for the server, which drains and then ends this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, DRAIN):
        signal.signal(number, signal.SIG_IGN)
    bound_heap()
    config: ReaderConfig = pickle.loads(sys.stdin.buffer.read())  # of the server
    level, form, colour = config.logs
    configure(level, form, colour=colour)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config))


if __name__ == "__main__":
    main()
