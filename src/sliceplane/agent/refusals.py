"""The slices of agents that are refused, and the reasons.

A client that may write slices can send a Service's traffic to any address (CVE-2021-25740,
kubernetes/kubernetes#103675), so the grant of an agent's account bounds its slices
(``consume.agents.grants``). A slice that does not fit the grant is a *misfit*: its content is
ignored, and the controller empties it. Addresses of Pods are refused for every account. The
networks of Services and Pods are refused for accounts without networks of their own. An account
with a grant but no networks may not use addresses of Nodes, of the API server and of a cloud's
metadata service either. If two agents register the same address and port for one Service, consumers
see one endpoint. The agent with the newest Lease keeps it, since the older one is probably a
leftover.

The control plane opens connections to the ports of retained agents (``list_probe_ports``). An agent
must not be able to use that as a port scanner, so only addresses that a grant names are probed, and
never those of the cluster's own hosts.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

import msgspec

from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.requests import PortProbe
from sliceplane.consume.agents.grants import (
    AgentGrant,
    contains,
    parse_networks,
    read_slice,
    shape_misfit,
    slice_misfit,
)
from sliceplane.consume.agents.registration import family_of
from sliceplane.kit.ip import Network, parse_strict

#: maximum ports of one retained agent to probe; an agent with more is not probed at all
PROBES_MAX: Final = 8
#: addresses at which clouds serve credentials, besides the link-local ones (which are no endpoints
#: anyway)
_METADATA: Final = ("100.100.100.200/32", "fd00:ec2::254/128", "fd20:ce::254/128")
K = TypeVar("K")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class _Ranges:
    """Networks by the name of their owner, and a look-up of the owner of an address. Since there
    are few prefix lengths, a look-up is a few dictionary reads, however many Nodes there are.
    """

    def __init__(self) -> None:
        self._of: dict[str, tuple[Network, ...]] = {}
        #: names by IP version and prefix length, then by prefix
        self._owners: defaultdict[tuple[int, int], defaultdict[int, dict[str, None]]]
        self._owners = defaultdict(lambda: defaultdict(dict))

    def put(self, name: str, networks: tuple[Network, ...]) -> tuple[Network, ...]:
        """Stores the networks of *name*; returns the former and the new ones if they differ."""
        old = self._of.pop(name, ())
        if networks:
            self._of[name] = networks
        if old == networks:
            return ()
        for network in old:
            of_prefix_length = self._owners[network.version, network.prefixlen]
            _drop(of_prefix_length, _prefix(network.network_address, network.prefixlen), name)
        for network in networks:
            of_prefix_length = self._owners[network.version, network.prefixlen]
            of_prefix_length[_prefix(network.network_address, network.prefixlen)][name] = None
        return (*old, *networks)

    def find_owner(self, address: _Address) -> str:
        """Returns the name of an owner, or ""."""
        for (version, length), of_prefix_length in self._owners.items():
            if version == address.version:
                names = of_prefix_length.get(_prefix(address, length))
                if names:
                    return next(iter(names))
        return ""


def _prefix(address: _Address, length: int) -> int:
    return int(address) >> (address.max_prefixlen - length)


class _Target(NamedTuple):
    """One address and port of one Service ("namespace/name")."""

    service: str
    address: str
    port: int


class _Slice(msgspec.Struct, frozen=True):
    """``misfit``: a sentence that says why it does not fit the grant; it has no addresses then.
    ``probed``: all its ports can be probed.
    """

    agent: str
    service: str
    misfit: str
    addresses: tuple[str, ...]
    targets: tuple[_Target, ...]
    probed: bool


class AgentRefusals:
    """Slices are keyed ``namespace/name``, agents ``namespace/name of the agent``. Owned by one
    controller.

    Each ``on_*`` returns the slices whose verdict may have changed.
    """

    def __init__(self) -> None:
        self._slices: dict[str, _Slice] = {}
        self._by_target: defaultdict[_Target, dict[str, None]] = defaultdict(dict)
        self._by_address: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._by_agent: defaultdict[str, dict[str, None]] = defaultdict(dict)
        #: creation time and uid of the Lease by agent
        self._created: dict[str, tuple[str, str]] = {}
        #: the Pod that got an address last, by address: it covers all Pods, so entries are minimal
        self._pods: dict[str, str] = {}
        self._grants: dict[str, AgentGrant] = {}
        self._ranges = _Ranges()
        #: addresses of the cluster's machines and of the cloud that it runs on
        self._hosts = _Ranges()
        self._hosts.put("the metadata service of a cloud", parse_networks(_METADATA))

    def on_grant(self, agent: str, grant: AgentGrant | None) -> None:
        """Takes the grant of *agent*; the caller then calls ``on_slice`` for each of its slices."""
        self._grants.pop(agent, None)
        if grant is not None:
            self._grants[agent] = grant

    def on_slice(self, key: str, agent: str, new: EndpointSlice | None) -> tuple[str, ...]:
        """Stores or removes a slice. *agent*: its owner."""
        old = self._slices.pop(key, None)
        touched: dict[str, None] = {}
        if old is not None:
            touched |= self._unlink(key, old)
        if new is not None:
            entry = self._slices[key] = _read(agent, new, self._grants.get(agent))
            self._by_agent[entry.agent][key] = None
            for target in entry.targets:
                self._by_target[target][key] = None
                touched |= self._by_target[target]
            for address in entry.addresses:
                self._by_address[address][key] = None
        touched.pop(key, None)
        return (key, *touched) if new is not None else tuple(touched)

    def _unlink(self, key: str, old: _Slice) -> dict[str, None]:
        touched: dict[str, None] = {}
        for target in old.targets:
            touched |= _drop(self._by_target, target, key)
        for address in old.addresses:
            _drop(self._by_address, address, key)
        _drop(self._by_agent, old.agent, key)
        return touched

    def on_lease(self, agent: str, created: tuple[str, str] | None) -> tuple[str, ...]:
        """Stores or removes an agent's Lease. *created*: its creation time and uid, as the server
        wrote them.
        """
        if self._created.get(agent) == created:
            return ()
        self._created.pop(agent, None)
        if created is not None:
            self._created[agent] = created
        return self._rivals(self._by_agent.get(agent, ()))

    def _rivals(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Returns *keys* and all slices that share an address and port with one of them."""
        own = dict.fromkeys(keys)
        targets = [target for key in own for target in self._slices[key].targets]
        return tuple(
            own | dict.fromkeys(key for target in targets for key in self._by_target[target])
        )

    def on_pod(self, pod: str, old: tuple[str, ...], new: tuple[str, ...]) -> tuple[str, ...]:
        """Stores the addresses of a Pod with its own network. *old*: the previous ones."""
        if old == new:
            return ()
        for address in old:
            if self._pods.get(address) == pod:
                del self._pods[address]
        for address in new:
            self._pods[address] = pod
        return self._rivals(
            key for address in (*old, *new) for key in self._by_address.get(address, ())
        )

    def on_range(self, name: str, cidrs: tuple[str, ...]) -> tuple[str, ...]:
        """Stores networks of the cluster; *name* completes the sentence "belongs to ...". O(agents)
        if they change.
        """
        return self._list_slices_within(self._ranges.put(name, parse_networks(cidrs)))

    def on_host(self, name: str, addresses: tuple[str, ...]) -> tuple[str, ...]:
        """Stores the addresses of a machine of the cluster; *name* as for ``on_range``."""
        parsed = (parse_strict(address) for address in addresses)
        networks = tuple(ipaddress.ip_network(address) for address in parsed if address is not None)
        return self._list_slices_within(self._hosts.put(name, networks))

    def _list_slices_within(self, networks: tuple[Network, ...]) -> tuple[str, ...]:
        if not networks:
            return ()
        touched: list[str] = []
        for address, keys in self._by_address.items():
            parsed = parse_strict(address)
            if parsed is not None and any(contains(network, parsed) for network in networks):
                touched += keys
        return self._rivals(touched)

    def is_misfit(self, key: str) -> bool:
        """Returns True if the slice must be emptied."""
        entry = self._slices.get(key)
        return entry is not None and bool(entry.misfit)

    def find_reason(self, key: str) -> str:
        """Returns the reason for a refusal as a sentence; "" if the slice may serve."""
        entry = self._slices.get(key)
        if entry is None:
            return ""
        reason = self._find_own_reason(entry)
        if reason:
            return reason
        for target in entry.targets:
            # A refused slice does not displace another agent's.
            fitting = (
                rival
                for rival in self._by_target[target]
                if not self._find_own_reason(self._slices[rival])
            )
            newest = max(fitting, key=self._creation_order)
            if newest != key:
                other = self._slices[newest].agent
                return (
                    f"agent {other} brought {target.address} port {target.port} to Service "
                    f"{target.service} later"
                )
        return ""

    def _find_own_reason(self, entry: _Slice) -> str:
        """Returns the reason that concerns the slice alone, without rivals."""
        if entry.misfit:
            return entry.misfit
        for address in entry.addresses:
            reason = self._find_address_reason(entry.agent, address)
            if reason:
                return reason
        return ""

    def _find_address_reason(self, agent: str, address: str) -> str:
        parsed = parse_strict(address)
        if parsed is None:
            return f"{address!r} is no IP address"
        if address in self._pods:
            return f"{address} is the address of Pod {self._pods[address]}"
        grant = self._grants.get(agent)
        if grant is not None and grant.networks is not None:
            return ""  # an administrator granted its networks
        # An account without a grant may write any slice anyway, and may run on a machine of the
        # cluster.
        owner = self._ranges.find_owner(parsed) or (
            self._hosts.find_owner(parsed) if grant is not None else ""
        )
        return f"{address} belongs to {owner}" if owner else ""

    def _creation_order(self, key: str) -> tuple[tuple[str, str], str]:
        return (self._created.get(self._slices[key].agent, ("", "")), key)

    @property
    def misfits(self) -> int:
        return sum(bool(entry.misfit) for entry in self._slices.values())

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that have slices."""
        return tuple(self._by_agent)

    def list_slices(self, agent: str) -> tuple[str, ...]:
        return tuple(self._by_agent.get(agent, ()))

    def list_probe_ports(self, agent: str) -> tuple[PortProbe, ...]:
        """Returns the ports whose connections show whether its processes ended; none unless all of
        them may be probed.
        """
        grant = self._grants.get(agent)
        if grant is None or grant.networks is None:
            return ()
        slices = [self._slices[key] for key in self._by_agent.get(agent, ())]
        if not all(entry.probed for entry in slices) or any(
            self.find_reason(key) for key in self._by_agent.get(agent, ())
        ):
            return ()
        targets = [target for entry in slices for target in entry.targets]
        if not all(self._may_be_probed(target.address) for target in targets):
            return ()
        ports = tuple(dict.fromkeys(PortProbe(target.address, target.port) for target in targets))
        return ports if len(ports) <= PROBES_MAX else ()

    def _may_be_probed(self, address: str) -> bool:
        try:
            family_of(address)  # raises for loopback, link-local and other special addresses
        except ValueError:
            return False
        parsed = parse_strict(address)
        assert parsed is not None, f"{address} has a family and is no address"
        return not (self._hosts.find_owner(parsed) or self._ranges.find_owner(parsed))

    def list_services(self, agent: str) -> tuple[str, ...]:
        """Returns the Services for which *agent* has an endpoint; misfits do not count."""
        slices = (self._slices[key] for key in self._by_agent.get(agent, ()))
        return tuple(dict.fromkeys(entry.service for entry in slices if not entry.misfit))

    def get_granted_service(self, key: str) -> str:
        """Returns the Service of the slice *key* by its name, whatever its label says."""
        entry = self._slices[key]
        grant = self._grants.get(entry.agent)
        by_name = grant.slices.get(key.partition("/")[2]) if grant is not None else None
        return entry.service if by_name is None else f"{entry.agent.partition('/')[0]}/{by_name[0]}"

    def check(self) -> None:
        for index in (self._by_target, self._by_address, self._by_agent):
            assert all(index.values()), "an entry of an index without slices"
            assert {key for keys in index.values() for key in keys} <= self._slices.keys(), (
                "an index entry of a removed slice"
            )


def _read(agent: str, new: EndpointSlice, grant: AgentGrant | None) -> _Slice:
    written = read_slice(new)
    service = f"{written.namespace}/{written.service}"
    misfit = slice_misfit(grant, written) if grant is not None else shape_misfit(written)
    if misfit:
        return _Slice(agent, service, misfit, (), (), probed=False)
    addresses = tuple(
        dict.fromkeys(address for endpoint in written.addresses for address in endpoint)
    )
    ports = [port.port for port in new.ports or () if port.port is not None]
    targets = tuple(_Target(service, address, port) for address in addresses for port in ports)
    probed = all(
        port.port is not None and port.protocol in (None, "TCP") for port in new.ports or ()
    )
    return _Slice(agent, service, "", addresses, targets, probed)


def _drop(index: defaultdict[K, dict[str, None]], at: K, key: str) -> dict[str, None]:
    """Removes *key* and returns the remaining keys."""
    keys = index[at]
    del keys[key]
    if not keys:
        del index[at]
    return keys
