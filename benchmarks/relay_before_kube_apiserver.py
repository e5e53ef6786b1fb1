"""A relay in front of kube-apiserver: what one event costs the API server with all watchers, and
with all of them at the relay.

As ``benchmarks.relay``, but the server is an unmodified kube-apiserver over an etcd of its own, and
clients show a bearer token, which the relay has reviewed there. Needs Go to build kube-apiserver.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.harness import Result, main
from benchmarks.node_proxy import KUBERNETES
from benchmarks.relay import FEW_WATCHERS, WARM_UP_ROUNDS, Writes
from benchmarks.tools.fleet import Fleet
from benchmarks.tools.objects import NAMESPACE, PER_SLICE, namespace_document, slice_document
from benchmarks.tools.peers import build
from benchmarks.tools.process import Process, scratch
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


@contextmanager
def kube_apiserver(folder: Path, program: Path) -> Iterator[tuple[Process, Path]]:
    """The process and its kubeconfig.  It may not answer yet."""
    from tests.peers.kubernetes import api_server_flags
    from tests.ports import free_port

    with etcd(folder / "etcd") as url:
        flags = api_server_flags(folder, url, "127.0.0.1", free_port())
        with Process(str(program), *flags, log=folder / "kube-apiserver.log") as process:
            yield process, folder / "admin.kubeconfig"


@contextmanager
def relay_of(parent: Path, folder: Path) -> Iterator[tuple[Process, Path]]:
    """A relay of the server in the kubeconfig *parent*, and its own kubeconfig."""
    made, _ = pki.ensure(folder / "pki", pki.server_names(("127.0.0.1",)), time.time())
    command = (
        *(sys.executable, "-m", "sliceplane", "relay", "--log-level", "warning"),
        *("--upstream", str(parent), "--listen", "127.0.0.1:0"),
        *("--tls-cert-file", str(made.server_file), "--tls-private-key-file", str(made.server_key_file)),
    )
    with Process(*command, log=folder / "relay.log") as process:
        address = process.line().split()[1]
        server = load(parent).server
        config = parent.read_text().replace(server, f"https://{address}")
        kubeconfig = folder / "relay.kubeconfig"
        kubeconfig.write_text(config.replace(str(folder / "certs/apiserver.crt"), str(made.ca_file)))
        yield process, kubeconfig


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


async def measure(program: Path, watchers: int, turns: int, count: int) -> list[Result]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(scratch()))
        server, direct = stack.enter_context(kube_apiserver(folder, program))
        client = await stack.enter_async_context(HttpClient(load(direct)))
        size = await make_slice(client)
        relay, behind = stack.enter_context(relay_of(direct, folder))
        writes = Writes(client)
        places = {
            "direct": (direct, watchers),
            "few": (direct, FEW_WATCHERS),
            "behind": (behind, watchers),
        }
        #: milliseconds of the server's and of the relay's processor for each event
        spent: dict[str, list[tuple[float, float]]] = {where: [] for where in places}
        for _ in range(turns):
            for where, (kubeconfig, number) in places.items():
                with ExitStack() as turn:
                    since = (await client.list(EndpointSlices)).resource_version
                    fleet = turn.enter_context(Fleet(kubeconfig, number, since, folder))
                    await writes.seconds_to(fleet, WARM_UP_ROUNDS)
                    before = server.cpu_s(), relay.cpu_s()
                    await writes.seconds_to(fleet, count)
                    after = server.cpu_s(), relay.cpu_s()
                    cost = [(b - a) / count * 1e3 for a, b in zip(before, after, strict=True)]
                    spent[where].append((cost[0], cost[1]))
    what = f"{watchers:,} TLS watchers, {size / 1000:.1f} kB"
    server_ms = {
        where: statistics.median(cost for cost, _ in turns_) for where, turns_ in spent.items()
    }
    return [
        Result(
            name="kube-apiserver CPU an event, watchers at a relay",
            size=what,
            value=server_ms["behind"],
            unit="ms",
            peer="all of them at kube-apiserver",
            peer_value=server_ms["direct"],
        ),
        Result(
            name="  the same, beside few watchers",
            size=what,
            value=server_ms["behind"],
            unit="ms",
            peer=f"{FEW_WATCHERS} watchers at kube-apiserver",
            peer_value=server_ms["few"],
        ),
        Result(
            name="relay CPU an event",
            size=what,
            value=statistics.median(cost for _, cost in spent["behind"]),
            unit="ms",
            peer="kube-apiserver, all of them at it",
            peer_value=server_ms["direct"],
        ),
    ]


def run(small: bool = False) -> list[Result]:
    program = None if small else build("kube-apiserver", KUBERNETES, "./kube-apiserver")
    if program is None:
        return []
    return asyncio.run(measure(program, WATCHERS, TURNS, ROUNDS))


if __name__ == "__main__":
    main(run)
