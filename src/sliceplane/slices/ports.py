"""Service ports to endpoint ports, and pods grouped by the *set* of ports that they resolve to.

One slice has one list of ports, so pods whose named ports resolve differently live in different slices; and one
slice is for one subset of the nodes (``slices.subsets``), so pods of different subsets do, too.
A ``PortGroup`` is such a set in canonical order (name, protocol, port) and a subset, interned per service: within one
``PortResolver`` two groups are equal exactly if they are the same object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from sliceplane.api.codec import encode
from sliceplane.api.core import ServicePort
from sliceplane.api.discovery import EndpointPort
from sliceplane.slices.facts import NamedPorts, PodFacts


class Port(NamedTuple):
    """An endpoint port with the server's defaults filled in; ``port`` None is "all ports"."""

    name: str
    protocol: str
    port: int | None
    app_protocol: str | None = None

    @property
    def order(self) -> tuple[str, str, int, str]:
        return self.name, self.protocol, -1 if self.port is None else self.port, self.app_protocol or ""


Ports = tuple[Port, ...]


class PortGroup:
    """A set of ports; ``body`` is its JSON list.  Compared by identity (see ``PortResolver``).

    ``subset`` is the zone that its slices are for; "": all zones.
    """

    __slots__ = ("body", "parts", "ports", "subset")

    def __init__(self, ports: Ports, subset: str = "") -> None:
        self.ports: Final = ports
        self.subset: Final = subset
        #: groups of the same ports, by subset, as far as they were asked for
        self.parts: Final[dict[str, PortGroup]] = {}
        self.body: Final = encode(
            [EndpointPort(name=p.name, protocol=p.protocol, port=p.port, app_protocol=p.app_protocol) for p in ports]
        )

    def __repr__(self) -> str:
        return f"PortGroup({self.ports}, {self.subset!r})"

    @property
    def order(self) -> tuple[list[tuple[str, str, int, str]], str]:
        return [port.order for port in self.ports], self.subset


def canonical_ports(ports: Iterable[EndpointPort]) -> Ports:
    """The ports of a slice as read, in canonical order."""
    plain = (Port(port.name or "", port.protocol or "TCP", port.port, port.app_protocol) for port in ports)
    return tuple(sorted(plain, key=lambda port: port.order))


class PortResolver:
    """The port groups of one service.  Owned by its ``ServiceState``; made anew when the ports change."""

    def __init__(self, ports: tuple[ServicePort, ...]) -> None:
        self._ports = ports
        self._groups: dict[tuple[Ports, str], PortGroup] = {}
        self._by_names: dict[NamedPorts, PortGroup] = {}
        #: the one group of all pods, where no target port is a name
        self._fixed = None if any(isinstance(p.target_port, str) for p in ports) else self._resolve(())
        self.empty: Final = self.intern(())

    def intern(self, ports: Ports, subset: str = "") -> PortGroup:
        """The group for *ports*, which must be in canonical order, and *subset*."""
        group = self._groups.get((ports, subset))
        if group is None:
            group = self._groups[ports, subset] = PortGroup(ports, subset)
        return group

    def part(self, group: PortGroup, subset: str) -> PortGroup:
        """The group with the ports of *group* for *subset*."""
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
    """Endpoint ports of a pod with *names*; a port whose name the pod lacks is left out."""
    resolved = []
    for port in service_ports:
        target = port.target_port
        if isinstance(target, str):
            number = next((n for name, protocol, n in names if (name, protocol) == (target, port.protocol)), None)
            if number is None:
                continue
        else:
            number = target or port.port
        resolved.append(Port(port.name, port.protocol, number, port.app_protocol))
    return tuple(sorted(resolved, key=lambda port: port.order))
