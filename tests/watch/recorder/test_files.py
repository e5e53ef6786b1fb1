"""A saved recording that was cut, spoiled or made by another version says so and shows what
it can.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.watch.recorder.test_encoding import Told

from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.diagnose.timeline.reader import entries
from sliceplane.watch.recorder.blocks import RecordingError
from sliceplane.watch.recorder.file import Header, read_lines, write_lines
from sliceplane.watch.recorder.objects import read_object


def lines(steps: int = 400) -> list[bytes]:
    recorder = Told(9, steps, limit_bytes=1 << 20, segment_bytes=8_000).recorder
    return list(write_lines(Header(program="1.0"), recorder.segments()))


LINES = lines()


def test_a_whole_file_has_no_problem() -> None:
    recording = read_lines(LINES)
    assert recording.problem == ""
    assert len(list(entries(recording))) > 400


@effort(60)
@given(cut=st.integers(1, len(b"".join(LINES)) - 1))
def test_a_cut_file_is_read_up_to_the_cut(cut: int) -> None:
    text = b"".join(LINES)[:cut]
    pieces = text.splitlines(keepends=True)
    if cut < len(LINES[0]) - 1:
        with pytest.raises(RecordingError):
            read_lines(pieces)
        return
    recording = read_lines(pieces)
    assert "cut" in recording.problem
    read = list(entries(recording))
    assert read == list(entries(read_lines(LINES)))[: len(read)]


@effort(60)
@given(where=st.integers(len(LINES[0]), len(b"".join(LINES)) - 1), bit=st.integers(0, 7))
def test_one_spoiled_bit_is_noticed(where: int, bit: int) -> None:
    text = bytearray(b"".join(LINES))
    text[where] ^= 1 << bit
    recording = read_lines(bytes(text).splitlines(keepends=True))
    read = list(entries(recording))
    assert recording.problem or len(read) == len(list(entries(read_lines(LINES))))
    assert read == list(entries(read_lines(LINES)))[: len(read)]


def test_a_missing_line_is_noticed() -> None:
    recording = read_lines([*LINES[:4], *LINES[5:]])
    assert recording.problem


def test_another_format_is_refused_with_the_version_that_reads_it() -> None:
    header = msgspec.json.encode(Header(recording=99, program="9.9"))
    with pytest.raises(RecordingError, match=r"format 99, made by sliceplane 9\.9"):
        read_lines([header + b"\n"])


def test_what_is_no_recording_is_refused() -> None:
    for text in ([], [b"\n"], [b"{}\n"], [b"apiVersion: v1\n"]):
        with pytest.raises(RecordingError):
            read_lines(text)


def test_another_version_reads_the_members_that_it_has() -> None:
    form = {"metadata": {"shape": "round", "name": "web"}}
    assert read_object(Object, form, None) == Object(metadata=ObjectMeta(name="web"))
