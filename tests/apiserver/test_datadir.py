"""The data folder: private, locked, and gone again when it was only memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sliceplane.shell.datadir import DataDir, default_data_dir, write_private
from sliceplane.shell.start_error import StartError


def test_folder_is_made_private(tmp_path: Path) -> None:
    opened = DataDir.open(str(tmp_path / "a" / "b"))
    assert stat.S_IMODE(opened.path.stat().st_mode) == 0o700
    assert opened.database == tmp_path / "a" / "b" / "sliceplane.db"
    opened.close()
    opened.close()
    assert opened.path.is_dir()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    first = DataDir.open(str(tmp_path))
    with pytest.raises(StartError, match="another process is using it"):
        DataDir.open(str(tmp_path))
    first.close()
    DataDir.open(str(tmp_path)).close()


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
    with pytest.raises(StartError, match=r"cannot write .*/missing/secret: no such file or directory"):
        write_private(tmp_path / "missing" / "secret", b"")
