"""Log lines never become errors of whoever writes them, and never hold them up."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import pty
import re
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.logs import output as log_output
from sliceplane.kit.io.logs.line_writer import LineWriter
from sliceplane.kit.io.logs.lines import LINE_CHARACTERS_MAX
from sliceplane.kit.io.logs.output import QUEUE_BYTES_MAX, drain, lost_lines

#: a thousand lines that no one takes: without a queue the first of them that does not fit takes for
#: ever
STUCK_S_MAX = 30.0


class _Full(io.StringIO):
    """A file on a disk that is full."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise BrokenPipeError


@pytest.mark.parametrize("closed", [False, True])
def test_a_line_that_cannot_be_written_is_lost(
    closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = _Full()
    if closed:
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    before = lost_lines()
    get_logger("test").error("storage", problem="the disk is full", exc_info=ValueError("x"))
    assert lost_lines() == before + 1


def test_a_full_disk_loses_lines_and_says_so_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with open("/dev/full", "w") as full, (tmp_path / "log").open("w") as sound:
        monkeypatch.setattr(sys, "stderr", full)
        before = lost_lines()
        for _ in range(3):
            get_logger("test").warning("the disk is full")
        assert drain(60)
        assert lost_lines() == before + 3
        monkeypatch.setattr(sys, "stderr", sound)
        get_logger("test").warning("there is room again")
        assert drain(60)
        first, second = (tmp_path / "log").read_text().splitlines()
        assert int(re.findall(r"lines=(\d+)", first)[0]) >= 3
        assert "there is room again" in second


def _nobody_reads(monkeypatch: pytest.MonkeyPatch, writing: int, reading: int) -> None:
    """Writes more than the file and the queue take, without waiting; then reads, and sees what was
    told.
    """
    fresh = log_output._Stderr()
    monkeypatch.setattr(log_output, "_stderr", fresh)
    written = 2000
    lines = [f"event=line number={number} filler={'x' * 1000}\n" for number in range(written)]
    with os.fdopen(writing, "w") as writer:
        monkeypatch.setattr(sys, "stderr", writer)
        began = time.monotonic()
        for line in lines:
            fresh.write(line)
        assert time.monotonic() - began < STUCK_S_MAX
        lost = fresh.lost
        assert (
            written * 1000 - QUEUE_BYTES_MAX - 300_000
            < lost * 1000
            < written * 1000 - QUEUE_BYTES_MAX + 300_000
        )
        taken = bytearray()
        reader = threading.Thread(target=_read_all, args=(reading, taken))
        reader.start()
        assert fresh.drain(60)
        fresh.write("event=end\n")
        assert fresh.drain(60)
        monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    reader.join(120)
    text = taken.decode().replace("\r", "")
    told = sum(map(int, re.findall(r'took no more" lines=(\d+)', text)))
    assert (told, fresh.lost) == (lost, lost), "each loss is told once"
    assert text.count("event=line") == written - lost
    assert text.endswith("event=end\n")


def _read_all(fd: int, taken: bytearray) -> None:
    while True:
        try:
            data = os.read(fd, 65536)
        except OSError:  # a terminal whose other end is closed
            break
        if not data:
            break
        taken += data


@pytest.mark.parametrize("non_blocking", [False, True])
def test_a_pipe_that_nobody_reads_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, non_blocking: bool
) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, not non_blocking)
    _nobody_reads(monkeypatch, writing, reading)
    os.close(reading)


def test_a_terminal_stopped_with_ctrl_s_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = pty.openpty()
    termios.tcflow(writing, termios.TCOOFF)
    resumed = threading.Timer(1.0, termios.tcflow, (writing, termios.TCOON))
    read_all: Callable[[int, bytearray], None] = _read_all

    def on_and_read(fd: int, taken: bytearray) -> None:
        resumed.run()
        read_all(fd, taken)

    monkeypatch.setattr(sys.modules[__name__], "_read_all", on_and_read)
    _nobody_reads(monkeypatch, writing, reading)
    os.close(reading)


def test_a_process_whose_log_nobody_reads_ends_all_the_same() -> None:
    code = (
        "import sys\nfrom sliceplane.kit.io.log import get_logger\n"
        "for number in range(3000): get_logger('test').warning('x' * 1000)\n"
        "print('done', flush=True)"
    )
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=writing
    ) as process:
        out, _ = process.communicate(timeout=120)
    assert (out, process.returncode) == (b"done\n", 0)
    os.close(reading)
    os.close(writing)


def test_the_last_lines_before_an_exit_are_written() -> None:
    code = (
        "from sliceplane.kit.io.log import get_logger\nget_logger('test').error('the last words')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert 'event="the last words"' in done.stderr


def test_a_line_has_an_end_and_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    get_logger("test").warning("said by a stranger", agent="\x1b[2J\x9b31m\x07" + "y" * 100_000)
    line = capsys.readouterr().err
    assert len(line) < LINE_CHARACTERS_MAX + 200
    assert line.endswith(" characters more)\n")
    assert "\\x1b[2J\\x9b31m\\x07" in line
    assert not set(line) & {"\x1b", "\x9b", "\x07"}


def test_what_follows_half_a_line_begins_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = log_output._Stderr()
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as writer:
        monkeypatch.setattr(sys, "stderr", writer)
        real, calls = os.write, []

        def torn(fd: int, data: bytes) -> int:
            calls.append(fd)
            if len(calls) == 2:
                raise OSError(28, "No space left on device")
            return real(fd, data[:5])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", torn)
            assert not fresh._write_line(b"0123456789\n")
        assert fresh._write_line(b"next\n")
        writer.close()
        assert reader.read() == b"01234\nnext\n"


def test_no_more_waits_than_the_bound() -> None:
    release, taken = threading.Event(), []

    def write(lines: list[bytes]) -> int:
        release.wait(60)
        taken.extend(lines)
        return 0

    writer = LineWriter("test", write, bytes_max=100)
    assert [writer.put(b"x" * 40) for _ in range(4)] == [True, True, False, False]
    release.set()
    assert writer.flush(60)
    assert writer.put(b"y" * 100), "what was written makes room"
    writer.close(60)
    assert not writer.put(b"z")
    assert (len(taken), writer.lost) == (3, 3)


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_the_ready_line_waits_for_nobody(kind: str) -> None:
    code = (
        "import time\nfrom sliceplane.cli.process import print_line\n"
        "began = time.monotonic()\n"
        "print_line('x' * 60_000)\nprint_line('y' * 60_000)\n"
        "import sys; print(time.monotonic() - began, file=sys.stderr)"
    )
    reading, writing = pty.openpty() if kind == "terminal" else os.pipe()
    if kind == "terminal":
        termios.tcflow(writing, termios.TCOOFF)
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=writing,
        stderr=subprocess.PIPE,
        check=True,
        timeout=120,
        text=True,
    )
    assert float(done.stderr) < STUCK_S_MAX
    os.close(reading)
    os.close(writing)


def test_a_ready_line_that_cannot_be_printed_is_a_warning() -> None:
    code = "from sliceplane.cli.process import print_line\nprint_line('ready')"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=full,
            stderr=subprocess.PIPE,
            check=True,
            timeout=120,
        )
    assert b'event="cannot print to stdout"' in done.stderr
    assert b"line=ready" in done.stderr


def test_a_secret_line_is_in_no_log_and_the_journal_is_known() -> None:
    code = (
        "import os, sys\nfrom sliceplane.cli.process import is_journal, print_line\n"
        "status = os.fstat(1)\nos.environ['JOURNAL_STREAM'] = f'{status.st_dev}:{status.st_ino}'\n"
        "kept = is_journal()\nos.environ['JOURNAL_STREAM'] = "
        "f'{status.st_dev}:{status.st_ino + 1}'\n"
        "print(kept, is_journal(), file=sys.stderr)\nprint_line('a-secret', is_secret=True)"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=full,
            stderr=subprocess.PIPE,
            check=True,
            timeout=120,
            text=True,
        )
    assert 'event="cannot print to stdout"' in done.stderr
    assert "a-secret" not in done.stderr
    assert done.stderr.splitlines()[0] == "True False"


def test_what_libraries_log_is_a_line_like_ours(capsys: pytest.CaptureFixture[str]) -> None:
    log_output.configure("info")
    try:
        logging.getLogger("asyncio").error("a library says %s", "this")
    finally:
        root = logging.getLogger()
        for handler in [each for each in root.handlers if isinstance(each, log_output._Bridge)]:
            root.removeHandler(handler)
    assert 'component=asyncio event="a library says this"' in capsys.readouterr().err


def test_a_forked_process_has_a_log_of_its_own() -> None:
    code = (
        "import os\nfrom sliceplane.kit.io.log import get_logger\nfrom sliceplane.kit.io.logs.output import drain\n"
        "get_logger('test').warning('the parent')\nassert drain(60)\n"
        "child = os.fork()\n"
        "get_logger('test').warning('child' if child == 0 else 'parent again')\nassert drain(60)\n"
        "os._exit(0) if child == 0 else os.waitpid(child, 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert sorted(re.findall(r"event=(.*)", done.stderr)) == [
        '"parent again"',
        '"the parent"',
        "child",
    ]
