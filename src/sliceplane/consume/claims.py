"""The owners of addresses for clients outside (``externalIPs``, load balancers' addresses) and
which node port.

Any user who may write Services may put any address into ``externalIPs``, and every node would lead
what its Pods send there to that user's endpoints (CVE-2020-8554). So an address is only requested,
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

**Nodes.**  A proxy learns other Nodes only when a Service requests an external IP. Until it knows
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

from sliceplane.consume.grounds import AddressOwners, Ground
from sliceplane.consume.model import ServedPort, ServiceKey, special

#: an address, a protocol and a port; of node ports the address is ""
Destination = tuple[str, str, int]
Why = Literal["special", "cluster IP", "taken", "other Service", "Nodes unknown"]

_BALANCER, _EXTERNAL = 0, 1
_NODE_PORT: Final = ""


class ClaimRefusal(NamedTuple):
    """A refused request of a Service.  ``destination``: its first destination at that
    address.
    """

    destination: Destination
    why: Why
    #: who has it: a Service, a Node, a range; or what kind of address it is
    holder: str

    def __str__(self) -> str:
        ip, protocol, port = self.destination
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
    """A request for a destination. The first in order gets it."""

    rank: int
    undated: bool
    created: str
    key: ServiceKey


_RequestedRanks = dict[Destination, int]  # destination -> rank


class AddressClaims:
    """See the module.  Every change says which Services get more or less than before."""

    def __init__(self) -> None:
        self._address_owners = AddressOwners()
        self._ports: dict[tuple[str, int], str] = {}
        self._cluster_ips: dict[str, list[ServiceKey]] = {}  # sorted
        self._requested: dict[ServiceKey, tuple[str, _RequestedRanks]] = {}
        self._claims: dict[Destination, list[_Claim]] = {}
        self._destinations_by_address: dict[
            str, dict[Destination, None]
        ] = {}  # address -> its destinations
        self._order: list[tuple[int, str]] = []  # those addresses by number
        self._external = 0  # Services that request external IPs
        self._withheld = False

    @property
    def needs_nodes(self) -> bool:
        """Returns True if a Service requests an external IP: all Nodes' addresses are needed."""
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
        requested = _requested_destinations(new)
        dated = (created, requested) if requested else ("", requested)
        if dated != self._requested.get(key, ("", {})):
            marked |= self._ask(key, *dated)
        return marked

    def set_ground(self, owner: str, ground: Ground) -> set[ServiceKey]:
        """*owner* (a few words, such as ``Node n1``) has these addresses and networks, and no
        others.
        """
        concerned = self._requested_within(
            self._address_owners.get(owner)
        ) | self._requested_within(ground)
        won = self._won_at(concerned)
        if not self._address_owners.set(owner, ground):
            return set()
        return {winner for _, winner in won ^ self._won_at(concerned)}

    def owners(self) -> tuple[str, ...]:
        """The owners that have some ground."""
        return self._address_owners.owners()

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
        return {
            key
            for key, (_, requested) in self._requested.items()
            if _EXTERNAL in requested.values()
        }

    def honoured(self, key: ServiceKey, ports: tuple[ServedPort, ...]) -> tuple[ServedPort, ...]:
        """*ports* of *key* (the argument of ``on_service``) with what it gets.  O(its
        destinations).
        """
        if key not in self._requested:
            return ports
        return tuple([self._granted(key, port) for port in ports])

    def refusals(self, key: ServiceKey) -> tuple[ClaimRefusal, ...]:
        """Returns the refused requests of *key*: one for each address, and each node port; sorted.
        O(its destinations).
        """
        _, requested = self._requested.get(key, ("", {}))
        refusals: dict[tuple[str, int], ClaimRefusal] = {}
        for destination in sorted(requested):
            refusal = self._refusal(key, destination, requested[destination])
            if refusal is not None:
                refusals.setdefault(
                    (destination[0], 0 if destination[0] else destination[2]), refusal
                )
        return tuple(refusals.values())

    def refusal(self, key: ServiceKey, destination: Destination) -> ClaimRefusal | None:
        """Returns why *key* does not get *destination*; ``None``: it does, or requests no such."""
        _, requested = self._requested.get(key, ("", {}))
        return (
            self._refusal(key, destination, requested[destination])
            if destination in requested
            else None
        )

    # -- asking

    def _ask(self, key: ServiceKey, created: str, requested: _RequestedRanks) -> set[ServiceKey]:
        was_created, was = self._requested.pop(key, ("", {}))
        self._external += (_EXTERNAL in requested.values()) - (_EXTERNAL in was.values())
        if requested:
            self._requested[key] = created, requested
        marked: set[ServiceKey] = set()
        for destination in was.keys() | requested.keys():
            old = (
                _Claim(was[destination], not was_created, was_created, key)
                if destination in was
                else None
            )
            new = (
                _Claim(requested[destination], not created, created, key)
                if destination in requested
                else None
            )
            if old != new:
                marked |= self._replace(destination, old, new)
        return marked

    def _replace(
        self, destination: Destination, old: _Claim | None, new: _Claim | None
    ) -> set[ServiceKey]:
        claims = self._claims.setdefault(destination, [])
        before = claims[0].key if claims else None
        if old is not None:
            at = bisect_left(claims, old)
            assert claims[at] == old, f"{destination}: {old} is not among {len(claims)} claims"
            del claims[at]
        if new is not None:
            insort(claims, new)
        if claims:
            self._add_destination(destination)
        else:
            del self._claims[destination]
            self._remove_destination(destination)
        after = claims[0].key if claims else None
        return (
            {winner for winner in (before, after) if winner is not None}
            if before != after
            else set()
        )

    def _add_destination(self, destination: Destination) -> None:
        ip = destination[0]
        if ip not in self._destinations_by_address:
            self._destinations_by_address[ip] = {}
            if ip:
                insort(self._order, (_number(ip), ip))
        self._destinations_by_address[ip][destination] = None

    def _remove_destination(self, destination: Destination) -> None:
        ip = destination[0]
        del self._destinations_by_address[ip][destination]
        if not self._destinations_by_address[ip]:
            del self._destinations_by_address[ip]
            if ip:
                del self._order[bisect_left(self._order, (_number(ip), ip))]

    def _requested_within(self, ground: Ground) -> set[str]:
        """Returns the requested addresses that *ground* has.  O(the result)."""
        addresses = {ip for ip in ground.addresses if ip in self._destinations_by_address}
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
        requested = self._requested[key][1]
        external = tuple(
            [ip for ip in port.external_ips if self._has(key, (ip, protocol, number), requested)]
        )
        vips = tuple([ip for ip in port.vips if self._has(key, (ip, protocol, number), requested)])
        node_port = port.node_port
        if node_port and not self._has(key, (_NODE_PORT, protocol, node_port), requested):
            node_port = 0
        if (external, vips, node_port) == (port.external_ips, port.vips, port.node_port):
            return port
        return msgspec.structs.replace(port, external_ips=external, vips=vips, node_port=node_port)

    def _has(self, key: ServiceKey, destination: Destination, requested: _RequestedRanks) -> bool:
        if self._withheld and requested[destination] == _EXTERNAL:
            return False
        return self._claims[destination][0].key == key and not self._is_guarded(destination)

    def _is_guarded(self, destination: Destination) -> bool:
        ip, protocol, port = destination
        if not ip:
            return (protocol, port) in self._ports
        return ip in self._cluster_ips or bool(self._address_owners.holder(ip)) or bool(special(ip))

    def _won_at(self, ips: Iterable[str]) -> set[tuple[Destination, ServiceKey]]:
        """Returns the destinations at these addresses and their present owners; "" in *ips* is
        ignored.
        """
        return {
            (destination, self._claims[destination][0].key)
            for ip in ips
            if ip
            for destination in self._destinations_by_address.get(ip, ())
            if not self._is_guarded(destination)
        }

    def _refusal(self, key: ServiceKey, destination: Destination, rank: int) -> ClaimRefusal | None:
        ip, protocol, port = destination
        if not ip:
            owner = self._ports.get((protocol, port))
            if owner is not None:
                return ClaimRefusal(destination, "taken", owner)
        elif kind := special(ip):
            return ClaimRefusal(destination, "special", kind)
        elif ip in self._cluster_ips:
            return ClaimRefusal(destination, "cluster IP", str(self._cluster_ips[ip][0]))
        elif owner := self._address_owners.holder(ip):
            return ClaimRefusal(destination, "taken", owner)
        first = self._claims[destination][0].key
        if first != key:
            return ClaimRefusal(destination, "other Service", str(first))
        return (
            ClaimRefusal(destination, "Nodes unknown", "")
            if rank == _EXTERNAL and self._withheld
            else None
        )

    def check(self, services: Iterator[tuple[ServiceKey, tuple[ServedPort, ...]]]) -> None:
        """*services*: what all of them want.  O(state)."""
        self._address_owners.check()
        claims: dict[Destination, list[_Claim]] = {}
        cluster_ips: dict[str, list[ServiceKey]] = {}
        for key, ports in services:
            cluster_ips.setdefault(ports[0].cluster_ip, []).append(key)
            requested = _requested_destinations(ports)
            created, recorded = self._requested.get(key, ("", {}))
            assert requested == recorded, f"{key} asks for {requested}, known is {recorded}"
            for destination, rank in requested.items():
                claims.setdefault(destination, []).append(_Claim(rank, not created, created, key))
        assert {
            destination: sorted(of_destination) for destination, of_destination in claims.items()
        } == self._claims, f"{self._claims}"
        expected_cluster_ips = {ip: sorted(keys) for ip, keys in cluster_ips.items()}
        assert expected_cluster_ips == self._cluster_ips, (
            f"{self._cluster_ips} should be {expected_cluster_ips}"
        )
        destinations = {
            (ip, *rest) for ip, there in self._destinations_by_address.items() for _, *rest in there
        }
        assert destinations == self._claims.keys(), (
            f"{self._destinations_by_address} are not the destinations of {self._claims}"
        )
        order = sorted((_number(ip), ip) for ip in self._destinations_by_address if ip)
        assert order == self._order, f"{self._order} should be {order}"
        external = sum(_EXTERNAL in requested.values() for _, requested in self._requested.values())
        assert external == self._external, (
            f"{self._external} Services request external IPs, not {external}"
        )


def _requested_destinations(ports: tuple[ServedPort, ...]) -> _RequestedRanks:
    """Returns the requested destinations, with the best rank of each."""
    requested: _RequestedRanks = {}
    for port in ports:
        protocol = port.name.protocol
        number = port.port
        for ip in port.external_ips:
            requested.setdefault((ip, protocol, number), _EXTERNAL)
        for ip in port.vips:
            requested[ip, protocol, number] = _BALANCER
        if port.node_port:
            requested[_NODE_PORT, protocol, port.node_port] = _BALANCER
    return requested


def _number(ip: str) -> int:
    return int(ipaddress.ip_address(ip))
