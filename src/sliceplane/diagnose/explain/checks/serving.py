"""Checks if nodes serve the Service at all: its type, its proxy, its addresses, its source ranges,
its deletion.

A setting made on purpose (a name for an external host, a proxy of one's own) is a fault only with
further evidence: slices remain, or no DaemonSet names the proxy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from sliceplane.api.core import Namespace, Service
from sliceplane.api.discovery import LABEL_SERVICE_NAME, LABEL_SERVICE_PROXY_NAME
from sliceplane.api.findings.codes import Severity
from sliceplane.api.findings.finding import Evidence, Finding, TooYoung
from sliceplane.api.findings.wording import clipped, count, lasting, part, since, some
from sliceplane.api.requests import Selection
from sliceplane.diagnose.explain.case import ServiceCase, evidence_of, list_names
from sliceplane.diagnose.explain.facts import Facts
from sliceplane.diagnose.explain.objects import (
    DAEMON_SETS,
    EVENTS,
    INGRESSES,
    NAMESPACES,
    NODES,
    SERVICE_CIDRS,
    SERVICES,
    SLICES,
    Workload,
    events_about,
)
from sliceplane.emulation.nodes import LABEL_EMULATED
from sliceplane.kit.ip import Network, parse_lenient, parse_network_lenient

#: a cloud creates a load balancer in a minute or two
BALANCER_WAIT_S: Final = 300.0
#: finalizers of a regular deletion are done by then
DELETION_WAIT_S: Final = 120.0
#: kubernetes.io, "Virtual IPs and Service Proxies", session stickiness timeout
AFFINITY_DEFAULT_S: Final = 10_800
_EXCLUDED: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
_AFFINITY_OFF: Final = {"spec": {"sessionAffinity": "None"}}


def reads(case: ServiceCase) -> Iterator[Selection]:
    service = case.service
    yield NAMESPACES.named("", case.namespace)
    if service.spec.type == "ExternalName":
        yield case.slices_selection
        return
    if service.spec.cluster_ip not in ("", "None"):
        yield SERVICE_CIDRS.everywhere()
    if own_proxy_name(service):
        yield DAEMON_SETS.everywhere()
    if _is_waiting(case):
        yield events_about(case.namespace, "Service", case.name)
        yield NODES.everywhere()
    if any(claim[0] for claim in _claims(service)):
        yield SERVICES.everywhere()
    if service.spec.session_affinity == "ClientIP":
        yield INGRESSES.in_namespace(case.namespace)


def external_name(case: ServiceCase) -> Iterable[Finding]:
    """S4"""
    service = case.service
    if service.spec.type != "ExternalName" or not case.slices:
        return
    names = list_names(case.slices)
    yield case.finding(
        "S4",
        f"ExternalName for {service.spec.external_name}: no proxy serves it, and "
        f"{count(len(names), 'slice', 'is')} left over",
        case.field("spec.type", "ExternalName"),
        evidence_of(SLICES, case.slices[0], f"metadata.labels[{LABEL_SERVICE_NAME}]", case.name),
        effect="its name resolves to another name; readers of slices still take the addresses of "
        "before",
        remedy=f"kubectl -n {case.namespace} delete endpointslice {' '.join(names)}",
    )


def own_proxy(case: ServiceCase) -> Iterable[Finding]:
    """S5"""
    service = case.service
    name = own_proxy_name(service)
    if not name or not case.was_read(DAEMON_SETS.everywhere()):
        return
    if any(_names(workload, name) for workload in case.facts.of(DAEMON_SETS)):
        return
    yield case.finding(
        "S5",
        f"it is left to the proxy '{name}', and no DaemonSet of the cluster names that",
        case.field(f"metadata.labels[{LABEL_SERVICE_PROXY_NAME}]", name),
        certainty="likely",
        effect="no other proxy serves its cluster IP: every node refuses or loses connections",
        remedy=f"kubectl -n {case.namespace} label service {case.name} {LABEL_SERVICE_PROXY_NAME}-",
    )


def own_proxy_name(service: Service) -> str:
    return (service.metadata.labels or {}).get(LABEL_SERVICE_PROXY_NAME, "")


def _names(workload: Workload, proxy: str) -> bool:
    """Returns True if a name, an argument or an environment variable has *proxy*: there is no field
    for it.
    """
    texts = [workload.metadata.name]
    for container in workload.spec.template.spec.containers or ():
        texts += [
            container.name,
            container.image,
            *(container.command or ()),
            *(container.args or ()),
        ]
        texts += [variable.value for variable in container.env or ()]
    return any(proxy in text for text in texts)


def _all_excluded(facts: Facts) -> list[str]:
    """Returns the Nodes if each has the label that excludes it from balancers, else none."""
    if not facts.was_read(NODES.everywhere()):
        return []
    names = [
        node.metadata.name for node in facts.of(NODES) if _EXCLUDED in (node.metadata.labels or {})
    ]
    return names if len(names) == len(facts.of(NODES)) else []


def _is_emulated(facts: Facts) -> bool:
    """Returns True for a plane of emulated Nodes, with or without a node proxy of this machine."""
    return any(LABEL_EMULATED in (node.metadata.labels or {}) for node in facts.of(NODES))


def no_outside_address(case: ServiceCase) -> Iterable[Finding]:
    """S6"""
    service = case.service
    if not _is_waiting(case):
        return
    age = since(service.metadata.creation_timestamp, case.now) or 0.0
    young = TooYoung(age, BALANCER_WAIT_S) if age < BALANCER_WAIT_S else None
    failed = [
        event
        for event in case.facts.events_of(case.namespace, "Service", case.name)
        if event.type == "Warning"
    ]
    balancer_class = service.spec.load_balancer_class
    weight: Severity | None = None
    evidence = [case.field("status.loadBalancer", "no ingress")]
    if balancer_class:
        evidence.append(case.field("spec.loadBalancerClass", balancer_class))
    remedy = f"kubectl -n {case.namespace} describe service {case.name}"
    if failed:
        why = f"{failed[0].reason}: {clipped(failed[0].message)}"
        evidence.append(evidence_of(EVENTS, failed[0], "reason", failed[0].reason))
    elif excluded := case.facts.derived(_all_excluded):
        why = (
            f"{part(len(excluded), len(excluded), 'node', 'is')} excluded from load balancers by "
            "a label"
        )
        node = case.facts.get(NODES, "", excluded[0])
        if node is not None:
            evidence.append(evidence_of(NODES, node, f"metadata.labels[{_EXCLUDED}]", "(set)"))
        remedy = f"kubectl label node {excluded[0]} {_EXCLUDED}-"
    elif balancer_class:
        why = f"no controller of class '{balancer_class}' has given it one"
        remedy = f"install the controller of class {balancer_class}, or look at its log"
    elif case.facts.derived(_is_emulated):
        # Nothing assigns one with --emulate, as requested.
        why, young, weight = "an emulated plane has no load balancer", None, "note"
        change = '{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.10"}]}}}'
        remedy = (
            f"kubectl -n {case.namespace} patch service {case.name} --subresource=status --type "
            f"merge -p '{change}'"
        )
    else:
        why = "no load balancer controller has given it one"
        remedy = "install a load balancer controller (of the cloud, or MetalLB), or look at its log"
    yield case.finding(
        "S6",
        f"no outside address for {lasting(age)}: {why}",
        *evidence,
        certainty="certain" if failed else "likely",
        weight=weight,
        too_young=young if not failed else None,
        effect="clients outside have nothing to connect to; inside, the cluster IP works",
        remedy=remedy,
    )


def _is_waiting(case: ServiceCase) -> bool:
    service = case.service
    if service.spec.type != "LoadBalancer" or service.status.load_balancer.ingress:
        return False
    return service.metadata.deletion_timestamp is None


Claim = tuple[str, int, str]


def _claims(service: Service) -> Iterator[Claim]:
    """Yields address, port and protocol that *service* claims on nodes besides its cluster IP; the
    address of a node port is "".
    """
    spec = service.spec
    if spec.type == "ExternalName" or spec.cluster_ip == "None" or own_proxy_name(service):
        return
    ingress = service.status.load_balancer.ingress or ()
    addresses = [
        *(spec.external_ips or ()),
        *(entry.ip for entry in ingress if entry.ip and entry.ip_mode != "Proxy"),
    ]
    for port in spec.ports or ():
        for address in dict.fromkeys(addresses):
            yield address, port.port, port.protocol
        if port.node_port:
            yield "", port.node_port, port.protocol


def _claimants(facts: Facts) -> dict[Claim, list[str]]:
    claimants: dict[Claim, list[str]] = defaultdict(list)
    for service in facts.of(SERVICES):
        for claim in _claims(service):
            claimants[claim].append(service.metadata.key)
    return dict(claimants)


def claimed_twice(case: ServiceCase) -> Iterable[Finding]:
    """S7"""
    claimants = case.facts.derived(_claimants)
    for address, port, protocol in _claims(case.service):
        others = [
            key for key in claimants[address, port, protocol] if key != case.service.metadata.key
        ]
        if not others:
            continue
        field = (
            "spec.externalIPs"
            if address in (case.service.spec.external_ips or ())
            else "status.loadBalancer"
        )
        what = f"{address}:{port}/{protocol}" if address else f"node port {port}/{protocol}"
        yield case.finding(
            "S7",
            f"{what} is claimed by {some(others)}, too; one of them alone is served",
            case.field(field if address else "spec.ports", address or f"nodePort {port}"),
            effect=f"connections to {what} reach one of {count(len(others) + 1, 'Service')}, "
            "whichever the node took",
            remedy=f"give {case.name} or {others[0]} another "
            f"{'address' if address else 'node port'}",
        )


def outside_ranges(case: ServiceCase) -> Iterable[Finding]:
    """S8"""
    ranges, networks = case.facts.derived(_service_ranges)
    if not networks or not case.was_read(SERVICE_CIDRS.everywhere()):
        return
    addresses = case.service.spec.cluster_ips or (case.service.spec.cluster_ip,)
    for text in addresses:
        address = parse_lenient(text)
        if address is None or any(address in network for network in networks):
            continue
        yield case.finding(
            "S8",
            f"{text} is in no ServiceCIDR: they are {some(ranges)}",
            case.field("spec.clusterIPs", ",".join(addresses)),
            effect="routes and firewalls for the ranges drop it, and nothing keeps others off the "
            "address",
            remedy=f"add a ServiceCIDR that has {text}, or make {case.name} anew to get another "
            "address",
        )
        return


def _service_ranges(facts: Facts) -> tuple[list[str], list[Network]]:
    ranges = [text for item in facts.of(SERVICE_CIDRS) for text in item.spec.cidrs or ()]
    return ranges, _networks(ranges)


def source_ranges(case: ServiceCase) -> Iterable[Finding]:
    """S9"""
    service = case.service
    client = case.client
    if service.spec.type != "LoadBalancer" or client is None or not client.address:
        return
    ranges = [text.strip() for text in service.spec.load_balancer_source_ranges or ()]
    networks = _networks(ranges)
    address = parse_lenient(client.address)
    if not networks or address is None or any(address in network for network in networks):
        return
    wider = [*ranges, f"{client.address}/{address.max_prefixlen}"]
    # A client inside can also use the cluster IP, to which the ranges do not apply.
    inside = client.pod is not None
    yield case.finding(
        "S9",
        f"{client.address} is in none of the source ranges: {some(ranges)}",
        case.field("spec.loadBalancerSourceRanges", ",".join(ranges)),
        weight="note" if inside else None,
        effect="the balancer or the node drops what it sends"
        + (" to the balancer's address" if inside else ""),
        remedy=case.patch({"spec": {"loadBalancerSourceRanges": wider}}),
    )


def _networks(texts: Iterable[str]) -> list[Network]:
    return [network for text in texts if (network := parse_network_lenient(text)) is not None]


def affinity(case: ServiceCase) -> Iterable[Finding]:
    """S10"""
    service = case.service
    if service.spec.session_affinity != "ClientIP" or len(case.live) < 2:
        return
    config = service.spec.session_affinity_config
    timeout = (
        config.client_ip.timeout_seconds
        if config is not None and config.client_ip is not None
        else None
    )
    ingresses = [
        ingress.metadata.name
        for ingress in case.of(INGRESSES)
        if any(backend.name == case.name for backend in ingress.backends)
    ]
    if ingresses:
        cause = f"Ingress {ingresses[0]} comes with the few addresses of its controller"
    elif (
        service.spec.type in ("LoadBalancer", "NodePort")
        and service.spec.external_traffic_policy != "Local"
    ):
        cause = (
            "clients outside come with the address of the node that took them "
            "(externalTrafficPolicy Cluster)"
        )
    elif case.question.kind == "service":
        cause = "clients that share an address share a Pod"
    else:
        return
    yield case.finding(
        "S10",
        f"a client address keeps its Pod for {timeout or AFFINITY_DEFAULT_S} s, and {cause}",
        case.field("spec.sessionAffinity", "ClientIP"),
        certainty="possible",
        effect=f"one of {count(len(case.live), 'Pod')} may get nearly all connections",
        remedy=case.patch(_AFFINITY_OFF),
    )


def being_deleted(case: ServiceCase) -> Iterable[Finding]:
    """S11"""
    namespace = case.facts.get(NAMESPACES, "", case.namespace)
    if (
        namespace is not None
        and (age := since(namespace.metadata.deletion_timestamp, case.now)) is not None
    ):
        yield _deleting_namespace(case, namespace, age)
        return
    age = since(case.service.metadata.deletion_timestamp, case.now)
    if age is not None:
        finalizers = case.service.metadata.finalizers or ()
        yield case.finding(
            "S11",
            f"Service {case.name} is being deleted for {lasting(age)}"
            + (f"; it waits for {some(finalizers)}" if finalizers else ""),
            case.field("metadata.finalizers", ",".join(finalizers) or "(none)"),
            too_young=_young_deletion(age),
            effect="it goes as soon as its finalizers are done, and takes its slices with it",
            remedy="look at the log of the controller that owns the finalizer",
        )


def _young_deletion(age: float) -> TooYoung | None:
    return TooYoung(max(0.0, age), DELETION_WAIT_S) if age < DELETION_WAIT_S else None


def _deleting_namespace(case: ServiceCase, namespace: Namespace, age: float) -> Finding:
    conditions = [
        entry
        for entry in namespace.status.conditions or ()
        if entry.status == "True" and entry.message
    ]
    evidence = [
        evidence_of(
            NAMESPACES,
            namespace,
            "metadata.deletionTimestamp",
            namespace.metadata.deletion_timestamp or "",
        )
    ]
    evidence += [
        Evidence(
            subject=evidence[0].subject,
            field=f"status.conditions[{entry.type}]",
            value=clipped(entry.message),
        )
        for entry in conditions[:2]
    ]
    return case.finding(
        "S11",
        f"namespace {case.namespace} is being deleted for {lasting(age)}",
        *evidence,
        subject=evidence[0].subject,
        too_young=_young_deletion(age),
        effect="nothing new can be made in it: no Pod, no slice",
        remedy=f"kubectl get namespace {case.namespace} -o "
        f"jsonpath='{{.status.conditions[*].message}}'",
    )


CHECKS: Final = (
    external_name,
    own_proxy,
    no_outside_address,
    claimed_twice,
    outside_ranges,
    source_ranges,
    affinity,
    being_deleted,
)
