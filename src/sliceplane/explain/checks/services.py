"""The Service itself: is there one of that name, does it have the port, will a node serve it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sliceplane.api.core import ServicePort
from sliceplane.api.requests import Selection
from sliceplane.explain.case import ServiceCase
from sliceplane.explain.objects import NAMESPACES, SERVICES
from sliceplane.explain.wording import nearest, some
from sliceplane.findings.finding import Finding


def wants(case: ServiceCase) -> Iterator[Selection]:
    yield SERVICES.named(case.namespace, case.name)
    if case.service is None and case.was_read(SERVICES.named(case.namespace, case.name)):
        yield SERVICES.everywhere()
        yield NAMESPACES.everywhere()


def no_such_service(case: ServiceCase) -> Iterable[Finding]:
    """S1"""
    if case.service is not None or not case.was_read(SERVICES.named(case.namespace, case.name)):
        return
    key = f"{case.namespace}/{case.name}"
    services = case.facts.of(SERVICES)
    elsewhere = [service.metadata.key for service in services if service.metadata.name == case.name]
    here = nearest(
        case.name, [service.metadata.name for service in services if service.metadata.namespace == case.namespace]
    )
    meant = elsewhere + [f"{case.namespace}/{name}" for name in here]
    sentence = f"no Service {key}"
    remedy = f"kubectl -n {case.namespace} get services"
    if meant:
        sentence += f"; there is {some(meant)}"
        namespace, _, name = meant[0].partition("/")
        remedy = f"sliceplane explain service -n {namespace} {name}"
    yield Finding(
        code="S1",
        subject=case.subject,
        sentence=sentence,
        effect="the name does not resolve, no node serves it",
        remedy=remedy,
    )


def no_such_port(case: ServiceCase) -> Iterable[Finding]:
    """S2, S3"""
    dialled, protocol = case.question.port, case.question.protocol
    if case.service is None or not dialled:
        return
    ports = case.service.spec.ports or ()
    same = [port for port in ports if dialled in (str(port.port), port.name)]
    if any(not protocol or port.protocol == protocol for port in same):
        return
    evidence = (case.field("spec.ports", ports_text(ports)),)
    if same:
        there = same[0]
        yield Finding(
            code="S3",
            subject=case.subject,
            evidence=evidence,
            sentence=f"{case.name} has {there.port} for {there.protocol}, not for {protocol}",
            effect=f"nodes do not serve {dialled}/{protocol}: nobody answers",
            remedy=_add_port(case, there.port, protocol),
        )
        return
    yield Finding(
        code="S2",
        subject=case.subject,
        evidence=evidence,
        sentence=f"{case.name} has {ports_text(ports) or 'no port'}, nothing on {dialled}/{protocol or 'TCP'}",
        effect="every node refuses the connection",
        remedy=f"dial {ports_text(ports[:1])}" if ports else _add_port(case, 80, protocol or "TCP"),
    )


def ports_text(ports: tuple[ServicePort, ...]) -> str:
    """``80/TCP (http), 443/TCP (https)``"""
    return ", ".join(f"{port.port}/{port.protocol}" + (f" ({port.name})" if port.name else "") for port in ports)


def _add_port(case: ServiceCase, number: int, protocol: str) -> str:
    entry = f'{{"name":"{protocol.lower()}-{number}","port":{number},"protocol":"{protocol}"}}'
    patch = f'[{{"op":"add","path":"/spec/ports/-","value":{entry}}}]'
    return f"kubectl -n {case.namespace} patch service {case.name} --type json -p '{patch}'"


NAME_CHECKS: Final = (no_such_service, no_such_port)
