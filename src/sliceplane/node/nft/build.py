"""Builds the objects of a Service in the table from its state (upstream:
``pkg/proxy/nftables/README.md``).

For each service port, with C and L the endpoints of the Cluster and the Local policy. *From inside*
is the cluster IP, and ``internalTrafficPolicy``; *from outside* are external IPs, load balancers'
addresses and the node port, and ``externalTrafficPolicy``.

| object | when | what |
|---|---|---|
| element of cluster-ips | always | the cluster IP |
| chain service-X, local-X | C, L not empty, and packets reach them by a chain | DNAT to one of C, of L |
| chain external-X | reachable from outside, and endpoints exist somewhere | which of the two, and whether masqueraded |
| element of service-ips, from inside | one endpoint, no affinity | the endpoint (kept in single-endpoints) |
| the same | several endpoints, no affinity, reachable from inside only | the endpoints (in
``node.nft.buckets``) |
| the same | several endpoints and reachable from outside, or affinity | jump to service-X, local-X |
| element of service-ips, service-nodeports, from outside | external-X exists | goto external-X |
| element of no-endpoint-services, -nodeports | no endpoint matches the policy | drop if there are endpoints elsewhere,
else reject |
| chain firewall-X, elements of firewall-ips | load balancer's addresses and source ranges | drop other sources |
| chain endpoint-Y, set affinity-Y | session affinity: per endpoint that is used | remember the client, DNAT |
| element of hairpin-connections | per local endpoint | an endpoint that calls itself through the service is
masqueraded |

With ``externalTrafficPolicy: Local`` and no local endpoint both kinds of elements exist: this node
and its Pods reach endpoints elsewhere; packets from outside pass external-X untranslated and are
dropped.

From inside it is a jump, not a goto. For a packet that entered the hook before the chain was
created, the chain is empty; it returns to the next rule, which matches the endpoint that was the
only one until then (``node.nft.elements``).
"""

from __future__ import annotations

import msgspec

from sliceplane.consume.model import NodeEndpoint, PortState
from sliceplane.node.context import LocalNode
from sliceplane.node.nft.layout import (
    CLUSTER_IPS,
    FIREWALL_IPS,
    HAIRPIN,
    NO_ENDPOINT_NODE_PORTS,
    NO_ENDPOINTS,
    NODE_PORT_IPS,
    REJECT_CHAIN,
    SERVICE_IPS,
    SERVICE_NODE_PORTS,
    match_local,
)
from sliceplane.node.nft.names import chain_name
from sliceplane.node.nft.objects import (
    DROP,
    BalancedTargets,
    DesiredValue,
    DnatTarget,
    Key,
    NftContainer,
    NftRule,
    Value,
    goto,
    jump,
)
from sliceplane.node.nft.slots import TARGETS_PER_CHAIN_MAX
from sliceplane.node.nft.statements import (
    AddressIn,
    Dnat,
    Drop,
    Goto,
    GotoOneOf,
    InSet,
    IsOwnAddress,
    Remember,
    SetMark,
)
from sliceplane.node.plane import allowed_sources


class BalancedChain(msgspec.Struct, frozen=True):
    """A chain that sends a connection to one of *targets* (at least one), all equally likely."""

    name: str
    protocol: str
    targets: tuple[DnatTarget, ...]


class RuleChain(msgspec.Struct, frozen=True):
    """A chain with these rules (at least one), and its own dynamic set, if any."""

    name: str
    rules: tuple[NftRule, ...]
    own_set: NftContainer | None = None
    #: the namespace whose quota of clients its set counts against
    account: str = ""


Chain = BalancedChain | RuleChain


class ServiceObjects(msgspec.Struct, frozen=True):
    """The desired objects of one Service in the table.  It owns its chains; other Services may
    desire the same elements.
    """

    chains: tuple[Chain, ...] = ()
    elements: tuple[tuple[str, Key, DesiredValue], ...] = ()


def build_service(states: tuple[PortState, ...], node: LocalNode) -> ServiceObjects:
    """Returns the objects of all ports of one Service. If two ports define the same element (a
    Service that every API server rejects), the first one wins.
    """
    chains: list[Chain] = []
    elements: dict[tuple[str, Key], DesiredValue] = {}
    for state in states:
        port = _NftPort(state, node, chains, elements)
        port.build_inside()
        if state.port.externally_accessible:
            port.build_outside()
    return ServiceObjects(
        tuple(chains), tuple((*element, value) for element, value in elements.items())
    )


def node_port_addresses(addresses: tuple[str, ...]) -> ServiceObjects:
    """Returns the elements of the set of addresses that node ports are served on."""
    return ServiceObjects(
        (), tuple((NODE_PORT_IPS.name, (address,), None) for address in addresses)
    )


class _NftPort:
    """Builds the objects of one service port; adds them to *chains* and *elements*."""

    def __init__(
        self,
        state: PortState,
        node: LocalNode,
        chains: list[Chain],
        elements: dict[tuple[str, Key], DesiredValue],
    ) -> None:
        self._state = state
        self._port = state.port
        self._categories = state.categories
        self._node = node
        self._protocol = state.port.name.protocol.lower()
        self._chains = chains
        self._elements = elements
        self._chain_names: dict[str, str] = {}  # prefix -> the chain of that policy
        self._sticky_names: dict[
            tuple[str, int], tuple[str, str]
        ] = {}  # endpoint -> its set, its chain

    def build_inside(self) -> None:
        port = self._port
        categories = self._categories
        self._elements.setdefault((CLUSTER_IPS.name, (port.cluster_ip,)), None)
        for endpoint in categories.reachable:
            if endpoint.is_local:
                key = (endpoint.ip, endpoint.ip, self._protocol, endpoint.port)
                self._elements.setdefault((HAIRPIN.name, key), None)
        if port.affinity_timeout_s:
            self._build_endpoints()
        destination: Key = (port.cluster_ip, self._protocol, port.port)
        match self._state.inside:
            case ():
                self._elements.setdefault((NO_ENDPOINTS.name, destination), self._refusal)
            case (only,) if not port.affinity_timeout_s:
                self._elements.setdefault(
                    (SERVICE_IPS.name, destination), DnatTarget(only.ip, only.port)
                )
            case several if not port.affinity_timeout_s and not port.externally_accessible:
                self._elements.setdefault(
                    (SERVICE_IPS.name, destination), BalancedTargets(_targets(several))
                )
            case _:
                chain = self._policy_chain("local" if port.internal_local else "service")
                self._elements.setdefault((SERVICE_IPS.name, destination), jump(chain))

    def build_outside(self) -> None:
        port = self._port
        categories = self._categories
        destinations: list[tuple[NftContainer, NftContainer, Key]] = [
            (SERVICE_IPS, NO_ENDPOINTS, (ip, self._protocol, port.port))
            for ip in (*port.external_ips, *port.vips)
        ]
        if port.node_port:
            destinations.append(
                (SERVICE_NODE_PORTS, NO_ENDPOINT_NODE_PORTS, (self._protocol, port.node_port))
            )
        if categories.has_any:
            chain = self._external_chain()
            for served, _, key in destinations:
                self._elements.setdefault((served.name, key), goto(chain))
        if not self._state.outside:
            for _, refused, key in destinations:
                self._elements.setdefault((refused.name, key), self._refusal)
        if port.vips and port.source_ranges:
            self._build_firewall()

    @property
    def _refusal(self) -> Value:
        return DROP if self._state.drops else goto(REJECT_CHAIN)

    def _external_chain(self) -> str:
        port = self._port
        assert self._categories.cluster, (
            f"{port.name} is reachable from outside, and has endpoints, but none to use"
        )
        cluster = self._policy_chain("service")
        if not port.external_local:
            rules = [NftRule((SetMark(),)), NftRule((Goto(cluster),))]
        else:
            rules = []
            if self._node.detector is not None:
                rules.append(NftRule((match_local(self._node.detector, local=True), Goto(cluster))))
            # From this node itself: the endpoint must answer to the node.
            rules.append(NftRule((IsOwnAddress("saddr"), SetMark(), Goto(cluster))))
            if self._categories.local:
                rules.append(NftRule((Goto(self._policy_chain("local")),)))
        name = chain_name("external", port.name)
        self._chains.append(RuleChain(name, tuple(rules)))
        return name

    def _build_firewall(self) -> None:
        port = self._port
        ranges = allowed_sources(self._port, self._node.ip)
        name = chain_name("firewall", port.name)
        self._chains.append(
            RuleChain(name, (NftRule((AddressIn("saddr", ranges, inside=False), Drop())),))
        )
        for ip in port.vips:
            self._elements.setdefault(
                (FIREWALL_IPS.name, (ip, self._protocol, port.port)), goto(name)
            )

    def _policy_chain(self, prefix: str) -> str:
        """Returns the chain that leads to the endpoints of a policy; built at its first use."""
        if prefix not in self._chain_names:
            endpoints = self._categories.local if prefix == "local" else self._categories.cluster
            chain = (
                self._sticky(prefix, endpoints)
                if self._port.affinity_timeout_s
                else self._even(prefix, endpoints)
            )
            self._chains.append(chain)
            self._chain_names[prefix] = chain.name
        return self._chain_names[prefix]

    def _even(self, prefix: str, endpoints: tuple[NodeEndpoint, ...]) -> BalancedChain:
        return BalancedChain(
            chain_name(prefix, self._port.name), self._protocol, _targets(endpoints)
        )

    def _sticky(self, prefix: str, endpoints: tuple[NodeEndpoint, ...]) -> RuleChain:
        names = [self._sticky_names[endpoint.ip, endpoint.port] for endpoint in endpoints]
        affinity = [NftRule((InSet(("saddr",), clients), Goto(chain))) for clients, chain in names]
        others = NftRule((GotoOneOf(tuple([chain for _, chain in names])),))
        return RuleChain(
            chain_name(prefix, self._port.name, variant=self._variant), (*affinity, others)
        )

    def _build_endpoints(self) -> None:
        """Builds one chain and one set for each endpoint, shared by the policies."""
        for endpoint in self._categories.reachable:
            names = (
                self._endpoint_name("affinity", endpoint),
                self._endpoint_name("endpoint", endpoint),
            )
            self._sticky_names[endpoint.ip, endpoint.port] = names
            clients = NftContainer(names[0], ("addr",), timeout_s=self._port.affinity_timeout_s)
            rules = (
                NftRule((Remember(clients.name),)),
                NftRule((Dnat(self._protocol, endpoint.ip, endpoint.port),)),
            )
            self._chains.append(
                RuleChain(names[1], rules, clients, self._port.name.service.namespace)
            )

    @property
    def _variant(self) -> str:
        return f"affinity {self._port.affinity_timeout_s}"

    def _endpoint_name(self, prefix: str, endpoint: NodeEndpoint) -> str:
        return chain_name(
            prefix,
            self._port.name,
            variant=self._variant,
            endpoint=f"{endpoint.ip}/{endpoint.port}",
        )


def _targets(endpoints: tuple[NodeEndpoint, ...]) -> tuple[DnatTarget, ...]:
    return tuple(
        [DnatTarget(endpoint.ip, endpoint.port) for endpoint in endpoints[:TARGETS_PER_CHAIN_MAX]]
    )
