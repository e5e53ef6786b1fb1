"""Names in DNS: the cluster's DNS server, the client's settings, and the records of headless
Services.

DNS servers differ; the checks use what all of them share: the Service kube-dns, and the Corefile of
CoreDNS (kubernetes.io, "DNS for Services and Pods"; kubernetes/dns, the specification 1.1.0).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from sliceplane.api.discovery import LABEL_SERVICE_NAME
from sliceplane.api.findings.finding import Finding
from sliceplane.api.findings.wording import pairs_text, part
from sliceplane.api.requests import Selection
from sliceplane.diagnose.explain.case import ServiceCase, evidence_of, name_of
from sliceplane.diagnose.explain.checks.pods.workloads import root_of
from sliceplane.diagnose.explain.checks.ports import resolved
from sliceplane.diagnose.explain.objects import CONFIG_MAPS, PODS, SERVICES, SLICES, STATEFUL_SETS
from sliceplane.kit.ip import parse_lenient

SYSTEM = "kube-system"
DNS = "kube-dns"
COREFILE = "coredns"


def reads(case: ServiceCase) -> Iterator[Selection]:
    yield SERVICES.named(SYSTEM, DNS)
    if case.facts.get(SERVICES, SYSTEM, DNS) is not None:
        yield SLICES.in_namespace(SYSTEM, f"{LABEL_SERVICE_NAME}={DNS}")
        yield CONFIG_MAPS.named(SYSTEM, COREFILE)
    target = _target_of(case)
    if target is not None:
        yield SERVICES.named(*target)
    if case.is_headless:
        for owner in _stateful_sets(case):
            yield STATEFUL_SETS.named(case.namespace, owner)


def dns_is_down(case: ServiceCase) -> Iterable[Finding]:
    """C1, of the server."""
    server = case.facts.get(SERVICES, SYSTEM, DNS)
    selection = SLICES.in_namespace(SYSTEM, f"{LABEL_SERVICE_NAME}={DNS}")
    if server is None or not case.was_read(selection):
        return
    endpoints = [
        endpoint for item in case.facts.slices_of(SYSTEM, DNS) for endpoint in item.endpoints or ()
    ]
    if not any(endpoint.conditions.ready is not False for endpoint in endpoints):
        yield case.finding(
            "C1",
            f"Service {SYSTEM}/{DNS} has {part(0, len(endpoints), 'endpoint')} ready",
            evidence_of(
                SERVICES,
                server,
                "spec.selector",
                pairs_text(server.spec.selector or {}) or "(none)",
            ),
            subject=name_of(SERVICES, server),
            effect="no name of the cluster resolves; addresses work",
            remedy=f"sliceplane explain service -n {SYSTEM} {DNS}",
        )


def corefile(case: ServiceCase) -> Iterable[Finding]:
    """C1, of its configuration."""
    config = case.facts.get(CONFIG_MAPS, SYSTEM, COREFILE)
    if config is None:
        return
    name = f"{case.name}.{case.namespace}.svc.cluster.local"
    for line, answer in _overrides((config.data or {}).get("Corefile", ""), name):
        yield case.finding(
            "C1",
            f"the Corefile {answer} for {name}: {line}",
            evidence_of(CONFIG_MAPS, config, "data.Corefile", line),
            subject=name_of(CONFIG_MAPS, config),
            effect=f"the name of {case.name} leads elsewhere, or nowhere; its address works",
            remedy=f"kubectl -n {SYSTEM} edit configmap {COREFILE}",
        )


def _overrides(text: str, name: str) -> Iterator[tuple[str, str]]:
    """Yields lines that answer *name* instead of the kubernetes plug-in, and their effect."""
    block: list[str] = []
    for line in map(str.strip, text.splitlines()):
        fields = line.split()
        if fields[:1] == ["template"]:
            block = [line]
        elif block and line == "}":
            pattern = next(
                (entry.split(None, 1)[1] for entry in block if entry.startswith("match ")), ""
            )
            if pattern and _matches(pattern.strip('"'), name):
                rcode = next(
                    (entry.split()[1] for entry in block if entry.startswith("rcode ")),
                    "another address",
                )
                yield f"template {pattern}", f"answers {rcode}"
            block = []
        elif block:
            block.append(line)
        elif (
            fields[:1] == ["rewrite"]
            and "name" in fields
            and _is_rewritten(fields[fields.index("name") + 1 :], name)
        ):
            yield line, "asks for another name"


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, f"{name}.") is not None
    except re.error:
        return False


def _is_rewritten(arguments: list[str], name: str) -> bool:
    kinds = ("exact", "prefix", "suffix", "substring", "regex")
    kind, patterns = (
        (arguments[0], arguments[1:2])
        if arguments[:1] and arguments[0] in kinds
        else ("exact", arguments[:1])
    )
    if not patterns:
        return False
    text = patterns[0].rstrip(".")
    match kind:
        case "exact":
            return text == name
        case "prefix":
            return name.startswith(text)
        case "suffix":
            return name.endswith(text)
        case "substring":
            return text in name
    return _matches(patterns[0], name)


def client_bypasses_dns(case: ServiceCase) -> Iterable[Finding]:
    """C2"""
    pod = case.client.pod if case.client is not None else None
    if pod is None:
        return
    policy = pod.spec.dns_policy or "ClusterFirst"
    if policy in ("Default", "None"):
        why = f"dnsPolicy of {pod.metadata.name} is {policy}"
    elif policy == "ClusterFirst" and pod.spec.host_network:
        why = f"{pod.metadata.name} has the node's network, where ClusterFirst means Default"
    else:
        return
    yield case.finding(
        "C2",
        f"{why}: it does not ask the cluster's DNS",
        evidence_of(PODS, pod, "spec.dnsPolicy", policy),
        subject=name_of(PODS, pod),
        certainty="likely" if policy == "None" else "certain",
        effect=f"the name of {case.name} does not resolve there; its address works",
        remedy=f"dnsPolicy ClusterFirst{'WithHostNet' if pod.spec.host_network else ''} in its "
        "template",
    )


def headless_without_ready(case: ServiceCase) -> Iterable[Finding]:
    """C3"""
    if not case.is_headless or case.service.spec.publish_not_ready_addresses:
        return
    if case.endpoints and not case.ready and not any(pod.is_ready for pod in case.live):
        yield case.finding(
            "C3",
            f"DNS has no record of {case.name}: "
            f"{part(0, len(case.endpoints), 'endpoint', 'is')} ready",
            case.field("spec.publishNotReadyAddresses", "false"),
            effect="Pods that look for each other before they are ready never find each other",
            remedy=case.patch({"spec": {"publishNotReadyAddresses": True}}),
        )


def headless_port(case: ServiceCase) -> Iterable[Finding]:
    """C4"""
    if not case.is_headless or not case.live:
        return
    for port in case.service.spec.ports or ():
        if case.question.port not in ("", str(port.port), port.name):
            continue
        numbers = {number for pod in case.live if (number := resolved(port, pod)) is not None}
        if numbers and port.port not in numbers:
            listening = ", ".join(map(str, sorted(numbers)))
            yield case.finding(
                "C4",
                f"{case.name} is headless, so no node translates {port.port}: its Pods listen "
                f"on {listening}",
                case.field("spec.ports", f"{port.port}/{port.protocol} to {listening}"),
                effect=f"connections to {port.port} are refused by the Pods",
                remedy=f"dial {listening}, or give the Service a cluster IP",
            )


def names_of_pods(case: ServiceCase) -> Iterable[Finding]:
    """C5"""
    if not case.is_headless:
        return
    for owner in _stateful_sets(case):
        stateful_set = case.get(STATEFUL_SETS, owner)
        if stateful_set is None or stateful_set.spec.service_name == case.name:
            continue
        named = stateful_set.spec.service_name
        yield case.finding(
            "C5",
            f"StatefulSet {owner} names its Service {named or '(none)'}, not {case.name}",
            evidence_of(STATEFUL_SETS, stateful_set, "spec.serviceName", named or "(not set)"),
            effect=f"{owner}-0.{case.name} does not resolve"
            + (f"; {owner}-0.{named} does, if that Service is there" if named else ""),
            remedy=f"dial {owner}-0.{named}"
            if named
            else f"make the StatefulSet anew with serviceName {case.name}",
        )


def alias_leads_nowhere(case: ServiceCase) -> Iterable[Finding]:
    """C7"""
    if case.service.spec.type != "ExternalName":
        return
    name = case.service.spec.external_name
    target = _target_of(case)
    if parse_lenient(name) is not None:
        why = "that is an address, which DNS has no name for"
        remedy = "make it a Service without a selector, and an EndpointSlice with the address"
    elif (
        target is not None
        and case.was_read(SERVICES.named(*target))
        and case.facts.get(SERVICES, *target) is None
    ):
        why = f"there is no Service {target[0]}/{target[1]}"
        remedy = f"kubectl -n {target[0]} get services"
    else:
        return
    yield case.finding(
        "C7",
        f"{case.name} is an alias of {name}: {why}",
        case.field("spec.externalName", name),
        certainty="certain" if target is None else "likely",
        effect=f"the name of {case.name} leads nowhere",
        remedy=remedy,
    )


def _target_of(case: ServiceCase) -> tuple[str, str] | None:
    """Returns the Service of the cluster that an ExternalName names, by its form:
    ``NAME.NAMESPACE.svc.``.
    """
    if case.service.spec.type != "ExternalName":
        return None
    labels = case.service.spec.external_name.rstrip(".").split(".")
    return (labels[1], labels[0]) if len(labels) > 3 and labels[2] == "svc" else None


def _stateful_sets(case: ServiceCase) -> list[str]:
    """Returns the names of the StatefulSets that own Pods of the Service."""
    return sorted({root.name for root in map(root_of, case.live) if root.kind == "StatefulSet"})


CHECKS = (
    dns_is_down,
    corefile,
    client_bypasses_dns,
    headless_without_ready,
    headless_port,
    names_of_pods,
    alias_leads_nowhere,
)
