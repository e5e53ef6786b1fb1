"""A write may be tried again, and what one attempt makes of its body is not seen by the next."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sliceplane.api.codec import encode
from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import EndpointSlices
from sliceplane.server.io.requests.params import decode_object
from sliceplane.server.registry.decoding import decode_body
from sliceplane.server.registry.types import WriteOptions

STRICT = WriteOptions(field_manager="test", field_validation="Strict")
TIDY: dict[str, Any] = {
    "kind": "EndpointSlice",
    "apiVersion": "discovery.k8s.io/v1",
    "metadata": {"name": "web-1", "labels": {"app": "web"}},
    "addressType": "IPv4",
    "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}],
    "ports": [{"name": "", "port": 80, "protocol": "TCP"}],
}


@pytest.mark.parametrize("more", [{}, {"metadata": {"name": "web-1", "creationTimestamp": None}}])
def test_each_attempt_has_a_document_of_its_own(more: dict[str, Any]) -> None:
    body = decode_object("application/json", encode(TIDY | more), EndpointSlices)
    first, warnings = decode_body(EndpointSlices, body, STRICT)
    as_it_was = copy.deepcopy(first)
    first["endpoints"].clear()
    first["metadata"]["labels"] = {"by": "an attempt"}
    first["ports"][0]["name"] = "changed"
    assert decode_body(EndpointSlices, body, STRICT) == (as_it_was, warnings)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ((b'"addressType"', b'"addressTypo"'), "unknown field"),
        (
            (b'"addressType":"IPv4"', b'"addressType":"IPv4","addressType":"IPv6"'),
            "duplicate field",
        ),
        ((b'"kind":"EndpointSlice"', b'"kind":"Service"'), "cannot be handled as a EndpointSlice"),
    ],
)
def test_a_body_that_is_good_but_for_one_thing_is_complained_of(
    change: tuple[bytes, bytes], complaint: str
) -> None:
    with pytest.raises(StatusError, match=complaint):
        decode_body(
            EndpointSlices,
            decode_object("application/json", encode(TIDY).replace(*change), EndpointSlices),
            STRICT,
        )


def test_a_null_among_managed_fields_is_no_member() -> None:
    entry = {"manager": "m", "operation": "Update", "apiVersion": "v1", "time": None}
    body = decode_object(
        "application/json",
        encode(TIDY | {"metadata": {"name": "web-1", "managedFields": [entry]}}),
        EndpointSlices,
    )
    document, _ = decode_body(EndpointSlices, body, STRICT)
    (kept,) = document["metadata"]["managedFields"]
    assert "time" not in kept
