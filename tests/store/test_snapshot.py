"""Snapshots: what was written is read back, and whatever happens to the bytes in between is
noticed.
"""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.snapshot import (
    CHUNK_BYTES,
    BadSnapshot,
    SnapshotReader,
    records_of,
    restored,
    written,
)
from sliceplane.server.store.types import EventType, Key, Record

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)
LABELS = st.dictionaries(NAMES, NAMES, max_size=3)
REVISION = 1000


@st.composite
def record(draw: st.DrawFn) -> Record:
    revision = draw(st.integers(1, REVISION))
    return Record(
        key=Key(draw(NAMES), draw(st.just("") | NAMES), draw(NAMES)),
        revision=revision,
        created=draw(st.integers(1, revision)),
        uid=draw(NAMES),
        body=msgspec.json.encode(
            {"kind": "X", "data": draw(LABELS), "text": draw(st.text(max_size=20))}
        ),
        labels=draw(LABELS),
        fields=draw(LABELS),
        owners=tuple(draw(st.lists(NAMES, max_size=2))),
    )


RECORDS = st.lists(record(), max_size=6, unique_by=lambda each: each.key)


def lines(text: bytes) -> list[bytes]:
    """As a file gives them: ``bytes.splitlines`` would cut at other characters, too."""
    return [line + b"\n" for line in text.split(b"\n")[:-1]]


def read(text: bytes) -> list[Record]:
    rest = text[text.rfind(b"\n") + 1 :]
    return list(SnapshotReader([*lines(text), *([rest] if rest else [])]).records())


@given(RECORDS)
def test_what_was_written_is_read(records: list[Record]) -> None:
    text = b"".join(written(records, REVISION))
    reader = SnapshotReader(lines(text))
    assert (reader.revision, reader.objects) == (REVISION, len(records))
    assert list(reader.records()) == records
    assert all(json.loads(line) for line in lines(text))


@given(RECORDS, st.data())
def test_a_file_that_was_cut_off_is_no_snapshot(records: list[Record], data: st.DataObject) -> None:
    text = b"".join(written(records, REVISION))
    # Without its last line end nothing is missing.
    end = data.draw(st.integers(0, len(text) - 2))
    with pytest.raises(BadSnapshot):
        read(text[:end])


@given(RECORDS, st.data())
def test_a_byte_that_was_changed_is_noticed(records: list[Record], data: st.DataObject) -> None:
    text = bytearray(b"".join(written(records, REVISION)))
    place = data.draw(st.integers(0, len(text) - 2))
    text[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte != text[place]))
    before = json.loads(lines(b"".join(written(records, REVISION)))[-1])
    try:
        found = read(bytes(text))
    except BadSnapshot:
        return
    # What is left is another way to write the last line: the digest's own letters are not covered
    # by it.
    assert found == records
    assert json.loads(lines(bytes(text))[-1]) == before


@given(RECORDS.filter(bool), st.data())
def test_lines_that_were_taken_out_or_doubled_are_noticed(
    records: list[Record], data: st.DataObject
) -> None:
    found = lines(b"".join(written(records, REVISION)))
    place = data.draw(st.integers(0, len(found) - 1))
    with pytest.raises(BadSnapshot):
        list(SnapshotReader([*found[:place], *found[place + 1 :]]).records())
    with pytest.raises(BadSnapshot):
        list(SnapshotReader([*found[: place + 1], *found[place:]]).records())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "this is no snapshot of Sliceplane"),
        (b"SQLite format 3\0", "this is no snapshot of Sliceplane"),
        (b'{"format":"other","version":1,"revision":1,"objects":0}\n', "this is a 'other'"),
        (
            b'{"format":"sliceplane-snapshot","version":2,"revision":1,"objects":0}\n',
            "written by a newer Sliceplane",
        ),
        (
            b'{"format":"sliceplane-snapshot","version":1,"revision":1,"objects":3}\n',
            "cut off after 0 of 3 objects",
        ),
    ],
)
def test_it_says_what_is_wrong(text: bytes, told: str) -> None:
    with pytest.raises(BadSnapshot, match=told):
        read(text)


def test_it_is_of_one_revision_whatever_is_written_meanwhile(writer_of) -> None:
    store = Store()
    writer = writer_of(store)
    for number in range(3000):
        writer.put(Key("pods", "ns", f"pod-{number:04}"), labels={"app": "web"})
    writer.commit()
    revision = store.revision
    portions = written(records_of(store), revision)
    text = next(portions)
    assert CHUNK_BYTES <= len(text) < 2 * CHUNK_BYTES
    for number in range(0, 3000, 2):
        writer.delete(Key("pods", "ns", f"pod-{number:04}"))
    writer.put(Key("pods", "ns", "new"))
    writer.commit()
    store.compact(store.revision)
    text += b"".join(portions)
    assert [each.key.name for each in read(text)] == [f"pod-{number:04}" for number in range(3000)]
    assert SnapshotReader(lines(text)).revision == revision


@given(RECORDS)
def test_a_store_made_of_it_shows_the_same_and_no_past(records: list[Record]) -> None:
    unique = {each.revision: each for each in records}  # each commit has a revision of its own
    events = restored(unique.values())
    assert [event.revision for event in events] == sorted(unique)
    assert all(event.type is EventType.ADDED for event in events)
    store = Store.restore(events, REVISION + 7, REVISION + 7)
    store.check()
    assert sorted(records_of(store), key=lambda each: each.revision) == [
        unique[each] for each in sorted(unique)
    ]
