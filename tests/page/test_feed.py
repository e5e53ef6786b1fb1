"""Views as messages: whoever applies the differences has what a new reader is given whole."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort

from sliceplane.diagnose.page.feed import REMEMBERED_MESSAGES, PageView, ViewFeed
from sliceplane.diagnose.page.tables import PageTable, table_of

COLUMNS = ("name", "state", "number")
rows = st.dictionaries(
    st.sampled_from("abcdef"), st.tuples(st.sampled_from(["ready", "not ready"]), st.integers(0, 3))
)
parts = st.dictionaries(st.sampled_from(["x", "y"]), st.integers(0, 2))


def view(content: dict[str, tuple[str, int]], told: dict[str, int], command: str = "c") -> PageView:
    """Rows are in two chunks, as endpoints are in slices."""
    chunks = {"first": [], "second": []}  # type: dict[str, list[Any]]
    for name, (state, number) in content.items():
        chunks["first" if name < "d" else "second"].append((name, state, number))
    table = PageTable(COLUMNS, 1, {chunk: tuple(made) for chunk, made in chunks.items()})
    return PageView("v", command, told, {"t": table})


class Reader:
    """What a tab does with messages, written down plainly."""

    def __init__(self) -> None:
        self.number = 0
        self.rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.parts: dict[str, Any] = {}

    def take(self, message: bytes) -> None:
        document = msgspec.json.decode(message)
        self.number = document["number"]
        if document["type"] == "view":
            self.parts = document["parts"]
            table = document["tables"]["t"]
            columns = [
                [column["words"][index] for index in column["index"]]
                if "words" in column
                else column["values"]
                for column in table["columns"]
            ]
            self.rows = {(row[0],): row for row in zip(*columns, strict=True)}
            assert len(self.rows) == table["count"]
            return
        self.parts |= document["parts"]
        change = document["tables"].get("t", {"set": [], "gone": []})
        for row in change["set"]:
            self.rows[row[0],] = tuple(row)
        for key in change["gone"]:
            del self.rows[tuple(key)]

    def shown(self) -> tuple[Any, ...]:
        return self.rows, {name: part for name, part in self.parts.items() if part is not None}


@effort(60)
@given(st.lists(st.tuples(rows, parts, st.booleans()), min_size=1, max_size=20))
def test_differences_lead_to_the_whole(history: list[tuple[Any, Any, bool]]) -> None:
    feed, reader = ViewFeed(), Reader()
    for content, told, reads in history:
        feed.show(view(content, told), 1.0)
        feed.check()
        if reads:
            missed = (feed.whole(),) if not reader.number else feed.messages.after(reader.number)
            assert missed is not None
            for message in missed:
                reader.take(message)
            fresh = Reader()
            fresh.take(feed.whole())
            assert reader.shown() == fresh.shown()
            assert reader.number == feed.number


def test_what_says_nothing_new_is_no_message() -> None:
    feed = ViewFeed()
    assert feed.show(view({"a": ("ready", 1)}, {"x": 1}), 1.0)
    assert not feed.show(view({"a": ("ready", 1)}, {"x": 1}), 2.0)
    assert (feed.number, feed.messages.after(1)) == (1, ())
    assert feed.show(view({"a": ("ready", 1)}, {"x": 1}, "another command"), 3.0)
    assert msgspec.json.decode(feed.messages.after(1)[0]) == {  # type: ignore[index]  # it is remembered
        "type": "delta",
        "number": 2,
        "at": 3.0,
        "parts": {},
        "tables": {},
        "command": "another command",
    }


def test_a_reader_that_is_too_slow_loads_anew_and_costs_no_more() -> None:
    feed = ViewFeed()
    for number in range(REMEMBERED_MESSAGES + 2):
        feed.show(view({"a": ("ready", number)}, {}), 1.0)
        feed.check()
    assert feed.messages.after(1) is None
    assert len(feed.messages.after(2) or ()) == REMEMBERED_MESSAGES


def test_messages_that_are_large_are_forgotten_sooner() -> None:
    feed = ViewFeed()
    for number in range(8):
        feed.show(view({}, {"x": f"{number}" * 1_000_000}), 1.0)  # type: ignore[dict-item]  # any JSON
        feed.check()
    assert feed.messages.after(feed.number - 1) is not None
    assert feed.messages.after(feed.number - 5) is None


def test_a_table_of_other_columns_is_told_whole() -> None:
    feed = ViewFeed()
    feed.show(PageView("v", "c", {}, {"t": table_of(("a",), 1, [("1",)])}), 1.0)
    feed.show(PageView("v", "c", {}, {"t": table_of(("a", "b"), 1, [("1", "2")])}), 1.0)
    assert feed.messages.after(1) is None


def test_words_that_repeat_are_sent_once() -> None:
    table = table_of(
        ("name", "zone"), 1, [(f"n{number}", "zone-a") for number in range(1000)]
    ).as_document()
    assert table["columns"][1] == {"name": "zone", "words": ["zone-a"], "index": [0] * 1000}
    assert "values" in table["columns"][0]
