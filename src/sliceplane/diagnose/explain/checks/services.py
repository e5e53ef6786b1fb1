"""Checks of names: the Service, Pod or Node exists, and the Service has the port."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sliceplane.api.core import ServicePort
from sliceplane.api.discovery import LABEL_ZONE
from sliceplane.api.findings.finding import Finding, ObjectName
from sliceplane.api.findings.wording import explain_command, nearest, some, verb
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.diagnose.explain.case import (
    ClientCase,
    NodeCase,
    PodCase,
    PodsCase,
    ServiceCase,
    zone_of,
)
from sliceplane.diagnose.explain.objects import INGRESSES, NAMESPACES, NODES, PODS, SERVICES


def reads(case: ServiceCase) -> Iterator[Selection]:
    yield SERVICES.named(case.namespace, case.name)
    yield from _client_reads(case)
    if not case.exists and case.was_read(SERVICES.named(case.namespace, case.name)):
        yield SERVICES.everywhere()
        yield NAMESPACES.everywhere()
        yield INGRESSES.in_namespace(case.namespace)


def _client_reads(case: ServiceCase) -> Iterator[Selection]:
    client = case.question.client
    if client is None or client.kind == "address":
        return
    if client.kind != "pod":
        yield NODES.everywhere()
        return
    yield PODS.named(client.namespace, client.name)
    if not ClientCase(case.facts, case.question).exists and case.was_read(
        PODS.named(client.namespace, client.name)
    ):
        yield PODS.in_namespace(client.namespace)
        yield NAMESPACES.everywhere()
        yield Selection(PODS.resource, field_selector=f"metadata.name={client.name}")


def no_such_client(case: ServiceCase) -> Iterable[Finding]:
    """S12, about the client of the query: its location is unknown."""
    client = case.question.client
    if client is None or case.client is None or case.client.exists:
        return
    effect = (
        f"what holds for a client there is not known; without --from it is said of {case.name} "
        "alone"
    )
    if client.kind == "pod":
        if case.was_read(PODS.named(client.namespace, client.name)):
            yield _unknown(
                case, "S12", case.facts.of(PODS), effect, ("Pod", client.namespace, client.name)
            )
    elif case.was_read(NODES.everywhere()):
        nodes = case.facts.of(NODES)
        existing = (
            {node.metadata.name for node in nodes}
            if client.kind == "node"
            else {zone_of(node) for node in nodes}
        )
        choices = list(nearest(client.name, existing)) or sorted(existing - {""})
        kind = client.kind.capitalize()
        yield case.finding(
            "S12",
            f"no {kind if client.kind == 'node' else 'Node is in zone'} {client.name}; "
            f"there {verb(len(choices), 'is')} {some(choices) or 'none at all'}",
            subject=ObjectName(f"{client.kind}s", kind, "", client.name),
            effect=effect,
            remedy=f"kubectl get nodes -L {LABEL_ZONE}",
        )


def no_such_service(case: ServiceCase) -> Iterable[Finding]:
    """S1; in a list of all Services an Ingress names it, and X5 reports that."""
    if case.question.kind == "everything":
        return
    if case.exists or not case.was_read(SERVICES.named(case.namespace, case.name)):
        return
    yield _unknown(
        case, "S1", case.facts.of(SERVICES), "the name does not resolve, no node serves it"
    )


def pod_reads(case: PodCase) -> Iterator[Selection]:
    yield PODS.named(case.namespace, case.name)
    if not case.exists and case.was_read(PODS.named(case.namespace, case.name)):
        yield PODS.in_namespace(case.namespace)
        yield NAMESPACES.everywhere()
        # Pods of the same name elsewhere, not every Pod of the cluster.
        yield Selection(PODS.resource, field_selector=f"metadata.name={case.name}")


def no_such_pod(case: PodCase) -> Iterable[Finding]:
    """S12"""
    if not case.exists and case.was_read(PODS.named(case.namespace, case.name)):
        yield _unknown(
            case,
            "S12",
            case.facts.of(PODS),
            "a Pod that was replaced comes back under another name",
        )


def _unknown(
    case: PodsCase,
    code: str,
    objects: Iterable[Object],
    effect: str,
    of: tuple[str, str, str] | None = None,
) -> Finding:
    """Returns the finding about a missing object. *of*: kind, namespace and name; ``None``: those
    of the case.
    """
    kind, space, own_name = of or (case.subject.kind, case.namespace, case.name)
    elsewhere = [item.metadata.key for item in objects if item.metadata.name == own_name]
    names = [item.metadata.name for item in objects if item.metadata.namespace == space]
    candidates = elsewhere + [f"{space}/{name}" for name in nearest(own_name, names)]
    sentence = f"no {kind} {space}/{own_name}"
    remedy = f"kubectl -n {space} get {kind.lower()}s"
    all_listed = case.was_read(NAMESPACES.everywhere())
    namespaces = (
        [namespace.metadata.name for namespace in case.facts.of(NAMESPACES)] if all_listed else []
    )
    were_listed = case.was_read((PODS if kind == "Pod" else SERVICES).in_namespace(space))
    if namespaces and space not in namespaces:
        sentence += f": there is no namespace {space}"
        candidates = candidates or [
            f"{namespace}/{own_name}" for namespace in nearest(space, namespaces)[:1]
        ]
        remedy = "kubectl get namespaces"
    elif (
        namespace := case.facts.get(NAMESPACES, "", space)
    ) and namespace.metadata.deletion_timestamp:
        sentence += (
            f": namespace {space} is being deleted since {namespace.metadata.deletion_timestamp}"
        )
        remedy = f"kubectl get namespace {space} -o yaml"
    elif not names and were_listed:
        sentence += f"; namespace {space} has no {kind}"
    if candidates:
        choices = f"there {verb(len(candidates), 'is')} {some(candidates)}"
        sentence += f"; {choices}" if elsewhere or names else f"; was {candidates[0]} meant"
        candidate_namespace, _, name = candidates[0].partition("/")
        remedy = explain_command(ObjectName("", kind, candidate_namespace, name))
    elif names:
        sentence += f"; {space} has {some(sorted(names))}"
    subject = ObjectName(case.subject.plural if of is None else "pods", kind, space, own_name)
    return case.finding(
        code,
        sentence,
        subject=subject,
        effect=effect,
        remedy=remedy,
    )


def node_reads(case: NodeCase) -> Iterator[Selection]:
    yield NODES.named("", case.name)
    if case.node is None:
        yield NODES.everywhere()


def no_such_node(case: NodeCase) -> Iterable[Finding]:
    """S12"""
    if case.node is None and case.facts.was_read(NODES.everywhere()):
        nodes = [node.metadata.name for node in case.facts.of(NODES)]
        near = nearest(case.name, nodes)
        choices = near or nodes
        yield case.finding(
            "S12",
            f"no Node {case.name}; there {verb(len(choices), 'is')} "
            f"{some(choices) or 'none at all'}",
            effect="nothing can be said of it",
            remedy=f"sliceplane explain node {near[0]}" if near else "kubectl get nodes",
        )


def no_such_port(case: ServiceCase) -> Iterable[Finding]:
    """S2, S3. Names without a cluster IP resolve to the Pods, where any port may listen."""
    dialled, protocol = case.question.port, case.question.protocol
    if not case.exists or not dialled or not case.has_endpoints or case.is_headless:
        return
    ports = case.service.spec.ports or ()
    same = [port for port in ports if dialled in (str(port.port), port.name)]
    if any(not protocol or port.protocol == protocol for port in same):
        return
    evidence = (case.field("spec.ports", ports_text(ports)),)
    if same:
        other = same[0]
        yield case.finding(
            "S3",
            f"{case.name} has {other.port} for {other.protocol}, not for {protocol}",
            *evidence,
            effect=f"nodes do not serve {dialled}/{protocol}: no answer comes",
            remedy=_add_port(case, other.port, protocol),
        )
        return
    yield case.finding(
        "S2",
        f"{case.name} has {ports_text(ports) or 'no port'}, nothing on "
        f"{dialled}/{protocol or 'TCP'}",
        *evidence,
        effect="every node refuses the connection",
        remedy=f"dial {ports_text(ports[:1])}" if ports else _add_port(case, 80, protocol or "TCP"),
    )


def ports_text(ports: tuple[ServicePort, ...]) -> str:
    """Returns ``80/TCP (http), 443/TCP (https)``."""
    return ", ".join(
        f"{port.port}/{port.protocol}" + (f" ({port.name})" if port.name else "") for port in ports
    )


def _add_port(case: ServiceCase, number: int, protocol: str) -> str:
    entry = f'{{"name":"{protocol.lower()}-{number}","port":{number},"protocol":"{protocol}"}}'
    patch = f'[{{"op":"add","path":"/spec/ports/-","value":{entry}}}]'
    return f"kubectl -n {case.namespace} patch service {case.name} --type json -p '{patch}'"


NAME_CHECKS: Final = (no_such_client, no_such_service, no_such_port)
