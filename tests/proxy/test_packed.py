"""Packed endpoints are those that were packed, and a slice cache reads both forms alike."""

from __future__ import annotations

import tracemalloc

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.api.codec import encode
from sliceplane.api.discovery import (
    EndpointConditions,
    EndpointHints,
    EndpointPort,
    EndpointSlice,
    ForNode,
    ForZone,
    SliceEndpoint,
)
from sliceplane.api.meta import ObjectMeta, ObjectReference
from sliceplane.consume.model import ServiceKey
from sliceplane.consume.packed import EndpointPacker, PackedEndpoints
from sliceplane.consume.slicecache import SliceCache

NODE = "node-1"
SERVICE = ServiceKey("ns", "svc")

_TRUTH = st.none() | st.booleans()
_NAMES = st.sampled_from(["a", "b", NODE, f"{NODE}0"])
_WORDS = _NAMES | st.sampled_from(["", "line\nbreak"])
#: few addresses, so that slices and Pods disagree
_ADDRESSES = st.sampled_from(
    ["10.0.0.1", "10.0.0.2", "010.0.0.1", "127.0.0.1", "fd00::1", "", "no"]
)
_HINTS = st.builds(
    EndpointHints,
    for_zones=st.none() | st.lists(st.builds(ForZone, name=_WORDS), max_size=10).map(tuple),
    for_nodes=st.none() | st.lists(st.builds(ForNode, name=_WORDS), max_size=2).map(tuple),
)


def endpoints_of(
    addresses: st.SearchStrategy[tuple[str, ...]],
    names: st.SearchStrategy[str],
    topology: st.SearchStrategy[dict[str, str] | None],
) -> st.SearchStrategy[tuple[SliceEndpoint, ...]]:
    endpoint = st.builds(
        SliceEndpoint,
        addresses=addresses,
        conditions=st.builds(EndpointConditions, ready=_TRUTH, serving=_TRUTH, terminating=_TRUTH),
        hostname=st.none() | names,
        target_ref=st.none()
        | st.builds(ObjectReference, kind=names, namespace=names, name=names, uid=names),
        deprecated_topology=topology,
        node_name=st.none() | names,
        zone=st.none() | names,
        hints=st.none() | _HINTS,
    )
    return st.lists(endpoint, max_size=6).map(tuple)


USUAL = endpoints_of(st.tuples(_ADDRESSES), _NAMES, st.none())
ANY = USUAL | endpoints_of(
    st.lists(_ADDRESSES, max_size=2).map(tuple), _WORDS, st.none() | st.just({"zone": "a"})
)


def slice_of(name: str, revision: int, endpoints: tuple[SliceEndpoint, ...]) -> EndpointSlice:
    labels = {"kubernetes.io/service-name": SERVICE.name}
    return EndpointSlice(
        metadata=ObjectMeta(
            name=name, namespace="ns", resource_version=str(revision), labels=labels
        ),
        address_type="IPv4",
        endpoints=endpoints,
        ports=(EndpointPort(name="http", port=80), EndpointPort(name="tls", port=443)),
    )


@given(first=ANY, other=ANY)
def test_packed_endpoints_are_those_that_were_packed(
    first: tuple[SliceEndpoint, ...], other: tuple[SliceEndpoint, ...]
) -> None:
    packer = EndpointPacker()
    packed = packer.pack(first)
    assert tuple(packed) == first
    assert len(packed) == len(first)
    assert [packed[index] for index in range(len(first))] == list(first)
    assert tuple(packed[1:3]) == first[1:3]
    assert tuple(reversed(packed)) == first[::-1]
    # Another packer shares no shape with it.
    assert packed == EndpointPacker().pack(first)
    assert (packer.pack(other) == packed) == (first == other)


@given(endpoints=USUAL)
def test_what_controllers_write_is_packed(endpoints: tuple[SliceEndpoint, ...]) -> None:
    packed = EndpointPacker().pack(endpoints)
    assert isinstance(packed, PackedEndpoints) == bool(endpoints)


@given(endpoints=ANY)
def test_a_decoded_slice_has_the_endpoints_of_its_body(
    endpoints: tuple[SliceEndpoint, ...],
) -> None:
    body = encode(slice_of("s", 1, endpoints))
    plain = msgspec.json.decode(body, type=EndpointSlice)
    decoded = EndpointPacker().decode(body)
    assert tuple(decoded.endpoints or ()) == (plain.endpoints or ())
    assert msgspec.structs.replace(decoded, endpoints=None) == msgspec.structs.replace(
        plain, endpoints=None
    )


@given(slices=st.lists(ANY, min_size=1, max_size=3))
def test_a_slice_cache_reads_both_forms_alike(
    slices: list[tuple[SliceEndpoint, ...]],
) -> None:
    packer = EndpointPacker()
    plain, packed = SliceCache("IPv4", NODE), SliceCache("IPv4", NODE)
    for number, endpoints in enumerate(slices):
        made = slice_of(f"s{number}", number + 1, endpoints)
        key = made.metadata.key
        assert plain.on_slice(key, made) == packed.on_slice(key, packer.decode(encode(made)))
    assert plain.endpoints(SERVICE) == packed.endpoints(SERVICE)
    assert plain.origins(SERVICE) == packed.origins(SERVICE)
    assert plain.origins(SERVICE, "ns/s0") == packed.origins(SERVICE, "ns/s0")
    assert plain.sizes == packed.sizes


def test_an_endpoint_takes_a_hundred_bytes() -> None:
    numbers = range(20_000)
    bodies = [
        encode(slice_of(f"s{first}", 1, tuple(map(_pod, numbers[first : first + 100]))))
        for first in numbers[::100]
    ]
    packer = EndpointPacker()
    tracemalloc.start()
    try:
        retained = [packer.decode(body).endpoints for body in bodies]
        per_endpoint = tracemalloc.get_traced_memory()[0] / len(numbers)
    finally:
        tracemalloc.stop()
    assert len(retained) == len(bodies)
    assert per_endpoint < 110, per_endpoint


def _pod(number: int) -> SliceEndpoint:
    return SliceEndpoint(
        addresses=(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",),
        conditions=EndpointConditions(ready=True, serving=True, terminating=False),
        target_ref=ObjectReference(
            kind="Pod",
            namespace="ns",
            name=f"web-7d4b9c6f5d-{number:06d}",
            uid=f"5a1e0000-0000-4000-8000-{number:012x}",
        ),
        node_name=f"node-{number // 20:05d}",
        zone=f"zone-{number % 3}",
    )
