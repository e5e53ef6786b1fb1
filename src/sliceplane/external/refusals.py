"""Which slices of agents may not serve, and why.

Who may write slices can send a Service's traffic to any address (CVE-2021-25740, kubernetes/kubernetes#103675), so an
agent's account can say what is its own (``ANNOTATION_CIDRS``); an address of a Pod is refused to all, and the networks
of Services and of Nodes' Pods to those whose account does not say.  Two agents that bring the same address and port to
one Service are one endpoint for consumers; the Lease that was made last keeps it, since the older one is the one that
was forgotten.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import msgspec

from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.requests import PortProbe
from sliceplane.external.registration import LABEL_AGENT
from sliceplane.kit.ip import Network, parse_network_lenient, parse_strict

K = TypeVar("K")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class _Ranges:
    """Networks by the name of what they belong to, and which of them holds an address: as there are few lengths of
    prefixes, that is a few reads of a dictionary, however many Nodes there are."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[Network, ...]] = {}
        #: by version and length of the prefix, then by the prefix
        self._holders: defaultdict[tuple[int, int], defaultdict[int, dict[str, None]]]
        self._holders = defaultdict(lambda: defaultdict(dict))

    def put(self, name: str, networks: tuple[Network, ...]) -> tuple[Network, ...]:
        """What was, or is, of *name*, where that changes."""
        old = self._of.pop(name, ())
        if networks:
            self._of[name] = networks
        if old == networks:
            return ()
        for network in old:
            of_length = self._holders[network.version, network.prefixlen]
            _drop(of_length, _prefix(network.network_address, network.prefixlen), name)
        for network in networks:
            of_length = self._holders[network.version, network.prefixlen]
            of_length[_prefix(network.network_address, network.prefixlen)][name] = None
        return (*old, *networks)

    def holder(self, address: _Address) -> str:
        """A name, or ""."""
        for (version, length), of_length in self._holders.items():
            if version == address.version:
                names = of_length.get(_prefix(address, length))
                if names:
                    return next(iter(names))
        return ""


def _prefix(address: _Address, length: int) -> int:
    return int(address) >> (address.max_prefixlen - length)


class _Place(NamedTuple):
    """One address and port of one Service ("namespace/name")."""

    service: str
    address: str
    port: int


class _Slice(msgspec.Struct, frozen=True):
    agent: str
    service: str
    addresses: tuple[str, ...]
    places: tuple[_Place, ...]


class AgentRefusals:
    """Slices are keyed ``namespace/name``, agents ``namespace/name of the agent``.  Owned by one controller.

    Each ``on_*`` gives the slices whose answer may be another now.
    """

    def __init__(self) -> None:
        self._slices: dict[str, _Slice] = {}
        self._by_place: defaultdict[_Place, dict[str, None]] = defaultdict(dict)
        self._by_address: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._by_agent: defaultdict[str, dict[str, None]] = defaultdict(dict)
        #: creation time and uid of their Leases
        self._made: dict[str, tuple[str, str]] = {}
        #: address -> the Pod that came to it last: of all Pods, so an entry is as small as can be
        self._pods: dict[str, str] = {}
        self._allowed: dict[str, tuple[Network, ...]] = {}
        self._ranges = _Ranges()

    def on_slice(self, key: str, new: EndpointSlice | None) -> tuple[str, ...]:
        old = self._slices.pop(key, None)
        touched: dict[str, None] = {}
        if old is not None:
            touched |= self._unlink(key, old)
        if new is not None:
            known = self._slices[key] = _read(new)
            self._by_agent[known.agent][key] = None
            for place in known.places:
                self._by_place[place][key] = None
                touched |= self._by_place[place]
            for address in known.addresses:
                self._by_address[address][key] = None
        touched.pop(key, None)
        return (key, *touched) if new is not None else tuple(touched)

    def _unlink(self, key: str, old: _Slice) -> dict[str, None]:
        touched: dict[str, None] = {}
        for place in old.places:
            touched |= _drop(self._by_place, place, key)
        for address in old.addresses:
            _drop(self._by_address, address, key)
        _drop(self._by_agent, old.agent, key)
        return touched

    def on_lease(self, agent: str, made: tuple[str, str] | None) -> tuple[str, ...]:
        """*made*: creation time and uid, as the server wrote them."""
        if self._made.get(agent) == made:
            return ()
        self._made.pop(agent, None)
        if made is not None:
            self._made[agent] = made
        places = [place for key in self._by_agent.get(agent, ()) for place in self._slices[key].places]
        return tuple(dict.fromkeys(key for place in places for key in self._by_place[place]))

    def on_pod(self, pod: str, old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
        """Addresses that are a Pod's own, before and now."""
        if old == new:
            return ()
        for address in old:
            if self._pods.get(address) == pod:
                del self._pods[address]
        for address in new:
            self._pods[address] = pod
        return tuple(dict.fromkeys(key for address in (*old, *new) for key in self._by_address.get(address, ())))

    def on_account(self, agent: str, cidrs: str | None) -> tuple[str, ...]:
        """*cidrs*: with commas between them; ``None``: the account does not say.  What is no network allows nothing."""
        self._allowed.pop(agent, None)
        if cidrs is not None:
            self._allowed[agent] = _networks(cidrs.split(","))
        return tuple(self._by_agent.get(agent, ()))

    def on_range(self, name: str, cidrs: tuple[str, ...]) -> Iterator[str]:
        """Of the cluster's own addresses; *name* says of what, as a sentence goes on.  O(agents) for who reads it."""
        changed = self._ranges.put(name, _networks(cidrs))
        return self._within(changed) if changed else iter(())

    def _within(self, networks: tuple[Network, ...]) -> Iterator[str]:
        for address, keys in self._by_address.items():
            parsed = parse_strict(address)
            if parsed is not None and any(_holds(network, parsed) for network in networks):
                yield from keys

    def why(self, key: str) -> str:
        """A sentence; "" for what may serve."""
        known = self._slices.get(key)
        if known is None:
            return ""
        for address in known.addresses:
            sentence = self._why_address(known, address)
            if sentence:
                return sentence
        for place in known.places:
            newest = max(self._by_place[place], key=self._age_of)
            if newest != key:
                other = self._slices[newest].agent
                return f"agent {other} brought {place.address} port {place.port} to Service {place.service} later"
        return ""

    def _why_address(self, known: _Slice, address: str) -> str:
        parsed = parse_strict(address)
        allowed = self._allowed.get(known.agent)
        if parsed is None:
            return f"{address!r} is no IP address"
        if allowed is not None and not any(_holds(network, parsed) for network in allowed):
            names = ", ".join(str(network) for network in allowed) or "none"
            return f"{address} is not among the addresses that the account of agent {known.agent} may use: {names}"
        if address in self._pods:
            return f"{address} is the address of Pod {self._pods[address]}"
        # an account that names its networks was given them by an administrator
        holder = self._ranges.holder(parsed) if allowed is None else ""
        return f"{address} belongs to {holder}" if holder else ""

    def _age_of(self, key: str) -> tuple[tuple[str, str], str]:
        return (self._made.get(self._slices[key].agent, ("", "")), key)

    def slices_of(self, agent: str) -> tuple[str, ...]:
        return tuple(self._by_agent.get(agent, ()))

    def ports_of(self, agent: str) -> tuple[PortProbe, ...]:
        """Where it says that its processes listen."""
        places = [place for key in self._by_agent.get(agent, ()) for place in self._slices[key].places]
        return tuple(dict.fromkeys(PortProbe(place.address, place.port) for place in places))

    def services_of(self, agent: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._slices[key].service for key in self._by_agent.get(agent, ())))

    def check(self) -> None:
        for index in (self._by_place, self._by_address, self._by_agent):
            assert all(index.values()), "an entry of an index without slices"
            assert {key for keys in index.values() for key in keys} <= self._slices.keys(), "an index of what is gone"


def _read(new: EndpointSlice) -> _Slice:
    meta = new.metadata
    labels = meta.labels or {}
    service = f"{meta.namespace}/{labels.get(LABEL_SERVICE_NAME, '')}"
    addresses = tuple(dict.fromkeys(address for endpoint in new.endpoints or () for address in endpoint.addresses))
    ports = [port.port for port in new.ports or () if port.port is not None]
    places = tuple(_Place(service, address, port) for address in addresses for port in ports)
    return _Slice(f"{meta.namespace}/{labels.get(LABEL_AGENT, '')}", service, addresses, places)


def _drop(index: defaultdict[K, dict[str, None]], at: K, key: str) -> dict[str, None]:
    """What is left there."""
    keys = index[at]
    del keys[key]
    if not keys:
        del index[at]
    return keys


def _networks(texts: list[str] | tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(network for text in texts if (network := parse_network_lenient(text)) is not None)


def _holds(network: Network, address: _Address) -> bool:
    return network.version == address.version and address in network
