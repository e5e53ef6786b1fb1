"""The kernel of this machine: ``explain --kernel``. Unread parts have no findings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from sliceplane.api.core import Node, Service
from sliceplane.api.findings.finding import Evidence, Finding, ObjectName, TooYoung
from sliceplane.api.findings.wording import count, since, some, verb
from sliceplane.api.requests import Selection
from sliceplane.consume.progress import BEHIND_S
from sliceplane.consume.served import rule_differences, without_hairpin
from sliceplane.diagnose.drift.reports import REWRITE_RULES
from sliceplane.diagnose.explain.case import ExplainCase, ServiceCase
from sliceplane.diagnose.explain.checks.serving import own_proxy_name
from sliceplane.diagnose.explain.objects import NODES, SLICES
from sliceplane.node.conntrack import UdpFlow

#: fraction of the flow table that may be in use
FLOWS_FULL: Final = 0.9
_BRIDGE_CALLS: Final = "net.bridge.bridge-nf-call-iptables"
#: the first release of each line of longer support with "netfilter: nat: never update the UDP
#: checksum when it's 0"
_FIXED_RELEASES: Final = ((4, 14, 181), (4, 19, 123), (5, 4, 41), (5, 6, 13))
THIS_NODE: Final = ObjectName("kernel", "Kernel", "", "of this machine")


def _evidence(field: str, value: str) -> Evidence:
    return Evidence(subject=THIS_NODE, field=field, value=value)


def reads(case: ServiceCase) -> Iterator[Selection]:
    yield case.slices_selection
    name = case.kernel.host_name
    if name and case.kernel.addresses:
        yield NODES.named("", name)
        if case.was_read(NODES.named("", name)) and not _this_node(case):
            yield NODES.everywhere()  # its Node has another name than the machine


def multiple_rule_sets(case: ExplainCase) -> Iterable[Finding]:
    """N6. The rules of the last proxy that ran here should stay: ours, if it is among them."""
    sets = case.kernel.rule_sets or ()
    if len(sets) < 2:
        return
    others = [entry for entry in sets if not entry.ours] or list(sets)
    yield case.finding(
        "N6",
        f"rules for Services of {len(sets)} proxies: {some([entry.title for entry in sets])}",
        _evidence("rules", ", ".join(entry.title for entry in sets)),
        subject=THIS_NODE,
        effect="which of them a connection meets first is chance, and abandoned rules lead to "
        "former Pods",
        remedy=others[0].removal,
    )


def rules_differ(case: ServiceCase) -> Iterable[Finding]:
    """N5, from the kernel's rules; a running proxy reports it by itself within half a minute."""
    kernel, service = case.kernel, case.service
    if kernel.rules is None or case.is_headless or own_proxy_name(service):
        return
    if not case.has_read_slices:
        return
    ports, node = case.requested_ports, _this_node(case)
    rules = dict(kernel.rules)
    differences = list(rule_differences(service, case.slices, rules, ports, node))
    if differences:
        changes = [case.now - item.written_at for item in case.of(SLICES) if item in case.slices]
        changes.append(since(service.metadata.creation_timestamp, case.now) or BEHIND_S)
        age = max(0.0, min(changes))
        more = f", and {len(differences) - 1} more" if len(differences) > 1 else ""
        yield case.finding(
            "N5",
            f"the kernel of this machine {differences[0]}{more}",
            _evidence("rules of Services", differences[0]),
            too_young=TooYoung(age, BEHIND_S) if age < BEHIND_S else None,
            effect=f"connections to {case.name} from here fail, or reach what is no endpoint",
            remedy=REWRITE_RULES,
        )


def own_connections(case: ServiceCase) -> Iterable[Finding]:
    """N5, about Pods of this node that call themselves by the Service."""
    kernel, service = case.kernel, case.service
    node = _this_node(case)
    if kernel.rules is None or kernel.hairpins is None or not node or not case.has_read_slices:
        return
    rules, hairpins = dict(kernel.rules), dict(kernel.hairpins)
    ports = case.requested_ports
    lacking = without_hairpin(service, case.slices, rules, hairpins, ports=ports, node=node)
    if lacking:
        targets = some(sorted(map(str, lacking)))
        yield case.finding(
            "N5",
            f"the kernel of this machine does not masquerade what {targets} sends to itself",
            _evidence("rules of Services", f"nothing masquerades {targets} to itself"),
            weight="warning",
            effect=f"a Pod of {case.name} here gets no answer when its own endpoint is chosen",
            remedy=REWRITE_RULES,
        )


def _this_node(case: ServiceCase) -> str:
    """Returns the name of the Node that this machine is; "": unknown."""
    nodes = {node.metadata.name for node in case.facts.of(NODES) if _is_this_machine(case, node)}
    return nodes.pop() if len(nodes) == 1 else ""


def _is_this_machine(case: ServiceCase, node: Node) -> bool:
    return any(
        entry.type != "Hostname" and entry.address in case.kernel.addresses
        for entry in node.status.addresses or ()
    )


def flows_are_full(case: ExplainCase) -> Iterable[Finding]:
    """N8"""
    kernel = case.kernel
    if kernel.flows_count is None or not kernel.flows_max:
        return
    if kernel.flows_count >= FLOWS_FULL * kernel.flows_max:
        is_full = kernel.flows_count >= kernel.flows_max
        yield case.finding(
            "N8",
            f"{kernel.flows_count:,} of {kernel.flows_max:,} flows",
            _evidence("net.netfilter.nf_conntrack_count", str(kernel.flows_count)),
            subject=THIS_NODE,
            weight="error" if is_full else "warning",
            effect="new connections are dropped"
            if is_full
            else "when it is full, new connections are dropped",
            remedy=f"sysctl -w net.netfilter.nf_conntrack_max={2 * kernel.flows_max}",
        )


def flows_to_removed(case: ServiceCase) -> Iterable[Finding]:
    """N9, of the cluster IPs of the Service."""
    for address, number, others in _stale_flows(case, case.kernel.flows or (), "UDP"):
        ip = case.service.spec.cluster_ip
        yield case.finding(
            "N9",
            f"{count(number, 'UDP flow')} of {case.name} to {address}, which is no "
            f"endpoint{others}",
            _evidence("conntrack", f"udp to {ip}, answered by {address}"),
            effect="clients that keep their socket get no answer",
            remedy=f"conntrack -D -p udp --orig-dst {ip} --reply-src {address}",
        )


def connections_to_removed(case: ServiceCase) -> Iterable[Finding]:
    """D7, of the cluster IPs of the Service."""
    for address, number, others in _stale_flows(case, case.kernel.connections or (), "TCP"):
        connections = count(number, "connection")
        yield case.finding(
            "D7",
            f"{connections} of {case.name} {verb(number, 'is')} open to {address}, which is no "
            f"endpoint{others}",
            _evidence("conntrack", f"{connections}, answered by {address}"),
            effect="these clients stay with it until one side closes",
            remedy="let the program close its connections at SIGTERM, or give clients a time limit",
        )


def stale_ipvs_server(case: ServiceCase) -> Iterable[Finding]:
    """N10"""
    kernel, service = case.kernel, case.service
    if case.is_headless or not case.has_read_slices:
        return
    serving = _serving(case)
    for server in kernel.ipvs:
        if (
            server.service[0] in _ips(service)
            and not server.weight
            and server.address not in serving
        ):
            yield case.finding(
                "N10",
                f"ipvs keeps {server.address} for {case.name} at weight 0, and it is no endpoint",
                _evidence(
                    "/proc/net/ip_vs",
                    f"{server.service[0]}:{server.service[1]} -> {server.address}, 0",
                ),
                effect="a connection from a port that was used before goes there, and is reset",
                remedy="see that no connection is left, then ipvsadm -d on the node, or restart "
                f"kube-proxy there: ipvsadm -Ln -t {server.service[0]}:{server.service[1]}",
            )
            return


def _ips(service: Service) -> tuple[str, ...]:
    return service.spec.cluster_ips or (service.spec.cluster_ip,)


def _serving(case: ServiceCase) -> set[str]:
    return {
        address
        for _, endpoint in case.endpoints
        if endpoint.conditions.serving is not False
        for address in endpoint.addresses
    }


def _stale_flows(
    case: ServiceCase, flows: Iterable[tuple[UdpFlow, int]], protocol: str
) -> Iterator[tuple[str, int, str]]:
    """Yields an address that answers *flows* to the Service and is no endpoint of it, the number of
    flows, and a clause about other such addresses; nothing if there is none.
    """
    service = case.service
    if case.is_headless or not case.has_read_slices:
        return
    ports = {port.port for port in service.spec.ports or () if (port.protocol or "TCP") == protocol}
    serving, stale = _serving(case), Counter[str]()
    for ((to, port), (answered_by, _)), number in flows:
        if to in _ips(service) and port in ports and answered_by not in serving:
            stale[answered_by] += number
    for address, number in sorted(stale.items())[:1]:
        others = stale.total() - number
        yield address, number, f", {others:,} more to others" if others else ""


def bridge_bypasses_nat(case: ExplainCase) -> Iterable[Finding]:
    """N11"""
    kernel = case.kernel
    if kernel.bridge_calls is not False:
        return
    for bridge, ports in kernel.bridges.items():
        yield case.finding(
            "N11",
            f"{_BRIDGE_CALLS} is off: answers between the {len(ports)} ports of bridge "
            f"{bridge} bypass NAT",
            _evidence(_BRIDGE_CALLS, "0, or br_netfilter is not loaded"),
            subject=THIS_NODE,
            certainty="likely",
            effect="a Pod does not reach a Service whose endpoint is on the same node",
            remedy=f"sysctl -w {_BRIDGE_CALLS}=1 (modprobe br_netfilter first)",
        )
        return


def no_hairpin(case: ExplainCase) -> Iterable[Finding]:
    """N12"""
    kernel = case.kernel
    for bridge, ports in kernel.bridges.items():
        without = [port for port in ports if not port.hairpin]
        if bridge not in kernel.promiscuous and without:
            yield case.finding(
                "N12",
                f"{some([port.name for port in without])} of bridge {bridge}: hairpin is off",
                _evidence(f"/sys/class/net/{without[0].name}/brport/hairpin_mode", "0"),
                subject=THIS_NODE,
                certainty="likely",
                effect="a Pod that is its own Service's endpoint does not reach itself by it",
                remedy=f"ip link set dev {without[0].name} type bridge_slave hairpin on",
            )
            return


def checksums_of_tunnels(case: ExplainCase) -> Iterable[Finding]:
    """N13: a kernel that computes checksums of VXLAN packets wrongly after a masquerade with
    --random-fully.
    """
    kernel = case.kernel
    if not kernel.offloading or _has_checksum_fix(kernel.release):
        return
    name = kernel.offloading[0]
    yield case.finding(
        "N13",
        f"{some(kernel.offloading, verb_of_one='offloads')} checksums, and Linux {kernel.release} "
        "counts those of VXLAN packets wrongly",
        _evidence(f"ethtool -k {name}", "tx-checksum-ip-generic: on"),
        subject=THIS_NODE,
        certainty="possible",
        effect="connections from this node to cluster IPs take 1 s or 63 s where the endpoint is "
        "on another node",
        remedy=f"ethtool -K {name} tx-checksum-ip-generic off",
    )


def _has_checksum_fix(release: str) -> bool:
    """Returns True from Linux 5.7 on, and for the long-term releases with the backport."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", release)[:3])
    first = next((fixed for fixed in _FIXED_RELEASES if fixed[:2] == numbers[:2]), (5, 7))
    return not numbers or numbers >= first


def node_ports_here(case: ServiceCase) -> Iterable[Finding]:
    """N14"""
    kernel, service = case.kernel, case.service
    ports = [port.node_port for port in (service.spec.ports or ()) if port.node_port]
    if not kernel.node_port_addresses or not ports or "127.0.0.1" in kernel.node_port_addresses:
        return
    yield case.finding(
        "N14",
        f"node port {ports[0]} is served at {some(kernel.node_port_addresses)} here, not at "
        "127.0.0.1",
        _evidence("nftables", f"node ports at {some(kernel.node_port_addresses)}"),
        effect="programs of this node that dial localhost are refused",
        remedy=f"dial {kernel.node_port_addresses[0]}:{ports[0]}, or start the proxy with other "
        "--nodeport-addresses",
    )


NODE_CHECKS = (
    multiple_rule_sets,
    flows_are_full,
    bridge_bypasses_nat,
    no_hairpin,
    checksums_of_tunnels,
)
CHECKS = (
    *NODE_CHECKS,
    rules_differ,
    own_connections,
    flows_to_removed,
    stale_ipvs_server,
    connections_to_removed,
    node_ports_here,
)
