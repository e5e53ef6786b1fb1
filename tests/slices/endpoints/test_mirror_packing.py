"""Mirrored slices packed on request: right, packed, few writes, and no address missing between two
of them.
"""

from __future__ import annotations

from itertools import pairwise, product

from hypothesis import given, settings
from hypothesis import strategies as st

from sliceplane.api.codec import encode
from sliceplane.api.discovery import EndpointConditions, EndpointSlice, SliceEndpoint
from sliceplane.api.meta import ObjectMeta, OwnerReference
from sliceplane.slices.endpoints.mirroring.desired import (
    MirrorGroup,
    SliceMeta,
    comparable,
    content_of,
    identity_of,
)
from sliceplane.slices.endpoints.mirroring.packing import Arrangement, arrange_packed

OWNER = OwnerReference(api_version="v1", kind="Endpoints", name="web", uid="u", controller=True)
WANTED = SliceMeta({"a": "b"}, None, OWNER)
#: addresses by number, ready or not
Holding = dict[int, bool]

holdings = st.dictionaries(st.integers(0, 9), st.booleans(), max_size=9)
limits = st.integers(1, 5)


def endpoint(number: int, ready: bool) -> SliceEndpoint:
    return SliceEndpoint(
        addresses=(f"10.0.0.{number}",), conditions=EndpointConditions(ready=ready)
    )


def group_of(holding: Holding) -> MirrorGroup:
    found = [endpoint(number, ready) for number, ready in sorted(holding.items())]
    texts = tuple(encode(each) for each in found)
    content = {identity_of(each): encode(comparable(each)) for each in found}
    return MirrorGroup("IPv4", (), content, texts)


def slice_of(name: str, holding: Holding, *, fits: bool = True) -> EndpointSlice:
    meta = ObjectMeta(
        name=name, uid=name, labels={"a": "b"} if fits else None, owner_references=(OWNER,)
    )
    return EndpointSlice(
        metadata=meta, endpoints=tuple(endpoint(*each) for each in holding.items())
    )


def numbers(group: MirrorGroup) -> list[int]:
    return [number_of(identity[0]) for identity in group.content]


def number_of(address: str) -> int:
    return int(address.rpartition(".")[2])


def sizes(found: Arrangement) -> list[int]:
    return sorted(
        len(group.content) for group in (*(kept.group for kept in found.kept), *found.new)
    )


def writes(found: Arrangement) -> int:
    return sum(kept.changed for kept in found.kept) + len(found.new) + len(found.spare)


def check(found: Arrangement, wanted: Holding, slices: list[EndpointSlice], limit: int) -> None:
    shown = sorted(
        n for group in (*(kept.group for kept in found.kept), *found.new) for n in numbers(group)
    )
    assert shown == sorted(wanted), "every address is in one slice"
    fills = sizes(found)
    assert all(0 < each <= limit for each in fills)
    assert len(fills) < 2 or fills[0] + fills[1] > limit, (
        f"two slices fit into one of {limit}: {fills}"
    )
    names = [kept.stored.metadata.name for kept in found.kept] + [
        each.metadata.name for each in found.spare
    ]
    assert sorted(names) == sorted(each.metadata.name for each in slices)
    for kept in found.kept:
        same = content_of(kept.stored) == kept.group.content and WANTED.fits(kept.stored.metadata)
        assert kept.changed is not same


def check_nothing_is_missing(
    found: Arrangement, wanted: Holding, slices: list[EndpointSlice]
) -> None:
    """Write by write in the order that ``packing`` asks for."""
    server = {
        each.metadata.name: {int(e.addresses[0].rpartition(".")[2]) for e in each.endpoints or ()}
        for each in slices
    }
    lasting = set().union(*server.values()) & wanted.keys()
    late = [kept for kept in found.kept if kept.changed and kept.loses_endpoints]
    steps: list[tuple[str, set[int] | None]] = [
        (f"new-{n}", set(numbers(group))) for n, group in enumerate(found.new)
    ]
    early = [kept for kept in found.kept if kept.changed and not kept.loses_endpoints]
    steps += [(kept.stored.metadata.name, set(numbers(kept.group))) for kept in (*early, *late)]
    steps += [(each.metadata.name, None) for each in found.spare]
    for name, holds in steps:
        if holds is None:
            del server[name]
        else:
            server[name] = holds
        assert lasting <= set().union(*server.values()), f"something is missing after {name}"
    assert set().union(*server.values()) == wanted.keys()


@given(wanted=holdings, held=st.lists(st.tuples(holdings, st.booleans()), max_size=5), limit=limits)
def test_any_slices_become_packed_ones_and_nothing_is_missing_meanwhile(
    wanted: Holding, held: list[tuple[Holding, bool]], limit: int
) -> None:
    slices = [
        slice_of(f"s{number}", holding, fits=fits) for number, (holding, fits) in enumerate(held)
    ]
    found = arrange_packed(group_of(wanted), slices, WANTED, limit)
    check(found, wanted, slices, limit)
    check_nothing_is_missing(found, wanted, slices)


def settled(wanted: Holding, limit: int) -> list[EndpointSlice]:
    """A packed state."""
    items = sorted(wanted.items())
    return [slice_of(f"s{at}", dict(items[at : at + limit])) for at in range(0, len(items), limit)]


def as_slices(found: Arrangement, turn: int) -> list[EndpointSlice]:
    """What the server holds afterwards."""
    kept = [(each.stored.metadata.name, each.group) for each in found.kept]
    new = [(f"t{turn}-{number}", group) for number, group in enumerate(found.new)]
    return [
        slice_of(
            name,
            {
                n: b'"ready":true' in text
                for n, text in zip(numbers(group), group.texts, strict=True)
            },
        )
        for name, group in (*kept, *new)
    ]


@given(history=st.lists(holdings, min_size=2, max_size=8), limit=limits)
def test_from_a_packed_state_a_changed_address_is_at_most_two_writes(
    history: list[Holding], limit: int
) -> None:
    slices = settled(history[0], limit)
    for turn, (before, wanted) in enumerate(pairwise(history)):
        found = arrange_packed(group_of(wanted), slices, WANTED, limit)
        check(found, wanted, slices, limit)
        check_nothing_is_missing(found, wanted, slices)
        gone = len(before.keys() - wanted.keys())
        other = sum(before.get(number) != ready for number, ready in wanted.items())
        assert writes(found) <= 2 * gone + other, (
            f"{gone} gone, {other} new or changed: {writes(found)} writes"
        )
        slices = as_slices(found, turn)


def fewest(wanted: Holding, slices: list[EndpointSlice], limit: int) -> int:
    """By trying everything: each address in each slice there is, or in one of enough new ones."""
    held = [content_of(each) for each in slices]
    content = group_of(wanted).content
    best = 99
    places = range(len(slices) + len(wanted))
    for choice in product(places, repeat=len(wanted)):
        bins: dict[int, dict[tuple[str, ...], bytes]] = {}
        for (identity, text), place in zip(content.items(), choice, strict=True):
            bins.setdefault(place, {})[identity] = text
        fills = sorted(len(each) for each in bins.values())
        if max(fills, default=0) > limit or (len(fills) > 1 and fills[0] + fills[1] <= limit):
            continue
        touched = sum(bins.get(place, {}) != each for place, each in enumerate(held))
        best = min(best, touched + sum(place >= len(slices) for place in bins))
    return best


@settings(max_examples=min(settings().max_examples, 60))
@given(
    before=st.sets(st.integers(0, 5)),
    wanted=st.sets(st.integers(0, 5), max_size=4),
    limit=st.integers(1, 3),
)
def test_no_other_packing_takes_fewer_writes(
    before: set[int], wanted: set[int], limit: int
) -> None:
    slices = settled(dict.fromkeys(before, True), limit)
    found = arrange_packed(group_of(dict.fromkeys(wanted, True)), slices, WANTED, limit)
    assert writes(found) == fewest(dict.fromkeys(wanted, True), slices, limit)


def test_a_large_object_is_cut_and_one_address_writes_one_slice() -> None:
    wanted = dict.fromkeys(range(250), True)
    whole = [slice_of("all", wanted)]
    found = arrange_packed(group_of(wanted), whole, WANTED, 100)
    assert sizes(found) == [50, 100, 100]
    assert [kept.loses_endpoints for kept in found.kept] == [True]
    slices = as_slices(found, 0)
    after = arrange_packed(group_of({**wanted, 7: False}), slices, WANTED, 100)
    assert (writes(after), sizes(after)) == (1, [50, 100, 100])
