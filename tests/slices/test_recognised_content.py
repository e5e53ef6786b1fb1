"""A slice that holds what was expected is recognised whole; any other is read endpoint by
endpoint.
"""

from __future__ import annotations

from msgspec.structs import replace

from sliceplane.api.discovery import EndpointSlice, SliceEndpoint
from sliceplane.api.meta import ObjectMeta, ObjectReference
from sliceplane.slices.content import read_slice


def endpoint(number: int, **target: str) -> SliceEndpoint:
    reference = ObjectReference(
        kind="Pod", namespace="ns", name=f"pod-{number}", uid=f"uid-{number}", **target
    )
    return SliceEndpoint(addresses=(f"10.0.0.{number}",), target_ref=reference, node_name="node")


META = ObjectMeta(name="web-1", namespace="ns")
OBSERVED = EndpointSlice(
    metadata=META, address_type="IPv4", endpoints=tuple(map(endpoint, range(1, 4)))
)


def test_a_right_guess_is_used_as_it_is_and_says_what_reading_says() -> None:
    plain = read_slice(OBSERVED).content
    guess = dict(plain)
    assert read_slice(OBSERVED, {}, guess).content is guess
    assert list(guess.items()) == list(plain.items())


def test_wrong_guesses_change_nothing() -> None:
    plain = read_slice(OBSERVED).content
    names = list(plain)
    flipped = {**plain, names[1]: plain[names[1]].replace(b"node", b"edon")}
    reordered = {name: plain[name] for name in reversed(names)}
    short = {name: plain[name] for name in names[:2]}
    assert list(read_slice(OBSERVED, flipped, reordered, short, {}).content.items()) == list(
        plain.items()
    )


def test_what_no_comparison_looks_at_is_left_out_in_spite_of_a_guess() -> None:
    # Old writers put the pod's version into targetRef.
    plain = read_slice(OBSERVED).content
    noted = replace(
        OBSERVED, endpoints=tuple(endpoint(number, resource_version="7") for number in range(1, 4))
    )
    assert read_slice(noted, plain).content == plain


def test_a_slice_without_endpoints() -> None:
    assert read_slice(replace(OBSERVED, endpoints=None), {}).content == {}
