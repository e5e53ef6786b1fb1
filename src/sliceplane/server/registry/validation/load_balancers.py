"""Service: what only load balancers have: source ranges, their ports, and the addresses that status
tells.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from sliceplane.api.errors import FieldErrors, forbidden_field, invalid_value, required
from sliceplane.api.meta import Document
from sliceplane.kit.names import check_dns_subdomain, check_qualified_name
from sliceplane.server.registry.validation.addresses import ip_problem, version_of
from sliceplane.server.registry.validation.rules import among, each, of_form

IP_MODES: Final = ("Proxy", "VIP")
ANNOTATION_SOURCE_RANGES: Final = "service.beta.kubernetes.io/load-balancer-source-ranges"
_KUBELET_PORT: Final = 10250
#: Python reads no number of more than some thousand
_PREFIX_DIGITS_MAX: Final = 100
_ONLY_LOAD_BALANCER: Final = "may only be used when `type` is 'LoadBalancer'"
NOT_A_CIDR: Final = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
_NOT_A_LIST: Final = "must be a list of IP ranges. For example, 10.240.0.0/24,10.250.0.0/24"


def check_ports(spec: Document) -> FieldErrors:
    """A cloud's firewall opens the port on the nodes, too, where the kubelet has one of its own."""
    if spec.get("type") != "LoadBalancer":
        return []
    detail = f"may not expose port {_KUBELET_PORT} externally since it is used by kubelet"
    return [
        invalid_value(f"spec.ports[{index}]", _KUBELET_PORT, detail)
        for index, port in enumerate(spec.get("ports", ()))
        if port.get("port") == _KUBELET_PORT
    ]


def check_balancer(document: Document) -> FieldErrors:
    """Source ranges, node ports and class."""
    spec: Document = document["spec"]
    is_balancer = spec.get("type") == "LoadBalancer"
    errors = _source_ranges(document, spec, is_balancer)
    if spec.get("allocateLoadBalancerNodePorts") is not None and not is_balancer:
        errors.append(forbidden_field("spec.allocateLoadBalancerNodePorts", _ONLY_LOAD_BALANCER))
    balancer_class = spec.get("loadBalancerClass")
    if balancer_class is not None and not is_balancer:
        errors.append(forbidden_field("spec.loadBalancerClass", _ONLY_LOAD_BALANCER))
    elif balancer_class is not None:
        errors += of_form("spec.loadBalancerClass", balancer_class, check_qualified_name)
    return errors


def _source_ranges(document: Document, spec: Document, is_balancer: bool) -> FieldErrors:
    """The field, or else the annotation from before there was one."""
    ranges: list[str] = spec.get("loadBalancerSourceRanges", [])
    if ranges:
        if not is_balancer:
            return [forbidden_field("spec.LoadBalancerSourceRanges", _ONLY_LOAD_BALANCER)]
        return [
            invalid_value(f"spec.LoadBalancerSourceRanges[{index}]", text, problem)
            for index, text in enumerate(ranges)
            if (problem := cidr_problem(text.strip()))
        ]
    annotation = document["metadata"].get("annotations", {}).get(ANNOTATION_SOURCE_RANGES)
    if annotation is None:
        return []
    path = f"metadata.annotations[{ANNOTATION_SOURCE_RANGES}]"
    if not is_balancer:
        return [forbidden_field(path, _ONLY_LOAD_BALANCER)]
    if annotation.strip() and any(
        cidr_problem(text.strip()) == NOT_A_CIDR for text in annotation.split(",")
    ):
        return [invalid_value(path, annotation.strip(), _NOT_A_LIST)]
    return []


def cidr_problem(text: str) -> str:
    """Why *text* is not a range as new data must spell it; "" if it is."""
    address, slash, prefix = text.partition("/")
    version = version_of(address)
    if not slash or not version or not (prefix.isascii() and prefix.isdigit()):
        return NOT_A_CIDR
    mapped = version == 4 and ":" in address
    if len(prefix) > _PREFIX_DIGITS_MAX or int(prefix) > (
        32 if version == 4 and not mapped else 128
    ):
        return NOT_A_CIDR
    if mapped:
        return "must not have an IPv4-mapped IPv6 address"
    if ip_problem(address) or (len(prefix) > 1 and prefix[0] == "0"):
        return "must not have leading 0s in IP or prefix length"
    network = ipaddress.ip_network(text, strict=False)
    if network.network_address != ipaddress.ip_address(address):
        return "must not have bits set beyond the prefix length"
    return ""


def validate_service_status(new: Document, old: Document) -> FieldErrors:  # noqa: ARG001
    path = "status.loadBalancer.ingress"
    ingress: list[Document] = new.get("status", {}).get("loadBalancer", {}).get("ingress", [])
    if ingress and new["spec"].get("type") != "LoadBalancer":
        return [forbidden_field(path, "may only be used when `spec.type` is 'LoadBalancer'")]
    return each(path, ingress, _ingress)


def _ingress(path: str, ingress: Document) -> FieldErrors:
    address = ingress.get("ip", "")
    mode = ingress.get("ipMode")
    host = ingress.get("hostname", "")
    errors: FieldErrors = []
    if address and (problem := ip_problem(address)):
        errors.append(invalid_value(f"{path}.ip", address, problem))
    if address and mode is None:
        errors.append(required(f"{path}.ipMode", "must be specified when `ip` is set"))
    elif not address and mode is not None:
        errors.append(
            forbidden_field(f"{path}.ipMode", "may not be specified when `ip` is not set")
        )
    elif mode is not None:
        errors += among(f"{path}.ipMode", mode, IP_MODES)
    if host:
        errors += of_form(f"{path}.hostname", host, check_dns_subdomain)
        if version_of(host):
            errors.append(
                invalid_value(f"{path}.hostname", host, "must be a DNS name, not an IP address")
            )
    return errors
