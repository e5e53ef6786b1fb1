"""Log lines never become errors of whoever writes them, and never hold them up."""

from __future__ import annotations

import io
import os
import re
import sys

import pytest

from sliceplane.shell.log import get_logger, lost_lines


class _Full(io.StringIO):
    """A file on a disk that is full."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise BrokenPipeError


@pytest.mark.parametrize("closed", [False, True])
def test_a_line_that_cannot_be_written_is_lost(closed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _Full()
    if closed:
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    get_logger("test").error("storage", problem="the disk is full", exc_info=ValueError("x"))


def test_a_pipe_that_nobody_reads_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as writer:
        monkeypatch.setattr(sys, "stderr", writer)
        os.set_blocking(reading, False)
        logger = get_logger("test")
        logger.warning("this takes along what other tests lost")
        assert reader.read()
        written, before = 500, lost_lines()
        for number in range(written):
            logger.warning("a line", number=number, filler="x" * 1000)
        lost = lost_lines() - before
        assert 300 < lost < written
        taken = reader.read()
        assert taken.count(b'event="a line"') >= written - lost
        logger.warning("the reader is back")
        later = reader.read().decode()
        told = re.findall(r" lines=(\d+)", taken.decode() + later)
        assert sum(map(int, told)) == lost
        assert "the reader is back" in later.splitlines()[-1]
        assert lost_lines() - before == lost
        long = "y" * 20_000
        logger.warning("long", filler=long)
        assert long in reader.read().decode()


def test_what_follows_half_a_line_begins_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as writer:
        monkeypatch.setattr(sys, "stderr", writer)
        get_logger("test").warning("too long for the pipe", filler="z" * 200_000)
        os.set_blocking(reading, False)
        assert not reader.read().endswith(b"\n")
        get_logger("test").warning("next")
        lines = reader.read().decode().splitlines()
        assert lines[0] == ""
        assert "lines=1" in lines[1]
        assert "event=next" in lines[2]
