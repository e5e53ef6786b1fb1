"""Sets of fields: the algebra against plain sets of paths, the wire form, the order of upstream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.server.documents.fields import sets

ELEMENTS = [
    "f:a",
    "f:b",
    "f:a.b/c",
    'k:{"port":80,"protocol":"TCP"}',
    'k:{"port":443,"protocol":"TCP"}',
    'v:"x"',
    "v:1",
]
PATHS = st.lists(st.sampled_from(ELEMENTS), min_size=1, max_size=3).map(tuple)
SETS = st.frozensets(PATHS, max_size=8)


def build(paths: frozenset[sets.Path]) -> sets.FieldSet:
    return sets.of_paths(sorted(paths))


def members(fields: sets.FieldSet) -> frozenset[sets.Path]:
    members = list(sets.paths(fields))
    assert len(members) == len(set(members))
    check_tidy(fields)
    return frozenset(members)


def check_tidy(fields: sets.FieldSet) -> None:
    """No node says nothing: what has neither itself nor anything below does not exist."""
    for element, node in fields.items():
        if element != sets.SELF:
            assert sets.is_member(node) or any(name != sets.SELF for name in node), fields
            assert list(node) != [sets.SELF], "a leaf is an empty node"
            check_tidy(node)


@given(SETS, SETS)
def test_the_algebra_is_that_of_sets_of_paths(
    left: frozenset[sets.Path], right: frozenset[sets.Path]
) -> None:
    one = build(left)
    other = build(right)
    before = json.dumps([one, other])
    assert members(one) == left
    assert members(sets.union(one, other)) == left | right
    assert members(sets.difference(one, other)) == left - right
    assert members(sets.intersection(one, other)) == left & right
    below = {path for path in left if any(path[: len(top)] == top for top in right)}
    assert members(sets.difference(one, other, whole=True)) == left - below
    inner = {
        path
        for path in left
        if any(len(more) > len(path) and more[: len(path)] == path for more in left)
    }
    assert members(sets.leaves(one)) == left - inner
    assert all(sets.has(one, path) for path in left)
    assert not any(sets.has(one, path) for path in right - left)
    assert json.dumps([one, other]) == before, "an argument was changed"


@given(SETS, SETS)
def test_what_changes_nothing_is_the_argument_itself(
    left: frozenset[sets.Path], right: frozenset[sets.Path]
) -> None:
    one = build(left)
    assert sets.union(one, build(left & right)) is one or not left & right
    assert sets.difference(one, build(right - left)) is one or right & left


@given(SETS)
def test_round_trip_through_the_wire_form(paths: frozenset[sets.Path]) -> None:
    fields = build(paths)
    wire = json.loads(json.dumps(sets.ordered(fields)))
    assert sets.from_wire(wire) == fields


def test_order_is_upstreams() -> None:
    given_order = [
        "v:true",
        "v:10",
        'v:"a"',
        "v:9",
        'k:{"port":443}',
        "f:b",
        'k:{"port":80}',
        "i:10",
        "f:a-b",
        "f:a",
        "i:9",
    ]
    wanted = [
        "f:a",
        "f:a-b",
        "f:b",
        'k:{"port":80}',
        'k:{"port":443}',
        "v:9",
        "v:10",
        'v:"a"',
        "v:true",
        "i:9",
        "i:10",
    ]
    assert list(sets.ordered({".": {}, **{name: {} for name in given_order}})) == [".", *wanted]


def test_members_of_a_level_come_before_those_below() -> None:
    fields = {"f:a": {".": {}, "f:x": {}}, "f:b": {}}
    assert [sets.show(path) for path in sets.paths(fields)] == [".a", ".b", ".a.x"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            ("f:spec", 'k:{"port":80,"protocol":"TCP"}', "f:name"),
            '.spec[port=80,protocol="TCP"].name',
        ),
        (("f:metadata", "f:finalizers", 'v:"x.io/f"'), '.metadata.finalizers[="x.io/f"]'),
        (("f:a", "i:3"), ".a[3]"),
    ],
)
def test_paths_are_shown_as_upstream_shows_them(path: sets.Path, text: str) -> None:
    assert sets.show(path) == text


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({"f:a": {".": {}}}, {"f:a": {}}),
        ({'k:{"b":1, "a":2}': {"f:a": {}}}, {'k:{"a":2,"b":1}': {"f:a": {}}}),
        ({"x:what": {"f:a": {}}, "f:b": {}}, {"f:b": {}}),
        ({"f:a": {"x:what": {}}}, {"f:a": {}}),
        ({".": {}, "f:a": {"f:b": {}}}, {"f:a": {"f:b": {}}}),
    ],
)
def test_what_clients_send_is_brought_to_one_form(sent: Any, read: Any) -> None:
    assert sets.from_wire(sent) == read


@pytest.mark.parametrize(
    "sent",
    [[], {"f": {}}, {"fa": {}}, {"k:[": {}}, {"k:[]": {}}, {"i:x": {}}, {"f:a": 1}, {"f:a": []}],
)
def test_nonsense_is_refused(sent: Any) -> None:
    with pytest.raises(sets.MalformedElement):
        sets.from_wire(sent)
