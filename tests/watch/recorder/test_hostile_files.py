"""Recordings that no recorder writes: bounded before they are decoded, and refused in a
sentence.
"""

from __future__ import annotations

import zlib
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.attack.files import malformed_recordings, with_good_checksums
from tests.effort import effort
from tests.watch.recorder.test_files import LINES

from sliceplane.cli.main import main
from sliceplane.diagnose.timeline.index import Index
from sliceplane.diagnose.timeline.reader import UNREADABLE, entries
from sliceplane.watch.recorder import blocks
from sliceplane.watch.recorder.blocks import (
    RecordingError,
    check_values,
    inflated,
    lines_of,
    names_of,
    objects_of,
)
from sliceplane.watch.recorder.entries import BlockNames
from sliceplane.watch.recorder.file import HEADER_BYTES_MAX, Header, read_lines

encode = msgspec.json.encode


def test_a_block_inflates_to_a_multiple_of_its_size_at_most() -> None:
    small = zlib.compress(b"\0" * blocks.BLOCK_BYTES_FREE)
    assert len(inflated(small)) == blocks.BLOCK_BYTES_FREE
    with pytest.raises(RecordingError, match="inflates to more than 1,048,576"):
        inflated(zlib.compress(b"\0" * (blocks.BLOCK_BYTES_FREE + 1)))
    # Text that deflates as recordings do is read whatever its size.
    text = b"".join(b"%08x" % (number * 2654435761 % 2**32) for number in range(400_000))
    assert inflated(zlib.compress(text, 1)) == text


@pytest.mark.parametrize(
    "spoil", [lambda block: block[:-1], lambda block: b"x" + block, lambda _: b""]
)
def test_a_block_that_is_spoiled(spoil: Any) -> None:
    with pytest.raises(RecordingError, match=r"spoiled|cut"):
        inflated(spoil(zlib.compress(b"abc")))


def test_values_are_counted_from_above() -> None:
    """What the bound lets in never has more values than it says, whatever the values are."""
    for value in ([], {}, "ab", None, 1000, 1.5, {"a": [1]}, True, -1):
        text = encode([value] * 1000)
        check_values(text, 3000 + len(text))
        with pytest.raises(RecordingError):
            check_values(text, 999)
    assert check_values(b"plain text without a separator" * 100, 10)


def test_names_and_objects_of_a_segment_are_bounded_by_what_they_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks, "NAMES_FREE", 100)
    few = [zlib.compress(encode(BlockNames(touched=[("pods", "shop", "", "")] * 99)))]
    assert len(names_of(few)[0].touched) == 99
    many = [zlib.compress(encode(BlockNames(touched=[("", "", "", "")] * 1000)))]
    with pytest.raises(RecordingError, match="more than 1,000 names"):
        names_of(many)
    with pytest.raises(RecordingError, match="names"):
        list(objects_of([zlib.compress(b"[]\n" * 1000)]))
    keys = [("pods", "shop", f"web-{number * 2654435761:x}", "") for number in range(999)]
    real = [zlib.compress(encode(BlockNames(touched=keys)))]
    assert len(names_of(real)[0].touched) == 999


def test_an_object_with_a_million_endpoints_is_refused() -> None:
    text = (
        b'["endpointslices.discovery.k8s.io","","",{"endpoints":[' + b"{}," * 1_000_000 + b"{}]}]"
    )
    with pytest.raises(RecordingError, match="more than 1,000,000 values"):
        check_values(text)


def test_a_header_is_bounded() -> None:
    with pytest.raises(RecordingError, match="first line has more than"):
        read_lines([b'{"recording":3,"x":"' + b"x" * HEADER_BYTES_MAX + b'"}\n'])
    with pytest.raises(RecordingError, match="this is no recording"):
        read_lines([b"[" * 100_000])


COMMANDS = {
    "show": ["recorder", "show"],
    "json": ["recorder", "show", "-o", "json"],
    "replay": ["recorder", "replay"],
    "export": ["recorder", "export"],
    "timeline": ["timeline", "service", "web", "--from"],
    "simulate": ["simulate", "--seed", "1", "--steps", "0", "--from"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("form", malformed_recordings())
def test_malformed_recordings_end_a_command_in_a_sentence(
    tmp_path: Path, form: str, command: str
) -> None:
    file = tmp_path / "a.recording"
    file.write_bytes(with_good_checksums(malformed_recordings()[form]))
    done = CliRunner().invoke(main, [*COMMANDS[command], str(file)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (0, 1, 2)
    assert all(line.startswith(("Note: ", "Error: ")) for line in done.stderr.splitlines()), (
        done.stderr
    )


@effort(80)
@given(where=st.integers(1, len(LINES) - 2), spoilt=st.data())
def test_lines_with_any_values_end_in_an_error_that_is_expected(
    where: int, spoilt: st.DataObject
) -> None:
    """Mutations of a real recording with good checksums: none of them is an error that commands do
    not expect.
    """
    value = st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**31), 2**31)
        | st.floats()
        | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=5),
        max_leaves=8,
    )
    kind, segment, *rest = msgspec.json.decode(LINES[where])["part"]
    if kind in ("entries", "objects"):
        rows = spoilt.draw(st.lists(st.lists(st.integers(0, 10) | value, max_size=7), max_size=5))
        rest = [_block(msgspec.json.Encoder().encode_lines(rows))]
    elif kind == "names":
        rest = [_block(encode([0.0, [], spoilt.draw(st.lists(st.text(max_size=3)))]))]
    else:
        rest = spoilt.draw(st.lists(value, max_size=4))
    part = msgspec.json.encode([kind, segment, *rest])
    lines = [
        *LINES[:where],
        b'{"crc":%d,"part":%b}\n' % (zlib.crc32(part), part),
        *LINES[where + 1 :],
    ]
    try:
        recording = read_lines(lines)
        list(entries(recording))
    except RecordingError:
        pass
    try:
        index = Index(read_lines(lines))
        for resource in ("pods", "services"):
            keys = tuple(index.keys(resource, "shop"))
            index.load(keys)
            for key in keys:
                list(index.versions(key))
    except (RecordingError, *UNREADABLE):
        pass


def _block(raw: bytes) -> str:
    from base64 import b64encode

    return b64encode(zlib.compress(raw)).decode()


def test_lines_of_a_real_recording_are_within_the_bounds() -> None:
    recording = read_lines(LINES)
    lines = [
        line for segment in recording.segments for line in chain(*map(lines_of, segment.blocks))
    ]
    assert len(lines) > 400
    assert isinstance(recording.header, Header)
