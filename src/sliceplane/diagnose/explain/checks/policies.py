"""Policies between clients and endpoints: traffic policies of the Service, Ingresses and load
balancers, and NetworkPolicies.

``internalTrafficPolicy: Local`` drops connections from a node without an endpoint (kubernetes.io,
"Service Internal Traffic Policy"); ``externalTrafficPolicy: Local`` drops at such nodes too. A load
balancer learns this from the health check port, a client of a node port does not.

A Pod that no NetworkPolicy selects for ingress admits every client; otherwise it admits a client if
any of the selecting policies does (kubernetes.io, "Network Policies"). A network plug-in may do
more, or less.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from sliceplane.api.core import ServicePort
from sliceplane.api.findings.finding import Evidence, Finding
from sliceplane.api.findings.wording import count, part, some
from sliceplane.api.requests import Selection
from sliceplane.api.selectors.labels import from_label_selector
from sliceplane.diagnose.explain.case import ServiceCase, evidence_of, list_names, name_of
from sliceplane.diagnose.explain.checks.ports import declared, resolved
from sliceplane.diagnose.explain.checks.zones import takes_pods
from sliceplane.diagnose.explain.facts import Facts
from sliceplane.diagnose.explain.objects import (
    INGRESSES,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SERVICES,
    FullIngress,
    FullNetworkPolicy,
    FullPod,
    IngressBackend,
    IPBlock,
    PolicyPeer,
    PolicyPort,
    PolicyRule,
)

#: annotations that make a cloud's load balancer lead to nodes, not to Pods
INSTANCE_TARGETS: Final = (
    "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type",
    "alb.ingress.kubernetes.io/target-type",
)
#: ratio of the endpoints of two nodes from which on the load is uneven
UNEVEN: Final = 2
SIDECARS: Final = {"istio-proxy": "istioctl analyze", "linkerd-proxy": "linkerd check --proxy"}


def reads(case: ServiceCase) -> Iterator[Selection]:
    yield INGRESSES.in_namespace(case.namespace)
    service = case.service
    if "Local" in (
        service.spec.internal_traffic_policy,
        service.spec.external_traffic_policy,
    ):
        yield NODES.everywhere()


def internal_local(case: ServiceCase) -> Iterable[Finding]:
    """X1"""
    service = case.service
    if service.spec.internal_traffic_policy != "Local" or not case.ready:
        return
    bare = _nodes_without(case)
    if case.client is not None:
        bare = [name for name in bare if name == case.client.location.node]
    if bare:
        yield case.finding(
            "X1",
            f"{some(bare, verb_of_one='has')} none of {count(len(case.ready), 'ready endpoint')}, "
            "and internalTrafficPolicy is Local",
            case.field("spec.internalTrafficPolicy", "Local"),
            effect=f"connections from {some(bare)} are dropped",
            remedy=case.patch({"spec": {"internalTrafficPolicy": "Cluster"}}),
        )


def external_local(case: ServiceCase) -> Iterable[Finding]:
    """X2, if no health check keeps clients away from nodes without endpoints."""
    spec = case.service.spec
    if spec.type != "LoadBalancer" or not spec.health_check_node_port:
        yield from dropped_from_outside(case)


def dropped_from_outside(case: ServiceCase) -> Iterable[Finding]:
    """X2"""
    service = case.service
    bare = _nodes_without(case)
    if service.spec.external_traffic_policy != "Local" or not case.ready or not bare:
        return
    total = len(_node_names(case))
    ports = ", ".join(str(port.node_port) for port in service.spec.ports or () if port.node_port)
    yield case.finding(
        "X2",
        f"{part(total - len(bare), total, 'node', 'has')} an endpoint; "
        f"{some(bare, verb_of_one='drops')} what comes from outside",
        case.field("spec.externalTrafficPolicy", "Local"),
        effect=f"clients of node port {ports or '(none)'} there get no answer",
        remedy=case.patch({"spec": {"externalTrafficPolicy": "Cluster"}}),
    )


def uneven(case: ServiceCase) -> Iterable[Finding]:
    """X3"""
    service = case.service
    if service.spec.external_traffic_policy != "Local":
        return
    nodes = Counter(endpoint.node_name for _, endpoint in case.ready if endpoint.node_name)
    if len(nodes) < 2:
        return
    most, least = (
        max(nodes, key=lambda name: (nodes[name], name)),
        min(nodes, key=lambda name: (nodes[name], name)),
    )
    if nodes[most] >= UNEVEN * nodes[least]:
        yield case.finding(
            "X3",
            f"{least}'s {count(nodes[least], 'endpoint', 'gets')} as much from outside as "
            f"{most}'s {nodes[most]}",
            case.field("spec.externalTrafficPolicy", "Local"),
            effect=f"an endpoint of {least} has {nodes[most] // nodes[least]} times the load",
            remedy="spread the Pods evenly: topologySpreadConstraints with topologyKey "
            "kubernetes.io/hostname",
        )


def ingress_names(case: ServiceCase) -> Iterable[Finding]:
    """X5: an Ingress leads to a port that the Service lacks, or to a missing Service."""
    ports = (case.service.spec.ports or ()) if case.exists else ()
    for ingress in case.of(INGRESSES):
        for path, backend in _backends(ingress):
            service = backend.service
            if service is None or service.name != case.name:
                continue
            target = service.port.name or str(service.port.number)
            if any(target in (port.name, str(port.port)) for port in ports):
                continue
            available = ", ".join(port.name or str(port.port) for port in ports)
            what = (
                f"port {target}; it has {available or 'none'}"
                if case.exists
                else "Service of that name"
            )
            yield case.finding(
                "X5",
                f"Ingress {ingress.metadata.name} leads {path} to {case.name}:{target}, "
                f"and there is no {what}",
                evidence_of(INGRESSES, ingress, "spec.rules", f"{case.name}:{target}"),
                subject=name_of(INGRESSES, ingress),
                effect="its controller answers 503, or 404",
                remedy=f"kubectl -n {case.namespace} edit ingress {ingress.metadata.name}",
            )


def ingress_without_service(case: ServiceCase) -> Iterable[Finding]:
    """X5, of a Service that does not exist."""
    if not case.exists and case.was_read(SERVICES.named(case.namespace, case.name)):
        yield from ingress_names(case)


def backends_of(ingresses: Iterable[FullIngress]) -> Iterator[tuple[str, str]]:
    """Yields namespace and name of every Service that *ingresses* lead to."""
    for ingress in ingresses:
        for _, backend in _backends(ingress):
            if backend.service is not None:
                yield ingress.metadata.namespace, backend.service.name


def _backends(ingress: FullIngress) -> Iterator[tuple[str, IngressBackend]]:
    if ingress.spec.default_backend is not None:
        yield "everything else", ingress.spec.default_backend
    for rule in ingress.spec.rules or ():
        for path in (rule.http.paths or ()) if rule.http is not None else ():
            yield f"{rule.host}{path.path or '/'}", path.backend


def gates_of_instance_targets(case: ServiceCase) -> Iterable[Finding]:
    """X7"""
    annotations = case.service.metadata.annotations or {}
    for annotation in INSTANCE_TARGETS:
        if annotations.get(annotation) != "instance":
            continue
        gated = [
            pod
            for pod in case.live
            if any(
                "target-health" in gate.condition_type for gate in pod.spec.readiness_gates or ()
            )
        ]
        if gated:
            yield case.finding(
                "X7",
                "the balancer's targets are nodes, so the readiness gates of "
                f"{count(len(gated), 'Pod')} say nothing",
                case.field(f"metadata.annotations[{annotation}]", "instance"),
                effect="a hop more for each connection, and 502 at rollouts",
                remedy=f"kubectl -n {case.namespace} annotate --overwrite service {case.name} "
                f"{annotation}=ip",
            )


def mesh(case: ServiceCase) -> Iterable[Finding]:
    """X8: reported for one Service, not in ``lint``, since it is no fault."""
    if case.question.kind != "service":
        return
    for sidecar, command in SIDECARS.items():
        meshed = [
            pod
            for pod in case.live
            if any(
                sidecar == item.name
                for item in (*(pod.spec.containers or ()), *(pod.spec.init_containers or ()))
            )
        ]
        if meshed:
            yield case.finding(
                "X8",
                f"{part(len(meshed), len(case.live), 'Pod', 'has')} a sidecar {sidecar}: its "
                "rules are not looked at",
                effect="the mesh decides where connections go",
                remedy=command,
            )


def _nodes_without(case: ServiceCase) -> list[str]:
    """Returns the Nodes that take Pods and have no endpoint to use: none that is ready, and none
    that serves while it terminates (KEP-1669).
    """
    holders = {
        endpoint.node_name
        for _, endpoint in case.endpoints
        if endpoint.conditions.ready is not False
        or (endpoint.conditions.terminating and endpoint.conditions.serving is not False)
    }
    return [name for name in _node_names(case) if name not in holders]


def _node_names(case: ServiceCase) -> list[str]:
    """Returns the Nodes that take Pods, and the client's Node."""
    taking = case.facts.derived(_taking_pods)
    node = case.client.location.node if case.client is not None else ""
    return taking if not node or node in taking else [*taking, node]


def _taking_pods(facts: Facts) -> list[str]:
    return [node.metadata.name for node in facts.of(NODES) if takes_pods(node)]


CHECKS = (internal_local, external_local, uneven, ingress_names, gates_of_instance_targets, mesh)


def network_reads(case: ServiceCase) -> Iterator[Selection]:
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
        (policy, from_label_selector(policy.spec.pod_selector))
        for policy in case.of(NETWORK_POLICIES)
        if policy.spec.policy_types is None or "Ingress" in policy.spec.policy_types
    ]
    client = case.question.client
    peer = case.client.pod if case.client is not None else None
    for pod in case.live:
        selecting = [policy for policy, selector in policies if selector.matches(pod.labels)]
        rules = [rule for policy in selecting for rule in policy.spec.ingress or ()]
        for port, number in _requested(case, pod) if selecting else ():
            if any(
                _allows(case, rule, pod, port, number, peer=peer, home=case.namespace)
                for rule in rules
            ):
                continue
            sender = "any client"
            if client is not None and client.namespace:
                sender = f"{client.namespace}/{client.name}"
            yield case.finding(
                "X4",
                f"{some(list_names(selecting), verb_of_one='selects')} {pod.metadata.name}; "
                f"nothing admits {sender} to {number}/{port.protocol}",
                *_rule_evidence(selecting, "spec.ingress"),
                certainty="likely",
                effect="packets are dropped without an answer, where the network plug-in enforces "
                "policies",
                remedy=f"kubectl -n {case.namespace} edit networkpolicy "
                f"{selecting[0].metadata.name}",
            )
            return


def not_let_out(case: ServiceCase) -> Iterable[Finding]:
    """X9, about the policies of the client."""
    client = case.client.pod if case.client is not None else None
    if client is None or client.spec.host_network:
        return
    home = client.metadata.namespace
    selecting = [
        policy
        for policy in case.facts.of(NETWORK_POLICIES, home)
        if _is_for_egress(policy)
        and from_label_selector(policy.spec.pod_selector).matches(client.labels)
    ]
    rules = [rule for policy in selecting for rule in policy.spec.egress or ()]
    for pod in case.live if selecting else ():
        for port, number in _requested(case, pod):
            if any(_allows(case, rule, pod, port, number, peer=pod, home=home) for rule in rules):
                continue
            yield case.finding(
                "X9",
                f"{some(list_names(selecting), verb_of_one='selects')} the client "
                f"{client.metadata.name}; nothing lets it out to {pod.metadata.name} at "
                f"{number}/{port.protocol}",
                *_rule_evidence(selecting, "spec.egress"),
                subject=name_of(PODS, client),
                certainty="likely",
                effect="its packets are dropped, where the network plug-in enforces policies",
                remedy=f"kubectl -n {home} edit networkpolicy {selecting[0].metadata.name}",
            )
            return


def _is_for_egress(policy: FullNetworkPolicy) -> bool:
    """Returns True for egress policies; unset policyTypes mean Ingress, and Egress if there are
    such rules.
    """
    types = policy.spec.policy_types
    return bool(policy.spec.egress) if types is None else "Egress" in types


def _requested(case: ServiceCase, pod: FullPod) -> Iterator[tuple[ServicePort, int]]:
    """Yields the ports of the query, with their numbers on *pod*."""
    for port in case.service.spec.ports or ():
        number = resolved(port, pod)
        if case.question.port in ("", str(port.port), port.name) and number is not None:
            yield port, number


def _rule_evidence(policies: list[FullNetworkPolicy], field: str) -> Iterator[Evidence]:
    """Yields evidence of the first two policies."""
    for policy in policies[:2]:
        rules = policy.spec.ingress if field == "spec.ingress" else policy.spec.egress
        yield evidence_of(NETWORK_POLICIES, policy, field, count(len(rules or ()), "rule"))


def _allows(
    case: ServiceCase,
    rule: PolicyRule,
    pod: FullPod,
    port: ServicePort,
    number: int,
    *,
    peer: FullPod | None,
    home: str,
) -> bool:
    """Returns True if *rule* of a policy of the namespace *home* allows connections to *port* of
    *pod*. *peer*: the Pod at the other end of the rule; ``None``: some client.
    """
    if rule.ports and not any(_is_port(entry, pod, port.protocol, number) for entry in rule.ports):
        return False
    if not rule.peers or peer is None:
        return True
    return any(_is_peer(case, entry, peer, home) for entry in rule.peers)


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
            return True  # not read: assume that it matches
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


NETWORK_CHECKS = (not_admitted, not_let_out)
