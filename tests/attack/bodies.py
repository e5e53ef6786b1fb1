"""A user with ordinary rights who sends bodies of up to 3 MiB, made to take long, one after
another.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp
from benchmarks.tools.process import PlaneProcess
from tests.attack.harness import STEP_SECONDS_MAX, Attack, Figure, admin_context, alive, bystander
from tests.fuzz.application import Ask
from tests.fuzz.heavy_bodies import BODIES, CONFIG_MAPS, ENDPOINTS, asked

_SECONDS = 12.0
_OBJECTS = 5_000
_TIMEOUT = aiohttp.ClientTimeout(total=60)
_BUCKET = re.compile(
    r'^sliceplane_event_loop_step_seconds_bucket\{le="([^"]+)"\} ([0-9.e+]+)$', re.MULTILINE
)

_JSON = ("a million empty lists", "finalizers", "containers", "addresses", "labels", "nesting")
_YAML = ("yaml of words", "yaml of aliases", "yaml of merges")
_PROTOBUF = ("protobuf of addresses", "protobuf of keys", "protobuf of labels")
_PATCHES = (
    "a json patch",
    "a merge patch",
    "a strategic patch",
    "an apply of yaml",
    "an apply of json",
)


async def _send(session: aiohttp.ClientSession, plane: PlaneProcess, ask: Ask) -> int:
    """The code of the answer; 0: there was none in time; 413: the 500 of kube-apiserver for an
    object too large.
    """
    url = f"{plane.url}{ask.path}?{ask.query.decode()}"
    headers = {name.decode(): value.decode() for name, value in ask.headers}
    try:
        async with session.request(
            ask.method, url, data=ask.body, headers=headers, timeout=_TIMEOUT
        ) as answer:
            is_too_large = b"etcdserver: request is too large" in await answer.read()
            return 413 if is_too_large else answer.status
    except (aiohttp.ClientError, TimeoutError):
        return 0


async def _long_steps(session: aiohttp.ClientSession, plane: PlaneProcess) -> float:
    """How many steps of requests held the loop for longer than they may, as the server tells it."""
    async with session.get(f"{plane.url}/metrics", timeout=_TIMEOUT) as answer:
        counts = {bound: float(count) for bound, count in _BUCKET.findall(await answer.text())}
    return counts["+Inf"] - counts[str(STEP_SECONDS_MAX)] if counts else float("nan")


def _one_after_another(names: tuple[str, ...]) -> Callable[[Path], Awaitable[Sequence[Figure]]]:
    async def run(folder: Path) -> Sequence[Figure]:
        asks = [BODIES[name]() for name in names]
        with PlaneProcess(folder, command="apiserver") as plane:
            connector = aiohttp.TCPConnector(ssl=admin_context(plane))
            async with aiohttp.ClientSession(connector=connector) as session:
                for path in (CONFIG_MAPS, ENDPOINTS):
                    await _send(
                        session, plane, asked("POST", path, b'{"metadata":{"name":"small"}}')
                    )
                ends = asyncio.get_running_loop().time() + _SECONDS
                codes = []
                async with bystander(plane) as seen:
                    while len(codes) < len(asks) or asyncio.get_running_loop().time() < ends:
                        ask = asks[len(codes) % len(asks)]
                        codes.append(await _send(session, plane, ask))
                        if codes[-1] in (200, 201) and ask.method == "POST":
                            await _send(session, plane, asked("DELETE", f"{ask.path}/big", b""))
                steps = await _long_steps(session, plane)
            unanswered = sum(code in (0, 500) for code in codes)
            return (
                *seen.figures(),
                Figure("bodies without an answer of their own", unanswered, "bodies", 0),
                Figure("steps of requests longer than 50 ms", steps, "steps", 0),
                alive(plane),
            )

    return run


async def _long_lists(folder: Path) -> Sequence[Figure]:
    """The same collection again and again in every form, and its removal at the end."""
    forms = (
        "application/json",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/vnd.kubernetes.protobuf",
    )
    selector = b"labelSelector=" + b",".join(b"!k%d" % number for number in range(9_000))
    with PlaneProcess(folder, command="apiserver") as plane:
        connector = aiohttp.TCPConnector(ssl=admin_context(plane), limit=64)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def fill(first: int) -> None:
                for number in range(first, _OBJECTS, 64):
                    body = b'{"metadata":{"name":"c%d"},"data":{"a":"%s"}}' % (number, b"x" * 500)
                    await _send(session, plane, asked("POST", CONFIG_MAPS, body))

            await asyncio.gather(*map(fill, range(64)))
            async with bystander(plane) as seen:
                asks = [asked("GET", CONFIG_MAPS, b"", accept=form) for form in forms]
                asks.append(asked("GET", CONFIG_MAPS, b"", query=selector))
                codes = [await _send(session, plane, ask) for ask in asks for _ in range(3)]
                codes.append(await _send(session, plane, asked("DELETE", CONFIG_MAPS, b"")))
            steps = await _long_steps(session, plane)
        return (
            *seen.figures(),
            Figure("requests that were refused", sum(code != 200 for code in codes), "requests", 0),
            Figure("steps of requests longer than 50 ms", steps, "steps", 0),
            alive(plane),
        )


ATTACKS: tuple[Attack, ...] = (
    Attack(
        "bodies-json",
        "JSON of 3 MiB: tiny values, deep, wide, long lists",
        _one_after_another(_JSON),
    ),
    Attack("bodies-yaml", "YAML of 3 MiB: words, aliases, merges", _one_after_another(_YAML)),
    Attack(
        "bodies-protobuf", "protobuf of 3 MiB: many small fields", _one_after_another(_PROTOBUF)
    ),
    Attack(
        "bodies-patches", "patches and applies of 3 MiB, in each form", _one_after_another(_PATCHES)
    ),
    Attack(
        "many-objects",
        f"lists of {_OBJECTS} objects in every form, and their removal at once",
        _long_lists,
    ),
)
