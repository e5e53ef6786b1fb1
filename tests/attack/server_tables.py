"""Tables of the server and its page that a client can fill, and requests whose end is ambiguous.

*hog* has a token and may view; the administrator and a bystander go on with what they do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
import sys
import time
from collections.abc import AsyncIterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
from benchmarks.tools.process import PlaneProcess, Process
from tests.attack.bodies import _long_steps
from tests.attack.harness import (
    BYSTANDER_SECONDS_MAX,
    STEP_SECONDS_MAX,
    Attack,
    Figure,
    admin_context,
    alive,
    anonymous_context,
    bystander,
)
from tests.fuzz.framings import RIGHT, WRONG, codes

LOGINS = 20
OBJECTS = 80
OBJECT_BYTES = 900_000
LARGE_WATCHES = 500
IDLE = 300
UNREAD_WATCHES = 1_000
CUT_WATCHES = 3_000
WRITE_SECONDS = 5.0
RULES = 48_000
SUBJECTS = 36_000
GONE_SECONDS_MAX = 10.0
_AT_ONCE = 64
_CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_GROUP = "rbac.authorization.k8s.io"
_SAME = {"Sec-Fetch-Site": "same-origin"}


@cache
def _context() -> ssl.SSLContext:
    return anonymous_context()


@contextlib.asynccontextmanager
async def _attacked(
    folder: Path, *flags: str, command: str = "apiserver"
) -> AsyncIterator[tuple[PlaneProcess, aiohttp.ClientSession]]:
    """A plane, and a session of its administrator."""
    tokens = folder / "tokens.csv"
    tokens.write_text("hog-token,hog,1\nneighbour-token,neighbour,2\n")
    with PlaneProcess(folder, "--token-auth-file", str(tokens), *flags, command=command) as plane:
        connector = aiohttp.TCPConnector(ssl=admin_context(plane))
        async with aiohttp.ClientSession(plane.url, connector=connector) as admin:
            yield plane, admin


async def _post(
    admin: aiohttp.ClientSession, path: str, document: dict[str, Any], *codes_allowed: int
) -> dict[str, Any]:
    async with admin.post(path, json=document) as answer:
        assert answer.status in (codes_allowed or (201,)), await answer.text()
        return dict(await answer.json())


async def _let(admin: aiohttp.ClientSession, user: str, role: str, namespace: str) -> None:
    """Grants a ClusterRole in one namespace."""
    subject = {"apiGroup": _GROUP, "kind": "User", "name": user}
    reference = {"apiGroup": _GROUP, "kind": "ClusterRole", "name": role}
    binding = {"metadata": {"name": user}, "roleRef": reference, "subjects": [subject]}
    await _post(admin, f"{_RBAC}/namespaces/{namespace}/rolebindings", binding)


async def _fill(plane: PlaneProcess, user: str, namespace: str, count: int) -> int:
    """Creates large objects one after another; returns how many were refused."""
    refused = 0
    headers = {"Authorization": f"Bearer {user}-token"}
    connector = aiohttp.TCPConnector(ssl=_context())
    async with aiohttp.ClientSession(plane.url, connector=connector, headers=headers) as session:
        for number in range(count):
            document = {"metadata": {"name": f"c{number}"}, "data": {"text": "x" * OBJECT_BYTES}}
            async with session.post(
                f"/api/v1/namespaces/{namespace}/configmaps", json=document
            ) as answer:
                assert answer.status in (201, 403), await answer.text()
                refused += answer.status == 403
    return refused


# Objects


async def object_hog(folder: Path) -> Sequence[Figure]:
    """The hog may edit one namespace; the bystander writes in another."""
    bound = 64 * 1024 * 1024
    async with _attacked(folder, "--quota-backend-bytes", str(bound)) as (plane, admin):
        await _post(admin, "/api/v1/namespaces", {"metadata": {"name": "other"}})
        await _let(admin, "hog", "edit", "default")
        await _let(admin, "neighbour", "edit", "other")
        async with bystander(plane) as seen:
            refused = await _fill(plane, "hog", "default", OBJECTS)
            failed = await _fill(plane, "neighbour", "other", OBJECTS // 5)
        kept = (OBJECTS - refused) * OBJECT_BYTES / 2**20
        return (
            Figure("objects of the hog that are kept", round(kept), "MiB", bound / 2**21),
            Figure("writes of another namespace that were refused", failed, "writes", 0),
            *seen.figures(),
            alive(plane),
        )


# The page


async def ui_logins(folder: Path) -> Sequence[Figure]:
    async with contextlib.AsyncExitStack() as stack:
        plane, admin = await stack.enter_async_context(_attacked(folder, "--ui"))
        logged_in = 0
        headers = {**_SAME, "Origin": plane.url}
        for _ in range(LOGINS):
            connector = aiohttp.TCPConnector(ssl=_context())
            jar = aiohttp.CookieJar(unsafe=True)
            hog = await stack.enter_async_context(
                aiohttp.ClientSession(
                    plane.url, connector=connector, cookie_jar=jar, headers=headers
                )
            )
            async with hog.post("/ui/v1/login", json={"token": "hog-token"}) as answer:
                logged_in += answer.status == 204
            stream = await hog.get("/ui/v1/stream?view=now")
            stack.callback(stream.close)
            await stream.content.readline()
        began = time.monotonic()
        async with (
            bystander(plane) as seen,
            admin.get("/ui/v1/stream?view=now", headers=_SAME) as answer,
        ):
            first = await answer.content.readline() if answer.status == 200 else b"{}"
            refused = json.loads(first).get("type") != "hello"
        return (
            Figure(
                "logins of an account without rights that were refused",
                LOGINS - logged_in,
                "logins",
                LOGINS,
            ),
            Figure("administrators who got no page", float(refused), "logins", 0),
            Figure("wait of the administrator", round(time.monotonic() - began, 2), "s", 5.0),
            *seen.figures(),
            alive(plane),
        )


# Framing


async def framing(folder: Path) -> Sequence[Figure]:
    async with _attacked(folder, "--ui") as (plane, _):
        port = int(plane.url.rpartition(":")[2])
        wrong = [await codes(port, sent, _context()) for sent in WRONG.values()]
        right = [await codes(port, sent, _context()) for sent in RIGHT.values()]
        return (
            Figure("ambiguous requests", len(wrong), "requests", 60, at_least=True),
            Figure(
                "of these, not answered with 400 alone",
                sum(set(got) != {400} for got in wrong),
                "requests",
                0,
            ),
            Figure(
                "right requests that were refused",
                sum(got[0] == 400 for got in right),
                "requests",
                0,
            ),
            alive(plane),
        )


# Owners


async def foreground_elsewhere(folder: Path) -> Sequence[Figure]:
    async with _attacked(folder, command="up") as (plane, admin):
        await _post(admin, "/api/v1/namespaces", {"metadata": {"name": "evil"}})
        services = "/api/v1/namespaces/default/services"
        victim = await _post(
            admin, services, {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}
        )
        owner = {
            "apiVersion": "v1",
            "kind": "Service",
            "name": "web",
            "uid": victim["metadata"]["uid"],
        }
        for number in range(10):
            head = {
                "name": f"hold-{number}",
                "ownerReferences": [{**owner, "blockOwnerDeletion": True}],
            }
            hold = {"metadata": {**head, "finalizers": ["example.com/hold"]}}
            await _post(admin, "/api/v1/namespaces/evil/configmaps", hold)
        await asyncio.sleep(0.5)
        began = time.monotonic()
        async with admin.delete(
            f"{services}/web", json={"propagationPolicy": "Foreground"}
        ) as answer:
            assert answer.status in (200, 202), await answer.text()
        status = 200
        while status != 404 and time.monotonic() - began < 1.5 * GONE_SECONDS_MAX:
            async with admin.get(f"{services}/web") as answer:
                status = answer.status
            await asyncio.sleep(0.05)
        return (
            Figure(
                "time until the Service is gone",
                round(time.monotonic() - began, 2),
                "s",
                GONE_SECONDS_MAX,
            ),
            alive(plane),
        )


# Watches


async def _opened(
    plane: PlaneProcess, requests: Sequence[bytes], count: int
) -> tuple[int, list[asyncio.StreamWriter]]:
    """How many of *count* connections got 200 for the last of *requests*, and all of them, unread
    from there on.
    """
    host, _, port = plane.url.removeprefix("https://").rpartition(":")
    limit = asyncio.Semaphore(_AT_ONCE)
    writers: list[asyncio.StreamWriter] = []
    granted = 0

    async def one() -> None:
        nonlocal granted
        async with limit:
            reader, writer = await asyncio.open_connection(
                host, int(port), ssl=_context(), limit=4096
            )
            writers.append(writer)
            line = b""
            for request in requests:
                writer.write(
                    request.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer hog-token\r\n\r\n")
                )
                line = await reader.readline()
                if request is not requests[-1]:
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
            granted += b" 200 " in line
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # of a transport that reads

    await asyncio.gather(*(one() for _ in range(count)))
    return granted, writers


def _head(path: str, *fields: bytes) -> bytes:
    return b"\r\n".join((b"GET " + path.encode() + b" HTTP/1.1", b"Host: x", *fields, b"", b""))


async def large_watch_requests(folder: Path) -> Sequence[Figure]:
    large = tuple(b"X-%d: " % number + b"y" * 950 for number in range(950))
    async with _attacked(folder) as (plane, admin):
        await _let(admin, "hog", "view", "default")
        before = plane.rss_mib()
        _, idle = await _opened(plane, (_head("/version"), _head("/version", *large)), IDLE)
        kept = plane.rss_mib() - before
        for writer in idle:
            writer.transport.abort()
        watch = _head(f"{_CONFIG_MAPS}?watch=1", *large)
        async with bystander(plane) as seen:
            granted, writers = await _opened(plane, (_head("/version"), watch), LARGE_WATCHES)
        grown = plane.rss_mib() - before
        for writer in writers:
            writer.transport.abort()
        return (
            Figure(
                f"growth with {IDLE} idle connections that sent large heads",
                round(kept),
                "MiB",
                100,
            ),
            Figure(
                f"watches with large heads of {LARGE_WATCHES} that one account gets",
                granted,
                "watches",
                300,
            ),
            Figure("growth with these", round(grown), "MiB", 350),
            *seen.figures(),
            alive(plane),
        )


#: opens watches over TLS, says how many were granted, and waits to be killed
_WATCHER = """
import asyncio, ssl, sys
host, port, count, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
async def main():
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    limit, held = asyncio.Semaphore(50), []
    async def one(number):
        async with limit:
            local = (f"127.0.0.{1 + number % 8}", 0)
            reader, writer = await asyncio.open_connection(host, port, ssl=context, limit=4096, local_addr=local)
            writer.write(f"GET {path} HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer hog-token\\r\\n\\r\\n".encode())
            held.append((reader, writer))
            return b" 200 " in await reader.readline()
    print(sum(await asyncio.gather(*map(one, range(count)))), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def cut_watches(folder: Path) -> Sequence[Figure]:
    async with _attacked(folder) as (plane, admin):
        await _let(admin, "hog", "view", "default")
        host, _, port = plane.url.removeprefix("https://").rpartition(":")
        watch = ("-c", _WATCHER, host, port, str(CUT_WATCHES), f"{_CONFIG_MAPS}?watch=1")
        with Process(sys.executable, *watch) as watcher:
            granted = int(await asyncio.to_thread(watcher.line, 300.0))
            cpu = plane.cpu_s()
            async with bystander(plane) as seen:
                await asyncio.sleep(1)
                watcher.process.kill()
                async with asyncio.timeout(30):
                    while await _open_watches(admin) > 0:
                        await asyncio.sleep(0.2)
            spent = plane.cpu_s() - cpu
            held = re.findall(
                r"the event loop was held.* milliseconds=(\d+)", (folder / "plane.log").read_text()
            )
        return (
            Figure("watches that were refused", CUT_WATCHES - granted, "watches", 0),
            Figure(
                "longest step of the loop beyond 0.05 s",
                max(map(int, held), default=0) / 1000,
                "s",
                STEP_SECONDS_MAX,
            ),
            Figure(
                "longest wait of a bystander", round(seen.longest_s, 3), "s", BYSTANDER_SECONDS_MAX
            ),
            Figure("failed requests of a bystander", seen.failed, "requests", 0),
            Figure("processor time", round(spent, 2), "s", 4),
            alive(plane),
        )


async def _open_watches(admin: aiohttp.ClientSession) -> float:
    async with admin.get("/metrics") as answer:
        return float(
            (await answer.text()).partition('sliceplane_shared_held{what="watches"} ')[2].split()[0]
        )


async def unread_watches(folder: Path) -> Sequence[Figure]:
    async with _attacked(folder) as (plane, admin):
        await _let(admin, "hog", "view", "default")
        before = plane.rss_mib()
        granted, writers = await _opened(plane, (_head(f"{_CONFIG_MAPS}?watch=1"),), UNREAD_WATCHES)
        opened = plane.rss_mib() - before
        written = 0
        async with bystander(plane) as seen:
            ends = time.monotonic() + WRITE_SECONDS
            while time.monotonic() < ends:
                await _post(
                    admin,
                    _CONFIG_MAPS,
                    {"metadata": {"name": f"c{written}"}, "data": {"a": "b" * 100}},
                )
                written += 1
        grown = plane.rss_mib() - before
        for writer in writers:
            writer.transport.abort()
        return (
            Figure("watches that were refused", UNREAD_WATCHES - granted, "watches", 0),
            Figure("growth with the watches", round(opened), "MiB", 60),
            Figure(f"growth with {written} writes", round(grown), "MiB", 300),
            *seen.figures(),
            alive(plane),
        )


# Steps


async def large_rules(folder: Path) -> Sequence[Figure]:
    """A role and a binding of 3 MB, written, relabelled and deleted while a watch has them in
    protobuf.
    """
    rules = [
        {"apiGroups": [""], "resources": [f"r{number}"], "verbs": ["get"]}
        for number in range(RULES)
    ]
    subjects = [
        {"kind": "User", "apiGroup": _GROUP, "name": f"u{number}"} for number in range(SUBJECTS)
    ]
    reference = {"apiGroup": _GROUP, "kind": "ClusterRole", "name": "view"}
    async with _attacked(folder) as (plane, admin):
        steps = await _long_steps(admin, plane)
        async with bystander(plane) as seen:
            for path, document in (
                (f"{_RBAC}/clusterroles", {"rules": rules}),
                (f"{_RBAC}/clusterrolebindings", {"roleRef": reference, "subjects": subjects}),
            ):
                await _post(admin, path, {"metadata": {"name": "large"}, **document})
                media = {"Content-Type": "application/merge-patch+json"}
                async with admin.patch(
                    f"{path}/large", data=b'{"metadata":{"labels":{"a":"b"}}}', headers=media
                ) as got:
                    assert got.status == 200, await got.text()
                async with admin.delete(f"{path}/large") as got:
                    assert got.status == 200, await got.text()
        steps = await _long_steps(admin, plane) - steps
        return (
            Figure("steps of more than 50 ms", steps, "steps", 0),
            *seen.figures(),
            alive(plane),
        )


ATTACKS = (
    Attack(
        "object-hog",
        "an account that may edit one namespace: 80 objects of 0.9 MB where 64 MiB are kept",
        object_hog,
    ),
    Attack(
        "ui-logins",
        "an account without rights: 20 logins at the page, each with an open tab",
        ui_logins,
    ),
    Attack("framing", "requests whose end two readers would see in two places", framing),
    Attack(
        "foreground-elsewhere",
        "ten objects of another namespace name a Service's uid as their owner, block its "
        "deletion, and never go",
        foreground_elsewhere,
    ),
    Attack(
        "large-watch-requests",
        "an account that may view: heads of a megabyte, of requests that were answered and of "
        "watches",
        large_watch_requests,
    ),
    Attack(
        "cut-watches",
        f"an account that may view: {CUT_WATCHES:,} watches that are cut at once",
        cut_watches,
    ),
    Attack(
        "unread-watches",
        "an account that may view: 1,000 watches that it does not read",
        unread_watches,
    ),
    Attack(
        "large-rules", "an administrator of roles: a ClusterRole and a binding of 3 MB", large_rules
    ),
)
