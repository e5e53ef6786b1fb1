"""Requests are read as the protobuf library reads them, whoever wrote them."""

from __future__ import annotations

import pytest
from envoy.service.discovery.v3 import discovery_pb2
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort

from sliceplane.xds.names import ASSIGNMENT
from sliceplane.xds.streams.requests import DeltaRequest, RequestError, run_steps
from sliceplane.xds.streams.requests import read_delta as delta_steps
from sliceplane.xds.wire import message

#: around the lengths at which a length needs another octet
LENGTHS = st.sampled_from((0, 1, 5, 126, 127, 128, 129, 160))
TEXTS = st.builds(lambda mark, size: (mark * size).encode(), st.sampled_from("aé/"), LENGTHS)


def read_delta(encoded: bytes) -> DeltaRequest:
    return run_steps(delta_steps(encoded))


def field(number: int, value: bytes) -> bytes:
    return message(number, value)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=4), st.booleans())
@effort(60)
def test_versions_that_a_client_holds_are_read_in_either_order(
    pairs: list[tuple[bytes, bytes]], turned: bool
) -> None:
    entries = [(field(1, name), field(2, version)) for name, version in pairs]
    encoded = b"".join(
        field(5, b"".join(reversed(entry) if turned else entry)) for entry in entries
    )
    expected = discovery_pb2.DeltaDiscoveryRequest.FromString(encoded)
    assert read_delta(encoded).initial == dict(expected.initial_resource_versions)


@given(st.binary(max_size=12))
@effort(300)
def test_any_octets_for_a_pair_are_read_or_refused(entry: bytes) -> None:
    try:
        found = read_delta(field(5, entry)).initial
    except RequestError:
        return
    assert len(found) == 1


def test_a_long_request_is_read_whole() -> None:
    held = {f"shop/web-{number}:http": f"{number:011}" for number in range(2_000)}
    request = discovery_pb2.DeltaDiscoveryRequest(
        type_url=ASSIGNMENT, resource_names_subscribe=held, initial_resource_versions=held
    )
    found = read_delta(request.SerializeToString())
    assert found.initial == held
    assert found.subscribe == tuple(held)


@given(st.lists(TEXTS, max_size=4), st.binary(max_size=3))
@effort(60)
def test_names_of_any_length_are_read_and_what_is_no_text_is_refused(
    names: list[bytes], other: bytes
) -> None:
    """Short ones are remembered; which must not show."""
    encoded = b"".join(field(3, name) for name in names)
    for _ in range(2):
        assert read_delta(encoded).subscribe == tuple(
            dict.fromkeys(name.decode() for name in names)
        )
    try:
        expected: tuple[str, ...] | None = tuple(
            dict.fromkeys((*read_delta(encoded).subscribe, other.decode()))
        )
    except UnicodeDecodeError:
        expected = None
    for _ in range(2):
        if expected is None:
            with pytest.raises(RequestError, match="not valid UTF-8"):
                read_delta(encoded + field(3, other))
        else:
            assert read_delta(encoded + field(3, other)).subscribe == expected
