"""Builds the chains and rules of a Service from its state, with upstream's names
(``pkg/proxy/iptables/proxier.go``).

For each service port; *inside* and *outside* are those of ``consume.model.PortState``:

| chain | when | what |
|---|---|---|
| KUBE-SVC-X, KUBE-SVL-X (nat) | packets reach it | one of the Cluster, of the Local policy's endpoints |
| KUBE-SEP-Y (nat) | per endpoint that is used | masquerade calls to itself; remember the client; DNAT |
| KUBE-EXT-X (nat) | reachable from outside, and endpoints exist somewhere | which policy, and whether masqueraded |
| KUBE-FW-X (nat) | that, and source ranges | KUBE-EXT-X for sources in a range |
| KUBE-FW-X (filter) | load balancer's addresses and source ranges | drop other sources |

Rules in chains that all Services share lead there by destination, and refuse a destination if no
endpoint matches the policy. A firewall has two halves, since iptables cannot drop in ``nat``: packets
of other sources are not translated, and then dropped.
"""

from __future__ import annotations

import msgspec

from sliceplane.consume.model import NodeEndpoint, PortState
from sliceplane.node.context import LocalNode
from sliceplane.node.iptables.layout import Chain, match_local
from sliceplane.node.iptables.text import (
    CLUSTER_IPS,
    EXTERNAL_SERVICES,
    MARK_MASQ,
    NODE_PORTS,
    PROXY_FIREWALL,
    REJECT,
    SERVICES,
    Prefix,
    chain_name,
    family_of,
    jump,
    match_recent,
    one,
    one_in,
    port_of,
    remark,
    rule,
    set_recent,
    translate,
)
from sliceplane.node.plane import allowed_sources

#: key of a rule in a shared chain: the chain and the rule's destination
SharedRuleId = tuple[Chain, tuple[str | int, ...]]

_NAT_SERVICES: Chain = ("nat", SERVICES)
_NAT_NODE_PORTS: Chain = ("nat", NODE_PORTS)
_REFUSED_INSIDE: Chain = ("filter", SERVICES)
_REFUSED_OUTSIDE: Chain = ("filter", EXTERNAL_SERVICES)
_REFUSED_NODE_PORTS: Chain = ("filter", NODE_PORTS)
_CLUSTER_IPS: Chain = ("filter", CLUSTER_IPS)
_FIREWALL: Chain = ("filter", PROXY_FIREWALL)


class ServiceRules(msgspec.Struct, frozen=True):
    """The desired rules of one Service.  It owns its chains; other Services may desire the same
    rule of a shared chain.
    """

    chains: tuple[tuple[Chain, tuple[str, ...]], ...] = ()
    shared: tuple[tuple[SharedRuleId, str], ...] = ()


def build_service(
    states: tuple[PortState, ...], node: LocalNode, *, masquerade_all: bool = False
) -> ServiceRules:
    """Returns the rules of all ports of one Service. If two ports define the same shared rule (a
    Service that every API server rejects), the first one wins.
    """
    chains: dict[Chain, tuple[str, ...]] = {}
    shared: dict[SharedRuleId, str] = {}
    for state in states:
        port = _IptablesPort(state, node, masquerade_all, chains, shared)
        port.build_inside()
        if state.port.externally_accessible:
            port.build_outside()
    return ServiceRules(tuple(chains.items()), tuple(shared.items()))


class _IptablesPort:
    """Builds the rules of one service port; adds them to *chains* and *shared*."""

    def __init__(
        self,
        state: PortState,
        node: LocalNode,
        masquerade_all: bool,
        chains: dict[Chain, tuple[str, ...]],
        shared: dict[SharedRuleId, str],
    ) -> None:
        self._state = state
        self._port = state.port
        self._node = node
        self._masquerade_all = masquerade_all
        self._protocol = state.port.name.protocol.lower()
        self._family = family_of(state.port.cluster_ip)
        self._chains = chains
        self._shared = shared

    def build_inside(self) -> None:
        port = self._port
        ip = port.cluster_ip
        self._add_shared(_CLUSTER_IPS, (ip,), rule("-d", one(ip), jump(REJECT)))
        if self._state.inside:
            chain = self._policy_chain("KUBE-SVL-" if port.internal_local else "KUBE-SVC-")
            self._add_destination(_NAT_SERVICES, ip, "cluster IP", chain)
        else:
            self._add_destination(_REFUSED_INSIDE, ip, self._lack, self._refusal)

    def build_outside(self) -> None:
        port = self._port
        state = self._state
        addresses = [(ip, "external IP") for ip in port.external_ips] + [
            (ip, "loadbalancer IP") for ip in port.vips
        ]
        sources = allowed_sources(port, self._node.ip) if port.vips else ()
        if state.categories.has_any:
            chain = self._external_chain()
            firewall = (
                self._add(
                    "nat", "KUBE-FW-", [rule("-s", network, jump(chain)) for network in sources]
                )
                if sources
                else chain
            )
            for ip, role in addresses:
                self._add_destination(
                    _NAT_SERVICES, ip, role, firewall if ip in port.vips else chain
                )
            if port.node_port:
                self._add_node_port(_NAT_NODE_PORTS, "node port", chain)
        if not state.outside:
            for ip, _ in addresses:
                self._add_destination(_REFUSED_OUTSIDE, ip, self._lack, self._refusal)
            if port.node_port:
                self._add_node_port(_REFUSED_NODE_PORTS, self._lack, self._refusal)
        if sources:
            self._build_firewall(sources)

    @property
    def _refusal(self) -> str:
        return "DROP" if self._state.drops else REJECT

    @property
    def _lack(self) -> str:
        return "has no local endpoints" if self._state.drops else "has no endpoints"

    def _external_chain(self) -> str:
        port = self._port
        categories = self._state.categories
        assert categories.cluster, (
            f"{port.name} is reachable from outside, and has endpoints, but none to use"
        )
        cluster = jump(self._policy_chain("KUBE-SVC-"))
        mark = jump(MARK_MASQ)
        if not port.external_local:
            rules = [mark, cluster]
        else:
            rules = []
            if self._node.detector is not None:
                rules.append(rule(match_local(self._node.detector, local=True), cluster))
            # From this node itself: the endpoint must answer to the node.
            from_node = "-m addrtype --src-type LOCAL"
            rules += [rule(from_node, mark), rule(from_node, cluster)]
            if categories.local:
                rules.append(jump(self._policy_chain("KUBE-SVL-")))
        return self._add("nat", "KUBE-EXT-", rules)

    def _build_firewall(self, sources: tuple[str, ...]) -> None:
        allowed = [rule("-s", network, jump("RETURN")) for network in sources]
        chain = self._add("filter", "KUBE-FW-", [*allowed, jump("DROP")])
        for ip in self._port.vips:
            self._add_destination(_FIREWALL, ip, "loadbalancer IP", chain)

    def _policy_chain(self, prefix: Prefix) -> str:
        """Returns the chain that leads to the endpoints of a policy; built at its first use."""
        name = chain_name(prefix, self._port.name)
        if ("nat", name) in self._chains:
            return name
        categories = self._state.categories
        timeout_s = self._port.affinity_timeout_s
        endpoints = categories.local if prefix == "KUBE-SVL-" else categories.cluster
        leads = [self._endpoint_chain(endpoint) for endpoint in endpoints]
        rules = (
            list(self._masquerade()) if (prefix == "KUBE-SVL-") == self._port.internal_local else []
        )
        if timeout_s:
            rules += [
                rule(match_recent(chain, self._family, timeout_s), jump(chain)) for chain in leads
            ]
        for number, chain in enumerate(leads):
            remaining = len(leads) - number
            rules.append(rule(one_in(remaining), jump(chain)) if remaining > 1 else jump(chain))
        return self._add("nat", prefix, rules)

    def _masquerade(self) -> tuple[str, ...]:
        """Returns the rule that masquerades packets to the cluster IP that are not from this node's
        Pods: their replies may have no other way back.
        """
        port = self._port
        source = ""
        if not self._masquerade_all:
            if self._node.detector is None:
                return ()
            source = match_local(self._node.detector, local=False)
        by_interface = "-i " in source
        matches = (
            (f"-d {one(port.cluster_ip)}", source)
            if by_interface
            else (source, f"-d {one(port.cluster_ip)}")
        )
        role = remark(port.name, "cluster IP")
        return (rule(*matches, port_of(self._protocol, port.port, role), jump(MARK_MASQ)),)

    def _endpoint_chain(self, endpoint: NodeEndpoint) -> str:
        """Returns the chain of an endpoint, shared by the policies."""
        ip = endpoint.ip
        port = endpoint.port
        name = chain_name("KUBE-SEP-", self._port.name, f"{f'[{ip}]' if ':' in ip else ip}:{port}")
        if ("nat", name) not in self._chains:
            hairpin = (rule("-s", one(ip), jump(MARK_MASQ)),) if endpoint.is_local else ()
            update = set_recent(name, self._family) if self._port.affinity_timeout_s else ""
            translation = rule(f"-p {self._protocol}", update, translate(ip, port))
            self._chains["nat", name] = (*hairpin, translation)
        return name

    def _add(self, table: str, prefix: Prefix, rules: list[str]) -> str:
        name = chain_name(prefix, self._port.name)
        self._chains["nat" if table == "nat" else "filter", name] = tuple(rules)
        return name

    def _add_destination(self, chain: Chain, ip: str, role: str, target: str) -> None:
        port = self._port
        matches = port_of(self._protocol, port.port, remark(port.name, role))
        self._add_shared(
            chain, (ip, self._protocol, port.port), rule("-d", one(ip), matches, jump(target))
        )

    def _add_node_port(self, chain: Chain, role: str, target: str) -> None:
        port = self._port
        matches = port_of(self._protocol, port.node_port, remark(port.name, role))
        self._add_shared(chain, (self._protocol, port.node_port), rule(matches, jump(target)))

    def _add_shared(self, chain: Chain, key: tuple[str | int, ...], line: str) -> None:
        self._shared.setdefault((chain, key), line)
