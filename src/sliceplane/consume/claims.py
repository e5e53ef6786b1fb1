"""The owners of addresses for clients outside (``externalIPs``, load balancers' addresses) and
which node port.

Any user who may write Services may put any address into ``externalIPs``, and every node would lead
what its Pods send there to that user's endpoints (CVE-2020-8554). So an address is only asked for,
and this module says who has it:

1. The cluster IP of a Service is that Service's alone, and an address of a range of cluster IPs, of
   a Node, of Pods or of the API server (``grounds``) is no Service's, whatever its name.
2. What is left is given by destination (address, protocol, port): to a load balancer's address
   before an external IP, since only who may write ``services/status`` sets it; to the older Service
   before the younger one, so that what is in use cannot be taken away; then to the first by
   namespace and name.

A Service that does not get a destination has no rule of any kind for it, in no back end: all build
from what ``honoured`` leaves. The same answer comes out on every node that knows the same objects,
in whatever order it heard of them.

**Nodes.**  A proxy learns other Nodes only when a Service asks for an external IP. Until it knows
them, external IPs are *withheld*; load balancers' addresses, which no ordinary user sets, are not.

**Cost.**  Of a Service without such addresses and node ports: one entry for its cluster IP. Of any
other: its destinations. Nothing looks through Services; what changes for others is named by the
addresses that changed hands.

Owned by one ``tracker.ServiceTracker``.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from sliceplane.consume.grounds import Ground, Grounds
from sliceplane.consume.model import ServedPort, ServiceKey, special

#: an address, a protocol and a port; of node ports the address is ""
Place = tuple[str, str, int]
Why = Literal["special", "cluster IP", "taken", "other Service", "Nodes unknown"]

_BALANCER, _EXTERNAL = 0, 1
_NODE_PORT: Final = ""


class ClaimRefusal(NamedTuple):
    """A Service does not get what it asks for.  ``place``: its first destination at that
    address.
    """

    place: Place
    why: Why
    #: who has it: a Service, a Node, a range; or what kind of address it is
    holder: str

    def __str__(self) -> str:
        ip, protocol, port = self.place
        where = f"{ip} port {port}/{protocol}" if ip else f"node port {port}/{protocol}"
        match self.why:
            case "special":
                return f"{ip} is {self.holder}"
            case "cluster IP":
                return f"{ip} is the cluster IP of Service {self.holder}"
            case "taken":
                return f"{ip or where} belongs to {self.holder}"
            case "other Service":
                return f"{where} is served for Service {self.holder}"
            case "Nodes unknown":
                return f"{ip} is withheld until the addresses of all Nodes are known"


class _Claim(NamedTuple):
    """Orders those who ask for one place; the first has it."""

    rank: int
    undated: bool
    created: str
    key: ServiceKey


_Asked = dict[Place, int]  # place -> rank


class AddressClaims:
    """See the module.  Every change says which Services get more or less than before."""

    def __init__(self) -> None:
        self._grounds = Grounds()
        self._ports: dict[tuple[str, int], str] = {}
        self._cluster_ips: dict[str, list[ServiceKey]] = {}  # sorted
        self._asked: dict[ServiceKey, tuple[str, _Asked]] = {}
        self._claims: dict[Place, list[_Claim]] = {}
        self._places: dict[str, dict[Place, None]] = {}  # address -> its places
        self._order: list[tuple[int, str]] = []  # those addresses by number
        self._external = 0  # Services that ask for external IPs
        self._withheld = False

    @property
    def wants_nodes(self) -> bool:
        """Some Service asks for an external IP, so what belongs to any Node has to be known."""
        return self._external > 0

    def on_service(
        self,
        key: ServiceKey,
        created: str,
        old: tuple[ServedPort, ...],
        new: tuple[ServedPort, ...],
    ) -> set[ServiceKey]:
        """*key* wants other things than it did, or is of another age.  May name *key* itself."""
        marked: set[ServiceKey] = set()
        before = old[0].cluster_ip if old else ""
        after = new[0].cluster_ip if new else ""
        if before != after:
            won = self._won_at((before, after))
            if before:
                holders = self._cluster_ips[before]
                del holders[bisect_left(holders, key)]
                if not holders:
                    del self._cluster_ips[before]
            if after:
                insort(self._cluster_ips.setdefault(after, []), key)
            marked = {winner for _, winner in won ^ self._won_at((before, after))}
        asked = _places_of(new)
        dated = (created, asked) if asked else ("", asked)
        if dated != self._asked.get(key, ("", {})):
            marked |= self._ask(key, *dated)
        return marked

    def set_ground(self, owner: str, ground: Ground) -> set[ServiceKey]:
        """*owner* (a few words, such as ``Node n1``) has these addresses and networks, and no
        others.
        """
        concerned = self._asked_within(self._grounds.get(owner)) | self._asked_within(ground)
        won = self._won_at(concerned)
        if not self._grounds.set(owner, ground):
            return set()
        return {winner for _, winner in won ^ self._won_at(concerned)}

    def owners(self) -> tuple[str, ...]:
        """The owners that have some ground."""
        return self._grounds.owners()

    def reserve_ports(self, owner: str, ports: Iterable[tuple[str, int]]) -> None:
        """(protocol, port) that a program of this node listens on.  Before the first Service."""
        assert not self._claims, "ports are reserved at the start"
        self._ports.update(dict.fromkeys(ports, owner))

    def withhold(self, withheld: bool) -> set[ServiceKey]:
        """Withholds external IPs from all Services, or no longer; returns the Services that request
        some.
        """
        if withheld == self._withheld:
            return set()
        self._withheld = withheld
        return {key for key, (_, asked) in self._asked.items() if _EXTERNAL in asked.values()}

    def honoured(self, key: ServiceKey, ports: tuple[ServedPort, ...]) -> tuple[ServedPort, ...]:
        """*ports* of *key* (those that ``on_service`` was told) with what it gets.  O(its
        destinations).
        """
        if key not in self._asked:
            return ports
        return tuple([self._granted(key, port) for port in ports])

    def refusals(self, key: ServiceKey) -> tuple[ClaimRefusal, ...]:
        """Returns the refused requests of *key*: one for each address, and each node port; sorted.
        O(its destinations).
        """
        _, asked = self._asked.get(key, ("", {}))
        refusals: dict[tuple[str, int], ClaimRefusal] = {}
        for place in sorted(asked):
            refusal = self._refusal(key, place, asked[place])
            if refusal is not None:
                refusals.setdefault((place[0], 0 if place[0] else place[2]), refusal)
        return tuple(refusals.values())

    def refusal(self, key: ServiceKey, place: Place) -> ClaimRefusal | None:
        """Why *key* does not get *place*; ``None``: it gets it, or does not ask."""
        _, asked = self._asked.get(key, ("", {}))
        return self._refusal(key, place, asked[place]) if place in asked else None

    # -- asking

    def _ask(self, key: ServiceKey, created: str, asked: _Asked) -> set[ServiceKey]:
        was_created, was = self._asked.pop(key, ("", {}))
        self._external += (_EXTERNAL in asked.values()) - (_EXTERNAL in was.values())
        if asked:
            self._asked[key] = created, asked
        marked: set[ServiceKey] = set()
        for place in was.keys() | asked.keys():
            old = _Claim(was[place], not was_created, was_created, key) if place in was else None
            new = _Claim(asked[place], not created, created, key) if place in asked else None
            if old != new:
                marked |= self._replace(place, old, new)
        return marked

    def _replace(self, place: Place, old: _Claim | None, new: _Claim | None) -> set[ServiceKey]:
        claims = self._claims.setdefault(place, [])
        before = claims[0].key if claims else None
        if old is not None:
            at = bisect_left(claims, old)
            assert claims[at] == old, f"{place}: {old} is not among {len(claims)} claims"
            del claims[at]
        if new is not None:
            insort(claims, new)
        if claims:
            self._note_place(place)
        else:
            del self._claims[place]
            self._forget_place(place)
        after = claims[0].key if claims else None
        return (
            {winner for winner in (before, after) if winner is not None}
            if before != after
            else set()
        )

    def _note_place(self, place: Place) -> None:
        ip = place[0]
        if ip not in self._places:
            self._places[ip] = {}
            if ip:
                insort(self._order, (_number(ip), ip))
        self._places[ip][place] = None

    def _forget_place(self, place: Place) -> None:
        ip = place[0]
        del self._places[ip][place]
        if not self._places[ip]:
            del self._places[ip]
            if ip:
                del self._order[bisect_left(self._order, (_number(ip), ip))]

    def _asked_within(self, ground: Ground) -> set[str]:
        """The addresses that Services ask for and that *ground* has.  O(the result)."""
        addresses = {ip for ip in ground.addresses if ip in self._places}
        for text in ground.networks:
            network = ipaddress.ip_network(text)
            first = bisect_left(self._order, (int(network.network_address), ""))
            last = bisect_left(self._order, (int(network.broadcast_address) + 1, ""))
            addresses.update(ip for _, ip in self._order[first:last])
        return addresses

    # -- giving

    def _granted(self, key: ServiceKey, port: ServedPort) -> ServedPort:
        protocol = port.name.protocol
        number = port.port
        # By the best rank: an external IP that is the Service's own load balancer's address is not
        # withheld.
        asked = self._asked[key][1]
        external = tuple(
            [ip for ip in port.external_ips if self._has(key, (ip, protocol, number), asked)]
        )
        vips = tuple([ip for ip in port.vips if self._has(key, (ip, protocol, number), asked)])
        node_port = port.node_port
        if node_port and not self._has(key, (_NODE_PORT, protocol, node_port), asked):
            node_port = 0
        if (external, vips, node_port) == (port.external_ips, port.vips, port.node_port):
            return port
        return msgspec.structs.replace(port, external_ips=external, vips=vips, node_port=node_port)

    def _has(self, key: ServiceKey, place: Place, asked: _Asked) -> bool:
        if self._withheld and asked[place] == _EXTERNAL:
            return False
        return self._claims[place][0].key == key and not self._is_guarded(place)

    def _is_guarded(self, place: Place) -> bool:
        ip, protocol, port = place
        if not ip:
            return (protocol, port) in self._ports
        return ip in self._cluster_ips or bool(self._grounds.holder(ip)) or bool(special(ip))

    def _won_at(self, ips: Iterable[str]) -> set[tuple[Place, ServiceKey]]:
        """Returns the places at these addresses and their present owners; "" in *ips* is
        ignored.
        """
        return {
            (place, self._claims[place][0].key)
            for ip in ips
            if ip
            for place in self._places.get(ip, ())
            if not self._is_guarded(place)
        }

    def _refusal(self, key: ServiceKey, place: Place, rank: int) -> ClaimRefusal | None:
        ip, protocol, port = place
        if not ip:
            owner = self._ports.get((protocol, port))
            if owner is not None:
                return ClaimRefusal(place, "taken", owner)
        elif kind := special(ip):
            return ClaimRefusal(place, "special", kind)
        elif ip in self._cluster_ips:
            return ClaimRefusal(place, "cluster IP", str(self._cluster_ips[ip][0]))
        elif owner := self._grounds.holder(ip):
            return ClaimRefusal(place, "taken", owner)
        first = self._claims[place][0].key
        if first != key:
            return ClaimRefusal(place, "other Service", str(first))
        return (
            ClaimRefusal(place, "Nodes unknown", "")
            if rank == _EXTERNAL and self._withheld
            else None
        )

    def check(self, services: Iterator[tuple[ServiceKey, tuple[ServedPort, ...]]]) -> None:
        """*services*: what all of them want.  O(state)."""
        self._grounds.check()
        claims: dict[Place, list[_Claim]] = {}
        cluster_ips: dict[str, list[ServiceKey]] = {}
        for key, ports in services:
            cluster_ips.setdefault(ports[0].cluster_ip, []).append(key)
            asked = _places_of(ports)
            created, known = self._asked.get(key, ("", {}))
            assert asked == known, f"{key} asks for {asked}, known is {known}"
            for place, rank in asked.items():
                claims.setdefault(place, []).append(_Claim(rank, not created, created, key))
        assert {place: sorted(of_place) for place, of_place in claims.items()} == self._claims, (
            f"{self._claims}"
        )
        held = {ip: sorted(keys) for ip, keys in cluster_ips.items()}
        assert held == self._cluster_ips, f"{self._cluster_ips} should be {held}"
        places = {
            (ip, *rest) for ip, places_there in self._places.items() for _, *rest in places_there
        }
        assert places == self._claims.keys(), f"{self._places} are not the places of {self._claims}"
        order = sorted((_number(ip), ip) for ip in self._places if ip)
        assert order == self._order, f"{self._order} should be {order}"
        external = sum(_EXTERNAL in asked.values() for _, asked in self._asked.values())
        assert external == self._external, (
            f"{self._external} Services ask for external IPs, not {external}"
        )


def _places_of(ports: tuple[ServedPort, ...]) -> _Asked:
    """Returns the requested places, with the best rank of each."""
    asked: _Asked = {}
    for port in ports:
        protocol = port.name.protocol
        number = port.port
        for ip in port.external_ips:
            asked.setdefault((ip, protocol, number), _EXTERNAL)
        for ip in port.vips:
            asked[ip, protocol, number] = _BALANCER
        if port.node_port:
            asked[_NODE_PORT, protocol, port.node_port] = _BALANCER
    return asked


def _number(ip: str) -> int:
    return int(ipaddress.ip_address(ip))
