"""What a creator owns is remembered by the set of fields; it must be what the algebra of sets says,
every time.
"""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from sliceplane.server.documents.fields import sets
from sliceplane.server.documents.fields.managers import Identity
from sliceplane.server.documents.fields.ownership import UNOWNED, OwnedWrite, updated
from sliceplane.server.documents.fields.sets import FieldSet
from sliceplane.server.documents.fields.shape import FieldsChange

NAMES = st.sampled_from(
    ["f:metadata", "f:name", "f:labels", "f:spec", "f:status", "f:a", 'k:{"name":"x"}', 'v:"1"']
)
SETS = st.recursive(
    st.just({}),
    lambda below: st.dictionaries(
        NAMES, below | below.map(lambda node: {".": {}, **node}), max_size=4
    ),
)
WHO = Identity("kubectl", "Update", "v1", "")


@given(SETS, st.sampled_from([{}, {"f:status": {}}, {"f:spec": {"f:a": {}}}]))
def test_it_is_what_the_algebra_says(added: FieldSet, reset: FieldSet) -> None:
    expected = sets.difference(sets.difference(added, reset, whole=True), UNOWNED)
    write = OwnedWrite(owner=WHO, api_version="v1", now="2026-01-01T00:00:00Z", reset=reset)
    for _ in range(2):
        managers = updated({}, FieldsChange(copy.deepcopy(added), {}, {}), write)
        assert set(managers) == ({WHO} if expected else set())
        for entry in managers.values():
            assert entry.fields == expected
            assert entry.stored is entry.fields, "it is in order already"
            assert list(entry.fields) == list(sets.ordered(expected))
            assert (entry.api_version, entry.time) == ("v1", write.now)


def test_two_writers_share_the_set_and_nothing_else() -> None:
    change = FieldsChange({"f:spec": {".": {}, "f:b": {}, "f:a": {}}}, {}, {})
    other = Identity("helm", "Update", "v1", "")
    one = updated({}, change, OwnedWrite(owner=WHO, api_version="v1", now="1", reset={}))[WHO]
    two = updated({}, change, OwnedWrite(owner=other, api_version="v1", now="2", reset={}))[other]
    assert one.fields == two.fields == change.added
    assert (one.time, two.time) == ("1", "2")
    # A later change makes new sets of what both have.
    three = updated(
        {WHO: one},
        FieldsChange({}, {}, {"f:spec": {"f:b": {}}}),
        OwnedWrite(owner=other, api_version="v1", now="3", reset={}),
    )
    assert three[WHO].fields == {"f:spec": {".": {}, "f:a": {}}}
    assert two.fields == change.added
