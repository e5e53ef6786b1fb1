"""The kernel of this machine, as it was read there: ``explain --kernel``.  Silent of what could not be read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sliceplane.explain.case import NodeCase, PodCase, ServiceCase
from sliceplane.findings.finding import Evidence, Finding, ObjectName
from sliceplane.findings.wording import count, some

#: of 1: how full the table of flows may be
FLOWS_FULL: Final = 0.9
_BRIDGE_CALLS: Final = "net.bridge.bridge-nf-call-iptables"
THIS_NODE: Final = ObjectName("kernel", "Kernel", "", "of this machine")
AnyCase = ServiceCase | PodCase | NodeCase


def _seen(field: str, value: str) -> tuple[Evidence, ...]:
    return (Evidence(subject=THIS_NODE, field=field, value=value),)


def several_rule_sets(case: AnyCase) -> Iterable[Finding]:
    """N6.  The last proxy that ran here is the one that is to stay: ours, if it is among them."""
    sets = (case.facts.kernel.rule_sets if case.facts.kernel else None) or ()
    if len(sets) < 2:
        return
    others = [entry for entry in sets if not entry.ours] or list(sets)
    yield Finding(
        code="N6",
        subject=THIS_NODE,
        sentence=f"rules for Services of {len(sets)} proxies: {some([entry.told for entry in sets])}",
        evidence=_seen("rules", ", ".join(entry.told for entry in sets)),
        effect="which of them a connection meets first is chance, and those that nobody keeps lead to Pods of then",
        remedy=others[0].removal,
    )


def flows_are_full(case: AnyCase) -> Iterable[Finding]:
    """N8"""
    kernel = case.facts.kernel
    if kernel is None or kernel.flows_count is None or not kernel.flows_max:
        return
    if kernel.flows_count >= FLOWS_FULL * kernel.flows_max:
        is_full = kernel.flows_count >= kernel.flows_max
        yield Finding(
            code="N8",
            subject=THIS_NODE,
            weight="error" if is_full else "warning",
            sentence=f"{kernel.flows_count:,} of {kernel.flows_max:,} flows",
            evidence=_seen("net.netfilter.nf_conntrack_count", str(kernel.flows_count)),
            effect="new connections are dropped" if is_full else "when it is full, new connections are dropped",
            remedy=f"sysctl -w net.netfilter.nf_conntrack_max={2 * kernel.flows_max}",
        )


def flows_to_the_gone(case: ServiceCase) -> Iterable[Finding]:
    """N9, of the Service's cluster IPs."""
    kernel, service = case.facts.kernel, case.service
    if kernel is None or not kernel.flows or service is None or case.is_headless:
        return
    ips = service.spec.cluster_ips or (service.spec.cluster_ip,)
    ports = {port.port for port in service.spec.ports or () if port.protocol == "UDP"}
    serving = {
        address
        for _, endpoint in case.endpoints
        if endpoint.conditions.serving is not False
        for address in endpoint.addresses
    }
    gone: dict[str, int] = {}
    for flow, number in kernel.flows:
        (to, port), (answered_by, _) = flow
        if to in ips and port in ports and answered_by not in serving:
            gone[answered_by] = gone.get(answered_by, 0) + number
    for address, number in sorted(gone.items())[:1]:
        to_others = f", {sum(gone.values()) - number:,} more to others" if len(gone) > 1 else ""
        yield Finding(
            code="N9",
            subject=case.subject,
            sentence=f"{count(number, 'UDP flow')} of {case.name} to {address}, which is no endpoint{to_others}",
            evidence=_seen("conntrack", f"udp to {ips[0]}, answered by {address}"),
            effect="clients that keep their socket talk into the void",
            remedy=f"conntrack -D -p udp --orig-dst {ips[0]} --reply-src {address}",
        )


def bridge_goes_around(case: AnyCase) -> Iterable[Finding]:
    """N11"""
    kernel = case.facts.kernel
    if kernel is None or kernel.bridge_calls is not False:
        return
    for bridge, ports in kernel.bridges.items():
        yield Finding(
            code="N11",
            subject=THIS_NODE,
            certainty="likely",
            sentence=f"{_BRIDGE_CALLS} is off: answers between the {len(ports)} ports of bridge {bridge} bypass NAT",
            evidence=_seen(_BRIDGE_CALLS, "0, or br_netfilter is not loaded"),
            effect="a Pod does not reach a Service whose endpoint is on the same node",
            remedy=f"sysctl -w {_BRIDGE_CALLS}=1 (modprobe br_netfilter first)",
        )
        return


def no_hairpin(case: AnyCase) -> Iterable[Finding]:
    """N12"""
    kernel = case.facts.kernel
    if kernel is None:
        return
    for bridge, ports in kernel.bridges.items():
        without = [port for port in ports if not port.hairpin]
        if bridge not in kernel.promiscuous and without:
            yield Finding(
                code="N12",
                subject=THIS_NODE,
                certainty="likely",
                sentence=f"{some([port.name for port in without])} of bridge {bridge}: hairpin is off",
                evidence=_seen(f"/sys/class/net/{without[0].name}/brport/hairpin_mode", "0"),
                effect="a Pod that is its own Service's endpoint does not reach itself by it",
                remedy=f"ip link set dev {without[0].name} type bridge_slave hairpin on",
            )
            return


NODE_CHECKS = (several_rule_sets, flows_are_full, bridge_goes_around, no_hairpin)
CHECKS = (several_rule_sets, flows_are_full, flows_to_the_gone, bridge_goes_around, no_hairpin)
