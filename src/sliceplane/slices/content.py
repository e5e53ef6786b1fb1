"""A slice as the packer sees it: what the server holds, what it should hold.

``server`` maps the identity of each endpoint to its JSON; an endpoint that no pod of ours can have made (no
target pod, or twice in one slice) gets an identity that nothing wants, so that it goes with the next write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from sliceplane.api.codec import OwnJson, encode
from sliceplane.api.discovery import Endpoint, EndpointSlice
from sliceplane.api.meta import ObjectMeta
from sliceplane.slices.facts import endpoint_identity
from sliceplane.slices.ports import PortGroup, Ports, canonical_ports

#: identity -> the endpoint's JSON, in the order of the slice
Content = dict[str, bytes]

_STRAY: Final = "\0"


class Stored:
    """A slice that exists, as last read or written.  Replaced, never changed."""

    __slots__ = ("address_type", "content", "meta", "ports")

    def __init__(self, meta: ObjectMeta, address_type: str, ports: Ports, content: Content) -> None:
        self.meta: Final = meta
        self.address_type: Final = address_type
        self.ports: Final = ports
        self.content: Final = content


def slice_body(meta: ObjectMeta, address_type: str, endpoints: Iterable[bytes], ports: bytes) -> OwnJson:
    """An EndpointSlice.  *endpoints* are encoded one by one, *ports* as a list."""
    return OwnJson(
        b"".join(
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
    )


def read_slice(observed: EndpointSlice, *guesses: Content) -> Stored:
    """*guesses*: what the slice may well hold, such as what is being written to it.  One that is right is used as it
    is, which costs a third of reading every endpoint."""
    endpoints = observed.endpoints or ()
    content = _recognised(endpoints, guesses) or _read(endpoints, observed.metadata.namespace)
    return Stored(observed.metadata, observed.address_type, canonical_ports(observed.ports or ()), content)


def _recognised(endpoints: tuple[Endpoint, ...], guesses: tuple[Content, ...]) -> Content | None:
    likely = [guess for guess in guesses if len(guess) == len(endpoints)]
    if not likely:
        return None
    raw = encode(endpoints)
    return next((guess for guess in likely if b"[%b]" % b",".join(guess.values()) == raw), None)


def _read(endpoints: tuple[Endpoint, ...], namespace: str) -> Content:
    content: Content = {}
    for index, endpoint in enumerate(endpoints):
        identity = _identity(endpoint, namespace)
        if not identity or identity in content:
            identity = f"{_STRAY}{index}"
        content[identity] = encode(_comparable(endpoint))
    return content


def _identity(endpoint: Endpoint, namespace: str) -> str:
    target = endpoint.target_ref
    if target is None or target.kind != "Pod" or target.namespace != namespace:
        return ""
    return endpoint_identity(target.name, endpoint.addresses, endpoint.hostname)


def _comparable(endpoint: Endpoint) -> Endpoint:
    """*endpoint* without what no comparison looks at: old writers put the pod's version into targetRef."""
    target = endpoint.target_ref
    if target is not None and target.resource_version:
        endpoint = msgspec.structs.replace(endpoint, target_ref=msgspec.structs.replace(target, resource_version=""))
    if endpoint.deprecated_topology is not None or endpoint.hostname == "":
        endpoint = msgspec.structs.replace(endpoint, deprecated_topology=None, hostname=endpoint.hostname or None)
    return endpoint


class SliceState:
    """One owned slice in its packer.  Changed by ``Packer`` only.

    ``want`` holds the endpoints of ``server`` that are still desired, as they should be now.  It may be the very
    dictionary ``server`` or one that was handed out in a plan: ``own_want`` before changing it.
    """

    __slots__ = ("_shared", "group", "server", "stored", "want")

    def __init__(self, stored: Stored, group: PortGroup) -> None:
        self.stored = stored
        self.group: Final = group
        self.server = stored.content
        self.want: Content = {}
        self._shared = False

    @property
    def name(self) -> str:
        return self.stored.meta.name

    def own_want(self) -> Content:
        """``want``, made changeable."""
        if self._shared or self.want is self.server:
            self.want = dict(self.want)
            self._shared = False
        return self.want

    def share_want(self) -> Content:
        """``want`` for a reader that keeps it."""
        self._shared = True
        return self.want
