"""The parts of the Endpoints policy: the canonical form against a dumb one, the shares of a
truncated object.
"""

from __future__ import annotations

from math import ceil

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import CoreEndpointPort, EndpointAddress, Endpoints, EndpointSubset
from sliceplane.api.meta import ObjectReference
from sliceplane.slices.content import Port
from sliceplane.slices.endpoints.subsets import (
    ADDRESSES_MAX,
    AddressKey,
    Capacity,
    Subset,
    canonical,
    capacity_at,
    pod_address,
    render,
    shares,
    text_of,
)


def pod_ref(uid: str, version: str = "") -> ObjectReference:
    return ObjectReference(
        kind="Pod", namespace="shop", name=f"p-{uid}", uid=uid, resource_version=version
    )


addresses = st.builds(
    EndpointAddress,
    ip=st.sampled_from(("10.0.0.1", "10.0.0.10", "10.0.0.2", "fd00::1")),
    target_ref=st.sampled_from((None, pod_ref("a"), pod_ref("b"), pod_ref("a", "7"))),
)
ports = st.builds(
    CoreEndpointPort,
    name=st.sampled_from(("", "http")),
    port=st.sampled_from((80, 81, 82)),
    protocol=st.sampled_from(("TCP", "UDP")),
    app_protocol=st.sampled_from((None, None, "h2c")),
)
subsets = st.lists(
    st.builds(
        EndpointSubset,
        addresses=st.lists(addresses, max_size=4).map(tuple),
        not_ready_addresses=st.lists(addresses, max_size=3).map(tuple),
        ports=st.lists(ports, max_size=3).map(tuple),
    ),
    max_size=4,
).map(tuple)

Meaning = dict[tuple[object, ...], dict[tuple[str, str], bool]]


def meaning(given_subsets: tuple[EndpointSubset, ...]) -> Meaning:
    """Port by port: which addresses, ready or not."""
    found: Meaning = {}
    for subset in given_subsets:
        for port in subset.ports or (None,):
            key: tuple[object, ...] = ("all",)
            if port is not None:
                key = (port.name, port.protocol, port.port, port.app_protocol)
            for ready, side in ((True, subset.addresses), (False, subset.not_ready_addresses)):
                for each in side or ():
                    one = (each.ip, each.target_ref.uid if each.target_ref else "")
                    known = found.setdefault(key, {})
                    known[one] = known.get(one, True) and ready
    return found


def read(text: bytes) -> tuple[EndpointSubset, ...]:
    return decode(b'{"subsets":' + text + b"}", Endpoints).subsets or ()


@given(subsets)
def test_the_canonical_form_says_the_same(given_subsets: tuple[EndpointSubset, ...]) -> None:
    assert meaning(read(text_of(given_subsets))) == meaning(given_subsets)


@given(subsets)
def test_every_port_is_in_one_subset_and_no_two_subsets_are_alike(
    given_subsets: tuple[EndpointSubset, ...],
) -> None:
    found = canonical(given_subsets)
    listed = [port for subset in found for port in subset.ports or ("all",)]
    assert len(listed) == len(set(listed))
    contents = [
        frozenset(
            (key, ready)
            for ready, side in ((True, subset.ready), (False, subset.not_ready))
            for key in side
        )
        for subset in found
        if subset.ports
    ]
    assert len(contents) == len(set(contents))


@given(subsets, st.randoms(use_true_random=False))
def test_order_and_versions_do_not_matter(
    given_subsets: tuple[EndpointSubset, ...], chance: object
) -> None:
    shuffled = list(given_subsets)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]  # random.Random, which hypothesis does not name
    turned = tuple(
        msgspec.structs.replace(
            each, ports=(each.ports or ())[::-1], addresses=(each.addresses or ())[::-1]
        )
        for each in shuffled
    )
    assert meaning(read(text_of(turned))) == meaning(read(text_of(given_subsets)))
    first = text_of(read(text_of(given_subsets)))
    assert first == text_of(given_subsets), "the canonical form is its own"
    assert b"resourceVersion" not in first


def test_ports_with_the_same_addresses_share_a_subset() -> None:
    one, other = EndpointAddress(ip="10.0.0.1"), EndpointAddress(ip="10.0.0.2")
    http, metrics = (
        CoreEndpointPort(name="http", port=80),
        CoreEndpointPort(name="metrics", port=90),
    )
    (subset,) = canonical(
        (
            EndpointSubset(addresses=(one, other), ports=(metrics,)),
            EndpointSubset(addresses=(other,), ports=(http,)),
            EndpointSubset(addresses=(one,), ports=(http,)),
        )
    )
    assert [port.name for port in subset.ports] == ["http", "metrics"]
    assert [each.ip for each in subset.ready.values()] == ["10.0.0.1", "10.0.0.2"]


def test_not_ready_beats_ready() -> None:
    one, http = EndpointAddress(ip="10.0.0.1"), CoreEndpointPort(name="http", port=80)
    (subset,) = canonical(
        (EndpointSubset(addresses=(one,), not_ready_addresses=(one,), ports=(http,)),)
    )
    assert (subset.ready, list(subset.not_ready.values())) == ({}, [one])


def test_all_ports_is_no_port_among_others() -> None:
    one, http = EndpointAddress(ip="10.0.0.1"), CoreEndpointPort(name="http", port=80)
    found = canonical(
        (EndpointSubset(addresses=(one,)), EndpointSubset(addresses=(one,), ports=(http,)))
    )
    assert [len(each.ports) for each in found] == [0, 1]


def test_more_than_a_hundred_ports_are_one_subset() -> None:
    """kubernetes/kubernetes#99382."""
    many = tuple(CoreEndpointPort(name=f"p{number}", port=number) for number in range(1, 301))
    (subset,) = canonical(
        (EndpointSubset(addresses=(EndpointAddress(ip="10.0.0.1"),), ports=many),)
    )
    assert len(subset.ports) == 300


# Truncation

sizes = st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 1500)), max_size=6)


@given(sizes)
def test_shares_are_in_proportion_and_never_too_many(given_sizes: list[tuple[int, int]]) -> None:
    kept = shares(given_sizes)
    ready, waiting = (sum(size[side] for size in given_sizes) for side in (0, 1))
    assert all(
        k <= size
        for pair, of in zip(kept, given_sizes, strict=True)
        for k, size in zip(pair, of, strict=True)
    )
    total = sum(map(sum, kept))
    assert total == min(ready + waiting, ADDRESSES_MAX), "what fits is there"
    if ready + waiting <= ADDRESSES_MAX:
        assert kept == given_sizes
    elif ready > ADDRESSES_MAX:
        assert all(k[1] == 0 for k in kept)
        assert all(
            k[0] <= ceil(size[0] * ADDRESSES_MAX / ready)
            for k, size in zip(kept, given_sizes, strict=True)
        )
    else:
        assert [k[0] for k in kept] == [size[0] for size in given_sizes]


@pytest.mark.parametrize(
    ("given_sizes", "kept"),
    [
        ([(1000, 0)], [(1000, 0)]),
        ([(1001, 0)], [(1000, 0)]),
        ([(500, 501)], [(500, 500)]),
        ([(600, 3), (600, 5)], [(500, 0), (500, 0)]),
        ([(700, 0), (700, 0), (700, 0)], [(334, 0), (334, 0), (332, 0)]),
        ([(400, 900), (400, 300)], [(400, 150), (400, 50)]),
    ],
)
def test_shares(given_sizes: list[tuple[int, int]], kept: list[tuple[int, int]]) -> None:
    assert shares(given_sizes) == kept


def test_subsets_that_truncation_makes_alike_are_one() -> None:
    """Else the object as read would say something else than what was written, and be written for
    ever.
    """
    ips = [f"10.0.{number // 250}.{number % 250}" for number in range(1200)]
    common: dict[AddressKey, bytes] = {(ip, ""): encode({"ip": ip}) for ip in ips}
    http, metrics = Port("http", "TCP", 80), Port("metrics", "TCP", 81)
    parts: list[Subset[bytes]] = [
        Subset((http, metrics), common, {}),
        Subset((http,), {("10.9.9.1", ""): b'{"ip":"10.9.9.1"}'}, {}),
        Subset((metrics,), {("10.9.9.2", ""): b'{"ip":"10.9.9.2"}'}, {}),
    ]
    written = render(parts, truncate=True)
    assert written.total == 2402
    (subset,) = read(written.text)
    assert len(subset.addresses or ()) == 500
    assert text_of((subset,)) == written.text


def test_what_a_release_does_with_too_many() -> None:
    """KEP-0752: a warning in 1.21, a limit from 1.22 on."""
    assert capacity_at((1, 20)) is Capacity.UNLIMITED
    assert capacity_at((1, 21)) is Capacity.WARN
    assert capacity_at((1, 22)) is Capacity.TRUNCATE
    assert capacity_at((1, 36)).value == "truncated"


def test_addresses_are_spelled_as_the_codec_spells_them() -> None:
    target = pod_ref("a")
    whole = EndpointAddress(ip="10.0.0.1", hostname="h", node_name="n", target_ref=target)
    assert pod_address("10.0.0.1", "h", "n", b',"targetRef":' + encode(target)) == encode(whole)
