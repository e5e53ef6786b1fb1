"""Own writes: how long they are believed in while the cache does not show them, and what the bodies of slices share.

Knowledge of the server has two sources, the cache and the answers to our own writes.  Between the two
there is a time in which only we know of a write; it has an end, because an answer may be of a server that lost it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from sliceplane.api.codec import encode
from sliceplane.api.meta import ObjectMeta

#: how long an own create or delete may stay unseen by the cache before we stop believing in it
UNSEEN_TIMEOUT_S: Final = 300.0
#: how many plans in a row wait for the cache after a conflict, before the write is tried once more as it is
STALE_PLANS: Final = 3


class Unseen(NamedTuple):
    """An own create, or delete, of an object of this name; believed in until ``deadline`` (seconds since the epoch)."""

    name: str
    deadline: float
    deleted: bool


def delete_options(uid: str) -> bytes:
    """The body of a delete that hits the object with this *uid* and no other."""
    return encode({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}})


def slice_body(meta: ObjectMeta, address_type: str, endpoints: Iterable[bytes], ports: bytes) -> bytes:
    """An EndpointSlice.  *endpoints* are encoded one by one, *ports* as a list."""
    return b"".join(
        (
            b'{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":',
            encode(meta),
            b',"addressType":',
            encode(address_type),
            b',"endpoints":[',
            b",".join(endpoints),
            b'],"ports":',
            ports,
            b"}",
        )
    )
