"""Run by test_kill: writes through the committer for ever and prints each acknowledged write, until
it is killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec
from msgspec.structs import replace

from sliceplane.kit.rng import Rng
from sliceplane.server.io.storage.committer import Committer
from sliceplane.server.io.storage.sqlite import SqliteBackend
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.shelf import Retention
from sliceplane.server.store.types import Key, Record


async def main(path: Path, seed: int, events_max: int) -> None:
    rng = Rng(seed)
    backend = SqliteBackend.open(path)
    loaded = backend.load()
    store = Store.restore(loaded.history, loaded.revision, loaded.compacted)
    committer = Committer(store, Hub(store), backend, retention=Retention(events_max=events_max))
    committer.start()

    async def write_one(number: int) -> None:
        key = Key("pods", "ns", f"{number}-{rng.below(20)}")
        previous = store.latest(key)
        payload = b"x" * rng.below(3000)

        def build(revision: int) -> Record:
            body = b'{"metadata":{"resourceVersion":"%d"},"x":"%s"}' % (revision, payload)
            if previous is not None:
                return replace(previous, revision=revision, body=body)
            return Record(
                key=key,
                revision=revision,
                created=revision,
                uid="u",
                body=body,
                labels={},
                fields={},
            )

        if previous is not None and rng.below(4) == 0:
            kind, record = "delete", store.stage_delete(key, build)
        else:
            kind, record = "put", store.stage_put(key, build)
        await committer.durable(record.revision)
        os.write(
            1, msgspec.json.encode((kind, key.name, record.revision, record.body.decode())) + b"\n"
        )

    async def write(number: int) -> None:
        while True:
            await write_one(number)

    await asyncio.gather(*(write(number) for number in range(8)))


asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
