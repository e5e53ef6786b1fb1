"""The state folder and the files of an agent, where others may have put something (issue 30)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sliceplane.agent.io.machine import MachineError, host_id, lock_name, state_folder
from sliceplane.agent.io.own_files import new_own, read_own, readers_of_output, write_own
from sliceplane.agent.io.token import OwnToken, _Claims

CLAIMS = _Claims("default", "agent-vm-1", 0.0, 1.0)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("STATE_DIRECTORY", str(folder))
    return folder


def plant(path: Path, what: str) -> None:
    """What another user could have put where a file is expected."""
    match what:
        case "fifo":
            os.mkfifo(path)
        case "link":
            path.symlink_to("/etc/hostname")
        case "folder":
            path.mkdir()
        case "huge":
            path.touch()
            os.truncate(path, 10 << 30)


HOSTILE = pytest.mark.parametrize("what", ["fifo", "link", "folder", "huge"])


def test_a_folder_that_is_made_is_ours_alone(folder: Path) -> None:
    assert mode(state_folder()) == 0o700


@pytest.mark.parametrize(
    ("permissions", "refused"), [(0o700, False), (0o755, False), (0o775, True), (0o1777, True)]
)
def test_a_folder_that_others_can_write_to_is_refused(
    folder: Path, permissions: int, *, refused: bool
) -> None:
    folder.mkdir()
    folder.chmod(permissions)
    if refused:
        with pytest.raises(MachineError, match="others can write to"):
            state_folder()
    else:
        assert state_folder() == folder


@pytest.mark.skipif(os.getuid() != 0, reason="gives files to another user")
@pytest.mark.parametrize("as_link", [False, True])
def test_a_folder_of_another_user_is_refused(folder: Path, *, as_link: bool) -> None:
    other = folder.with_name("other")
    other.mkdir()
    if as_link:
        folder.symlink_to(other)
        os.chown(folder, 12345, 12345, follow_symlinks=False)
    else:
        other.rename(folder)
        os.chown(folder, 12345, 12345)
    with pytest.raises(MachineError, match="belongs to another user"):
        state_folder()


def test_a_link_of_our_own_is_followed(folder: Path) -> None:
    """systemd makes one for a ``DynamicUser=``."""
    (folder.with_name("private")).mkdir(mode=0o700)
    folder.symlink_to(folder.with_name("private"))
    assert state_folder() == folder


@HOSTILE
def test_no_identity_is_read_from_what_is_no_file_of_ours(tmp_path: Path, what: str) -> None:
    plant(tmp_path / "host-id", what)
    with pytest.raises(MachineError, match="cannot read this machine's identity"):
        host_id(tmp_path)


def test_an_identity_is_one_printable_line(tmp_path: Path) -> None:
    (tmp_path / "host-id").write_text("vm\x1b[2J")
    with pytest.raises(MachineError, match="is no identity"):
        host_id(tmp_path)


@pytest.mark.parametrize("what", ["fifo", "link", "folder"])
def test_no_lock_is_made_of_what_is_no_file_of_ours(tmp_path: Path, what: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    if what == "link":
        (tmp_path / "vm-1.lock").symlink_to(victim)
    else:
        plant(tmp_path / "vm-1.lock", what)
    with pytest.raises(MachineError, match="cannot lock the name"):
        lock_name(tmp_path, "vm-1")
    assert victim.read_text() == "precious"


@HOSTILE
def test_a_token_that_is_no_file_of_ours_is_passed_over(tmp_path: Path, what: str) -> None:
    file = tmp_path / "vm-1.token"
    plant(file, what)
    assert OwnToken("given", CLAIMS, file)._token == "given"


def test_a_written_file_takes_the_place_of_a_link_and_not_of_its_target(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    file = tmp_path / "token"
    file.symlink_to(victim)
    write_own(file, "secret")
    assert victim.read_text() == "precious"
    assert (read_own(file, 100), mode(file)) == ("secret", 0o600)


def test_a_new_file_is_ours_alone_from_its_birth(tmp_path: Path) -> None:
    file = tmp_path / "a.kubeconfig"
    before = os.umask(0)
    try:
        with new_own(file, overwrite=False) as written:
            assert mode(file) == 0o600
            written.write(b"token")
    finally:
        os.umask(before)
    with pytest.raises(FileExistsError), new_own(file, overwrite=False):
        pass
    file.chmod(0o644)
    with pytest.raises(KeyError), new_own(file, overwrite=True) as written:  # noqa: PT012
        written.write(b"half")
        raise KeyError
    assert file.read_bytes() == b"token", "a write that fails changes nothing"
    with new_own(file, overwrite=True) as written:
        written.write(b"other")
    assert (file.read_bytes(), mode(file)) == (b"other", 0o600)
    assert os.listdir(tmp_path) == ["a.kubeconfig"]


@pytest.mark.parametrize("kind", ["link", "dangling"])
def test_a_link_is_not_followed(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    if kind == "link":
        target.touch()
    (tmp_path / "out").symlink_to(target)
    with pytest.raises(FileExistsError), new_own(tmp_path / "out", overwrite=False):
        pass
    assert target.exists() == (kind == "link")


def test_an_output_that_others_can_read_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "out"
    for permissions, warns in ((0o644, True), (0o640, True), (0o600, False)):
        file.touch()
        file.chmod(permissions)
        with file.open() as opened:
            assert bool(readers_of_output(opened.fileno())) is warns
    reading, writing = os.pipe()
    assert readers_of_output(writing) == ""
    os.close(reading)
    os.close(writing)
