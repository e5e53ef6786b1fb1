"""Starvation: an account that may do next to nothing tries to leave nothing for the others.

The plane has two accounts of one priority level in a file of tokens: *hog* may read, as everybody's
``view`` lets it, and ask what it may; *jane* may edit. Hog attacks, jane and the administrator go
on with what they do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path

import aiohttp
from benchmarks.tools.process import PlaneProcess
from tests.attack.harness import Attack, Figure, admin_context, alive, anonymous_context, bystander

UNFINISHED_BODIES = 200
LARGE_BODIES = 60
LARGE_BODY_BYTES = 3 * 1024 * 1024
FUTURE_READS = 400
ADMIN_LISTS = 112
ATTACK_SECONDS = 5.0
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
_FAR = 10**15


async def _grant(plane: PlaneProcess, user: str, role: str) -> None:
    """*user* gets the ClusterRole *role* in the namespace default."""
    binding = {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    url = f"{plane.url}/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=admin_context(plane))) as session,
        session.post(url, json=binding) as answer,
    ):
        assert answer.status == 201, await answer.text()


@contextlib.asynccontextmanager
async def attacked(folder: Path) -> AsyncIterator[PlaneProcess]:
    tokens = folder / "tokens.csv"
    tokens.write_text("hog-token,hog,1\njane-token,jane,2\n")
    with PlaneProcess(folder, "--token-auth-file", str(tokens), command="apiserver") as plane:
        await _grant(plane, "hog", "view")
        await _grant(plane, "jane", "edit")
        yield plane


class Outcome:
    """What became of somebody's requests."""

    def __init__(self) -> None:
        self.answers = 0
        self.refused = 0
        self.failed = 0
        self.longest_s = 0.0

    def figures(self, whose: str, *, seconds_max: float = 1.0) -> tuple[Figure, ...]:
        return (
            Figure(f"{whose} that got 429", self.refused, "requests", 0),
            Figure(f"{whose} that failed otherwise", self.failed, "requests", 0),
            Figure(f"longest wait of {whose}", round(self.longest_s, 3), "s", seconds_max),
        )


async def _count(outcome: Outcome, request: Callable[[], Awaitable[int]]) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        code = await request()
    except (aiohttp.ClientError, OSError, TimeoutError):
        code = 0
    outcome.answers += 1
    outcome.refused += code == 429
    outcome.failed += code not in (200, 201, 429)
    outcome.longest_s = max(outcome.longest_s, loop.time() - began)


@cache
def _context() -> ssl.SSLContext:
    """One for all: hundreds that are made one by one take longer than a server waits for a
    handshake.
    """
    return anonymous_context()


async def _send(
    plane: PlaneProcess, head: str, body: bytes = b""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = plane.url.removeprefix("https://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=_context())
    writer.write(f"{head}Host: plane\r\nAuthorization: Bearer hog-token\r\n\r\n".encode() + body)
    await writer.drain()
    return reader, writer


async def _jane_writes(plane: PlaneProcess, until: float) -> Outcome:
    outcome, number = Outcome(), 0
    headers = {"Authorization": "Bearer jane-token"}
    loop = asyncio.get_running_loop()
    connector = aiohttp.TCPConnector(ssl=_context())
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def write() -> int:
            document = {"metadata": {"name": f"jane-{number}"}, "data": {"a": "b"}}
            async with session.post(
                plane.url + _CONFIG_MAPS, json=document, timeout=aiohttp.ClientTimeout(total=20)
            ) as answer:
                await answer.read()
                return answer.status

        while loop.time() < until:
            number += 1
            await _count(outcome, write)
            await asyncio.sleep(0.02)
    return outcome


async def unfinished_bodies(folder: Path) -> Sequence[Figure]:
    review = json.dumps({"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}}).encode()
    head = (
        f"POST {_REVIEWS} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: "
        f"{len(review)}\r\n"
    )
    async with attacked(folder) as plane:
        opened = [await _send(plane, head, review[:20]) for _ in range(UNFINISHED_BODIES)]
        try:
            async with bystander(plane) as seen:
                until = asyncio.get_running_loop().time() + ATTACK_SECONDS
                outcome = await _jane_writes(plane, until)
        finally:
            for _, writer in opened:
                writer.transport.abort()
        return (*outcome.figures("another account's writes"), *seen.figures(), alive(plane))


async def large_bodies(folder: Path) -> Sequence[Figure]:
    head = (
        f"POST {_REVIEWS} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: "
        f"{LARGE_BODY_BYTES}\r\n"
    )
    almost = b" " * (LARGE_BODY_BYTES - 1)
    async with attacked(folder) as plane:
        before = plane.rss_mib()
        writing = asyncio.create_task(
            _jane_writes(plane, asyncio.get_running_loop().time() + ATTACK_SECONDS)
        )
        opened = []
        try:
            for _ in range(LARGE_BODIES):
                # Who is refused is cut off while it still sends.
                with contextlib.suppress(OSError):
                    opened.append(await _send(plane, head, almost))
            outcome = await writing
            grown = plane.rss_mib() - before
        finally:
            writing.cancel()
            for _, writer in opened:
                writer.transport.abort()
        return (
            Figure("growth of the server's memory", round(grown), "MiB", 150),
            *outcome.figures("another account's writes"),
            alive(plane),
        )


async def future_reads(folder: Path) -> Sequence[Figure]:
    head = f"GET {_CONFIG_MAPS}?resourceVersion={_FAR} HTTP/1.1\r\n"
    async with attacked(folder) as plane:
        opened = await asyncio.gather(*(_send(plane, head) for _ in range(FUTURE_READS)))
        outcome = Outcome()
        jane = {"Authorization": "Bearer jane-token"}
        hers = Outcome()
        try:
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(ssl=admin_context(plane))
                ) as admin,
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(ssl=_context()), headers=jane
                ) as other,
            ):

                async def listed(session: aiohttp.ClientSession) -> int:
                    async with session.get(plane.url + _CONFIG_MAPS) as answer:
                        await answer.read()
                        return answer.status

                for _ in range(ADMIN_LISTS // 8):
                    await asyncio.gather(
                        *(_count(outcome, lambda: listed(admin)) for _ in range(8))
                    )
                    await _count(hers, lambda: listed(other))
        finally:
            for _, writer in opened:
                writer.transport.abort()
        return (
            Figure("lists that were not asked", ADMIN_LISTS - outcome.answers, "requests", 0),
            *outcome.figures("admin lists"),
            *hers.figures("another account's lists"),
            alive(plane),
        )


ATTACKS = (
    Attack(
        "unfinished-bodies",
        "an account that may ask what it may: 200 bodies that never end, while another account "
        "writes",
        unfinished_bodies,
    ),
    Attack(
        "large-unfinished-bodies",
        "an account that may ask what it may: 60 bodies of 3 MiB that lack their last byte, while "
        "another one writes",
        large_bodies,
    ),
    Attack(
        "future-reads",
        "an account that may read: 400 lists of a version far ahead, while the administrator and "
        "another account list",
        future_reads,
    ),
)
