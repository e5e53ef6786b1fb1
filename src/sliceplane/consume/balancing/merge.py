"""All slices of one Service as one set of endpoints, kept by differences.

```
_slices:   "ns/slice" -> HeldEndpoints(endpoints by id)       what each slice says
_holders:  id -> the slices that name it             nearly always one, then the tuple is shared
_winner:   id -> the endpoint that counts            the newest slice knows best
_at:       address:port -> ids of winners there      nearly always one
visible:   id -> Endpoint                            what a reader sees: each id once, each address:port once
```

**Twice the same Pod** (an endpoint on its way from one slice to another): entries of the preferred
family first, then the newest slice by resourceVersion, whatever it says. **Two Pods at one
address** (a live one has got the address of a dying one): one that is not terminating wins, among
equals the newest slice; the other is hidden until it is alone. These are the node proxy's rules
(``consume.slicecache``).

A changed slice costs O(that slice). Slices of the type FQDN and endpoints without a usable address
are left out, as proxies leave them out. Owned by ``consume.balancing.view.BalancedService``.
"""

from __future__ import annotations

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
class HeldEndpoints:
    """One slice: how it ranks among others, and its endpoints by id."""

    family: Family
    age: tuple[int, str]  # (resourceVersion, key)
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    #: as the slice has them, and what was read of each with which port; ``None``: it has no usable
    #: address
    sources: tuple[SliceEndpoint, ...] = ()
    read: list[Endpoint | None] = field(default_factory=list)
    number: int = 0
    #: why this slice gives no endpoints although it has some; "" if it does
    problem: str = ""


class PortChoice(msgspec.Struct, frozen=True):
    """The port of the slices that a reader follows: a name, a number that is taken as it is, or
    ``None``: the only one.
    """

    wanted: str | int | None
    protocol: str = "TCP"

    def of(self, ports: tuple[EndpointPort, ...]) -> tuple[int, str]:
        """The number and "", or 0 and the reason why there is none.  A slice without ports gives 0
        and "".
        """
        if isinstance(self.wanted, int):
            return self.wanted, ""
        offered = {
            port.name or "": port.port
            for port in ports
            if (port.protocol or PROTOCOL_DEFAULT) == self.protocol
            and port.port is not None
            and is_port(port.port)
        }
        if self.wanted is None and not ports:
            return 0, ""
        if self.wanted is None and len(offered) == 1:
            return next(iter(offered.values())), ""
        name = self.wanted or ""
        if name in offered:
            return offered[name], ""
        known = ", ".join(repr(port_name) for port_name in sorted(offered)) or "none"
        asked = (
            "say which port"
            if self.wanted is None
            else f"there is no {self.protocol} port {self.wanted!r}"
        )
        return 0, f"{asked}; ports offered: {known}"


class EndpointMerge:
    """See the module.  ``family`` ``None`` takes both and prefers IPv4 for a Pod that has both."""

    def __init__(self, port: PortChoice, family: Family | None) -> None:
        self._port = port
        self._family = family
        self._slices: dict[str, HeldEndpoints] = {}
        self._holders: dict[str, tuple[HeldEndpoints, ...]] = {}
        self._winner: dict[str, tuple[Endpoint, HeldEndpoints]] = {}
        self._at: dict[str, tuple[str, ...]] = {}
        #: ids that several slices name, and addresses with several ids
        self._doubled: dict[str, None] = {}
        self._crowded: dict[str, None] = {}
        #: what readers see, by id; changed here only
        self.visible: dict[str, Endpoint] = {}
        self._touched: dict[str, Endpoint | None] = {}

    @property
    def problem(self) -> str:
        """Why some slice with endpoints gives none; "" if every slice does."""
        return next(
            (
                self._slices[key].problem
                for key in sorted(self._slices)
                if self._slices[key].problem
            ),
            "",
        )

    @property
    def left_out(self) -> int:
        """Endpoints whose address is none of its slice's family.  O(endpoints)."""
        return sum(held.read.count(None) for held in self._slices.values())

    def slice_of(self, identity: str) -> str:
        """The key of the slice whose entry counts, of one that readers see."""
        return self._winner[identity][1].age[1]

    def on_slice(self, key: str, new: EndpointSlice | None) -> None:
        """The slice *key* is now *new* (``None``: gone)."""
        held = self._slices.get(key)
        old = held.endpoints if held is not None else {}
        family = next(
            (kind for kind in FAMILIES if new is not None and kind == new.address_type), None
        )
        if new is None or family is None or (self._family is not None and family != self._family):
            if held is None:
                return
            del self._slices[key]
            held.endpoints = {}
        else:
            if held is None:
                held = self._slices[key] = HeldEndpoints(family, (0, key))
            if held.family != family:
                held.family = family
                held.sources = ()
            held.age = (new.metadata.revision, key)
            differing = self._read(new, held)
            if not self._doubled and not self._crowded and self._exchange(held, differing):
                return
            held.endpoints = {
                endpoint.id: endpoint for endpoint in held.read if endpoint is not None
            }
        alone = (held,)
        for identity in old.keys() - held.endpoints.keys():
            self._release(identity, held)
        # What did not change is the same object; it may count or not all the same where slices or
        # Pods disagree.
        contested = self._doubled or self._crowded
        for identity, endpoint in held.endpoints.items():
            before = old.get(identity)
            if before is None:
                known = self._holders.get(identity)
                self._holders[identity] = alone if known is None else (*known, held)
                if known is not None:
                    self._doubled[identity] = None
                self._settle(identity)
            elif before is not endpoint or (contested and self._is_contested(identity)):
                self._settle(identity)

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
        self, new: EndpointSlice, held: HeldEndpoints
    ) -> list[tuple[int, Endpoint | None]] | None:
        """The endpoints of *held* become those of *new*. Where it has as many as before: the places
        that differ, and what was there.
        """
        sources = new.endpoints or ()
        number, problem = self._port.of(new.ports or ())
        held.problem = problem if sources else ""
        before = held.sources if number == held.number else ()
        held.number = number
        held.sources = () if problem else sources
        held.read = read = held.read[: len(held.sources)]
        # What did not change stays the object that readers hold already; to compare is quicker than
        # to read.
        differing = list(compress(range(len(before)), map(ne, before, held.sources)))
        was = [(index, read[index]) for index in differing]
        for index in (*differing, *range(len(before), len(held.sources))):
            source = held.sources[index]
            address = canonical_of(source.addresses[0], held.family) if source.addresses else None
            endpoint = None if address is None else endpoint_of(source, address, number)
            old = None if endpoint is None else held.endpoints.get(endpoint.id)
            endpoint = old if old == endpoint else endpoint
            if index < len(read):
                read[index] = endpoint
            else:
                read.append(endpoint)
        return was if len(before) == len(held.sources) == len(held.endpoints) else None

    def _exchange(
        self, held: HeldEndpoints, differing: list[tuple[int, Endpoint | None]] | None
    ) -> bool:
        """The usual change costs what it changes: each endpoint keeps its place, and no slice and
        no Pod disagrees with another. False: it is another one, and nothing was done.
        """
        for index, before in differing or ():
            after = held.read[index]
            if before is None or after is None or before.id != after.id:
                return False
        for index, _ in differing or ():
            after = held.read[index]
            assert after is not None, "looked at above"
            if held.endpoints[after.id] is not after:
                held.endpoints[after.id] = after
                self._settle(after.id)
        return differing is not None

    # -- which entry of an id counts

    def _is_contested(self, identity: str) -> bool:
        if len(self._holders[identity]) > 1:
            return True
        winner = self._winner.get(identity)
        return winner is not None and len(self._at[winner[0].authority]) > 1

    def _release(self, identity: str, held: HeldEndpoints) -> None:
        left = tuple(holder for holder in self._holders[identity] if holder is not held)
        if len(left) < 2:
            self._doubled.pop(identity, None)
        if left:
            self._holders[identity] = left
        else:
            del self._holders[identity]
        self._settle(identity)

    def _settle(self, identity: str) -> None:
        """Choose the entry of *identity* anew, and then who is seen at the addresses concerned."""
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
                left = tuple(other for other in self._at[was] if other != identity)
                if len(left) < 2:
                    self._crowded.pop(was, None)
                if left:
                    self._at[was] = left
                else:
                    del self._at[was]
            if now is not None:
                others_there = self._at.get(now, ())
                self._at[now] = (*others_there, identity)
                if others_there:
                    self._crowded[now] = None
        self._show(identity, None if now is None else self._seen_at(now) == identity)
        for authority in {was, now} - {None}:
            assert authority is not None
            others = self._at.get(authority, ())
            if len(others) > 1 or (others and others[0] != identity):
                seen = self._seen_at(authority)
                for other in others:
                    self._show(other, other == seen)

    def _seen_at(self, authority: str) -> str:
        ids = self._at[authority]
        return ids[0] if len(ids) == 1 else max(ids, key=self._precedence)

    def _precedence(self, identity: str) -> tuple[bool, tuple[int, str], str]:
        endpoint, held = self._winner[identity]
        return not endpoint.terminating, held.age, identity

    def _show(self, identity: str, seen: bool | None) -> None:
        before = self.visible.get(identity)
        after = self._winner[identity][0] if seen else None
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
        for held in self._slices.values():
            for identity in held.endpoints:
                named.setdefault(identity, set()).add(id(held))
        holders = {
            identity: {id(held) for held in holding} for identity, holding in self._holders.items()
        }
        assert named == holders, f"slices name {named}, known are {holders}"
        assert self._winner.keys() == named.keys(), "every id has one entry that counts"
        assert self._doubled.keys() == {
            identity for identity, held in holders.items() if len(held) > 1
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
        seen = [endpoint.authority for endpoint in self.visible.values()]
        assert len(set(seen)) == len(seen) == len(at), f"each address once: {sorted(seen)}"


def _rank(held: HeldEndpoints) -> tuple[bool, tuple[int, str]]:
    return held.family == "IPv4", held.age


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
