"""Attacks on the past: a database that is damaged or replaced, an etcd that is restored under
servers that run.

What they count is what a client would never forgive: an object that was acknowledged, is not there,
and nobody says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from benchmarks.tools.process import PlaneProcess
from tests.attack.harness import Attack, Figure, admin_context
from tests.replicated.members import Member, cluster

from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.rng import Rng
from sliceplane.server.io.datadir import DataDir
from sliceplane.server.io.storage.committing import StorageError
from sliceplane.server.io.storage.etcd import wire
from sliceplane.server.io.storage.etcd.backend import EtcdBackend
from sliceplane.server.io.storage.etcd.client import EtcdConfig
from sliceplane.server.io.storage.sqlite import SqliteBackend
from sliceplane.server.store.mvcc import Store

MAPS = "/api/v1/namespaces/default/configmaps"
OBJECTS = 150
SEEDS = 3
PARTS = ("sliceplane.db", "sliceplane.db-wal", "sliceplane.db-shm")

#: what is done to one file: (its content, what it was earlier, chance) -> what it is then;
#: ``None``: removed
Fate = Callable[[bytes, bytes, Rng], bytes | None]


def _flipped(now: bytes, earlier: bytes, rng: Rng) -> bytes:
    damaged = bytearray(now)
    if damaged:
        damaged[rng.below(len(damaged))] ^= 1 << rng.below(8)
    return bytes(damaged)


FATES: dict[str, Fate] = {
    "kept": lambda now, earlier, rng: now,
    "flipped": _flipped,
    "cut off": lambda now, earlier, rng: now[: rng.below(len(now) + 1)],
    "removed": lambda now, earlier, rng: None,
    "older": lambda now, earlier, rng: earlier,
}


async def _create(plane: PlaneProcess, names: Sequence[str]) -> list[str]:
    """Those that were acknowledged."""
    made = []
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=admin_context(plane))
    ) as session:
        for name in names:
            async with session.post(
                plane.url + MAPS, json={"metadata": {"name": name}, "data": {"a": "b"}}
            ) as answer:
                if answer.status == 201:
                    made.append(json.loads(await answer.read())["metadata"]["name"])
    return made


def _hang(plane: PlaneProcess) -> None:
    plane.process.send_signal(signal.SIGSTOP)
    os.waitpid(plane.process.pid, os.WUNTRACED)


def _copied(plane: PlaneProcess, to: Path) -> None:
    """The data folder as a failure of power would leave it."""
    _hang(plane)
    shutil.copytree(plane.kubeconfig.parent, to)
    plane.process.send_signal(signal.SIGCONT)


def _started(folder: Path) -> tuple[str, Store | None]:
    """What a start says, and what it then has: ``None`` if it is refused."""
    data = None
    try:
        data = DataDir.open(str(folder))
        data.check_database()
        assert data.database is not None
        backend = SqliteBackend.open(data.database)
        try:
            loaded = backend.load()
            return getattr(backend, "told", ""), Store.restore(
                loaded.history, loaded.revision, loaded.compacted
            )
        finally:
            backend.close()
    except (StartError, StorageError) as error:
        return str(error), None
    finally:
        if data is not None:
            data.close()


async def damaged_log(folder: Path) -> Sequence[Figure]:
    """150 acknowledged objects, kill -9, then every combination of damage to the three files, each
    with new chances.
    """
    with PlaneProcess(folder, command="apiserver") as plane:
        names = await _create(plane, [f"a{number}" for number in range(OBJECTS // 2)])
        earlier = folder / "earlier"
        await asyncio.to_thread(_copied, plane, earlier)
        names += await _create(plane, [f"b{number}" for number in range(OBJECTS - OBJECTS // 2)])
        plane.process.kill()
        plane.process.wait()
    rng = Rng(1)
    tried = silent = refused = whole = wordless = 0
    most_lost = 0
    for fates in itertools.product(FATES, repeat=len(PARTS)):
        for _ in range(SEEDS if {"flipped", "cut off"} & set(fates) else 1):
            target = folder / "tried"
            shutil.copytree(folder / "data", target)
            for part, fate in zip(PARTS, fates, strict=True):
                now, old = (_bytes(where / part) for where in (folder / "data", earlier))
                left = FATES[fate](now, old, rng)
                (target / part).unlink(missing_ok=True)
                if left is not None:
                    (target / part).write_bytes(left)
            said, store = await asyncio.to_thread(_started, target)
            shutil.rmtree(target)
            tried += 1
            if store is None:
                refused += 1
                wordless += "\n" in said or " or " not in said
                continue
            there = {
                record.key.name for record in store.list("configmaps", namespace="default").records
            }
            lost = len(set(names) - there)
            whole += not lost
            silent += bool(lost)
            most_lost = max(most_lost, lost)
    return (
        Figure("starts after damage", tried, "starts", 1_000),
        Figure("of these with all that was acknowledged", whole, "starts", 1_000),
        Figure("of these refused", refused, "starts", 1_000),
        Figure("refusals that do not say in one line what to do", wordless, "starts", 0),
        Figure("starts with acknowledged objects missing", silent, "starts", 0),
        Figure("most acknowledged objects missing after a start", most_lost, "objects", 0),
        Figure(
            "damage that was refused although nothing was damaged",
            await _spared(folder, names),
            "starts",
            0,
        ),
    )


async def _spared(folder: Path, names: list[str]) -> int:
    """The same folder as the kill left it: whether it is refused, or lacks anything."""
    _, store = await asyncio.to_thread(_started, folder / "data")
    if store is None:
        return 1
    there = {record.key.name for record in store.list("configmaps", namespace="default").records}
    return int(bool(set(names) - there))


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


# etcd, restored under servers that run and hang


@dataclass
class Door:
    """One server, as its clients see it."""

    plane: PlaneProcess
    session: aiohttp.ClientSession

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        try:
            async with self.session.request(
                method, self.plane.url + path, data=data, headers=headers
            ) as answer:
                return answer.status, json.loads(await answer.read())
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 0, {}

    async def names(self, query: str = "") -> set[str]:
        code, found = await self.ask("GET", MAPS + query)
        return {item["metadata"]["name"] for item in found["items"]} if code == 200 else set()

    async def create(self, name: str) -> int:
        """Its version; 0: it was not acknowledged."""
        code, made = await self.ask(
            "POST", MAPS, {"metadata": {"name": name}, "data": {"by": name}}
        )
        return int(made["metadata"]["resourceVersion"]) if code == 201 else 0

    async def resumed(self, version: int) -> bool:
        """Whether a watch is accepted at *version*."""
        url = f"{self.plane.url}{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={version}"
        async with self.session.get(url) as answer:
            told = await answer.read()
        return answer.status == 200 and b'"code":410' not in told

    async def resumed_of(self, versions: Sequence[int]) -> int:
        return sum(await asyncio.gather(*map(self.resumed, versions)))


@contextlib.asynccontextmanager
async def _doors(*planes: PlaneProcess) -> AsyncIterator[list[Door]]:
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for plane in planes:
            connector = aiohttp.TCPConnector(ssl=admin_context(plane))
            timeout = aiohttp.ClientTimeout(total=15)
            session = await stack.enter_async_context(
                aiohttp.ClientSession(connector=connector, timeout=timeout)
            )
            found.append(Door(plane, session))
        yield found


def _restore(member: Member, backup: Path) -> None:
    member.kill()
    shutil.rmtree(member.folder / member.name)
    shutil.copytree(backup, member.folder / member.name)
    member.start()
    member.wait_ready()


def _back_up(member: Member, backup: Path) -> None:
    member.kill()
    shutil.copytree(member.folder / member.name, backup)
    member.start()
    member.wait_ready()


def _head(member: Member) -> int:
    """Where etcd's newest batch is."""
    backend = EtcdBackend(EtcdConfig(servers=(member.url,)))
    try:
        return int(
            backend.client.ask("range", wire.RangeRequest(key=backend.layout.head))
            .kvs[0]
            .mod_revision
        )
    finally:
        backend.close()


async def restored_etcd(folder: Path) -> Sequence[Figure]:
    """One server hangs while etcd is restored and another one writes as many batches as were lost;
    then it goes on.
    """
    with cluster(folder, 1) as (member,), contextlib.ExitStack() as stack:
        flags = ("--etcd", member.url)
        (folder / "one").mkdir()
        (folder / "two" / "data").mkdir(parents=True)
        first = stack.enter_context(PlaneProcess(folder / "one", *flags, command="apiserver"))
        target = folder / "two" / "data"
        shutil.copytree(first.kubeconfig.with_name("pki"), target / "pki")
        shutil.copy(first.kubeconfig.with_name("tokens.csv"), target)
        second = stack.enter_context(PlaneProcess(folder / "two", *flags, command="apiserver"))
        async with _doors(first, second) as (hung, other):
            return await _history_is_lost(folder, member, hung, other)


async def _history_is_lost(
    folder: Path, member: Member, hung: Door, other: Door
) -> Sequence[Figure]:
    for number in range(10):
        await hung.create(f"old-{number}")
    await asyncio.to_thread(_back_up, member, folder / "backup")
    lost = [await hung.create(f"lost-{number}") for number in range(30)]
    await other.names()
    position = await asyncio.to_thread(_head, member)
    await asyncio.to_thread(_hang, hung.plane)
    await asyncio.to_thread(_restore, member, folder / "backup")
    began = time.monotonic()
    while (
        any(name.startswith("lost") for name in await other.names() or {"lost"})
        and time.monotonic() < began + 20
    ):
        await asyncio.sleep(0.02)
    noticed = time.monotonic() - began
    kept: dict[str, int] = {}
    while await asyncio.to_thread(_head, member) < position and len(kept) < 40:
        name = f"kept-{len(kept)}"
        kept[name] = await other.create(name)
    hung.plane.process.send_signal(signal.SIGCONT)
    return (
        Figure(
            "until the server that runs reads the restored history", round(noticed, 2), "s", 8.0
        ),
        *await _the_hung_one_goes_on(hung, other, kept, lost),
    )


async def _the_hung_one_goes_on(
    hung: Door, other: Door, kept: dict[str, int], lost: list[int]
) -> list[Figure]:
    began = time.monotonic()
    # The first thing that it is asked for are writes, on what it takes for the newest state.
    await asyncio.gather(*(hung.create(name) for name in kept), hung.ask("DELETE", f"{MAPS}/old-5"))
    wrong_reads = stale = looks = 0
    right_after = 99.0
    while time.monotonic() < began + 4:
        right = await other.names()
        code, found = await hung.ask("GET", MAPS)
        names = {item["metadata"]["name"] for item in found.get("items", [])}
        wrong_reads += code == 200 and names != right
        if await hung.names("?resourceVersion=0") == right:
            right_after = min(right_after, time.monotonic() - began)
        else:
            stale += time.monotonic() > began + 2
        looks += 1
        await asyncio.sleep(0.05)
    overwritten = 0
    for name, version in kept.items():
        code, found = await other.ask("GET", f"{MAPS}/{name}")
        overwritten += code != 200 or int(found["metadata"]["resourceVersion"]) != version
    resumed = await hung.resumed_of(lost[:-1]) + await other.resumed_of(lost[:-1])
    return [
        Figure("acknowledged objects overwritten or gone", overwritten, "objects", 0),
        Figure("linearizable reads of the lost history", wrong_reads, f"of {looks}", 0),
        Figure("reads of memory that are wrong after 2 s", stale, f"of {looks}", 0),
        Figure(
            "until the memory of the server that hung is right", round(right_after, 2), "s", 2.0
        ),
        Figure(
            "versions that were given out twice", len(set(kept.values()) & set(lost)), "versions", 0
        ),
        Figure("watches that go on from a lost version", resumed, "watches", 0),
    ]


async def older_copy(folder: Path) -> Sequence[Figure]:
    """An older copy of the whole data folder is put back while clients hold versions that it never
    heard of.
    """
    with PlaneProcess(folder, command="apiserver") as plane:
        async with _doors(plane) as (door,):
            await door.create("old")
            await asyncio.to_thread(_copied, plane, folder / "copy")
            lost = [await door.create(f"lost-{number}") for number in range(30)]
        plane.process.kill()
        plane.process.wait()
    shutil.rmtree(folder / "data")
    shutil.copytree(folder / "copy", folder / "data")
    with PlaneProcess(folder, command="apiserver") as plane:
        async with _doors(plane) as (door,):
            early = await door.resumed_of(lost)
            again = [await door.create(f"new-{number}") for number in range(15)]
            late = await door.resumed_of(lost)
            future = await door.resumed(max(again) + 1000)
    return (
        Figure("versions that were given out twice", len(set(again) & set(lost)), "versions", 0),
        Figure("watches that wait in silence at a lost version", early, "watches", 0),
        Figure("watches that go on from a lost version after new writes", late, "watches", 0),
        Figure("watches that wait at a version of the future", future, "watches", 0),
    )


ATTACKS = (
    Attack(
        "damaged-log",
        "someone's disk, script or hand damages the files of a database after kill -9",
        damaged_log,
    ),
    Attack(
        "older-copy",
        "an operator puts an older copy of the data folder back, under running clients",
        older_copy,
    ),
    Attack(
        "restored-etcd",
        "an operator restores etcd while one server hangs and another one runs",
        restored_etcd,
    ),
)
