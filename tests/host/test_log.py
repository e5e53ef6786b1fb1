"""Log lines never become errors of whoever writes them."""

from __future__ import annotations

import io
import sys

import pytest

from sliceplane.shell.log import get_logger


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
