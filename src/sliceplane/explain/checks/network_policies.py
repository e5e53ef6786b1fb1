"""NetworkPolicies: is the client admitted to the Pods (kubernetes.io, "Network Policies").

A Pod that no policy selects for ingress admits every client; one that some select admits what any of them admits.
Without a client it is asked whether anything at all is admitted to the port.  A network plug-in may do more, or less.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator

from sliceplane.api.core import ServicePort
from sliceplane.api.requests import Selection
from sliceplane.api.selectors.labels import from_label_selector
from sliceplane.explain.case import ServiceCase, seen
from sliceplane.explain.checks.ports import declared, resolved
from sliceplane.explain.objects import (
    NAMESPACES,
    NETWORK_POLICIES,
    FullNetworkPolicy,
    FullPod,
    IPBlock,
    PolicyIngressRule,
    PolicyPeer,
    PolicyPort,
)
from sliceplane.explain.wording import some
from sliceplane.findings.finding import Finding


def wants(case: ServiceCase) -> Iterator[Selection]:
    yield NETWORK_POLICIES.in_namespace(case.namespace)
    client = case.client
    if client is not None and client.pod is not None and case.facts.of(NETWORK_POLICIES, case.namespace):
        yield NAMESPACES.named("", client.pod.metadata.namespace)


def not_admitted(case: ServiceCase) -> Iterable[Finding]:
    """X4"""
    policies = [policy for policy in case.facts.of(NETWORK_POLICIES, case.namespace) if _is_for_ingress(policy)]
    if not policies or case.service is None:
        return
    for pod in case.live:
        selecting = [policy for policy in policies if from_label_selector(policy.spec.pod_selector).matches(pod.labels)]
        for port in _asked(case) if selecting else ():
            number = resolved(port, pod)
            if number is None or any(
                _admits(case, rule, pod, port, number) for policy in selecting for rule in policy.spec.ingress or ()
            ):
                continue
            client = case.question.client
            who = f"{client.namespace}/{client.name}" if client is not None and client.namespace else "any client"
            names = [policy.metadata.name for policy in selecting]
            yield Finding(
                code="X4",
                subject=case.subject,
                certainty="likely",
                sentence=f"{some(names)} selects {pod.metadata.name}; nothing admits {who} to {number}/{port.protocol}",
                evidence=tuple(
                    seen(NETWORK_POLICIES, policy, "spec.ingress", _rules(policy)) for policy in selecting[:2]
                ),
                effect="packets are dropped without an answer, where the network plug-in enforces policies",
                remedy=f"kubectl -n {case.namespace} edit networkpolicy {names[0]}",
            )
            return


def _is_for_ingress(policy: FullNetworkPolicy) -> bool:
    """policyTypes that are not set mean Ingress, and Egress where there are such rules."""
    types = policy.spec.policy_types
    return types is None or "Ingress" in types


def _asked(case: ServiceCase) -> Iterator[ServicePort]:
    assert case.service is not None, "not_admitted() looked"
    for port in case.service.spec.ports or ():
        if case.question.port in ("", str(port.port), port.name):
            yield port


def _rules(policy: FullNetworkPolicy) -> str:
    rules = policy.spec.ingress or ()
    return f"{len(rules)} rules" if rules else "no rule"


def _admits(case: ServiceCase, rule: PolicyIngressRule, pod: FullPod, port: ServicePort, number: int) -> bool:
    if rule.ports and not any(_is_port(entry, pod, port.protocol, number) for entry in rule.ports):
        return False
    if not rule.peers:
        return True
    client = case.client
    if client is None or client.pod is None:
        return True
    return any(_is_peer(case, peer, client.pod) for peer in rule.peers)


def _is_port(entry: PolicyPort, pod: FullPod, protocol: str, number: int) -> bool:
    if entry.protocol != protocol:
        return False
    if entry.port is None:
        return True
    if isinstance(entry.port, str):
        return any((item.name, item.container_port) == (entry.port, number) for item, _ in declared(pod))
    return entry.port <= number <= (entry.end_port or entry.port)


def _is_peer(case: ServiceCase, peer: PolicyPeer, client: FullPod) -> bool:
    if peer.ip_block is not None:
        return any(_is_in(peer.ip_block, address) for address in client.addresses)
    own = client.metadata.namespace == case.namespace
    if peer.namespace_selector is not None:
        namespace = case.facts.get(NAMESPACES, "", client.metadata.namespace)
        if namespace is None:
            return True  # not seen: nothing is said against it
        own = from_label_selector(peer.namespace_selector).matches(namespace.metadata.labels or {})
    if not own:
        return False
    return peer.pod_selector is None or from_label_selector(peer.pod_selector).matches(client.labels)


def _is_in(block: IPBlock, address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return _contains(block.cidr, ip) and not any(_contains(cidr, ip) for cidr in block.excluded or ())


def _contains(cidr: str, ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return ip in ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return False


CHECKS = (not_admitted,)
