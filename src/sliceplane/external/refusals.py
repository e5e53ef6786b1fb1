"""Which slices of agents may not serve, and why.

Who may write slices can send a Service's traffic to any address (CVE-2021-25740, kubernetes/kubernetes#103675), so an
agent's account can say what is its own (``ANNOTATION_CIDRS``), and what belongs to the cluster is refused to all.  Two
agents that bring the same address and port to one Service are one endpoint for consumers; the Lease that was made last
keeps it, since the older one is the one that was forgotten.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.external.registration import LABEL_AGENT
from sliceplane.kit.ip import Network, parse_network_lenient, parse_strict

K = TypeVar("K")


class _Place(NamedTuple):
    """One address and port of one Service ("namespace/name")."""

    service: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class _Slice:
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
        self._pods: dict[str, dict[str, None]] = {}
        self._allowed: dict[str, tuple[Network, ...]] = {}
        self._ranges: dict[str, tuple[Network, ...]] = {}

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
            holders = self._pods.get(address, {})
            holders.pop(pod, None)
            if not holders:
                self._pods.pop(address, None)
        for address in new:
            self._pods.setdefault(address, {})[pod] = None
        return tuple(dict.fromkeys(key for address in (*old, *new) for key in self._by_address.get(address, ())))

    def on_account(self, agent: str, cidrs: str | None) -> tuple[str, ...]:
        """*cidrs*: with commas between them; ``None``: the account does not say.  What is no network allows nothing."""
        self._allowed.pop(agent, None)
        if cidrs is not None:
            self._allowed[agent] = _networks(cidrs.split(","))
        return tuple(self._by_agent.get(agent, ()))

    def on_range(self, name: str, cidrs: tuple[str, ...]) -> tuple[str, ...]:
        """Of cluster IPs."""
        self._ranges.pop(name, None)
        if cidrs:
            self._ranges[name] = _networks(cidrs)
        return tuple(self._slices)

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
            return f"{address} is the address of Pod {next(iter(self._pods[address]))}"
        for name, networks in self._ranges.items():
            if any(_holds(network, parsed) for network in networks):
                return f"{address} belongs to the cluster IPs of ServiceCIDR {name}"
        return ""

    def _age_of(self, key: str) -> tuple[tuple[str, str], str]:
        return (self._made.get(self._slices[key].agent, ("", "")), key)

    def slices_of(self, agent: str) -> tuple[str, ...]:
        return tuple(self._by_agent.get(agent, ()))

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


def _holds(network: Network, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return network.version == address.version and address in network
