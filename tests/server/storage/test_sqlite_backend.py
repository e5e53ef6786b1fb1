"""What only SQLite can do wrong: files that cannot be used, disks that are full or fail, growth."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from sliceplane.kit.rng import Rng
from sliceplane.server.io.storage.committing import StorageError
from sliceplane.server.io.storage.sqlite import SqliteBackend
from sliceplane.server.store.backend import OutcomeUnknown, WriteFailed
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key

A = Key("pods", "ns", "a")


def commit(store: Store, backend: SqliteBackend) -> None:
    batch = store.take_staged()
    backend.append(batch)
    store.on_durable(batch[-1].revision)


def filled(path: Path, kit, objects: int = 20, size: int = 3000) -> Store:
    """A file with *objects*, each written twice, closed cleanly."""
    backend = SqliteBackend.open(path)
    store = kit.restore(backend)
    for round_ in range(2):
        for number in range(objects):
            kit.put(store, Key("pods", "ns", f"pod-{number}"), "x" * (size + round_))
        commit(store, backend)
    backend.close()
    return store


def files(path: Path) -> dict[str, bytes]:
    """The database and its log (not the shared-memory index, which is no data, nor the mark)."""
    return {
        found.name: found.read_bytes()
        for found in sorted(path.parent.iterdir())
        if not found.name.endswith(("-shm", "-acked"))
    }


def test_only_the_owner_may_read_it(sqlite_path, kit):
    backend = SqliteBackend.open(sqlite_path)
    store = kit.restore(backend)
    kit.put(store, A)
    commit(store, backend)
    for found in sqlite_path.parent.iterdir():
        assert found.stat().st_mode & 0o077 == 0, found
    backend.close()


def test_commit_waits_for_the_disk(sqlite_path):
    backend = SqliteBackend.open(sqlite_path)
    connection = backend._connection
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    backend.compact(1)
    with contextlib.suppress(WriteFailed):
        backend.compact(5)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    backend.close()


@pytest.mark.parametrize("kind", ["parent is a file", "cannot be made", "is a folder"])
def test_a_place_that_cannot_be_written(kind, tmp_path):
    # Not by permissions: tests may run as root, for whom there are none.
    if kind == "parent is a file":
        (tmp_path / "file").write_text("precious")
        path = tmp_path / "file" / "sliceplane.db"
    elif kind == "cannot be made":
        path = Path("/proc/sliceplane-test/sliceplane.db")
    else:
        path = tmp_path
        (tmp_path / "content").write_text("precious")
    with pytest.raises(StorageError, match=rf"^cannot use {path} for storage: .+") as raised:
        SqliteBackend.open(path)
    assert "\n" not in str(raised.value)
    assert all(found.read_text() == "precious" for found in tmp_path.iterdir())


def test_another_kind_of_file(sqlite_path):
    sqlite_path.write_bytes(b"#!/bin/sh\n" * 1000)
    with pytest.raises(StorageError, match="it is not a database, or it is damaged"):
        SqliteBackend.open(sqlite_path)
    assert sqlite_path.read_bytes() == b"#!/bin/sh\n" * 1000


def test_a_database_of_another_program(sqlite_path):
    with contextlib.closing(sqlite3.connect(sqlite_path)) as other:
        other.execute("CREATE TABLE meta (key, value)")
        other.commit()
    before = files(sqlite_path)
    with pytest.raises(StorageError, match="a database of another program"):
        SqliteBackend.open(sqlite_path)
    assert files(sqlite_path) == before


def test_a_newer_schema_is_left_alone_even_with_a_pending_log(sqlite_path, kit):
    filled(sqlite_path, kit)
    script = (
        "import os, sqlite3, sys\n"
        "from sliceplane.server.io.storage import rows\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('INSERT OR REPLACE INTO meta VALUES (?, ?, ?)', rows.meta('schema', "
        "7))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(sqlite_path)],
        check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    before = files(sqlite_path)
    assert len(before) == 2, "the change is in the log, and nobody has copied it"
    with pytest.raises(
        StorageError,
        match=r"written by a newer Sliceplane \(schema 7, we know up to 2\); use that version",
    ):
        SqliteBackend.open(sqlite_path)
    assert files(sqlite_path) == before


def test_a_restart_after_a_crash_needs_no_space(sqlite_path, kit):
    """A log was left behind, and no file can be made beside it: the disk is full (here: its name is
    taken).
    """
    store = filled(sqlite_path, kit)
    script = (
        "import os, sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('PRAGMA user_version=1')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(sqlite_path)], check=False)
    index = sqlite_path.with_name(sqlite_path.name + "-shm")
    index.unlink()
    index.mkdir()
    log = sqlite_path.with_name(sqlite_path.name + "-wal").read_bytes()
    assert log
    backend = SqliteBackend.open(sqlite_path)
    assert kit.same(kit.restore(backend), store)
    assert sqlite_path.with_name(sqlite_path.name + "-wal").read_bytes() == log, (
        "nothing is written until it must be"
    )
    backend.close()


def test_an_empty_file_and_an_unfinished_one_are_begun(sqlite_path, kit):
    sqlite_path.touch()
    SqliteBackend.open(sqlite_path).close()
    sqlite_path.unlink()
    with contextlib.closing(sqlite3.connect(sqlite_path)) as unfinished:
        unfinished.execute("PRAGMA journal_mode=WAL")
    assert sqlite_path.stat().st_size > 0
    backend = SqliteBackend.open(sqlite_path)
    assert kit.restore(backend).revision == 1
    backend.close()


def test_two_processes_never_share_a_file(sqlite_path, kit):
    filled(sqlite_path, kit)
    script = (
        "import sys\nfrom pathlib import Path\nfrom sliceplane.server.io.storage.sqlite import "
        "SqliteBackend\n"
        "backend = SqliteBackend.open(Path(sys.argv[1]))\nprint('open', "
        "flush=True)\nsys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(sqlite_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(StorageError, match="another process is using it"):
            SqliteBackend.open(sqlite_path)
    finally:
        holder.kill()
        holder.communicate()
    SqliteBackend.open(sqlite_path).close()


def test_one_process_does_not_open_it_twice(sqlite_path):
    backend = SqliteBackend.open(sqlite_path)
    with pytest.raises(StorageError, match="is using it"):
        SqliteBackend.open(sqlite_path)
    backend.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_bit_is_an_error_or_harmless(seed, sqlite_path, kit):
    """Never other data than was written, wherever the bit is."""
    store = filled(sqlite_path, kit, objects=12)
    sound = sqlite_path.read_bytes()
    rng = Rng(seed)
    found = 0
    for _ in range(60):
        # Half of them near page starts, where the structure is.
        position = rng.below(len(sound))
        if rng.below(2):
            position = position - position % 4096 + rng.below(150)
        damaged = bytearray(sound)
        damaged[position] ^= 1 << rng.below(8)
        sqlite_path.write_bytes(damaged)
        try:
            backend = SqliteBackend.open(sqlite_path)
        except StorageError:
            found += 1
            assert sqlite_path.read_bytes() == damaged
            continue
        try:
            assert kit.same(kit.restore(backend), store), f"byte {position}"
        except StorageError:
            found += 1
        finally:
            backend.close()
    assert found > 15


def test_a_truncated_file_and_a_missing_row(sqlite_path, kit):
    filled(sqlite_path, kit)
    sound = sqlite_path.read_bytes()
    sqlite_path.write_bytes(sound[: len(sound) // 2])
    with pytest.raises(StorageError, match="damaged"):
        kit.restore(SqliteBackend.open(sqlite_path))
    sqlite_path.write_bytes(sound)
    with contextlib.closing(sqlite3.connect(sqlite_path)) as other:
        other.execute("DELETE FROM history WHERE revision = 5")
        other.commit()
    backend = SqliteBackend.open(sqlite_path)
    with pytest.raises(
        StorageError, match=r"is MODIFIED and replaces revision 5, but there is revision 0"
    ):
        kit.restore(backend)
    backend.close()


def test_a_full_disk_refuses_a_batch_whole_and_later_ones_succeed(sqlite_path, kit):
    backend = SqliteBackend.open(sqlite_path)
    store = kit.restore(backend)
    kit.put(store, A)
    commit(store, backend)
    (pages,) = backend._connection.execute("PRAGMA page_count").fetchone()
    backend._connection.execute(f"PRAGMA max_page_count = {pages + 10}")
    kit.put(store, A, "small")
    kit.put(store, Key("pods", "ns", "large"), "x" * 100_000)
    with pytest.raises(WriteFailed, match="the disk is full"):
        backend.append(store.take_staged())
    store.abort_staged()
    assert backend.reconcile() == 2
    kit.put(store, A, "small")
    commit(store, backend)
    backend._connection.execute("PRAGMA max_page_count = 1000000")
    kit.put(store, Key("pods", "ns", "large"), "x" * 100_000)
    commit(store, backend)
    backend.close()
    backend = SqliteBackend.open(sqlite_path)
    again = kit.restore(backend)
    backend.close()
    assert kit.same(again, store)
    assert [event.revision for event in again.events_since(1, "pods")] == [2, 5, 6]


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_that_fails_is_read_back(committed, sqlite_path, kit):
    backend = SqliteBackend.open(sqlite_path)
    store = kit.restore(backend)
    kit.put(store, A)
    commit(store, backend)
    backend._connection = kit.FailingConnection(backend._connection, committed=committed)
    kit.put(store, A)
    with pytest.raises(OutcomeUnknown, match="the disk reports an error"):
        backend.append(store.take_staged())
    with pytest.raises(OutcomeUnknown, match="has to be looked at first"):
        backend.append(store.take_staged())
    assert backend.reconcile() == (3 if committed else 2)
    if not committed:
        store.abort_staged()
    else:
        store.on_durable(3)
    kit.put(store, A)
    commit(store, backend)
    assert kit.same(kit.restore(backend), store)
    backend.close()


def test_compaction_gives_space_back(sqlite_path, kit):
    backend = SqliteBackend.open(sqlite_path)
    store = kit.restore(backend)
    for _ in range(60):
        for number in range(10):
            kit.put(store, Key("pods", "ns", f"{number}"), "x" * 20_000)
        commit(store, backend)
    while store.compacted < store.revision:
        step = min(store.compacted + 50, store.revision)
        backend.compact(step)
        store.compact(step)
    steps = 0
    while backend.release_space():
        steps += 1
    assert steps > 3, "not all of it in one step"
    kit.put(store, A)
    commit(store, backend)
    backend.close()
    assert sqlite_path.stat().st_size < 5_000_000, (
        "12 MB were written, 200 kB are live, and 4 MiB may be spare"
    )
    backend = SqliteBackend.open(sqlite_path)
    assert kit.same(kit.restore(backend), store)
    backend.close()


@pytest.mark.parametrize("fate", ["file deleted", "folder deleted", "replaced"])
def test_a_file_that_lost_its_name_takes_no_writes(fate, sqlite_path, kit):
    """SQLite would go on and write to a file that is gone with the process."""
    backend = SqliteBackend.open(sqlite_path)
    store = kit.restore(backend)
    kit.put(store, A)
    commit(store, backend)
    aside = sqlite_path.parent.with_name("aside")
    if fate == "folder deleted":
        sqlite_path.parent.rename(aside)
    else:
        aside.mkdir()
        for found in list(sqlite_path.parent.iterdir()):
            found.rename(aside / found.name)
    if fate == "replaced":
        sqlite_path.write_bytes(b"")
    kit.put(store, A, "lost?")
    with pytest.raises(WriteFailed, match="removed or replaced while the server was using it"):
        backend.append(store.take_staged())
    store.abort_staged()
    with pytest.raises(WriteFailed):
        backend.compact(2)
    with pytest.raises(OutcomeUnknown):
        backend.reconcile()
    assert fate == "replaced" or not sqlite_path.exists(), "nothing may be begun anew in its place"
    # What comes back is used again.
    if fate == "folder deleted":
        aside.rename(sqlite_path.parent)
    else:
        for found in aside.iterdir():
            found.rename(sqlite_path.parent / found.name)
    kit.put(store, A, "again")
    commit(store, backend)
    backend.close()
    backend = SqliteBackend.open(sqlite_path)
    assert kit.same(kit.restore(backend), store)
    backend.close()
