"""NetworkPolicies: is the client admitted to the Pods (kubernetes.io, "Network Policies").

A Pod that no policy selects for ingress admits every client; one that some select admits what any
of them admits. Without a client it is asked whether anything at all is admitted to the port. A
network plug-in may do more, or less.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator

from sliceplane.api.core import ServicePort
from sliceplane.api.findings.finding import Evidence, Finding
from sliceplane.api.findings.wording import count, some
from sliceplane.api.requests import Selection
from sliceplane.api.selectors.labels import from_label_selector
from sliceplane.diagnose.explain.case import ServiceCase, name_of, seen
from sliceplane.diagnose.explain.checks.ports import declared, resolved
from sliceplane.diagnose.explain.objects import (
    NAMESPACES,
    NETWORK_POLICIES,
    PODS,
    FullNetworkPolicy,
    FullPod,
    IPBlock,
    PolicyEgressRule,
    PolicyIngressRule,
    PolicyPeer,
    PolicyPort,
)


def wants(case: ServiceCase) -> Iterator[Selection]:
    yield NETWORK_POLICIES.in_namespace(case.namespace)
    client = case.client.pod if case.client is not None else None
    if client is not None:
        yield NETWORK_POLICIES.in_namespace(client.metadata.namespace)
        if case.facts.of(NETWORK_POLICIES):
            yield NAMESPACES.named("", client.metadata.namespace)
            yield NAMESPACES.named("", case.namespace)


def not_admitted(case: ServiceCase) -> Iterable[Finding]:
    """X4"""
    policies = [
        policy
        for policy in case.facts.of(NETWORK_POLICIES, case.namespace)
        if _is_for_ingress(policy)
    ]
    if not policies or case.service is None:
        return
    selectors = [from_label_selector(policy.spec.pod_selector) for policy in policies]
    for pod in case.live:
        selecting = [
            policy
            for policy, selector in zip(policies, selectors, strict=True)
            if selector.matches(pod.labels)
        ]
        for port in _asked(case) if selecting else ():
            number = resolved(port, pod)
            if number is None or any(
                _admits(case, rule, pod, port, number)
                for policy in selecting
                for rule in policy.spec.ingress or ()
            ):
                continue
            client = case.question.client
            who = (
                f"{client.namespace}/{client.name}"
                if client is not None and client.namespace
                else "any client"
            )
            names = [policy.metadata.name for policy in selecting]
            yield Finding(
                code="X4",
                subject=case.subject,
                certainty="likely",
                sentence=f"{some(names, verb_of_one='selects')} {pod.metadata.name}; nothing "
                f"admits {who} to {number}/{port.protocol}",
                evidence=_evidence(selecting, "spec.ingress"),
                effect=(
                    "packets are dropped without an answer, where the network plug-in enforces "
                    "policies"
                ),
                remedy=f"kubectl -n {case.namespace} edit networkpolicy {names[0]}",
            )
            return


def not_let_out(case: ServiceCase) -> Iterable[Finding]:
    """X9: of the client's own policies."""
    client = case.client.pod if case.client is not None else None
    if client is None or case.service is None or client.spec.host_network:
        return
    selecting = [
        policy
        for policy in case.facts.of(NETWORK_POLICIES, client.metadata.namespace)
        if _is_for_egress(policy)
        and from_label_selector(policy.spec.pod_selector).matches(client.labels)
    ]
    rules = [rule for policy in selecting for rule in policy.spec.egress or ()]
    for pod in case.live if selecting else ():
        for port in _asked(case):
            number = resolved(port, pod)
            if number is None or any(
                _leads_to(case, rule, pod, port, client.metadata.namespace) for rule in rules
            ):
                continue
            names = [policy.metadata.name for policy in selecting]
            yield Finding(
                code="X9",
                subject=name_of(PODS, client),
                certainty="likely",
                sentence=f"{some(names, verb_of_one='selects')} the client {client.metadata.name}; "
                f"nothing lets it out to {pod.metadata.name} at {number}/{port.protocol}",
                evidence=_evidence(selecting, "spec.egress"),
                effect="its packets are dropped, where the network plug-in enforces policies",
                remedy=f"kubectl -n {client.metadata.namespace} edit networkpolicy {names[0]}",
            )
            return


def _is_for_egress(policy: FullNetworkPolicy) -> bool:
    types = policy.spec.policy_types
    return bool(policy.spec.egress) if types is None else "Egress" in types


def _leads_to(
    case: ServiceCase, rule: PolicyEgressRule, pod: FullPod, port: ServicePort, home: str
) -> bool:
    number = resolved(port, pod)
    assert number is not None, "not_let_out() looked"
    if rule.ports and not any(_is_port(entry, pod, port.protocol, number) for entry in rule.ports):
        return False
    return not rule.peers or any(_is_peer(case, peer, pod, home) for peer in rule.peers)


def _is_for_ingress(policy: FullNetworkPolicy) -> bool:
    """policyTypes that are not set mean Ingress, and Egress where there are such rules."""
    types = policy.spec.policy_types
    return types is None or "Ingress" in types


def _asked(case: ServiceCase) -> Iterator[ServicePort]:
    assert case.service is not None, "not_admitted() looked"
    for port in case.service.spec.ports or ():
        if case.question.port in ("", str(port.port), port.name):
            yield port


def _evidence(policies: list[FullNetworkPolicy], field: str) -> tuple[Evidence, ...]:
    """Of the first two."""
    shown = []
    for policy in policies[:2]:
        rules = policy.spec.ingress if field == "spec.ingress" else policy.spec.egress
        shown.append(seen(NETWORK_POLICIES, policy, field, count(len(rules or ()), "rule")))
    return tuple(shown)


def _admits(
    case: ServiceCase, rule: PolicyIngressRule, pod: FullPod, port: ServicePort, number: int
) -> bool:
    if rule.ports and not any(_is_port(entry, pod, port.protocol, number) for entry in rule.ports):
        return False
    if not rule.peers:
        return True
    client = case.client
    if client is None or client.pod is None:
        return True
    return any(_is_peer(case, peer, client.pod, case.namespace) for peer in rule.peers)


def _is_port(entry: PolicyPort, pod: FullPod, protocol: str, number: int) -> bool:
    if entry.protocol != protocol:
        return False
    if entry.port is None:
        return True
    if isinstance(entry.port, str):
        return any(
            (item.name, item.container_port) == (entry.port, number) for item, _ in declared(pod)
        )
    return entry.port <= number <= (entry.end_port or entry.port)


def _is_peer(case: ServiceCase, peer: PolicyPeer, client: FullPod, home: str) -> bool:
    """*home*: the namespace of the policy."""
    if peer.ip_block is not None:
        return any(_is_in(peer.ip_block, address) for address in client.status.ips)
    own = client.metadata.namespace == home
    if peer.namespace_selector is not None:
        namespace = case.facts.get(NAMESPACES, "", client.metadata.namespace)
        if namespace is None:
            return True  # not seen: nothing is said against it
        own = from_label_selector(peer.namespace_selector).matches(namespace.metadata.labels or {})
    if not own or client.spec.host_network:
        return False  # packets of a Pod with the node's network come from the node
    return peer.pod_selector is None or from_label_selector(peer.pod_selector).matches(
        client.labels
    )


def _is_in(block: IPBlock, address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return _contains(block.cidr, ip) and not any(
        _contains(cidr, ip) for cidr in block.excluded or ()
    )


def _contains(cidr: str, ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return ip in ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return False


CHECKS = (not_admitted, not_let_out)
