"""Service to service ports, for one IP family (upstream: ``pkg/proxy/servicechangetracker.go``,
``serviceport.go``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sliceplane.api.core import Service
from sliceplane.api.discovery import LABEL_HEADLESS, LABEL_SERVICE_PROXY_NAME
from sliceplane.api.service_rules import (
    AFFINITY_TIMEOUT_DEFAULT_S,
    AFFINITY_TIMEOUT_MAX_S,
    NO_CLUSTER_IP,
    PROTOCOLS,
    has_health_check_port,
    is_externally_accessible,
    is_port,
)
from sliceplane.consume.bounds import (
    DESTINATIONS_MAX,
    PORTS_MAX,
    READ_MAX,
    SOURCES_MAX,
    Excess,
    share,
)
from sliceplane.consume.model import (
    ServedPort,
    ServiceKey,
    ServicePortName,
    canonical_of,
    ordinary_of,
)
from sliceplane.kit.ip import Family, networks

#: names become parts of the names of chains, of comments and of lines in logs. An API server's own
#: rule is narrower (RFC 1123); what is beyond this could be read as another name, or as more than a
#: name
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,253}")
_PORT_NAME = re.compile(r"[A-Za-z0-9_.\-]{0,253}")


def service_ports(service: Service, family: Family) -> tuple[ServedPort, ...]:
    """The ports that a proxy of *family* serves, in the order of the spec; none for a Service that
    is not its business.

    Left out: headless (``clusterIP: None``) and not yet allocated Services, ExternalName, Services
    without an address of the family, and those that another proxy was asked for (the label's
    presence alone decides). No API server lets these through, and neither may make a data plane
    fail for everybody else: a port number or a protocol that does not exist, and a name that no
    object can have, is left out; of two ports with one name and protocol the first counts. What is
    beyond ``bounds`` is left out, too.
    """
    return read(service, family)[0]


def read(service: Service, family: Family) -> tuple[tuple[ServedPort, ...], Excess]:
    """``service_ports``, and how much is beyond the bounds."""
    if why_not_served(service):
        return (), Excess()
    spec = service.spec
    cluster_ip = _first_of_family(spec.cluster_ips or (spec.cluster_ip,), family)
    if cluster_ip is None:
        return (), Excess()
    key = ServiceKey(service.metadata.namespace, service.metadata.name)
    numbers: dict[ServicePortName, tuple[int, int]] = {}
    for port in spec.ports or ():
        sound = (
            port.protocol in PROTOCOLS and is_port(port.port) and _PORT_NAME.fullmatch(port.name)
        )
        if sound:
            node_port = port.node_port if is_port(port.node_port) else 0
            numbers.setdefault(
                ServicePortName(key, port.name, port.protocol), (port.port, node_port)
            )
    served = list(numbers.items())[:PORTS_MAX]
    ingress = service.status.load_balancer.ingress or ()
    all_vips = _of_family(
        [entry.ip for entry in ingress[:READ_MAX] if entry.ip_mode in {None, "", "VIP"}], family
    )
    externals = spec.external_ips or ()
    sources = spec.load_balancer_source_ranges or ()
    all_external = _of_family(externals[:READ_MAX], family)
    most = share(DESTINATIONS_MAX, len(served))
    vips = all_vips[:most]
    external = all_external[: most - len(vips)]
    all_ranges = networks(sources[:READ_MAX], family)
    if any(network.endswith("/0") for network in all_ranges):
        all_ranges = ()
    accessible = is_externally_accessible(spec.type or "ClusterIP", external)
    ranges = all_ranges[: share(SOURCES_MAX, len(served))]
    ports = tuple(
        ServedPort(
            name=name,
            cluster_ip=cluster_ip,
            port=number,
            node_port=node_port,
            external_ips=external,
            vips=vips,
            source_ranges=ranges,
            affinity_timeout_s=_affinity_s(service),
            internal_local=spec.internal_traffic_policy == "Local",
            external_local=accessible and spec.external_traffic_policy == "Local",
        )
        for name, (number, node_port) in served
    )
    excess_addresses = (
        len(all_vips) + len(all_external) - len(vips) - len(external) + len(externals[READ_MAX:])
    )
    excess_ranges = len(all_ranges) - len(ranges) + len(sources[READ_MAX:])
    return ports, Excess(len(numbers) - len(served), excess_addresses, excess_ranges)


def why_not_served(service: Service) -> str:
    """Returns why every proxy like ours ignores *service*, in a few words; "" if it is served."""
    spec = service.spec
    meta = service.metadata
    labels = service.metadata.labels or {}
    if not (_NAME.fullmatch(meta.namespace) and _NAME.fullmatch(meta.name)):
        return "a namespace or name that no Kubernetes API lets through"
    for label in (LABEL_SERVICE_PROXY_NAME, LABEL_HEADLESS):
        if label in labels:
            return f"label {label}"
    if spec.type == "ExternalName":
        return f"type ExternalName, a name for {spec.external_name}"
    if spec.cluster_ip == NO_CLUSTER_IP:
        return "headless: clients connect to its Pods themselves"
    return "" if spec.cluster_ip else "no cluster IP yet"


def health_port(service: Service) -> int:
    """healthCheckNodePort, where it means something; else 0."""
    spec = service.spec
    is_needed = has_health_check_port(spec.type, spec.external_traffic_policy)
    return spec.health_check_node_port if is_needed and is_port(spec.health_check_node_port) else 0


def _affinity_s(service: Service) -> int:
    spec = service.spec
    if spec.session_affinity != "ClientIP":
        return 0
    client_ip = (
        spec.session_affinity_config.client_ip if spec.session_affinity_config is not None else None
    )
    seconds = client_ip.timeout_seconds if client_ip is not None else None
    if seconds is None or seconds <= 0:
        return AFFINITY_TIMEOUT_DEFAULT_S
    return min(seconds, AFFINITY_TIMEOUT_MAX_S)


def _of_family(texts: Iterable[str], family: Family) -> tuple[str, ...]:
    """Each once, in the order given."""
    return tuple(
        dict.fromkeys(ip for text in texts if (ip := canonical_of(text, family)) is not None)
    )


def _first_of_family(texts: tuple[str, ...], family: Family) -> str | None:
    for text in texts:
        address = ordinary_of(text, family)
        if address is not None:
            return address
    return None
