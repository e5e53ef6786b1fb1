"""The content of a slice: its ports, and its endpoints as the server has them and as desired.

**Ports.**  A slice has one list of ports, so Pods whose named ports resolve differently are in
different slices. A slice is for one subset of the nodes (``slices.subsets``), so Pods of different
subsets are in different slices, too. A ``PortGroup`` is a set of ports in canonical order (name,
protocol, port) together with a subset. It is interned for each Service: within one ``PortResolver``
two groups are equal exactly if they are the same object.

**Endpoints.**  ``server`` maps the identity of each endpoint to its JSON. An endpoint that cannot
come from a Pod of ours (no target Pod, or a duplicate in its slice) gets an identity that is never
desired, so the next write removes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from sliceplane.api.codec import OwnJson, encode
from sliceplane.api.core import ServicePort
from sliceplane.api.discovery import EndpointPort, EndpointSlice, SliceEndpoint
from sliceplane.api.meta import ObjectMeta, ObjectReference
from sliceplane.slices.facts import NamedPorts, PodFacts, endpoint_identity


class Port(NamedTuple):
    """An endpoint port with the server's defaults filled in; ``port`` None means all ports."""

    name: str
    protocol: str
    port: int | None
    app_protocol: str | None = None

    @property
    def order(self) -> tuple[str, str, int, str]:
        return (
            self.name,
            self.protocol,
            -1 if self.port is None else self.port,
            self.app_protocol or "",
        )


Ports = tuple[Port, ...]


class PortGroup:
    """A set of ports; ``body`` is its JSON list.  Compared by identity (see ``PortResolver``).

    ``subset`` is the zone that its slices are for; "": all zones.
    """

    __slots__ = ("body", "parts", "ports", "subset")

    def __init__(self, ports: Ports, subset: str = "") -> None:
        self.ports: Final = ports
        self.subset: Final = subset
        #: groups of the same ports by subset, created on demand
        self.parts: Final[dict[str, PortGroup]] = {}
        self.body: Final = encode(
            [
                EndpointPort(
                    name=p.name, protocol=p.protocol, port=p.port, app_protocol=p.app_protocol
                )
                for p in ports
            ]
        )

    def __repr__(self) -> str:
        return f"PortGroup({self.ports}, {self.subset!r})"

    @property
    def order(self) -> tuple[list[tuple[str, str, int, str]], str]:
        return [port.order for port in self.ports], self.subset


def canonical_ports(ports: Iterable[EndpointPort]) -> Ports:
    """Returns the ports of a slice as read, in canonical order."""
    plain = (
        Port(port.name or "", port.protocol or "TCP", port.port, port.app_protocol)
        for port in ports
    )
    return tuple(sorted(plain, key=attrgetter("order")))


class PortResolver:
    """The port groups of one Service. Owned by its ``ServiceState``; replaced when the ports
    change.
    """

    def __init__(self, ports: tuple[ServicePort, ...]) -> None:
        self._ports = ports
        self._groups: dict[tuple[Ports, str], PortGroup] = {}
        self._by_names: dict[NamedPorts, PortGroup] = {}
        #: the group of all Pods, if no target port is a name
        self._fixed = (
            None if any(isinstance(p.target_port, str) for p in ports) else self._resolve(())
        )
        self.empty: Final = self.intern(())

    def intern(self, ports: Ports, subset: str = "") -> PortGroup:
        """Returns the group for *ports*, which must be in canonical order, and *subset*."""
        group = self._groups.get((ports, subset))
        if group is None:
            group = self._groups[ports, subset] = PortGroup(ports, subset)
        return group

    def part(self, group: PortGroup, subset: str) -> PortGroup:
        """Returns the group with the ports of *group* for *subset*."""
        part = group.parts.get(subset)
        if part is None:
            part = group.parts[subset] = self.intern(group.ports, subset)
        return part

    def group_of(self, facts: PodFacts) -> PortGroup:
        if self._fixed is not None:
            return self._fixed
        names = facts.named_ports
        group = self._by_names.get(names)
        if group is None:
            group = self._by_names[names] = self._resolve(names)
        return group

    def _resolve(self, names: NamedPorts) -> PortGroup:
        return self.intern(resolve_ports(self._ports, names))


def resolve_ports(service_ports: tuple[ServicePort, ...], names: NamedPorts) -> Ports:
    """Returns the endpoint ports of a Pod with *names*, without ports whose name the Pod lacks."""
    resolved = []
    for port in service_ports:
        target = port.target_port
        if isinstance(target, str):
            number = next(
                (n for name, protocol, n in names if (name, protocol) == (target, port.protocol)),
                None,
            )
            if number is None:
                continue
        else:
            number = target or port.port
        resolved.append(Port(port.name, port.protocol, number, port.app_protocol))
    return tuple(sorted(resolved, key=lambda port: port.order))


#: endpoint's JSON by identity, in the order of the slice
Content = dict[str, bytes]

_STRAY: Final = "\0"


class Stored:
    """A slice that exists, as last read or written. Replaced, never changed."""

    __slots__ = ("address_type", "content", "meta", "ports")

    def __init__(self, meta: ObjectMeta, address_type: str, ports: Ports, content: Content) -> None:
        self.meta: Final = meta
        self.address_type: Final = address_type
        self.ports: Final = ports
        self.content: Final = content


def slice_body(
    meta: ObjectMeta, address_type: str, endpoints: Iterable[bytes], ports: bytes
) -> OwnJson:
    """Returns an encoded EndpointSlice. *endpoints* are encoded one by one, *ports* as a list."""
    kind = b'{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":'
    head = b'%b%b,"addressType":%b,"endpoints":[' % (kind, encode(meta), encode(address_type))
    tail = b'],"ports":%b}' % ports
    parts = [*endpoints]
    if not parts:
        return OwnJson(head + tail)
    # Bodies are long: adding head and tail to the first and last part avoids another copy.
    parts[0] = head + parts[0]
    parts[-1] += tail
    return OwnJson(b",".join(parts))


def read_slice(observed: EndpointSlice, *guesses: Content | None) -> Stored:
    """Converts an observed slice. *guesses*: likely contents, such as the content of the current
    write. A correct guess is used as it is, at a third of the cost of reading every endpoint.
    """
    endpoints = observed.endpoints or ()
    content: Content | None = None
    raw = b""
    for guess in guesses:
        if content is None and guess is not None and len(guess) == len(endpoints):
            raw = raw or encode(endpoints)
            content = guess if b"[%b]" % b",".join(guess.values()) == raw else None
    ports = canonical_ports(observed.ports or ())
    return Stored(
        observed.metadata,
        observed.address_type,
        ports,
        content or _read(endpoints, observed.metadata.namespace),
    )


def _read(endpoints: Iterable[SliceEndpoint], namespace: str) -> Content:
    content: Content = {}
    for index, endpoint in enumerate(endpoints):
        identity = _identity(endpoint, namespace)
        if not identity or identity in content:
            identity = f"{_STRAY}{index}"
        content[identity] = encode(comparable(endpoint))
    return content


def _identity(endpoint: SliceEndpoint, namespace: str) -> str:
    target = endpoint.target_ref
    if target is None or target.kind != "Pod" or target.namespace != namespace:
        return ""
    return endpoint_identity(target.name, endpoint.addresses, endpoint.hostname)


def comparable(endpoint: SliceEndpoint) -> SliceEndpoint:
    """Returns *endpoint* without the fields that no comparison reads."""
    target = without_version(endpoint.target_ref)
    if target is not endpoint.target_ref:
        endpoint = msgspec.structs.replace(endpoint, target_ref=target)
    if endpoint.deprecated_topology is not None or endpoint.hostname == "":
        endpoint = msgspec.structs.replace(
            endpoint, deprecated_topology=None, hostname=endpoint.hostname or None
        )
    return endpoint


def without_version(target: ObjectReference | None) -> ObjectReference | None:
    """Returns *target* without the Pod's version, which old writers set and which has no meaning
    there.
    """
    if target is not None and target.resource_version:
        return msgspec.structs.replace(target, resource_version="")
    return target


class SliceState:
    """One owned slice in its packer. Changed by ``SlicePacker`` only.

    ``desired`` contains the endpoints of ``server`` that are still desired, in their desired
    versions. It may be the same dictionary as ``server``, or one that a plan refers to: call
    ``own_desired`` before changing it.
    """

    __slots__ = ("_shared", "desired", "group", "name", "server", "stored")

    def __init__(self, stored: Stored, group: PortGroup) -> None:
        self.stored = stored
        self.name: Final = stored.meta.name
        self.group: Final = group
        self.server = stored.content
        self.desired: Content = {}
        self._shared = False

    def own_desired(self) -> Content:
        """Returns ``desired`` as a dictionary that may be changed."""
        if self._shared or self.desired is self.server:
            self.desired = dict(self.desired)
            self._shared = False
        return self.desired

    def share_desired(self) -> Content:
        """Returns ``desired`` for a reader that keeps it."""
        self._shared = True
        return self.desired
