"""All slices of one Service as one set of endpoints, kept by differences.

```
_slices:   "ns/slice" -> SliceEntry                  the content of each slice
_holders:  id -> the slices that name it             nearly always one, then the tuple is shared
_winner:   id -> the endpoint that counts            the newest slice knows best
_at:       address:port -> ids of winners there      nearly always one
visible:   id -> Endpoint                            what a reader sees: each id once, each address:port once
```

**Twice the same Pod** (an endpoint that moves from one slice to another): entries of the preferred
family first, then the newest slice by resourceVersion, whatever its content. **Two Pods at one
address** (a live one reuses the address of a terminating one): one that is not terminating wins,
among equals the newest slice; the other is hidden until it is alone. These are the node proxy's
rules (``consume.slicecache``).

A changed slice costs O(that slice). Slices of the type FQDN and endpoints without a usable address
are left out, as proxies leave them out. Owned by ``consume.balancing.view.BalancedService``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import ne

import msgspec

from sliceplane.api.discovery import EndpointPort, EndpointSlice, SliceEndpoint
from sliceplane.api.service_rules import PROTOCOL_DEFAULT, is_port
from sliceplane.consume.balancing.model import Endpoint
from sliceplane.consume.model import canonical_of
from sliceplane.kit.ip import FAMILIES, Family


@dataclass(slots=True, eq=False)
class SliceEntry:
    """One slice: its rank among others, and its endpoints by id."""

    family: Family
    age: tuple[int, str]  # (resourceVersion, key)
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    #: the endpoints of the slice, and the decoded endpoint for each and the port; ``None``: it has
    #: no usable address
    sources: Sequence[SliceEndpoint] = ()
    read: list[Endpoint | None] = field(default_factory=list)
    number: int = 0
    #: why none of the endpoints of this slice is used; "" if they are
    problem: str = ""


class PortChoice(msgspec.Struct, frozen=True):
    """The port of the slices that a reader follows: a name, a number that is taken as it is, or
    ``None``: the only one.
    """

    choice: str | int | None
    protocol: str = "TCP"

    def of(self, ports: tuple[EndpointPort, ...]) -> tuple[int, str]:
        """Returns the number and "", or 0 and the reason why there is none.  For a slice without
        ports, 0 and "".
        """
        if isinstance(self.choice, int):
            return self.choice, ""
        offered = {
            port.name or "": port.port
            for port in ports
            if (port.protocol or PROTOCOL_DEFAULT) == self.protocol
            and port.port is not None
            and is_port(port.port)
        }
        if self.choice is None and not ports:
            return 0, ""
        if self.choice is None and len(offered) == 1:
            return next(iter(offered.values())), ""
        name = self.choice or ""
        if name in offered:
            return offered[name], ""
        names = ", ".join(repr(port_name) for port_name in sorted(offered)) or "none"
        reason = (
            "say which port"
            if self.choice is None
            else f"there is no {self.protocol} port {self.choice!r}"
        )
        return 0, f"{reason}; ports offered: {names}"


class EndpointMerge:
    """See the module.  ``family`` ``None`` takes both and prefers IPv4 for a Pod that has both."""

    def __init__(self, port: PortChoice, family: Family | None) -> None:
        self._port = port
        self._family = family
        self._slices: dict[str, SliceEntry] = {}
        self._holders: dict[str, tuple[SliceEntry, ...]] = {}
        self._winner: dict[str, tuple[Endpoint, SliceEntry]] = {}
        self._at: dict[str, tuple[str, ...]] = {}
        #: ids that several slices name, and addresses with several ids
        self._doubled: dict[str, None] = {}
        self._crowded: dict[str, None] = {}
        #: what readers see, by id; changed here only
        self.visible: dict[str, Endpoint] = {}
        self._touched: dict[str, Endpoint | None] = {}

    @property
    def problem(self) -> str:
        """Why some slice with endpoints has no usable port; "" if every slice has one."""
        return next(
            (
                self._slices[key].problem
                for key in sorted(self._slices)
                if self._slices[key].problem
            ),
            "",
        )

    @property
    def unusable_count(self) -> int:
        """Number of endpoints without an address of their slice's family.  O(endpoints)."""
        return sum(entry.read.count(None) for entry in self._slices.values())

    def slice_of(self, identity: str) -> str:
        """Returns the key of the slice whose entry counts, for a visible endpoint."""
        return self._winner[identity][1].age[1]

    def on_slice(self, key: str, new: EndpointSlice | None) -> None:
        """Replaces the slice *key* by *new* (``None``: it is removed)."""
        entry = self._slices.get(key)
        old = entry.endpoints if entry is not None else {}
        family = next(
            (kind for kind in FAMILIES if new is not None and kind == new.address_type), None
        )
        if new is None or family is None or (self._family is not None and family != self._family):
            if entry is None:
                return
            del self._slices[key]
            entry.endpoints = {}
        else:
            if entry is None:
                entry = self._slices[key] = SliceEntry(family, (0, key))
            if entry.family != family:
                entry.family = family
                entry.sources = ()
            entry.age = (new.metadata.revision, key)
            differing = self._read(new, entry)
            if not self._doubled and not self._crowded and self._exchange(entry, differing):
                return
            entry.endpoints = {
                endpoint.id: endpoint for endpoint in entry.read if endpoint is not None
            }
        alone = (entry,)
        for identity in old.keys() - entry.endpoints.keys():
            self._release(identity, entry)
        # What did not change is the same object; it may count or not all the same where slices or
        # Pods disagree.
        contested = self._doubled or self._crowded
        for identity, endpoint in entry.endpoints.items():
            before = old.get(identity)
            if before is None:
                others = self._holders.get(identity)
                self._holders[identity] = alone if others is None else (*others, entry)
                if others is not None:
                    self._doubled[identity] = None
                self._choose_winner(identity)
            elif before is not endpoint or (contested and self._is_contested(identity)):
                self._choose_winner(identity)

    def take_touched(self) -> dict[str, Endpoint | None]:
        """Returns the former state of every endpoint that changed since the last call, in the order
        of ids.
        """
        taken = self._touched
        self._touched = {}
        visible = self.visible
        return {
            identity: taken[identity]
            for identity in sorted(taken)
            if visible.get(identity) != taken[identity]
        }

    def _read(
        self, new: EndpointSlice, entry: SliceEntry
    ) -> list[tuple[int, Endpoint | None]] | None:
        """Reads the endpoints of *new* into *entry*. Returns the indexes that differ and their
        former endpoints, if the number of endpoints is the same.
        """
        sources = new.endpoints or ()
        number, problem = self._port.of(new.ports or ())
        entry.problem = problem if sources else ""
        before = entry.sources if number == entry.number else ()
        entry.number = number
        entry.sources = () if problem else sources
        entry.read = read = entry.read[: len(entry.sources)]
        # What did not change stays the object that readers hold already; to compare is quicker than
        # to read.
        differing = list(compress(range(len(before)), map(ne, before, entry.sources)))
        was = [(index, read[index]) for index in differing]
        for index in (*differing, *range(len(before), len(entry.sources))):
            source = entry.sources[index]
            address = canonical_of(source.addresses[0], entry.family) if source.addresses else None
            endpoint = None if address is None else endpoint_of(source, address, number)
            old = None if endpoint is None else entry.endpoints.get(endpoint.id)
            endpoint = old if old == endpoint else endpoint
            if index < len(read):
                read[index] = endpoint
            else:
                read.append(endpoint)
        return was if len(before) == len(entry.sources) == len(entry.endpoints) else None

    def _exchange(
        self, entry: SliceEntry, differing: list[tuple[int, Endpoint | None]] | None
    ) -> bool:
        """Applies the usual change at the cost of what it changes: each endpoint keeps its index,
        and no slice and no Pod conflicts with another. Returns False, without effect, if it is
        another change.
        """
        for index, before in differing or ():
            after = entry.read[index]
            if before is None or after is None or before.id != after.id:
                return False
        for index, _ in differing or ():
            after = entry.read[index]
            assert after is not None, "checked above"
            if entry.endpoints[after.id] is not after:
                entry.endpoints[after.id] = after
                self._choose_winner(after.id)
        return differing is not None

    # -- which entry of an id counts

    def _is_contested(self, identity: str) -> bool:
        if len(self._holders[identity]) > 1:
            return True
        winner = self._winner.get(identity)
        return winner is not None and len(self._at[winner[0].authority]) > 1

    def _release(self, identity: str, entry: SliceEntry) -> None:
        remaining = tuple(holder for holder in self._holders[identity] if holder is not entry)
        if len(remaining) < 2:
            self._doubled.pop(identity, None)
        if remaining:
            self._holders[identity] = remaining
        else:
            del self._holders[identity]
        self._choose_winner(identity)

    def _choose_winner(self, identity: str) -> None:
        """Chooses the entry of *identity* again, and then the visible endpoint of each address
        concerned.
        """
        holders = self._holders.get(identity)
        before = self._winner.get(identity)
        if holders is None:
            after = None
            self._winner.pop(identity, None)
        else:
            best = holders[0] if len(holders) == 1 else max(holders, key=_rank)
            after = self._winner[identity] = (best.endpoints[identity], best)
        was = before[0].authority if before is not None else None
        now = after[0].authority if after is not None else None
        if was != now:
            if was is not None:
                remaining = tuple(other for other in self._at[was] if other != identity)
                if len(remaining) < 2:
                    self._crowded.pop(was, None)
                if remaining:
                    self._at[was] = remaining
                else:
                    del self._at[was]
            if now is not None:
                others_there = self._at.get(now, ())
                self._at[now] = (*others_there, identity)
                if others_there:
                    self._crowded[now] = None
        self._show(identity, None if now is None else self._visible_at(now) == identity)
        for authority in {was, now} - {None}:
            assert authority is not None
            others = self._at.get(authority, ())
            if len(others) > 1 or (others and others[0] != identity):
                visible_id = self._visible_at(authority)
                for other in others:
                    self._show(other, other == visible_id)

    def _visible_at(self, authority: str) -> str:
        ids = self._at[authority]
        return ids[0] if len(ids) == 1 else max(ids, key=self._precedence)

    def _precedence(self, identity: str) -> tuple[bool, tuple[int, str], str]:
        endpoint, entry = self._winner[identity]
        return not endpoint.terminating, entry.age, identity

    def _show(self, identity: str, is_visible: bool | None) -> None:
        before = self.visible.get(identity)
        after = self._winner[identity][0] if is_visible else None
        if before == after:
            return
        self._touched.setdefault(identity, before)
        if after is None:
            del self.visible[identity]
        else:
            self.visible[identity] = after

    def check(self) -> None:
        """Assert every invariant.  O(endpoints)."""
        named: dict[str, set[int]] = {}
        for entry in self._slices.values():
            for identity in entry.endpoints:
                named.setdefault(identity, set()).add(id(entry))
        holders = {
            identity: {id(entry) for entry in entries}
            for identity, entries in self._holders.items()
        }
        assert named == holders, f"slices name {named}, recorded are {holders}"
        assert self._winner.keys() == named.keys(), "every id has one entry that counts"
        assert self._doubled.keys() == {
            identity for identity, entry in holders.items() if len(entry) > 1
        }
        assert self._crowded.keys() == {
            authority for authority, ids in self._at.items() if len(ids) > 1
        }
        at: dict[str, set[str]] = {}
        for identity, (endpoint, _) in self._winner.items():
            at.setdefault(endpoint.authority, set()).add(identity)
        assert {authority: set(ids) for authority, ids in self._at.items()} == at, (
            "addresses are not those of winners"
        )
        authorities = [endpoint.authority for endpoint in self.visible.values()]
        assert len(set(authorities)) == len(authorities) == len(at), (
            f"each address once: {sorted(authorities)}"
        )


def _rank(entry: SliceEntry) -> tuple[bool, tuple[int, str]]:
    return entry.family == "IPv4", entry.age


def endpoint_of(source: SliceEndpoint, address: str, port: int) -> Endpoint:
    conditions = source.conditions
    hints = source.hints
    target = source.target_ref
    uid = target.uid if target is not None else ""
    return Endpoint(
        # Two processes of one machine that no object stands for differ in the port alone.
        id=uid or (f"{address}:{port}" if port else address),
        address=address,
        port=port,
        ready=conditions.ready is not False,
        serving=conditions.serving is not False,
        terminating=conditions.terminating is True,
        zone=source.zone or "",
        node=source.node_name or "",
        hostname=source.hostname or "",
        pod=target.name if target is not None else "",
        zone_hints=tuple([zone.name for zone in hints.for_zones or ()])
        if hints is not None
        else (),
        node_hints=tuple([node.name for node in hints.for_nodes or ()])
        if hints is not None
        else (),
    )
