"""What was acknowledged is there, or the start is refused: damage, loss and mixing up of the files
of a database.

The files are copied from under a back end that is at rest, which is what a kill leaves.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sliceplane.kit.rng import Rng
from sliceplane.server.io.storage import rows
from sliceplane.server.io.storage.committing import StorageError
from sliceplane.server.io.storage.rows import AckedMark
from sliceplane.server.io.storage.sqlite import SqliteBackend
from sliceplane.server.store.backend import REVISIONS_BEYOND, OutcomeUnknown
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key

NAMES = ("sliceplane.db", "sliceplane.db-wal", "sliceplane.db-acked")
DATABASE, LOG, MARK = NAMES
Files = dict[str, bytes]


@dataclass
class Life:
    """A back end at work, and its files at any moment."""

    path: Path
    backend: SqliteBackend
    store: Store
    kit: Any

    def put(self, name: str, payload: str = "x") -> None:
        self.kit.put(self.store, Key("pods", "ns", name), payload)

    def commit(self) -> None:
        batch = self.store.take_staged()
        self.backend.append(batch)
        self.store.on_durable(batch[-1].revision)

    def write(self, count: int, size: int = 1500) -> None:
        for _ in range(count):
            self.put(f"pod-{self.store.revision}", "x" * size)
            self.commit()

    def checkpoint(self) -> None:
        self.backend._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def files(self) -> Files:
        return {name: (self.path.parent / name).read_bytes() for name in NAMES}


@pytest.fixture
def life(tmp_path: Path, kit: Any) -> Any:
    path = tmp_path / "life" / DATABASE
    backend = SqliteBackend.open(path)
    yield Life(path, backend, kit.restore(backend), kit)
    backend.close()


def begun(folder: Path, files: dict[str, bytes | None], kit: Any) -> tuple[Store, str]:
    """A start on these files in a new folder, and what it told. Raises ``StorageError``. A second
    one finds the same.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        if content is not None:
            (folder / name).write_bytes(content)
    backend = SqliteBackend.open(folder / DATABASE)
    try:
        store, told = kit.restore(backend), backend.notice
    finally:
        backend.close()
    again = SqliteBackend.open(folder / DATABASE)
    try:
        assert kit.same(kit.restore(again), store)
        assert not again.notice
    finally:
        again.close()
    return store, told


def names(store: Store) -> set[str]:
    return {record.key.name for record in store.list("pods").records}


def fate_of(kind: str, now: bytes, earlier: bytes, rng: Rng) -> bytes | None:
    match kind:
        case "flipped":
            place = rng.below(len(now)) if now else 0
            return (
                now[:place] + bytes((now[place] ^ 1 << rng.below(8),)) + now[place + 1 :]
                if now
                else now
            )
        case "cut off":
            return now[: rng.below(len(now) + 1)]
        case "removed":
            return None
        case "older":
            return earlier
    return now


@pytest.mark.parametrize("seed", range(3))
def test_no_combination_of_damage_loses_what_was_acknowledged_in_silence(
    seed: int, life: Life, tmp_path: Path
) -> None:
    """Bits, ends, whole files, older copies: of the database, its log and the mark. Copies were
    made on both sides of a checkpoint, so that pages of two moments meet.
    """
    rng = Rng(seed)
    life.write(20)
    life.checkpoint()
    life.write(10 + rng.below(10))
    earlier = life.files()
    life.write(20)
    if seed % 2:
        life.backend.compact(life.store.revision - 10)
        life.store.compact(life.store.revision - 10)
    life.checkpoint()
    life.write(20)
    now = life.files()
    kinds = ("kept", "flipped", "cut off", "removed", "older")
    outcomes: dict[str, int] = {"refused": 0, "whole": 0, "told": 0}
    refusals: set[str] = set()
    for fates in itertools.product(kinds, repeat=3):
        files = {
            name: fate_of(kind, now[name], earlier[name], rng)
            for name, kind in zip(NAMES, fates, strict=True)
        }
        if files[DATABASE] is None and files[LOG] is None and files[MARK] is None:
            continue  # nothing is left of a database; ``DataDir`` knows by the rest of the folder
        try:
            store, told = begun(tmp_path / "tried", files, life.kit)
        except StorageError as error:
            outcomes["refused"] += 1
            refusals.add(str(error))
            continue
        if names(store) >= names(life.store) and store.revision >= life.store.revision:
            outcomes["whole"] += 1
            continue
        # Without a mark, or with one out of an older copy: it is said, and no version is repeated.
        assert fates[2] in ("removed", "older"), f"{fates}: {names(life.store) - names(store)}"
        outcomes["told"] += 1
        assert told
        assert store.revision == store.compacted >= REVISIONS_BEYOND
    helpful = ("; restore it from a copy", "; put the newest whole copy")
    assert [
        text for text in refusals if "\n" in text or not any(words in text for words in helpful)
    ] == []
    assert outcomes["refused"] > 60, outcomes
    assert outcomes["whole"] >= 2, outcomes


def test_an_object_that_nothing_rests_on_is_missed(life: Life) -> None:
    """Its row is gone, cleanly, and no other row names it."""
    life.write(5)
    life.backend.close()
    with contextlib.closing(sqlite3.connect(life.path)) as other:
        other.execute("DELETE FROM history WHERE revision = 4")
        other.commit()
    backend = SqliteBackend.open(life.path)
    with pytest.raises(
        StorageError, match=r"4 rows up to revision 6 are there, and they are not the 5 rows"
    ):
        life.kit.restore(backend)
    backend.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_write_that_a_crash_has_torn_is_no_damage(seed: int, life: Life, tmp_path: Path) -> None:
    """Any part of what was under way may be on disk, sector by sector; a compaction before it was
    not synced either.
    """
    rng = Rng(seed)
    life.write(12)
    if seed % 2:
        life.checkpoint()
        life.write(3)
    acknowledged = life.files()
    before = names(life.store)
    if seed >= 2:
        life.backend.compact(life.store.revision - 4)
        life.store.compact(life.store.revision - 4)
    for number in range(5):
        life.put(f"under-way-{number}", "y" * 3000)
    life.commit()
    log, synced = life.files()[LOG], len(acknowledged[LOG])
    assert log[:synced] == acknowledged[LOG]
    for _ in range(40):
        torn = bytearray(log)
        for sector in range(synced - synced % 512, len(log), 512):
            if rng.below(3) == 0:
                start = max(sector, synced)
                torn[start : sector + 512] = bytes(len(torn[start : sector + 512]))
        end = synced + rng.below(len(log) - synced + 1)
        content = bytes(torn[:end] if rng.below(2) else torn)
        store, _ = begun(tmp_path / "torn", acknowledged | {LOG: content}, life.kit)
        assert names(store) - {f"under-way-{number}" for number in range(5)} == before


def test_the_log_itself_proves_what_a_late_mark_does_not_know(life: Life, tmp_path: Path) -> None:
    """After a failure of power the mark may be half a minute old. Damage of the log is found all
    the same, wherever a later batch began; only the last batch looks like one that was torn.
    """
    life.write(3)
    late = life.files()[MARK]
    ends = []
    for _ in range(6):
        life.write(1)
        ends.append(len(life.files()[LOG]))
    files = life.files() | {MARK: late}
    for number, end in enumerate(ends):
        damaged = bytearray(files[LOG])
        damaged[end - 2000] ^= 1
        if number == len(ends) - 1:
            store, _ = begun(tmp_path / "tried", files | {LOG: bytes(damaged)}, life.kit)
            assert len(names(life.store) - names(store)) == 1
        else:
            with pytest.raises(StorageError, match=r"but .* was acknowledged"):
                begun(tmp_path / "tried", files | {LOG: bytes(damaged)}, life.kit)


def test_a_body_proves_nothing(life: Life, tmp_path: Path) -> None:
    """Who may write an object could otherwise keep the server from starting."""
    forged = rows.Tally(999, 999, 999, 999).encode(1)
    life.put("forged", forged)
    life.commit()
    assert forged.encode() in life.files()[LOG]
    store, _ = begun(tmp_path / "tried", life.files(), life.kit)
    assert store.revision - REVISIONS_BEYOND == life.store.revision, (
        "only that it is a copy is told"
    )


def test_a_refused_database_is_left_as_it_is(life: Life, tmp_path: Path, kit: Any) -> None:
    """SQLite would copy a wrong log into the file when it is closed."""
    life.write(5)
    earlier = life.files()
    life.checkpoint()
    life.write(5)
    files = life.files() | {LOG: earlier[LOG]}
    for _ in range(2):
        with pytest.raises(StorageError, match=r"put the newest whole copy|is damaged"):
            begun(tmp_path / "tried", files, kit)
        assert {name: (tmp_path / "tried" / name).read_bytes() for name in NAMES} == files


def test_a_copy_goes_on_far_beyond(life: Life, tmp_path: Path) -> None:
    life.write(10)
    life.backend.close()
    moved = life.path.parent.rename(tmp_path / "moved")
    backend = SqliteBackend.open(moved / DATABASE)
    assert (life.kit.restore(backend).revision, backend.notice) == (life.store.revision, ""), (
        "moving is no copying"
    )
    backend.close()
    shutil.copytree(moved, tmp_path / "copied")
    backend = SqliteBackend.open(tmp_path / "copied" / DATABASE)
    store = life.kit.restore(backend)
    assert "is a copy, which may be older" in backend.notice
    assert store.revision == store.compacted == life.store.revision + REVISIONS_BEYOND
    assert names(store) == names(life.store)
    backend.close()


def test_without_its_mark_it_goes_on_beyond_what_the_log_proves(life: Life, tmp_path: Path) -> None:
    life.write(10)
    files = life.files()
    damaged = bytearray(files[LOG])
    damaged[len(damaged) // 2] ^= 1
    store, told = begun(
        tmp_path / "tried", {DATABASE: files[DATABASE], LOG: bytes(damaged)}, life.kit
    )
    assert names(store) < names(life.store)
    assert "was missing, so nobody knows whether" in told
    assert store.revision == life.store.revision - 1 + REVISIONS_BEYOND


@pytest.mark.parametrize("how", ["removed", "replaced", "moved"])
def test_a_log_that_is_taken_away_while_it_is_used(how: str, life: Life, tmp_path: Path) -> None:
    """SQLite would go on writing to a file without a name."""
    life.write(5)
    log = life.path.with_name(LOG)
    content = log.read_bytes()
    log.rename(tmp_path / "aside") if how == "moved" else log.unlink()
    if how == "replaced":
        log.write_bytes(content)
    life.put("refused")
    with pytest.raises(
        OutcomeUnknown, match="was removed or replaced while the server was using it"
    ):
        life.backend.append(life.store.take_staged())
    life.store.abort_staged()
    assert life.backend.reconcile() == life.store.revision
    life.write(5)
    assert life.kit.same(life.kit.restore(life.backend), life.store)
    store, _ = begun(tmp_path / "tried", life.files(), life.kit)
    assert names(store) == names(life.store)


def test_a_log_that_is_taken_away_in_the_midst_of_a_write(life: Life, tmp_path: Path) -> None:
    life.write(5)

    class Taking:
        def __init__(self, inner: sqlite3.Connection) -> None:
            self._inner = inner

        def execute(self, statement: str, *arguments: Any) -> Any:
            if statement == "COMMIT":
                life.path.with_name(LOG).unlink()
            return self._inner.execute(statement, *arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    # Not by monkeypatch, which would put the old one back before the new one is closed.
    life.backend._connection = Taking(life.backend._connection)  # type: ignore[assignment]
    life.put("there")
    batch = life.store.take_staged()
    with pytest.raises(OutcomeUnknown):
        life.backend.append(batch)
    assert life.backend.reconcile() == batch[-1].revision
    life.store.on_durable(batch[-1].revision)
    store, _ = begun(tmp_path / "tried", life.files(), life.kit)
    assert "there" in names(store)


class Older:
    """A database of the schema before, which had no tally and no mark."""

    def __init__(self, path: Path, life: Life) -> None:
        shutil.copy(life.path, path)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("DROP TABLE tally")
            connection.execute("DELETE FROM meta WHERE key = 'history'")
            connection.execute(
                "INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", rows.meta("schema", 1)
            )


def test_a_database_of_the_schema_before_is_brought_up(
    life: Life, tmp_path: Path, kit: Any
) -> None:
    life.write(10)
    life.checkpoint()
    folder = tmp_path / "older"
    folder.mkdir()
    Older(folder / DATABASE, life)
    saved = (folder / DATABASE).read_bytes()
    backend = SqliteBackend.open(folder / DATABASE)
    store = kit.restore(backend)
    assert kit.same(store, life.store)
    assert (
        "has the form of an older version and is changed to the present one: to go back"
        in backend.notice
    )
    for number in range(3):
        kit.put(store, Key("pods", "ns", f"new-{number}"))
    batch = store.take_staged()
    backend.append(batch)
    backend.close()
    backend = SqliteBackend.open(folder / DATABASE)
    assert backend.notice == "", "it is announced once"
    assert kit.restore(backend).revision == batch[-1].revision
    backend.close()
    (folder / DATABASE).write_bytes(saved)
    with pytest.raises(
        StorageError, match=f"ends with revision 11, but {batch[-1].revision} was acknowledged"
    ):
        SqliteBackend.open(folder / DATABASE)


def test_the_mark_is_what_it_was_or_is_refused(tmp_path: Path) -> None:
    database = tmp_path / DATABASE
    assert AckedMark.read(database) is None
    AckedMark.begin(database, 77, 5).close()
    mark = AckedMark.begin(database, 77, 6)
    mark.note(77, 1 << 40)
    mark.close()
    mark.close()
    found = AckedMark.read(database)
    assert found is not None
    assert (found.history, found.revision, found.copied) == (77, 1 << 40, False)
    assert AckedMark.path_of(database).stat().st_mode & 0o777 == 0o600
