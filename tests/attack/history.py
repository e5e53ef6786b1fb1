"""Attacks on the past: a database that is damaged or replaced, an etcd that is restored under servers that run.

What they count is what a client would never forgive: an object that was acknowledged, is not there, and nobody says so.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
from benchmarks.tools.process import PlaneProcess
from tests.attack.harness import Attack, Figure, admin_context

from sliceplane.kit.rng import Rng
from sliceplane.shell.datadir import DataDir
from sliceplane.shell.start_error import StartError
from sliceplane.shell.storage.errors import StorageError
from sliceplane.shell.storage.sqlite import SqliteBackend
from sliceplane.store.mvcc import Store

MAPS = "/api/v1/namespaces/default/configmaps"
OBJECTS = 150
SEEDS = 3
PARTS = ("sliceplane.db", "sliceplane.db-wal", "sliceplane.db-shm")

#: what is done to one file: (its content, what it was earlier, chance) -> what it is then; ``None``: removed
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
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=admin_context(plane))) as session:
        for name in names:
            async with session.post(plane.url + MAPS, json={"metadata": {"name": name}, "data": {"a": "b"}}) as answer:
                if answer.status == 201:
                    made.append(json.loads(await answer.read())["metadata"]["name"])
    return made


def _copied(plane: PlaneProcess, to: Path) -> None:
    """The data folder as a failure of power would leave it."""
    plane.process.send_signal(signal.SIGSTOP)
    os.waitpid(plane.process.pid, os.WUNTRACED)
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
            return getattr(backend, "told", ""), Store.restore(loaded.history, loaded.revision, loaded.compacted)
        finally:
            backend.close()
    except (StartError, StorageError) as error:
        return str(error), None
    finally:
        if data is not None:
            data.close()


async def damaged_log(folder: Path) -> Sequence[Figure]:
    """150 acknowledged objects, kill -9, then every combination of damage to the three files, each with new chances."""
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
            there = {record.key.name for record in store.list("configmaps", namespace="default").records}
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
        Figure("damage that was refused although nothing was damaged", await _spared(folder, names), "starts", 0),
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


ATTACKS = (
    Attack("damaged-log", "someone's disk, script or hand damages the files of a database after kill -9", damaged_log),
)
