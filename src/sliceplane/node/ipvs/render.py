"""ipvs rules in four parts, each for the program that loads it (upstream:
``pkg/proxy/ipvs/README.md``).

| part | for | what |
|---|---|---|
| addresses | ``ip -batch -`` | every service address, on the dummy device ``kube-ipvs0`` (which must exist): ipvs
serves packets to the host |
| virtual servers | ``ipvsadm --restore`` | one per address and port, with a real server per endpoint; round robin |
| sets | ``ipset restore`` | upstream's sets: masqueraded destinations, destinations with a firewall, allowed sources |
| rules | ``iptables-restore --noflush`` | a fixed number of rules that match the sets, and the jumps to them: for a
host that has none yet |

These rules have the limits of ipvs. A virtual server has one list of endpoints, so with
``externalTrafficPolicy: Local`` the node and its Pods use the local endpoints of external addresses,
too. And a virtual server without endpoints rejects, even if the policy requires a drop.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from sliceplane.consume.model import NodeEndpoint, PortState
from sliceplane.kit.ip import Family, join_host_port
from sliceplane.node.plane import allowed_sources
from sliceplane.node.snapshot import NodeSnapshot

DEVICE: Final = "kube-ipvs0"
SCHEDULER: Final = "rr"
SET_NAME_LENGTH_MAX: Final = 31

_SERVICE_FLAG = {"TCP": "-t", "UDP": "-u", "SCTP": "--sctp-service"}
_PROTOCOLS = ("tcp", "udp", "sctp")
_MARK = "0x4000/0x4000"
#: upstream's sets, in its order: the suffix of the name, and the type
_SETS: Final = {
    "LOOP-BACK": "hash:ip,port,ip",
    "CLUSTER-IP": "hash:ip,port",
    "EXTERNAL-IP": "hash:ip,port",
    "EXTERNAL-IP-LOCAL": "hash:ip,port",
    "LOAD-BALANCER": "hash:ip,port",
    "LOAD-BALANCER-LOCAL": "hash:ip,port",
    "LOAD-BALANCER-FW": "hash:ip,port",
    "LOAD-BALANCER-SOURCE-CIDR": "hash:ip,port,net",
    "NODE-PORT-TCP": "bitmap:port",
    "NODE-PORT-LOCAL-TCP": "bitmap:port",
    "NODE-PORT-UDP": "bitmap:port",
    "NODE-PORT-LOCAL-UDP": "bitmap:port",
    "NODE-PORT-SCTP-HASH": "hash:ip,port",
    "NODE-PORT-LOCAL-SCTP-HASH": "hash:ip,port",
    "IPVS-IPS": "hash:ip",
}


class IpvsRules(msgspec.Struct, frozen=True):
    """The four parts; each ends with a newline, or is empty."""

    family: Family
    addresses: str
    virtual_servers: str
    sets: str
    rules: str

    def render(self) -> str:
        """Returns all parts, each after a line that names its program."""
        restore = "ip6tables-restore" if self.family == "IPv6" else "iptables-restore"
        parts = (
            ("ip -batch -", self.addresses),
            ("ipvsadm --restore", self.virtual_servers),
            ("ipset restore", self.sets),
            (f"{restore} --noflush", self.rules),
        )
        return "\n".join(f"# {program}\n{text}" for program, text in parts)


def render(snapshot: NodeSnapshot) -> IpvsRules:
    """Renders all Services.  If two claim the same address and port, the first by namespace and
    name wins.
    """
    draft = _IpvsDraft(snapshot)
    for state in snapshot.states:
        draft.add(state)
    length = 128 if snapshot.family == "IPv6" else 32
    addresses = "".join(
        f"address replace {ip}/{length} dev {DEVICE}\n"
        for ip in sorted(draft.addresses, key=lambda ip: int(ipaddress.ip_address(ip)))
    )
    servers = "".join(line for key in draft.servers for line in draft.servers[key])
    return IpvsRules(
        snapshot.family, addresses, servers, _sets(draft, snapshot.family), _rules(snapshot)
    )


@dataclass(slots=True)
class _IpvsDraft:
    snapshot: NodeSnapshot
    addresses: set[str] = field(default_factory=set)
    servers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    entries: dict[str, dict[str, None]] = field(
        default_factory=lambda: {name: {} for name in _SETS}
    )

    def add(self, state: PortState) -> None:
        port = state.port
        protocol = port.name.protocol.lower()
        self._serve(state, port.cluster_ip, port.port, state.inside)
        self.entries["CLUSTER-IP"][f"{port.cluster_ip},{protocol}:{port.port}"] = None
        local = "-LOCAL" if port.external_local else ""
        for ip in port.external_ips:
            self._serve(state, ip, port.port, state.outside)
            self.entries[f"EXTERNAL-IP{local}"][f"{ip},{protocol}:{port.port}"] = None
        for ip in port.vips:
            self._serve(state, ip, port.port, state.outside)
            self._add_balancer(state, f"{ip},{protocol}:{port.port}")
        if port.node_port:
            self._add_node_port(state, local)
        for endpoint in state.categories.reachable:
            if endpoint.is_local:
                entry = f"{endpoint.ip},{protocol}:{endpoint.port},{endpoint.ip}"
                self.entries["LOOP-BACK"][entry] = None

    def _add_balancer(self, state: PortState, entry: str) -> None:
        self.entries["LOAD-BALANCER"][entry] = None
        if state.port.external_local:
            self.entries["LOAD-BALANCER-LOCAL"][entry] = None
        sources = allowed_sources(state.port, self.snapshot.facts.ip)
        if sources:
            self.entries["LOAD-BALANCER-FW"][entry] = None
            for network in sources:
                self.entries["LOAD-BALANCER-SOURCE-CIDR"][f"{entry},{network}"] = None

    def _add_node_port(self, state: PortState, local: str) -> None:
        port = state.port
        protocol = state.port.name.protocol
        addresses = self.snapshot.node_ports if self.snapshot.node_ports is not None else ()
        for ip in addresses:
            self._serve(state, ip, port.node_port, state.outside, own=False)
        if protocol != "SCTP":
            self.entries[f"NODE-PORT-{protocol}"][str(port.node_port)] = None
            if local:
                self.entries[f"NODE-PORT-LOCAL-{protocol}"][str(port.node_port)] = None
            return
        for ip in addresses:  # a bitmap of ports knows TCP and UDP only
            self.entries["NODE-PORT-SCTP-HASH"][f"{ip},sctp:{port.node_port}"] = None
            if local:
                self.entries["NODE-PORT-LOCAL-SCTP-HASH"][f"{ip},sctp:{port.node_port}"] = None

    def _serve(
        self,
        state: PortState,
        ip: str,
        port: int,
        endpoints: tuple[NodeEndpoint, ...],
        *,
        own: bool = True,
    ) -> None:
        """Adds a virtual server; *own*: its address must be added to the dummy device."""
        flag = _SERVICE_FLAG[state.port.name.protocol]
        key = f"{flag} {join_host_port(ip, port)}"
        timeout_s = state.port.affinity_timeout_s
        sticky = f" -p {timeout_s}" if timeout_s else ""
        lines = [f"-A {key} -s {SCHEDULER}{sticky}\n"]
        lines += [
            f"-a {key} -r {join_host_port(endpoint.ip, endpoint.port)} -m -w 1\n"
            for endpoint in endpoints
        ]
        self.servers.setdefault(key, tuple(lines))
        if own:
            self.addresses.add(ip)
            self.entries["IPVS-IPS"][ip] = None


def _sets(draft: _IpvsDraft, family: Family) -> str:
    kind = "inet6" if family == "IPv6" else "inet"
    lines = []
    for suffix, of in _SETS.items():
        name = _set_name(suffix, family)
        options = (
            "range 0-65535"
            if of.startswith("bitmap")
            else f"family {kind} hashsize 1024 maxelem 65536"
        )
        lines += [f"create {name} {of} {options} -exist", f"flush {name}"]
        lines += [f"add {name} {entry} -exist" for entry in draft.entries[suffix]]
    return "".join(f"{line}\n" for line in lines)


def _rules(snapshot: NodeSnapshot) -> str:
    def into(suffix: str, by: str) -> str:
        return f"-m set --match-set {_set_name(suffix, snapshot.family)} {by}"

    detector = snapshot.context.detector
    outside = ""
    if detector is not None and not snapshot.context.masquerade_all:
        outside = (
            f"! -s {detector.network} "
            if detector.network
            else f"! -i {detector.interface.replace('*', '+')} "
        )
    nat = [f"-A KUBE-SERVICES {into('LOAD-BALANCER', 'dst,dst')} -j KUBE-LOAD-BALANCER"]
    if detector is not None or snapshot.context.masquerade_all:
        nat.append(f"-A KUBE-SERVICES {outside}{into('CLUSTER-IP', 'dst,dst')} -j KUBE-MARK-MASQ")
    nat += [
        f"-A KUBE-SERVICES {into('EXTERNAL-IP', 'dst,dst')} -j KUBE-MARK-MASQ",
        "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT",
        f"-A KUBE-LOAD-BALANCER {into('LOAD-BALANCER-LOCAL', 'dst,dst')} -j RETURN",
        "-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ",
    ]
    for protocol in _PROTOCOLS:
        name, by = (protocol.upper(), "dst") if protocol != "sctp" else ("SCTP-HASH", "dst,dst")
        nat += [
            f"-A KUBE-NODE-PORT -p {protocol} {into(f'NODE-PORT-LOCAL-{name}', by)} -j RETURN",
            f"-A KUBE-NODE-PORT -p {protocol} {into(f'NODE-PORT-{name}', by)} -j KUBE-MARK-MASQ",
        ]
    nat += [
        f"-A KUBE-MARK-MASQ -j MARK --set-xmark {_MARK}",
        f"-A KUBE-POSTROUTING {into('LOOP-BACK', 'dst,dst,src')} -j MASQUERADE",
        f"-A KUBE-POSTROUTING -m mark ! --mark {_MARK} -j RETURN",
        "-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0",
        "-A KUBE-POSTROUTING -j MASQUERADE --random-fully",
    ]
    return _table("nat", nat) + _table("filter", _filter_rules(into))


def _filter_rules(into: Callable[[str, str], str]) -> list[str]:
    return [
        (
            f"-A KUBE-PROXY-FIREWALL {into('LOAD-BALANCER-FW', 'dst,dst')} -j "
            "KUBE-SOURCE-RANGES-FIREWALL"
        ),
        (
            f"-A KUBE-SOURCE-RANGES-FIREWALL {into('LOAD-BALANCER-SOURCE-CIDR', 'dst,dst,src')} -j "
            "RETURN"
        ),
        "-A KUBE-SOURCE-RANGES-FIREWALL -j DROP",
        # Packets to a service address and a port without a virtual server are refused, and do not
        # reach the host.
        *(
            f"-A KUBE-IPVS-FILTER {into(suffix, 'dst,dst')} -j RETURN"
            for suffix in ("LOAD-BALANCER", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL")
        ),
        f"-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW {into('IPVS-IPS', 'dst')} -j REJECT",
    ]


#: jumps from the kernel's own chains to ours
JUMPS: Final = {
    "nat": (
        ("PREROUTING", "KUBE-SERVICES"),
        ("OUTPUT", "KUBE-SERVICES"),
        ("POSTROUTING", "KUBE-POSTROUTING"),
    ),
    "filter": (("INPUT", "KUBE-PROXY-FIREWALL"), ("INPUT", "KUBE-IPVS-FILTER")),
}


def _table(name: str, rules: list[str]) -> str:
    chains = dict.fromkeys(rule.split(" ", 2)[1] for rule in rules)
    lines = [f"*{name}", *(f":{chain} - [0:0]" for chain in chains), *rules]
    lines += [f"-A {chain} -j {to}" for chain, to in JUMPS[name]]
    return "".join(f"{line}\n" for line in (*lines, "COMMIT"))


def _set_name(suffix: str, family: Family) -> str:
    name = f"KUBE-6-{suffix}" if family == "IPv6" else f"KUBE-{suffix}"
    return name[:SET_NAME_LENGTH_MAX]  # as upstream: one of them loses its last letter
