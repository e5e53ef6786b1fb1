"""From a port of the Service to a port of each Pod, and the families of addresses in between.

``resolved`` is the rule of the EndpointSlice controller for the number (kubernetes.io, "Service",
target port): a number is used as it is; for a name the first container or sidecar with this port
counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from sliceplane.api.core import ContainerPort, ServicePort
from sliceplane.api.discovery import (
    LABEL_MANAGED_BY,
    MANAGED_BY_CONTROLLER,
    MANAGED_BY_MIRRORING,
    EndpointPort,
    EndpointSlice,
)
from sliceplane.api.findings.codes import Severity
from sliceplane.api.findings.finding import Finding
from sliceplane.api.findings.wording import count, nearest, part, some
from sliceplane.api.selectors.adoption import MANAGED_BY_ADOPTED
from sliceplane.consume.agents.registration import MANAGED_BY as MANAGED_BY_AGENTS
from sliceplane.diagnose.explain.case import ServiceCase, evidence_of, list_names
from sliceplane.diagnose.explain.checks.pods.workloads import root_of
from sliceplane.diagnose.explain.checks.services import ports_text
from sliceplane.diagnose.explain.objects import PODS, SLICES, FullContainer, FullPod
from sliceplane.kit.ip import family, parse_lenient


def servers(pod: FullPod) -> Iterator[tuple[FullContainer, bool]]:
    """Yields the containers whose ports count, and True for a sidecar."""
    for container in pod.spec.containers or ():
        yield container, False
    for container in pod.spec.init_containers or ():
        if container.restart_policy == "Always":
            yield container, True


def declared(pod: FullPod) -> Iterator[tuple[ContainerPort, bool]]:
    for container, sidecar in servers(pod):
        for port in container.ports or ():
            yield port, sidecar


def resolved(port: ServicePort, pod: FullPod) -> int | None:
    """Returns the number of the port on *pod*; ``None``: no container has the name."""
    target = port.target_port
    if not isinstance(target, str):
        return target or port.port
    matches = (
        entry
        for entry, _ in declared(pod)
        if (entry.name, entry.protocol) == (target, port.protocol)
    )
    return next((entry.container_port for entry in matches), None)


def undeclared_number(case: ServiceCase) -> Iterable[Finding]:
    """T1"""
    for index, port in _requested(case):
        if isinstance(port.target_port, str) or not case.live:
            continue
        number = port.target_port or port.port
        theirs = sorted({entry.container_port for pod in case.live for entry, _ in declared(pod)})
        everyone_declares = all(any(True for _ in declared(pod)) for pod in case.live)
        if (
            number in theirs
            or not everyone_declares
            or any(number in _probed(pod) for pod in case.live)
        ):
            continue
        numbers = ", ".join(map(str, theirs))
        ended = {outcome for target, outcome in case.tried.items() if target.port == number}
        if "open" in ended:
            continue  # it listens there without a declaration
        yield case.finding(
            "T1",
            f"{part(0, len(case.live), 'Pod', 'declares')} port {number}; declared: {numbers}",
            case.field("spec.ports", f"{port.port}/{port.protocol} to {number}"),
            certainty="certain" if "refused" in ended else "likely",
            weight=_weight(case),
            effect="Pods refuse the connection, if nothing listens there",
            remedy=_target(case, index, theirs[0]),
        )


def refused(case: ServiceCase) -> Iterable[Finding]:
    """T6, after connections were tried from here. If no Pod declares the port, T1 reports it. A
    timeout proves nothing, since the path from here need not be a client's.
    """
    tried = case.tried
    refusing = [target for target, outcome in tried.items() if outcome == "refused"]
    if not refusing or any(True for _ in undeclared_number(case)):
        return
    first = refusing[0]
    item = next(item for item, endpoint in case.ready if first.ip in endpoint.addresses)
    yield case.finding(
        "T6",
        f"{part(len(refusing), len(tried), 'ready endpoint')} refused a connection from here: "
        f"{some([str(target) for target in refusing])}",
        evidence_of(SLICES, item, "endpoints", f"{first}, ready"),
        certainty="certain" if "open" in tried.values() else "likely",
        effect="clients are refused as often as one of these is chosen",
        remedy=f"let the program listen on all addresses (0.0.0.0 or ::) at port {first.port}, not "
        "on 127.0.0.1",
    )


def named_port_missing(case: ServiceCase) -> Iterable[Finding]:
    """T2, T3, T4"""
    for index, port in _requested(case):
        name = port.target_port
        if not isinstance(name, str):
            continue
        lacking = [pod for pod in case.live if resolved(port, pod) is None]
        if name.isdigit() and lacking:
            yield case.finding(
                "T3",
                f"targetPort '{name}' of {case.name} is a name, and no container port is "
                f"called {name}",
                case.field("spec.ports", f"{port.port}/{port.protocol} to the name '{name}'"),
                effect=f"slices have no port for {port.port}/{port.protocol}: nodes refuse it",
                remedy=_target(case, index, int(name)),
            )
        elif lacking:
            yield _lacking(case, index, name, lacking)
        elif case.live and all(_is_sidecars(name, pod) for pod in case.live):
            yield from _unread_sidecar(case, index, name)


def _lacking(case: ServiceCase, index: int, name: str, lacking: list[FullPod]) -> Finding:
    port = _ports(case)[index]
    named = {
        (entry.name, entry.protocol) for pod in lacking for entry, _ in declared(pod) if entry.name
    }
    choices = sorted(
        choice if protocol == port.protocol else f"{choice} for {protocol}"
        for choice, protocol in named
    )
    has = f"they have {some(choices)}" if choices else "they name none"
    pod = lacking[0]
    names = ", ".join(entry.name or str(entry.container_port) for entry, _ in declared(pod))
    return case.finding(
        "T2",
        f"{part(len(lacking), len(case.live), 'Pod', 'has')} no port named {name}; {has}",
        case.field("spec.ports", f"{port.port}/{port.protocol} to the name {name}"),
        evidence_of(PODS, pod, "spec.containers", f"ports {names or '(none)'}"),
        weight=_weight(case),
        effect="its SRV records and slices have no such port; addresses are not concerned"
        if case.is_headless
        else f"{port.port}/{port.protocol} never reaches {some(list_names(lacking))}",
        remedy=_mend_name(
            case,
            index,
            name,
            lacking,
            [choice for choice, protocol in named if protocol == port.protocol],
        ),
    )


def _mend_name(
    case: ServiceCase, index: int, name: str, lacking: list[FullPod], choices: list[str]
) -> str:
    """Returns the remedy: change the Service if all Pods have a similar name, or only one."""
    candidates = [*nearest(name, choices), *(choices if len(choices) == 1 else ())]
    if len(lacking) == len(case.live) and candidates:
        return _target(case, index, candidates[0])
    root = root_of(lacking[0])
    return f"name a container port {name} in the template of {root}, or set targetPort to a number"


def _unread_sidecar(case: ServiceCase, index: int, name: str) -> Iterator[Finding]:
    """T4: controllers before Kubernetes 1.33 ignored ports of sidecars
    (kubernetes/kubernetes#127958).
    """
    port = _ports(case)[index]
    for endpoint_slice in case.slices:
        labels = endpoint_slice.metadata.labels or {}
        if labels.get(LABEL_MANAGED_BY) != MANAGED_BY_CONTROLLER or not endpoint_slice.endpoints:
            continue
        if port.name not in {entry.name or "" for entry in endpoint_slice.ports or ()}:
            yield case.finding(
                "T4",
                f"{name} is a port of a sidecar (init container), and slice "
                f"{endpoint_slice.metadata.name} was made by a controller that does not look there",
                evidence_of(
                    SLICES, endpoint_slice, "ports", _slice_ports(endpoint_slice.ports or ())
                ),
                effect=f"{port.port}/{port.protocol} has no endpoints",
                remedy=_target(case, index, _number_of(name, case.live[0])),
            )
            return


def port_of_own_slice(case: ServiceCase) -> Iterable[Finding]:
    """T5"""
    expected = {(port.name, port.protocol) for port in _ports(case)}
    for endpoint_slice in case.slices:
        manager = endpoint_slice.manager
        if case.selector and manager in (
            *(MANAGED_BY_CONTROLLER, MANAGED_BY_ADOPTED, MANAGED_BY_MIRRORING),
        ):
            # those are built from Pods, and E4 reports mirrored slices of a Service with a selector
            continue
        names = {
            (entry.name or "", entry.protocol or "TCP") for entry in endpoint_slice.ports or ()
        }
        if endpoint_slice.endpoints and expected and not names & expected:
            theirs = ", ".join(f"'{name}'" for name, _ in sorted(names)) or "none"
            yield case.finding(
                "T5",
                f"slice {endpoint_slice.metadata.name} names its port {theirs}, the Service "
                + ", ".join(f"'{name}'" for name, _ in sorted(expected)),
                evidence_of(
                    SLICES, endpoint_slice, "ports", _slice_ports(endpoint_slice.ports or ())
                ),
                case.field("spec.ports", ports_text(tuple(_ports(case)))),
                effect=f"none of its {count(len(endpoint_slice.endpoints), 'endpoint')} is used",
                remedy=_same_port_name(case, endpoint_slice, manager),
            )


def _same_port_name(case: ServiceCase, endpoint_slice: EndpointSlice, manager: str) -> str:
    """Returns the remedy: a change of the slice itself lasts only if no controller writes it."""
    ports = _ports(case)
    if manager == MANAGED_BY_MIRRORING:
        return f"kubectl -n {case.namespace} edit endpoints {case.name}"
    if manager == MANAGED_BY_AGENTS:
        flags = " ".join(
            f"--port {port.name}=PORT" if port.name else "--port PORT" for port in ports
        )
        return f"start its agent with {flags}"
    if manager:
        names = some([f"'{port.name}'" for port in ports])
        return (
            f"let {manager} name the port {names} in slice {endpoint_slice.metadata.name}, as the "
            "Service does"
        )
    if len(ports) == len(endpoint_slice.ports or ()) == 1:
        operation = json.dumps(
            [{"op": "add", "path": "/ports/0/name", "value": ports[0].name}], separators=(",", ":")
        )
        name = endpoint_slice.metadata.name
        return (
            f"kubectl -n {case.namespace} patch endpointslice {name} --type json -p '{operation}'"
        )
    return f"kubectl -n {case.namespace} edit endpointslice {endpoint_slice.metadata.name}"


def families(case: ServiceCase) -> Iterable[Finding]:
    """T7"""
    service = case.service
    if not case.selector or not case.live:
        return
    addressed = [pod for pod in case.live if pod.status.ips]
    for ip_family in service.spec.ip_families or ():
        if not addressed or any(ip_family in _families(pod) for pod in addressed):
            continue
        theirs = sorted({other for pod in addressed for other in _families(pod)})
        yield case.finding(
            "T7",
            f"{ip_family} Service; {count(len(addressed), 'Pod', 'has')} {' and '.join(theirs)} "
            "alone",
            case.field("spec.ipFamilies", ", ".join(service.spec.ip_families or ())),
            effect=f"no {ip_family} slice has an endpoint: nodes refuse "
            f"{_cluster_ip(case, ip_family)}",
            remedy=_without_family(case, ip_family, theirs),
        )


def _without_family(case: ServiceCase, ip_family: str, theirs: list[str]) -> str:
    """Returns the remedy: the first family of a Service never changes (kubernetes.io, "IPv4/IPv6
    dual-stack").
    """
    families = [*(case.service.spec.ip_families or ())]
    if families[0] == ip_family:
        return f"make {case.name} anew with ipFamilies [{theirs[0]}], or give the Pods {ip_family}"
    remaining = [name for name in families if name != ip_family]
    return case.patch(
        {"spec": {"ipFamilies": remaining, "ipFamilyPolicy": "SingleStack"}},
    )


def _cluster_ip(case: ServiceCase, ip_family: str) -> str:
    for text in case.service.spec.cluster_ips or ():
        address = parse_lenient(text)
        if address is not None and family(address) == ip_family:
            return text
    return f"its {ip_family} address"


def _families(pod: FullPod) -> set[str]:
    addresses = (parse_lenient(text) for text in pod.status.ips)
    return {family(address) for address in addresses if address is not None}


def _ports(case: ServiceCase) -> tuple[ServicePort, ...]:
    return (case.service.spec.ports or ()) if case.service.spec.type != "ExternalName" else ()


def _requested(case: ServiceCase) -> Iterator[tuple[int, ServicePort]]:
    """Yields the ports of the query, each with its index in the Service."""
    requested = set(case.requested_ports)
    return ((index, port) for index, port in enumerate(_ports(case)) if port in requested)


def _weight(case: ServiceCase) -> Severity | None:
    """Returns the severity of a wrong target port: clients of a headless Service dial any port, and
    only its SRV records and slices have this one.
    """
    return "warning" if case.is_headless else None


def _probed(pod: FullPod) -> set[int]:
    """Returns the ports of successful readiness probes, where a program listens."""
    if not pod.is_ready:
        return set()
    probes = (container.readiness_probe for container, _ in servers(pod))
    return {probe.port for probe in probes if probe is not None and isinstance(probe.port, int)}


def _is_sidecars(name: str, pod: FullPod) -> bool:
    return any(sidecar for entry, sidecar in declared(pod) if entry.name == name) and not any(
        not sidecar for entry, sidecar in declared(pod) if entry.name == name
    )


def _number_of(name: str, pod: FullPod) -> int:
    return next(entry.container_port for entry, _ in declared(pod) if entry.name == name)


def _slice_ports(ports: Iterable[EndpointPort]) -> str:
    return (
        ", ".join(f"{port.name or '(no name)'}:{port.port or 'all'}" for port in ports) or "(none)"
    )


def _target(case: ServiceCase, index: int, target: int | str) -> str:
    path = f"/spec/ports/{index}/targetPort"
    operation = json.dumps(
        [{"op": "replace", "path": path, "value": target}], separators=(",", ":")
    )
    return f"kubectl -n {case.namespace} patch service {case.name} --type json -p '{operation}'"


CHECKS = (undeclared_number, named_port_missing, port_of_own_slice, families)
