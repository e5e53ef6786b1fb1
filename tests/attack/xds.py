"""The xDS port: an account without rights fills tables, holds the loop, makes tokens up, and holds
up others' drains.

The plane has an account *hog* that may do nothing; the xDS server serves TLS beside it. A bystander
is an administrator's stream that follows one Service, whose slice is written again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
from benchmarks.tools.process import PlaneProcess, Process
from tests.attack.harness import BYSTANDER_SECONDS_MAX, Attack, Figure, alive
from tests.consume.drain.paper import paper_node
from tests.xds.conftest import DELTA, delta_client, xds_server
from tests.xds.streams.clients import delta_request, node, read_response

from sliceplane.api.codec import encode
from sliceplane.api.scheme import EndpointSlices, Namespaces, Services
from sliceplane.client import HttpClient, connect
from sliceplane.consume.drain.options import DrainOptions
from sliceplane.consume.io.draining import drain_pods
from sliceplane.diagnose.io.drain_targets import find_pods
from sliceplane.kit.rng import Rng
from sliceplane.server.io.keys.pki import Pki
from sliceplane.testing import Plane
from sliceplane.watch.io.kubeconfig import load
from sliceplane.watch.io.reflect import loop_clock
from sliceplane.xds.names import ASSIGNMENT, CLUSTER

HOG = (("authorization", "Bearer hog-token"),)
LONG_NAME_BYTES = 80_000
LONG_NAMES_IN_A_MESSAGE = 48
LONG_MESSAGES = 60
STREAMS = 10
NAMES = 50_000
VERSIONS = 300_000
TYPES = 64
TOKENS = 1_000
LOOK_S = 0.1
GIVEN_BACK_S = 5.0
_WEB = "shop/web:http"


class Scene:
    """A plane with an xDS server beside it."""

    def __init__(self, plane: PlaneProcess, xds: Process, port: int, pages: str, pki: Pki) -> None:
        self.plane = plane
        self.xds = xds
        self.port = port
        self.pages = pages
        self.pki = pki

    @contextlib.asynccontextmanager
    async def channel(self, *, is_admin: bool = False) -> AsyncIterator[Any]:
        root = self.pki.ca_file.read_bytes()
        pair = (
            (self.pki.admin_key_file.read_bytes(), self.pki.admin_file.read_bytes())
            if is_admin
            else (None, None)
        )
        credentials = grpc.ssl_channel_credentials(root, *pair)
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
        async with grpc.aio.secure_channel(
            f"127.0.0.1:{self.port}", credentials, options=options
        ) as channel:
            yield channel.stream_stream(DELTA)

    def rss_mib(self) -> float:
        text = Path(f"/proc/{self.xds.process.pid}/statm").read_text()
        return int(text.split()[1]) * 4096 / 2**20


@contextlib.asynccontextmanager
async def attacked(folder: Path) -> AsyncIterator[Scene]:
    tokens = folder / "tokens.csv"
    tokens.write_text("hog-token,hog,1\ngood-token,good,2\n")
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(
            PlaneProcess(folder, "--token-auth-file", str(tokens), command="apiserver")
        )
        pki = Pki(folder / "data" / "pki")
        xds = stack.enter_context(
            Process(
                *(sys.executable, "-m", "sliceplane", "xds", "--kubeconfig", str(plane.kubeconfig)),
                *("--bind-address", "127.0.0.1:0", "--tls-cert-file", str(pki.server_file)),
                *(
                    "--tls-private-key-file",
                    str(pki.server_key_file),
                    "--client-ca-file",
                    str(pki.ca_file),
                ),
                *("--metrics-bind-address", "127.0.0.1:0", "--log-level", "error"),
                log=folder / "xds.log",
            )
        )
        port = int(xds.line().rpartition(":")[2])
        async with HttpClient(load(plane.kubeconfig)) as client:
            await client.create(Namespaces, "", encode({"metadata": {"name": "shop"}}))
            ports = [{"name": "http", "port": 80}]
            await client.create(
                Services, "shop", encode({"metadata": {"name": "web"}, "spec": {"ports": ports}})
            )
            await client.create(EndpointSlices, "shop", encode(_slice("web", 1)))
        yield Scene(plane, xds, port, "", pki)


def _slice(service: str, number: int) -> dict[str, Any]:
    return {
        "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 9000, "protocol": "TCP"}],
        "endpoints": [
            {"addresses": [f"192.0.2.{number % 250 + 1}"], "conditions": {"ready": True}}
        ],
    }


class Deltas:
    """How long changes take to a bystander."""

    def __init__(self) -> None:
        self.came = 0
        self.longest_s = 0.0

    def figures(self, seconds_max: float = BYSTANDER_SECONDS_MAX) -> tuple[Figure, ...]:
        return (
            Figure(
                "longest way of a change to a bystander", round(self.longest_s, 3), "s", seconds_max
            ),
            Figure("changes that came to a bystander", self.came, "changes", 5, at_least=True),
        )


@contextlib.asynccontextmanager
async def bystander(scene: Scene) -> AsyncIterator[Deltas]:
    """An administrator's stream that accepts each change; one is written every 50 ms."""
    seen = Deltas()
    ending = asyncio.Event()

    async def follow(call: Any, client: HttpClient) -> None:
        await call.write(delta_request(ASSIGNMENT, subscribe=(_WEB,), of_node=node()))
        response = read_response(await call.read(), delta=True)
        number = 1
        while not ending.is_set():
            await call.write(delta_request(ASSIGNMENT, nonce=response.nonce))
            number += 1
            began = time.monotonic()
            await client.update(EndpointSlices, "shop", "web", encode(_slice("web", number)))
            response = read_response(await call.read(), delta=True)
            seen.longest_s = max(seen.longest_s, time.monotonic() - began)
            seen.came += 1
            await asyncio.sleep(0.05)

    async with (
        scene.channel(is_admin=True) as stream,
        HttpClient(load(scene.plane.kubeconfig)) as client,
    ):
        following = asyncio.create_task(follow(stream(), client))
        try:
            yield seen
        finally:
            ending.set()
            await following


@contextlib.asynccontextmanager
async def watched_memory(scene: Scene) -> AsyncIterator[list[float]]:
    """The resident memory every 20 ms, in MiB above that of the beginning."""
    before = scene.rss_mib()
    grown = [0.0]

    async def look() -> None:
        while True:
            grown.append(scene.rss_mib() - before)
            await asyncio.sleep(0.02)

    looking = asyncio.create_task(look())
    try:
        yield grown
    finally:
        looking.cancel()


async def _send(call: Any, messages: Iterator[bytes] | Sequence[bytes]) -> int:
    """Sends until the server ends the call; returns the status, or -1 if it does not."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        for message in messages:
            await asyncio.wait_for(call.write(message), 10.0)
    if call.done():
        return int((await call.code()).value[0])
    return -1


def _long_messages() -> Iterator[bytes]:
    for number in range(LONG_MESSAGES):
        names = tuple(
            f"{number}-{at}-{'n' * LONG_NAME_BYTES}" for at in range(LONG_NAMES_IN_A_MESSAGE)
        )
        yield delta_request(ASSIGNMENT, subscribe=names, of_node=node() if not number else None)


async def long_names(folder: Path) -> Sequence[Figure]:
    """Names of 80 kB, and beside them as many of the longest that are taken as the account may
    have.
    """
    allowed = delta_request(
        ASSIGNMENT,
        subscribe=tuple(f"hog/{'n' * 290}-{at}:http" for at in range(10_000)),
        of_node=node(),
    )
    async with attacked(folder) as scene, watched_memory(scene) as grown, bystander(scene) as seen:
        async with AsyncExitStack() as stack:
            calls = []
            for at in range(STREAMS):
                call = (await stack.enter_async_context(scene.channel()))(metadata=HOG)
                calls.append(call)
                await _send(call, [allowed] if at else _long_messages())
                for more in range(4 if at else 0):
                    names = tuple(
                        f"hog/{'n' * 290}-{more}-{number}:http" for number in range(9_000)
                    )
                    await _send(call, [delta_request(ASSIGNMENT, subscribe=names)])
            await asyncio.sleep(1.0)
        peak = max(grown)
        await asyncio.sleep(GIVEN_BACK_S)
        return (
            Figure("growth of the server's memory", round(peak), "MiB", 250),
            Figure("the same 5 s after the streams closed", round(grown[-1]), "MiB", 60),
            *seen.figures(),
            alive(scene.xds),
        )


async def initial_versions(folder: Path) -> Sequence[Figure]:
    """300,000 versions that a client claims to hold of a wildcard, in one request; and as many as
    are taken.
    """
    messages = [
        delta_request(CLUSTER, initial={f"{at:x}": "1" for at in range(versions)}, of_node=node())
        for versions in (VERSIONS, NAMES)
    ]
    async with attacked(folder) as scene, bystander(scene) as seen:
        await asyncio.sleep(1.0)
        for message in messages * 3:
            async with scene.channel() as stream:
                call = stream(metadata=HOG)
                await _send(call, [message])
                with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
                    await asyncio.wait_for(call.read(), 2.0)
        await asyncio.sleep(1.0)
        return (*seen.figures(0.5), alive(scene.xds))


async def unknown_types(folder: Path) -> Sequence[Figure]:
    """Names under 64 types that no server has."""
    names = tuple(f"{'n' * 280}-{at}" for at in range(700))
    async with attacked(folder) as scene, watched_memory(scene) as grown, bystander(scene) as seen:
        refused = 0
        async with AsyncExitStack() as stack:
            for _ in range(5):
                call = (await stack.enter_async_context(scene.channel()))(metadata=HOG)
                kinds = (f"type.googleapis.com/made.up.{at}" for at in range(TYPES))
                status = await _send(
                    call, [delta_request(kind, subscribe=names, of_node=node()) for kind in kinds]
                )
                await asyncio.sleep(0.2)
                refused += status >= 0 or call.done()
            await asyncio.sleep(0.5)
        return (
            Figure("streams with made-up types that were not refused", 5 - refused, "streams", 0),
            Figure("growth of the server's memory", round(max(grown)), "MiB", 20),
            *seen.figures(),
            alive(scene.xds),
        )


def _reviews(scene: Scene) -> float:
    """TokenReviews that the API server has answered."""
    import ssl

    context = load(scene.plane.kubeconfig).ssl_context
    assert isinstance(context, ssl.SSLContext), "a plane speaks TLS"
    with urlopen(f"{scene.plane.url}/metrics", context=context) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("apiserver_request_total{") and "tokenreviews" in line
    )


async def made_up_tokens(folder: Path) -> Sequence[Figure]:
    """1,000 tokens that nobody gave out, while a client with a good one comes again and again."""
    async with attacked(folder) as scene:
        before = await asyncio.to_thread(_reviews, scene)
        longest_s, failed = 0.0, 0

        async def come(stream: Any, token: str) -> bool:
            call = stream(metadata=(("authorization", f"Bearer {token}"),))
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
                await call.write(delta_request(ASSIGNMENT, subscribe=("x/y:z",), of_node=node()))
                answer = await asyncio.wait_for(call.read(), 5.0)
                call.cancel()
                return isinstance(answer, bytes)
            return False

        async with scene.channel() as good, scene.channel() as bad:
            assert await come(good, "good-token"), "a good token is let in"

            async def flood() -> None:
                for start in range(0, TOKENS, 50):
                    await asyncio.gather(
                        *(come(bad, f"made-up-{number}") for number in range(start, start + 50))
                    )

            flooding = asyncio.create_task(flood())
            while not flooding.done():
                began = time.monotonic()
                failed += not await come(good, "good-token")
                longest_s = max(longest_s, time.monotonic() - began)
                await asyncio.sleep(LOOK_S)
            await flooding
        cost = await asyncio.to_thread(_reviews, scene) - before
        return (
            Figure("TokenReviews for 1,000 made-up tokens", cost, "requests", 100),
            Figure("longest wait of a client with a good token", round(longest_s, 3), "s", 1.0),
            Figure("calls with a good token that failed", failed, "calls", 0),
            alive(scene.xds),
        )


async def unacknowledged(folder: Path) -> Sequence[Figure]:
    """Clients never accept what changes of their own Service, one more every 3 s; another namespace
    drains.
    """
    seconds_max = 12.0
    with Plane() as plane:
        await asyncio.to_thread(plane.apply, _shop_objects())
        await plane.until(lambda: sum(endpoint.ready for endpoint in plane.endpoints("web")) == 2)
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(connect(plane.kubeconfig))
            await stack.enter_async_context(paper_node(client, "n-1", beat_s=0.2))
            served = await stack.enter_async_context(xds_server(client, report_name="here"))
            stopping = asyncio.Event()
            attacking = asyncio.create_task(_never_accept(client, served.port, stopping))
            await asyncio.sleep(4.0)
            pods = await find_pods(client, "pod", "default", "web-0")
            began = time.monotonic()
            clock = loop_clock(time.time())
            options = DrainOptions(timeout_s=seconds_max, force=True)
            answer = await drain_pods(client, pods, "pod", options, clock=clock, rng=Rng(1))
            took_s = time.monotonic() - began
            stopping.set()
            await attacking
    return (
        Figure("drain of a Pod of another namespace", round(took_s, 2), "s", 3.0),
        Figure(
            "drains that ended otherwise than drained",
            float(answer.outcome != "drained"),
            "drains",
            0,
        ),
    )


def _shop_objects() -> list[dict[str, Any]]:
    conditions = [{"type": "Ready", "status": "True"}]
    labels = {"app": "web"}
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"web-{number}", "labels": labels},
            "spec": {"nodeName": "n-1", "containers": [{"name": "web", "image": "web"}]},
            "status": {
                "podIPs": [{"ip": f"10.1.0.{number + 1}"}],
                "podIP": f"10.1.0.{number + 1}",
                "phase": "Running",
                "conditions": conditions,
            },
        }
        for number in range(2)
    ]
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "n-1"},
            "status": {"conditions": conditions},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": labels, "ports": [{"port": 80}]},
        },
        *pods,
    ]


async def _never_accept(client: HttpClient, port: int, stopping: asyncio.Event) -> None:
    """One more stream every 3 s; the tenant's own slice changes all the time."""
    await client.create(Namespaces, "", encode({"metadata": {"name": "evil"}}))
    ports = [{"name": "http", "port": 80}]
    await client.create(
        Services, "evil", encode({"metadata": {"name": "mine"}, "spec": {"ports": ports}})
    )
    await client.create(EndpointSlices, "evil", encode(_slice("mine", 1)))
    number = 1
    async with AsyncExitStack() as streams:
        while not stopping.is_set():
            stream = await streams.enter_async_context(delta_client(port))
            await stream.say(ASSIGNMENT, subscribe=("evil/mine:http",), of_node=node())
            answer = await stream.next()
            await stream.say(ASSIGNMENT, nonce=answer.nonce)
            until = time.monotonic() + 3.0
            while time.monotonic() < until and not stopping.is_set():
                number += 1
                await client.update(EndpointSlices, "evil", "mine", encode(_slice("mine", number)))
                await asyncio.sleep(0.2)


ATTACKS = (
    Attack(
        "xds-long-names",
        "an account without rights: names of 80 kB, and ten streams with 46,000 names of 300 "
        "bytes each",
        long_names,
    ),
    Attack(
        "xds-initial-versions",
        "an account without rights: 300,000 versions in one request",
        initial_versions,
    ),
    Attack(
        "xds-unknown-types",
        "an account without rights: names under 64 made-up types",
        unknown_types,
    ),
    Attack(
        "xds-made-up-tokens",
        "anybody: 1,000 made-up tokens, while a client with a good one comes again and again",
        made_up_tokens,
    ),
    Attack(
        "xds-unacknowledged",
        "a tenant whose clients accept nothing, one more every 3 s, while another namespace "
        "drains a Pod",
        unacknowledged,
    ),
)
