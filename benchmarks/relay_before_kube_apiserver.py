"""A relay in front of kube-apiserver: what one event costs the API server with all watchers, and
with all of them at the relay.

As ``benchmarks.relay``, but the server is an unmodified kube-apiserver over an etcd of its own, and
clients show a bearer token, which the relay has reviewed there. Without Go to build it with, and in
the smallest size, our own server stands in its place.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import Result, main
from benchmarks.node_proxy import KUBERNETES
from benchmarks.relay import FEW_WATCHERS, SMALL_WATCHERS, WARM_UP_ROUNDS, RelayProcess, Writes
from benchmarks.tools.fleet import Fleet
from benchmarks.tools.objects import NAMESPACE, PER_SLICE, namespace_document, slice_document
from benchmarks.tools.peers import build
from benchmarks.tools.process import PlaneProcess, Process, scratch
from benchmarks.two_servers import START_S_MAX, etcd
from sliceplane.api.codec import encode
from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import EndpointSlices, Namespaces
from sliceplane.server.io.keys import pki
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

WATCHERS: Final = 2_000
TURNS: Final = 3
ROUNDS: Final = 10


class Planes(NamedTuple):
    """A server and a relay of it, with the kubeconfig of each; they may not answer yet."""

    name: str
    server: Process
    direct: Path
    relay: Process
    behind: Path


@contextmanager
def ours(folder: Path) -> Iterator[Planes]:
    with PlaneProcess(folder, command="apiserver") as server, RelayProcess(server, folder) as relay:
        yield Planes("our server", server, server.kubeconfig, relay, relay.kubeconfig)


@contextmanager
def theirs(folder: Path, program: Path) -> Iterator[Planes]:
    from tests.peers.kubernetes import api_server_flags
    from tests.ports import free_port
    from tests.waiting import until

    with etcd(folder / "etcd") as url, ExitStack() as stack:
        port = free_port()
        flags = api_server_flags(folder, url, "127.0.0.1", port)
        server = stack.enter_context(Process(str(program), *flags, log=folder / "server.log"))
        direct, authority = folder / "admin.kubeconfig", folder / "certs" / "apiserver.crt"
        until(authority.exists, within_s=START_S_MAX)  # it makes its own
        made, _ = pki.ensure(folder / "pki", pki.server_names(("127.0.0.1",)), time.time())
        command = (
            *(sys.executable, "-m", "sliceplane", "relay", "--log-level", "warning"),
            *("--upstream", str(direct), "--listen", "127.0.0.1:0"),
            *("--tls-cert-file", str(made.server_file)),
            *("--tls-private-key-file", str(made.server_key_file)),
        )
        relay = stack.enter_context(Process(*command, log=folder / "relay.log"))
        address = relay.line().split()[1]
        config = direct.read_text().replace(f"https://127.0.0.1:{port}", f"https://{address}")
        behind = folder / "relay.kubeconfig"
        behind.write_text(config.replace(str(authority), str(made.ca_file)))
        yield Planes("kube-apiserver", server, direct, relay, behind)


async def make_slice(client: HttpClient) -> int:
    """Makes the slice that will change, once the server is there. Returns its size in bytes."""
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            await client.create(Namespaces, "", encode(namespace_document()))
            break
        except (StatusError, Unreachable):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(1.0)
    body = encode(slice_document("web-1", "web", range(PER_SLICE)))
    return len(await client.create(EndpointSlices, NAMESPACE, body))


async def measure(planes: Planes, folder: Path, sizes: tuple[int, int, int]) -> list[Result]:
    """*sizes*: watchers, turns, and events of a turn."""
    watchers, turns, count = sizes
    server, relay = planes.server, planes.relay
    places = {
        "direct": (planes.direct, watchers),
        "few": (planes.direct, FEW_WATCHERS),
        "behind": (planes.behind, watchers),
    }
    #: milliseconds of the server's and of the relay's processor for each event
    spent: dict[str, list[tuple[float, float]]] = {where: [] for where in places}
    async with HttpClient(load(planes.direct)) as client:
        size = await make_slice(client)
        writes = Writes(client)
        for _ in range(turns):
            for where, (kubeconfig, number) in places.items():
                # A fleet that is closed costs the other's turn nothing.
                with ExitStack() as turn:
                    since = (await client.list(EndpointSlices)).resource_version
                    fleet = turn.enter_context(Fleet(kubeconfig, number, since, folder))
                    await writes.seconds_to(fleet, WARM_UP_ROUNDS)
                    before = server.cpu_s(), relay.cpu_s()
                    await writes.seconds_to(fleet, count)
                    after = server.cpu_s(), relay.cpu_s()
                    of_server, of_relay = (
                        (end - begin) / count * 1e3
                        for begin, end in zip(before, after, strict=True)
                    )
                    spent[where].append((of_server, of_relay))
    what = f"{watchers:,} TLS watchers, {size / 1000:.1f} kB"
    server_ms = {
        where: statistics.median(cost for cost, _ in turns_) for where, turns_ in spent.items()
    }
    of_relay = statistics.median(cost for _, cost in spent["behind"])
    few = f"{FEW_WATCHERS} watchers at {planes.name}"
    rows = (
        (f"{planes.name} CPU an event, watchers at a relay", server_ms["behind"], few, "few"),
        ("relay CPU an event", of_relay, f"all of them at {planes.name}", "direct"),
    )
    return [
        Result(name=name, size=what, value=value, unit="ms", peer=peer, peer_value=server_ms[where])
        for name, value, peer, where in rows
    ]


def run(small: bool = False) -> list[Result]:
    program = None if small else build("kube-apiserver", KUBERNETES, "./kube-apiserver")
    sizes = (SMALL_WATCHERS, 1, 3) if small else (WATCHERS, TURNS, ROUNDS)
    with scratch() as name, ExitStack() as stack:
        folder = Path(name)
        planes = stack.enter_context(ours(folder) if program is None else theirs(folder, program))
        return asyncio.run(measure(planes, folder, sizes))


if __name__ == "__main__":
    main(run)
