"""The data folder: private, locked, and gone again when it was only memory."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from sliceplane.kit.io.start_error import StartError
from sliceplane.server.io.datadir import DataDir, default_data_dir, write_private
from sliceplane.server.io.storage.committing import StorageError
from sliceplane.server.io.storage.sqlite import SqliteBackend


def test_folder_is_made_private(tmp_path: Path) -> None:
    opened = DataDir.open(str(tmp_path / "a" / "b"))
    assert stat.S_IMODE(opened.path.stat().st_mode) == 0o700
    assert opened.database == tmp_path / "a" / "b" / "sliceplane.db"
    opened.close()
    opened.close()
    assert opened.path.is_dir()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    first = DataDir.open(str(tmp_path))
    with pytest.raises(StartError, match=rf"process {os.getpid()} \(.*\) is using it"):
        DataDir.open(str(tmp_path))
    first.close()
    DataDir.open(str(tmp_path)).close()


def test_a_relative_folder_is_told_as_an_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened = DataDir.open("data")
    assert opened.kubeconfig == tmp_path / "data" / "admin.kubeconfig"
    opened.close()


def test_a_folder_that_cannot_be_made_names_the_flag_that_helps(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StartError, match="--data-dir chooses another folder, and --data-dir memory: keeps nothing"
    ):
        DataDir.open(str(tmp_path / "file" / "below"))


def test_memory_leaves_nothing() -> None:
    opened = DataDir.open("memory:")
    assert opened.ephemeral
    assert opened.database is None
    assert stat.S_IMODE(opened.path.stat().st_mode) == 0o700
    write_private(opened.kubeconfig, b"x")
    opened.close()
    assert not opened.path.exists()


def test_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="it is a file, not a directory"):
        DataDir.open(str(tmp_path / "file"))
    with pytest.raises(StartError, match="cannot create it: not a directory"):
        DataDir.open(str(tmp_path / "file" / "below"))


def test_xdg_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_data_dir() == Path("/data/sliceplane")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_data_dir() == Path("/home/someone/.local/share/sliceplane")


def test_write_private_replaces_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old, readable by all")
    path.chmod(0o644)
    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["secret"]


def test_write_private_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(
        StartError, match=r"cannot write .*/missing/secret: no such file or directory"
    ):
        write_private(tmp_path / "missing" / "secret", b"")


def used(folder: Path) -> DataDir:
    """A folder in which a server was at work, without its database."""
    opened = DataDir.open(str(folder))
    write_private(opened.kubeconfig, b"x")
    return opened


def test_a_folder_in_use_whose_database_is_gone_is_not_begun_anew(tmp_path: Path) -> None:
    opened = used(tmp_path)
    with pytest.raises(
        StartError,
        match=r"it is missing, although .* been in use; restore it from a copy, or remove ",
    ):
        opened.check_database()
    opened.kubeconfig.unlink()
    opened.check_database()
    (tmp_path / "sliceplane.db").write_bytes(b"something")
    write_private(opened.kubeconfig, b"x")
    opened.check_database()
    opened.close()


def test_a_folder_whose_restore_was_killed_is_not_begun_with_nothing(tmp_path: Path) -> None:
    opened = DataDir.open(str(tmp_path))
    opened.restoring.write_bytes(b"half")
    with pytest.raises(
        StartError, match=r"a restore was begun and did not end \(restoring\.db\); restore again"
    ):
        opened.check_database()
    opened.close()


@pytest.mark.parametrize("left", ["sliceplane.db-wal", "sliceplane.db-acked"])
def test_what_belongs_to_a_database_that_is_gone_is_not_taken_for_another_ones(
    tmp_path: Path, left: str
) -> None:
    (tmp_path / left).write_bytes(b"x" * 200)
    with pytest.raises(
        StorageError,
        match=f"it is missing, but {left} is there; restore it from a copy, or remove all",
    ):
        SqliteBackend.open(tmp_path / "sliceplane.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == [left]


def test_memory_with_a_full_tmp_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(prefix: str) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", prefix)

    monkeypatch.setattr("tempfile.mkdtemp", full)
    with pytest.raises(
        StartError, match=r"cannot make a folder .* no space left on device; TMPDIR chooses another"
    ):
        DataDir.open("memory:")
