"""A relay of a zone answers only what its parts have whole."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from sliceplane.api.core import Node
from sliceplane.api.discovery import LABEL_FOR_REGION, LABEL_FOR_ZONE, LABEL_REGION, LABEL_ZONE
from sliceplane.api.gates import ENDPOINT_SLICE_SUBSETTING, Gates
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import EndpointSlices, Nodes
from sliceplane.api.selectors.grammar import parse_labels
from sliceplane.consume.selections import common_selector, own_selectors
from sliceplane.relay.parts import part_of, parts_of

PARTS = {part: part for part in parts_of((EndpointSlices, Nodes), "a")}
VALUES = (None, "a", "b", "")
#: every slice that a selector of these labels can tell apart
WORLD = [
    {
        key: value
        for key, value in zip((LABEL_FOR_ZONE, LABEL_FOR_REGION, "x"), values, strict=True)
        if value is not None
    }
    for values in product(VALUES, VALUES, (None, "a"))
]
REQUIREMENTS = st.builds(
    lambda form, key, other: form.format(key=key, other=other),
    st.sampled_from(
        [
            "{key}",
            "!{key}",
            "{key}={other}",
            "{key}=={other}",
            "{key}!={other}",
            "{key} in ({other})",
            "{key} in (a,{other})",
            "{key} notin ({other})",
        ]
    ),
    st.sampled_from([LABEL_FOR_ZONE, LABEL_FOR_REGION, "x"]),
    st.sampled_from(["a", "b"]),
)


@given(st.lists(REQUIREMENTS, max_size=4).map(",".join))
def test_a_part_serves_a_selector_only_if_it_has_all_of_it(selector: str) -> None:
    part = part_of(PARTS, EndpointSlices, selector)
    if part is None:
        return
    kept = parse_labels(part.label_selector)
    requested = parse_labels(selector)
    assert all(kept.matches(one) for one in WORLD if requested.matches(one))


def test_a_proxy_of_the_zone_is_served_whole() -> None:
    gates = Gates(chosen={ENDPOINT_SLICE_SUBSETTING: True})
    labels = {LABEL_ZONE: "a", LABEL_REGION: "r"}
    node = Node(kind="Node", api_version="v1", metadata=ObjectMeta(name="n", labels=labels))
    for selector in (common_selector(gates), *own_selectors(gates, node)):
        assert part_of(PARTS, EndpointSlices, selector) is not None


def test_other_zones_and_all_slices_are_not_served() -> None:
    for selector in ("", f"{LABEL_FOR_ZONE}=b", f"{LABEL_FOR_ZONE} in (a,b)", "!x", "x=a"):
        assert part_of(PARTS, EndpointSlices, selector) is None


def test_other_resources_and_relays_of_all_zones_are_whole() -> None:
    assert part_of(PARTS, Nodes, "") is not None
    whole = {part: part for part in parts_of((EndpointSlices,))}
    assert part_of(whole, EndpointSlices, "") is not None
