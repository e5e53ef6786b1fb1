"""Relays in threads with loops of their own, in front of a server of ours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.server.serving import Server

from sliceplane.kit.io.start_error import StartError
from sliceplane.relay.io.relay import Relay, RelayConfig
from sliceplane.relay.parts import part_of
from sliceplane.watch.io.connection import Connection
from sliceplane.watch.io.kubeconfig import from_file

SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
IN_DEFAULT = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
#: a token of the administrator, in the file of static tokens
ADMIN = "admin-token"


class RelayServer(Server):
    """A relay as tests talk to it."""

    def __init__(self, relay: Relay, loop: asyncio.AbstractEventLoop, pki: Any) -> None:
        super().__init__(SimpleNamespace(url=relay.url, pki=pki))  # type: ignore[arg-type]
        self.relay = relay
        self.loop = loop

    def mirror(self, resource: Any) -> Any:
        return part_of(self.relay.parents, resource, "").mirror


def kubeconfig(folder: Path, url: str, authority: Path, token: str) -> Path:
    """A kubeconfig with a token."""
    path = folder / f"kubeconfig-{url.rpartition(':')[2]}"
    path.write_text(
        f"""
apiVersion: v1
kind: Config
clusters: [{{name: it, cluster: {{server: "{url}", certificate-authority: "{authority}"}}}}]
users: [{{name: it, user: {{token: "{token}"}}}}]
contexts: [{{name: it, context: {{cluster: it, user: it}}}}]
current-context: it
"""
    )
    return path


@contextmanager
def relaying(
    parent: Server,
    *,
    connection: Connection | None = None,
    siblings: Sequence[Connection] = (),
    ready: bool = True,
    **config: Any,
) -> Iterator[RelayServer]:
    """A relay in front of *parent*, with the certificates of *parent*'s server."""
    pki = parent.plane.pki
    defaults: dict[str, Any] = {
        "port": 0,
        "cert_file": pki.server_file,
        "key_file": pki.server_key_file,
        "client_ca_file": pki.ca_file,
    }
    configured = RelayConfig(bind_address="127.0.0.1", **{**defaults, **config})
    loop = asyncio.new_event_loop()
    started: list[Relay | StartError] = []
    up = threading.Event()
    end = asyncio.Event()

    async def run() -> None:
        way = connection if connection is not None else from_file(parent.plane.kubeconfig)
        try:
            async with Relay(way, configured, siblings) as relay:
                if ready:
                    await relay.wait_ready()
                started.append(relay)
                up.set()
                await end.wait()
        finally:
            up.set()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    up.wait()
    assert started, "the relay did not start"
    relay = started[0]
    assert isinstance(relay, Relay)
    try:
        yield RelayServer(relay, loop, pki)
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(30)
        assert not thread.is_alive(), "the relay does not stop"
        loop.close()


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of static tokens."""
    path = tmp_path_factory.mktemp("tokens") / "tokens.csv"
    path.write_text(f'{ADMIN},admin,1,"system:masters"\nnobody-token,nobody,2\n')
    return path
