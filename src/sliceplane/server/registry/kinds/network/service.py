"""Service: what it is given, what may be said of it, and what becomes of both when its type
changes.

The rules of one version of a Service are in ``server.registry.validation.services``
(``load_balancers`` for what only those have), those of a change in
``server.registry.admission.service_update``. Addresses and node ports come from
``server.registry.admission.services``; what an update keeps of them is in
``server.registry.admission.service_update``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from sliceplane.api import gates as names
from sliceplane.api.core import Service
from sliceplane.api.errors import FieldErrors, not_supported
from sliceplane.api.gates import Gates
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import Services
from sliceplane.api.selectors.distribution import (
    ANNOTATION_TOPOLOGY_AWARE_HINTS,
    ANNOTATION_TOPOLOGY_MODE,
)
from sliceplane.api.service_rules import (
    AFFINITY_TIMEOUT_DEFAULT_S,
    CLUSTER_IP_TYPES,
    EXTERNAL_TYPES,
    PROTOCOL_DEFAULT,
    is_externally_accessible,
)
from sliceplane.kit.names import is_domain_qualified
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    Column,
    Printer,
    labels_text,
    mapping,
    number,
    objects,
    text,
    texts,
)
from sliceplane.server.registry.admission.service_update import carry_over, validate_service_update
from sliceplane.server.registry.config import DENY_SERVICE_EXTERNAL_IPS
from sliceplane.server.registry.documents import refused
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.types import Target
from sliceplane.server.registry.validation.addresses import range_spelling, spelling
from sliceplane.server.registry.validation.load_balancers import validate_service_status
from sliceplane.server.registry.validation.rules import Rules, fill
from sliceplane.server.registry.validation.services import is_headless, validate_service

if TYPE_CHECKING:
    from sliceplane.server.registry.core import Core

_DISTRIBUTION: Final = "spec.trafficDistribution"
#: without PreferSameTrafficDistribution
_DISTRIBUTIONS: Final = ("PreferClose",)


def _default(document: Document) -> None:
    port = {"protocol": PROTOCOL_DEFAULT}
    fill(document, {"+spec": {"type": "ClusterIP", "sessionAffinity": "None", "ports": [port]}})
    spec = document["spec"]
    if not spec.get("selector"):
        # An empty one selects nothing and does not survive protobuf: there is one spelling of
        # "none".
        spec.pop("selector", None)
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    elif spec["sessionAffinity"] == "ClientIP":
        fill(
            spec,
            {
                "+sessionAffinityConfig": {
                    "+clientIP": {"timeoutSeconds?": AFFINITY_TIMEOUT_DEFAULT_S}
                }
            },
        )
    for port in spec.get("ports", ()):
        fill(port, {"targetPort": port.get("port", 0)})
    if is_externally_accessible(spec["type"], spec.get("externalIPs")):
        fill(spec, {"externalTrafficPolicy": "Cluster"})
    if spec["type"] in CLUSTER_IP_TYPES:
        fill(spec, {"internalTrafficPolicy": "Cluster"})
    if spec["type"] == "LoadBalancer":
        fill(spec, {"allocateLoadBalancerNodePorts?": True})
        for ingress in document.get("status", {}).get("loadBalancer", {}).get("ingress", ()):
            if ingress.get("ip"):
                fill(ingress, {"ipMode": "VIP"})


def _prepare_create(core: Core, _target: Target, new: Document) -> None:
    _drop_gated(core.config.gates, new, None)
    if new["spec"].get("clusterIP"):
        # Addresses are given as one or as a list; the list counts, and must agree (validation).
        new["spec"].setdefault("clusterIPs", [new["spec"]["clusterIP"]])


def _prepare_update(core: Core, _target: Target, new: Document, old: Document) -> None:
    _drop_gated(core.config.gates, new, old)
    carry_over(new["spec"], old["spec"])


def _drop_gated(gates: Gates, new: Document, old: Document | None) -> None:
    """In place.  *old* is ``None`` for a new Service."""
    used = old is not None and "trafficDistribution" in old.get("spec", {})
    if not used and not gates.enabled(names.SERVICE_TRAFFIC_DISTRIBUTION):
        new.get("spec", {}).pop("trafficDistribution", None)


def _narrow(gates: Gates, errors: FieldErrors, new: Document, old: Document | None) -> FieldErrors:
    """A value that was there before may stay."""
    if gates.enabled(names.PREFER_SAME_TRAFFIC_DISTRIBUTION):
        return errors
    value = new.get("spec", {}).get("trafficDistribution")
    if value is None or value in _DISTRIBUTIONS or is_domain_qualified(value):
        return errors
    if old is not None and value == old.get("spec", {}).get("trafficDistribution"):
        return errors
    others = [error for error in errors if error.field != _DISTRIBUTION]
    return [*others, not_supported(_DISTRIBUTION, value, _DISTRIBUTIONS)]


def _admit(core: Core, new: Document, old: Document | None) -> None:
    """``DenyServiceExternalIPs``, where an operator switched it on: node proxies see to it that an
    external IP takes nothing that is another's, but who may ask for an address outside the cluster
    is for an operator to say (CVE-2020-8554, KEP-2200).
    """
    if DENY_SERVICE_EXTERNAL_IPS not in core.config.admission_plugins:
        return
    kept = set((old or {}).get("spec", {}).get("externalIPs") or ())
    if not kept.issuperset(new["spec"].get("externalIPs") or ()):
        raise refused(Services, new, "Use of external IPs is denied by admission control")


def _usage(service: Object) -> dict[str, int]:
    assert isinstance(service, Service)
    used = {Services.plural: 1}
    ports = sum(1 for port in service.spec.ports or () if port.node_port)
    if ports and service.spec.type in EXTERNAL_TYPES:
        used[NODE_PORTS] = ports
    if service.spec.type == "LoadBalancer":
        used[LOAD_BALANCERS] = 1
    return used


def _warnings(document: Document, _old: Document | None) -> Iterator[str]:
    """Yields upstream's warnings in its order (``pkg/api/service/warnings.go``)."""
    spec: Document = document["spec"]
    headless = spec.get("type") == "ClusterIP" and is_headless(spec)
    if ANNOTATION_TOPOLOGY_AWARE_HINTS in document["metadata"].get("annotations", {}):
        yield (
            f"annotation {ANNOTATION_TOPOLOGY_AWARE_HINTS} is deprecated, please use "
            f"{ANNOTATION_TOPOLOGY_MODE} instead"
        )
    yield from _spellings(spec, "clusterIPs")
    if headless:
        for member in ("loadBalancerIP", "externalIPs"):
            if spec.get(member):
                yield f"spec.{member} is ignored for headless services"
        if spec.get("sessionAffinity", "None") != "None":
            yield "spec.SessionAffinity is ignored for headless services"
    yield from _spellings(spec, "externalIPs")
    if spec.get("externalIPs") and not headless and spec.get("type") != "ExternalName":
        yield "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
    if spec.get("loadBalancerIP") and spelling(spec["loadBalancerIP"]):
        yield f"spec.loadBalancerIP: {spelling(spec['loadBalancerIP'])}"
    for index, cidr in enumerate(spec.get("loadBalancerSourceRanges", ())):
        problem = range_spelling(cidr.strip())
        if problem:
            yield f"spec.loadBalancerSourceRanges[{index}]: {problem}"
    if spec.get("type") == "ExternalName":
        if spec.get("externalIPs"):
            yield 'spec.externalIPs is ignored when spec.type is "ExternalName"'
    elif spec.get("externalName"):
        yield 'spec.externalName is ignored when spec.type is not "ExternalName"'
    if spec.get("trafficDistribution") == "PreferClose":
        yield 'spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"'


def _spellings(spec: Document, member: str) -> Iterator[str]:
    """Yields a warning for each address of *member* that is not written in its canonical form."""
    for index, address in enumerate(spec.get(member, ())):
        problem = "" if address == "None" else spelling(address)
        if problem:
            yield f"spec.{member}[{index}]: {problem}"


def _cluster_ip(service: Document) -> str:
    cluster_ips = texts(service, "spec", "clusterIPs")
    return (cluster_ips[0] if cluster_ips else text(service, "spec", "clusterIP")) or NONE


def _external_ip(service: Document) -> str:
    external_ips = texts(service, "spec", "externalIPs")
    match text(service, "spec", "type"):
        case "ClusterIP" | "NodePort" | "":
            return ",".join(external_ips) or NONE
        case "LoadBalancer":
            ingress = objects(service, "status", "loadBalancer", "ingress")
            balancers = {text(item, "ip") or text(item, "hostname") for item in ingress} - {""}
            return ",".join([*sorted(balancers), *external_ips]) or "<pending>"
        case "ExternalName":
            return text(service, "spec", "externalName") or NONE
        case _:
            return UNKNOWN


def _port(port: Document) -> str:
    node_port = number(port, "nodePort")
    numbers = f"{number(port, 'port')}:{node_port}" if node_port else f"{number(port, 'port')}"
    return f"{numbers}/{text(port, 'protocol')}"


NODE_PORTS: Final = "services.nodeports"
LOAD_BALANCERS: Final = "services.loadbalancers"


SERVICE: Final = kind.Kind(
    resource=Services,
    defaults=_default,
    prepare_create=_prepare_create,
    prepare_update=_prepare_update,
    rules=Rules(lambda _path, document: validate_service(document)),
    update_rules=validate_service_update,
    warnings=_warnings,
    status=kind.Status(
        first=lambda _document: {"loadBalancer": {}}, validate=validate_service_status
    ),
    admission=kind.Admission(
        narrow=_narrow,
        admit=_admit,
        allocate=lambda core, new, old, *, dry_run: core.services.admit(new, old, dry_run=dry_run),
        claim=lambda core, document, now: core.claim_addresses(document, now),
    ),
    quota=kind.counted_as(Services.plural, NODE_PORTS, LOAD_BALANCERS, usage=_usage, rises=True),
    granted=kind.edited("status"),
    columns=Printer(
        (
            NAME,
            Column("Type", "How the service is exposed.", "spec.type"),
            Column(
                "Cluster-IP",
                "First virtual address of the service inside the cluster.",
                _cluster_ip,
            ),
            Column(
                "External-IP",
                "Addresses under which the service is reached from outside.",
                _external_ip,
            ),
            Column(
                "Port(s)",
                "Ports of the service, with node ports where there are any.",
                lambda service: ",".join(map(_port, objects(service, "spec", "ports"))) or NONE,
            ),
            AGE,
            Column(
                "Selector",
                "Labels that select the service's pods.",
                lambda service: labels_text(mapping(service, "spec", "selector")),
                priority=1,
            ),
        )
    ),
)
