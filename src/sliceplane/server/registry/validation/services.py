"""Service: everything that can be said of one version of it (KEP-4444, KEP-563;
pkg/apis/core/validation/validation.go).

Server-given members (cluster addresses, node ports) are checked as far as the client gave them;
whether they are free is admission's question.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import (
    FieldErrors,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
    until_error_limit,
)
from sliceplane.api.meta import Document
from sliceplane.api.selectors.distribution import (
    ANNOTATION_TOPOLOGY_AWARE_HINTS,
    ANNOTATION_TOPOLOGY_MODE,
)
from sliceplane.api.service_rules import (
    AFFINITY_TIMEOUT_MAX_S,
    CLUSTER_IP_TYPES,
    EXTERNAL_TYPES,
    NO_CLUSTER_IP,
    POLICIES,
    TYPES,
    has_health_check_port,
    is_externally_accessible,
    is_port,
)
from sliceplane.kit.ip import FAMILIES
from sliceplane.kit.names import check_dns_label, check_dns_subdomain, is_domain_qualified
from sliceplane.server.registry.metadata import in_go, validate_labels
from sliceplane.server.registry.validation.addresses import (
    APP_PROTOCOL,
    PORT_RANGE,
    PROTOCOL,
    check_endpoint_ip,
    check_number,
    check_port,
    ip_problems,
    version_of,
)
from sliceplane.server.registry.validation.load_balancers import check_balancer, check_ports
from sliceplane.server.registry.validation.rules import (
    Field,
    Rules,
    absent,
    among,
    check_unique,
    each,
    of_form,
)

AFFINITIES = ("ClientIP", "None")
TRAFFIC_DISTRIBUTIONS = ("PreferClose", "PreferSameNode", "PreferSameZone")
FAMILY_POLICIES = ("PreferDualStack", "RequireDualStack", "SingleStack")


def is_headless(spec: Document) -> bool:
    return bool(spec.get("clusterIPs", []) == [NO_CLUSTER_IP])


def validate_service(document: Document) -> FieldErrors:
    spec: Document = document["spec"]
    errors = _for_type(spec)
    errors += check_ports(spec)
    errors += _each_port(spec)
    errors += validate_labels("spec.selector", spec.get("selector", {}))
    errors += _affinity(spec)
    errors += cluster_ips(spec)
    errors += each("spec.externalIPs", spec.get("externalIPs", ()), check_endpoint_ip)
    errors += _type(spec)
    errors += _distinct_ports(spec)
    errors += check_balancer(document)
    errors += _policies(spec)
    errors += _topology(document)
    return errors


def _for_type(spec: Document) -> FieldErrors:
    kind = spec.get("type")
    headless = is_headless(spec)
    errors: FieldErrors = []
    if not spec.get("ports") and not headless and kind != "ExternalName":
        errors.append(required("spec.ports"))
    if kind in EXTERNAL_TYPES and headless:
        detail = f"may not be set to 'None' for {kind} services"
        errors.append(invalid_value("spec.clusterIPs[0]", NO_CLUSTER_IP, detail))
    if kind == "ExternalName":
        members = ("clusterIPs", "ipFamilies", "ipFamilyPolicy")
        errors += absent("spec", spec, members, "may not be set for ExternalName services")
        name = spec.get("externalName", "").removesuffix(".")
        if name:
            errors += of_form("spec.externalName", name, check_dns_subdomain)
        else:
            errors.append(required("spec.externalName"))
    return errors


def _each_port(spec: Document) -> FieldErrors:
    ports: list[Document] = spec.get("ports", [])
    names: set[str] = set()

    def port_errors(path: str, port: Document) -> FieldErrors:
        name = port.get("name", "")
        errors: FieldErrors = []
        if name:
            errors += of_form(f"{path}.name", name, check_dns_label) + check_unique(
                f"{path}.name", name, names
            )
        elif len(ports) > 1:
            errors.append(required(f"{path}.name"))
        errors += check_number(f"{path}.port", port.get("port", 0))
        return errors + _LAST_OF_PORT(path, port)

    return each("spec.ports", ports, port_errors)


_LAST_OF_PORT: Final = Rules(
    PROTOCOL,
    lambda path, port: check_port(f"{path}.targetPort", port.get("targetPort", 0)),
    APP_PROTOCOL,
)


def _affinity(spec: Document) -> FieldErrors:
    path = "spec.sessionAffinityConfig"
    kind = spec.get("sessionAffinity")
    config = spec.get("sessionAffinityConfig")
    if not kind:
        return [required("spec.sessionAffinity")]
    if kind not in AFFINITIES:
        return [not_supported("spec.sessionAffinity", kind, AFFINITIES)]
    if kind == "None":
        return (
            [forbidden_field(path, "must not be set when session affinity is None")]
            if config is not None
            else []
        )
    timeout = (config or {}).get("clientIP", {}).get("timeoutSeconds")
    if timeout is None:
        return [required(path, "when session affinity type is ClientIP")]
    if not 0 < timeout <= AFFINITY_TIMEOUT_MAX_S:
        detail = f"must be greater than 0 and less than {AFFINITY_TIMEOUT_MAX_S}"
        return [invalid_value(f"{path}.clientIP.timeoutSeconds", timeout, detail)]
    return []


def cluster_ips(spec: Document) -> FieldErrors:
    """Addresses, families and policy against each other."""
    if spec.get("type") == "ExternalName":
        return []
    path = "spec.clusterIPs"
    addresses = spec.get("clusterIPs", [])
    families: list[str] = spec.get("ipFamilies", [])
    errors: FieldErrors = []
    primary = spec.get("clusterIP", "")
    if primary and not addresses:
        errors.append(required(path))
    elif primary and addresses[0] != primary:
        errors.append(invalid_value(path, addresses, "first value must match `clusterIP`"))
    elif addresses and not primary:
        errors.append(
            invalid_value(path, addresses, "must be empty when `clusterIP` is not specified")
        )
    seen: set[str] = set()
    errors += each(
        "spec.ipFamilies",
        families,
        lambda where, family: among(where, family, FAMILIES) + check_unique(where, family, seen),
    )
    errors += Rules(Field("ipFamilyPolicy", choices=FAMILY_POLICIES))("spec", spec)
    bad = _bad_addresses(path, addresses)
    errors += bad
    if len(addresses) > 2:
        errors.append(invalid_value(path, addresses, "may only hold up to 2 values"))
    if bad:
        # What follows compares families, and would only restate a bad address.
        return errors
    if len(addresses) > 1 and len({version_of(address) for address in addresses}) < 2:
        errors.append(
            invalid_value(path, addresses, "may specify no more than one IP for each IP family")
        )
    if not is_headless(spec):
        for index, (address, family) in enumerate(zip(addresses, families, strict=False)):
            if family in FAMILIES and version_of(address) != (4 if family == "IPv4" else 6):
                detail = f"expected an {family} value as indicated by `ipFamilies[{index}]`"
                errors.append(invalid_value(f"{path}[{index}]", address, detail))
    return errors


def _bad_addresses(path: str, addresses: list[str]) -> FieldErrors:
    errors: FieldErrors = []
    for index, address in until_error_limit(errors, enumerate(addresses)):
        if index == 0 and address == NO_CLUSTER_IP:
            if len(addresses) > 1:
                errors.append(
                    invalid_value(path, addresses, "'None' must be the first and only value")
                )
            continue
        errors += of_form(f"{path}[{index}]", address, ip_problems)
    return errors


def _type(spec: Document) -> FieldErrors:
    kind = spec.get("type")
    if not kind:
        return [required("spec.type")]
    if kind not in TYPES:
        return [not_supported("spec.type", kind, TYPES)]
    if kind != "ClusterIP":
        return []
    detail = "may not be used when `type` is 'ClusterIP'"
    return [
        forbidden_field(f"spec.ports[{index}].nodePort", detail)
        for index, port in enumerate(spec.get("ports", ()))
        if port.get("nodePort")
    ]


def _distinct_ports(spec: Document) -> FieldErrors:
    ports: list[Document] = spec.get("ports", [])
    node_ports: set[tuple[str, int]] = set()
    numbers: set[tuple[str, int]] = set()

    def node_port_errors(path: str, port: Document) -> FieldErrors:
        number = port.get("nodePort", 0)
        key = (port.get("protocol", ""), number)
        return check_unique(f"{path}.nodePort", key, node_ports, number) if number else []

    def port_errors(path: str, port: Document) -> FieldErrors:
        # As upstream: Go's own struct is shown, with what does not count in the comparison left
        # empty.
        empty = {"appProtocol": None, "targetPort": 0, "nodePort": 0}
        rendered = in_go({**port, "name": "", **empty}, *_GO_PORT, protocol="", port=0)
        return check_unique(
            path, (port.get("protocol", ""), port.get("port", 0)), numbers, rendered
        )

    return each("spec.ports", ports, node_port_errors) + each("spec.ports", ports, port_errors)


_GO_PORT: Final = ("name", "protocol", "appProtocol", "port", "targetPort", "nodePort")


def _policies(spec: Document) -> FieldErrors:
    kind = spec.get("type")
    errors: FieldErrors = []
    path = "spec.externalTrafficPolicy"
    external = spec.get("externalTrafficPolicy")
    accessible = is_externally_accessible(kind, spec.get("externalIPs"))
    if external and external not in POLICIES:
        errors.append(not_supported(path, external, POLICIES))
    elif external and not accessible:
        errors.append(
            invalid_value(path, external, "may only be set for externally-accessible services")
        )
    elif accessible and not external:
        errors.append(required(path))
    health = spec.get("healthCheckNodePort", 0)
    if health and not has_health_check_port(kind, external):
        detail = (
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        )
        errors.append(invalid_value("spec.healthCheckNodePort", health, detail))
    elif health and not is_port(health):
        errors.append(invalid_value("spec.healthCheckNodePort", health, PORT_RANGE))
    internal = spec.get("internalTrafficPolicy")
    if internal is None and kind in CLUSTER_IP_TYPES:
        errors.append(required("spec.internalTrafficPolicy"))
    elif internal is not None:
        errors += among("spec.internalTrafficPolicy", internal, POLICIES)
    distribution = spec.get("trafficDistribution")
    # beside upstream's values, the name of a heuristic (KEP-4444, "Implementation specific
    # heuristics")
    if distribution is None or is_domain_qualified(distribution):
        return errors
    return errors + among("spec.trafficDistribution", distribution, TRAFFIC_DISTRIBUTIONS)


def _topology(document: Document) -> FieldErrors:
    """The two names of one annotation may not contradict each other."""
    annotations = document["metadata"].get("annotations", {})
    mode = annotations.get(ANNOTATION_TOPOLOGY_MODE)
    hints = annotations.get(ANNOTATION_TOPOLOGY_AWARE_HINTS)
    if mode is None or hints is None or mode == hints:
        return []
    detail = f"must match annotations[{ANNOTATION_TOPOLOGY_AWARE_HINTS}] when both are specified"
    return [invalid_value(f"metadata.annotations[{ANNOTATION_TOPOLOGY_MODE}]", mode, detail)]
