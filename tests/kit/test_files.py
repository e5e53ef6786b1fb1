"""The one reader of files: bounds, what is no file, what is no text; it never hangs, and its error
names the file.
"""

from __future__ import annotations

import io
import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from sliceplane.kit.io import files
from sliceplane.kit.io.files import opened_lines, read_bytes, read_text


def reason(path: Path, bytes_max: int = 100) -> str:
    with pytest.raises(OSError) as caught:  # the sentence is what is asserted
        read_bytes(path, bytes_max)
    assert caught.value.filename == str(path)
    return str(caught.value.strerror)


def test_a_file_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100)
    assert read_bytes(path, 100) == b"x" * 100
    assert reason(path, 99) == "is larger than 99 bytes"
    path.write_bytes(b"")
    assert read_bytes(path, 0) == b""
    assert reason(tmp_path / "none") == "No such file or directory"


def test_a_file_that_says_that_it_is_empty(tmp_path: Path) -> None:
    """Files of /proc have no size; one that grows while it is read has another."""
    assert b"Pid:" in read_bytes(Path("/proc/self/status"), 1 << 20)
    assert reason(Path("/proc/self/status"), 10) == "is larger than 10 bytes"


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x" * 100)))
    assert read_bytes(Path("-"), 100) == b"x" * 100
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x" * 101)))
    assert reason(Path("-"), 100) == "is larger than 100 bytes"


def test_what_is_no_file_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "WRITER_WAIT_S", 3600.0)
    monkeypatch.setattr(files, "PIPE_WAIT_S", 3600.0)
    address = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        assert reason(tmp_path) == "Is a directory; name a file"
        assert reason(Path("/dev/zero")) == "Is a device; name a file"
        assert "No such device" in reason(address)  # open(2) refuses a socket itself
    with pytest.raises(IsADirectoryError), opened_lines(tmp_path):
        pass


def test_a_pipe_without_a_writer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "WRITER_WAIT_S", 0.1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert reason(pipe) == "is a pipe that no program writes to"
    with pytest.raises(OSError, match="no program writes"), opened_lines(pipe):
        pass


def test_a_silent_writer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "WRITER_WAIT_S", 0.1)
    monkeypatch.setattr(files, "PIPE_WAIT_S", 0.2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    try:
        os.write(writer, b"a little")
        assert "brought nothing" in reason(pipe)
    finally:
        os.close(writer)


def test_a_pipe_of_a_shell_is_read(tmp_path: Path) -> None:
    """``-f <(command)``: a writer that takes its time, and one that writes more than the bound."""

    def written(size: int) -> Path:
        end, start = os.pipe()
        ends.append(end)

        def write() -> None:
            with open(start, "wb") as file:  # a descriptor
                time.sleep(0.05)
                file.write(b"a\n" * (size // 2))

        threading.Thread(target=write).start()
        return Path(f"/proc/self/fd/{end}")

    ends: list[int] = []
    try:
        assert read_bytes(written(200_000), 200_000) == b"a\n" * 100_000
        assert reason(written(400), 399) == "is larger than 399 bytes"
        with opened_lines(written(400)) as lines:
            assert list(lines) == [b"a\n"] * 200
    finally:
        for end in ends:
            os.close(end)


def test_lines_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\n\nthree\nwithout an end")
    with opened_lines(path) as lines:
        assert list(lines) == [b"one\n", b"\n", b"three\n", b"without an end"]
        assert lines.size_bytes == 25
    with (
        opened_lines(path, line_bytes_max=6) as lines,
        pytest.raises(OSError, match="line 4 is longer than 6 bytes"),
    ):
        list(lines)
    with pytest.raises(OSError, match="larger than 24 bytes"), opened_lines(path, bytes_max=24):
        pass


def test_what_is_no_text_has_a_place(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes("één\n".encode())
    assert read_text(path) == "één\n"
    path.write_bytes(b"one\ntwo \xff\n")
    with pytest.raises(OSError, match="is no text: line 2, column 5 is not UTF-8"):
        read_text(path)
