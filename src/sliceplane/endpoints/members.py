"""The Pods that a Service selects, as the subsets of its Endpoints.

Pods are kept in *groups*: those whose service ports resolve to the same endpoint ports.  Each group keeps its addresses
sorted and encoded, so a Pod's change moves one entry; and where a Service has one group, as nearly all have, writing
joins texts that are there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from sliceplane.endpoints.shape import EndpointsShape
from sliceplane.endpoints.subsets import AddressKey, RenderedSubsets, Subset, pod_address, render
from sliceplane.kit.containers import SortedDict
from sliceplane.kit.ip import family, parse_lenient
from sliceplane.slices.content import PortGroup, PortResolver, Ports
from sliceplane.slices.facts import PodFacts
from sliceplane.slices.members import Effect
from sliceplane.slices.writes import MemberChanges


@dataclass(slots=True, eq=False)
class AddressGroup:
    """Addresses of the Pods with one set of ports, by IP, uid and name, so that no two Pods share one."""

    ports: Ports
    ready: SortedDict[AddressKey, bytes] = field(default_factory=SortedDict)
    waiting: SortedDict[AddressKey, bytes] = field(default_factory=SortedDict)


class _Placed(NamedTuple):
    """Where a Pod's address is; ``group`` None: it has none."""

    facts: PodFacts
    group: AddressGroup | None
    key: AddressKey
    ready: bool


class EndpointsMembers:
    """Members of one active Service.  Owned by its ``EndpointsState``."""

    def __init__(self, shape: EndpointsShape, pods: Iterable[PodFacts], earlier: EndpointsMembers | None) -> None:
        self._shape = shape
        self._resolver = PortResolver(shape.ports)
        self._groups: dict[PortGroup, AddressGroup] = {}
        self._placed: dict[str, _Placed] = {}
        self._changes = MemberChanges(None)
        if earlier is not None:
            members = ((name, placed.facts) for name, placed in earlier._placed.items())
            self._changes = MemberChanges(earlier._changes, members)
        for facts in pods:
            self.set(facts)

    def set(self, facts: PodFacts) -> Effect:
        """The Pod is a member in this version."""
        old = self._placed.get(facts.name)
        self._changes.note(facts.name, None if old is None else old.facts)
        group, key, text = self._place(facts)
        ready = group is not None and (self._shape.publish_not_ready or facts.serving)
        self._placed[facts.name] = _Placed(facts, group, key, ready)
        if old is not None and old.group is not None:
            if old.group is group and old.key == key and old.ready is ready:
                side = group.ready if ready else group.waiting
                if side[key] == text:
                    return Effect.NONE
                side[key] = text
                return Effect.CHANGE
            self._take_out(old)
        if group is not None:
            (group.ready if ready else group.waiting)[key] = text
        if old is None or old.group is None:
            return Effect.NONE if group is None else Effect.CHANGE
        stays = group is old.group and key == old.key and (ready or not old.ready)
        return Effect.CHANGE if stays else Effect.REMOVAL

    def drop(self, pod: str) -> Effect:
        """The Pod is no member any more."""
        old = self._placed.pop(pod, None)
        if old is None:
            return Effect.NONE
        self._changes.note(pod, old.facts)
        if old.group is None:
            return Effect.NONE
        self._take_out(old)
        return Effect.REMOVAL

    def _take_out(self, placed: _Placed) -> None:
        assert placed.group is not None, f"{placed.facts.name} has no address"
        del (placed.group.ready if placed.ready else placed.group.waiting)[placed.key]

    def _place(self, facts: PodFacts) -> tuple[AddressGroup | None, AddressKey, bytes]:
        """Group, key and text of the Pod's address; no group if it is none of the Service's."""
        shape = self._shape
        nowhere = (None, (), b"")
        if facts.excluded or (facts.terminating and not shape.publish_not_ready):
            return nowhere
        ip = self._address(facts)
        ports = self._resolver.group_of(facts)
        if not ip or (not ports.ports and (shape.ports or not shape.headless)):
            return nowhere
        group = self._groups.get(ports)
        if group is None:
            group = self._groups[ports] = AddressGroup(ports.ports)
        hostname = facts.hostname if facts.subdomain == shape.name else ""
        text = pod_address(ip, hostname, facts.node_name, facts.target)
        return group, (ip, facts.pod.metadata.uid, facts.name), text

    def _address(self, facts: PodFacts) -> str:
        """The Pod's first address of the Service's family; "" for none."""
        wanted = self._shape.family
        if wanted is None:
            parsed = parse_lenient(facts.pod.status.pod_ip)
            if parsed is None:
                return ""
            wanted = family(parsed)
        addresses = facts.addresses.get(wanted)
        return "" if addresses is None else addresses.first

    # -- what to write ----------------------------------------------------------------------------------

    def render(self, *, truncate: bool) -> RenderedSubsets:
        """Costs O(addresses that are written), or O(addresses) if there are several groups."""
        parts = (Subset(group.ports, group.ready, group.waiting) for group in self._groups.values())
        return render(parts, truncate=truncate)

    # -- since when -------------------------------------------------------------------------------------

    def take_trigger_time(self) -> int:
        """The earliest time at which a member changed since the last call; 0 for none.  Nanoseconds."""
        return self._changes.take(self._facts)

    def _facts(self, pod: str) -> PodFacts | None:
        placed = self._placed.get(pod)
        return None if placed is None else placed.facts

    def check(self) -> None:
        """Every address follows from its Pod's newest version, and no other is there."""
        expected: dict[tuple[int, bool, AddressKey], bytes] = {}
        for placed in self._placed.values():
            group, key, text = self._place(placed.facts)
            assert (group, key) == (placed.group, placed.key), f"{placed.facts.name} is out of date"
            if group is not None:
                expected[id(group), placed.ready, key] = text
        held = {
            (id(group), ready, key): text
            for group in self._groups.values()
            for ready, side in ((True, group.ready), (False, group.waiting))
            for key, text in side.items()
        }
        assert held == expected, f"{self._shape.key}: {held.keys() ^ expected.keys()} differ"
