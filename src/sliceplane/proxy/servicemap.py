"""Service to service ports, for one IP family (reference A1, A2)."""

from __future__ import annotations

from sliceplane.api.core import Service
from sliceplane.api.discovery import LABEL_HEADLESS, LABEL_SERVICE_PROXY_NAME
from sliceplane.kit.ip import Family
from sliceplane.proxy.addresses import canonical_of
from sliceplane.proxy.model import PORT_MAX, PROTOCOLS, ServiceKey, ServicePort, ServicePortName

#: types of Service whose externalTrafficPolicy is looked at; ClusterIP only where it has external IPs
_EXTERNAL_TYPES = ("LoadBalancer", "NodePort")


def service_ports(service: Service, family: Family) -> tuple[ServicePort, ...]:
    """The ports that a proxy of *family* serves, in the order of the spec; none for a Service that is not its
    business.

    Left out: headless (``clusterIP: None``) and not yet allocated Services, ExternalName, Services without an
    address of the family, and those that another proxy was asked for (the label's presence alone decides).
    No API server lets these through, and neither may make a data plane fail for everybody else: a port number or a
    protocol that does not exist is left out; of two ports with one name and protocol the first counts.
    """
    spec = service.spec
    labels = service.metadata.labels or {}
    if LABEL_SERVICE_PROXY_NAME in labels or LABEL_HEADLESS in labels or spec.type == "ExternalName":
        return ()
    if spec.cluster_ip in {"", "None"}:
        return ()
    cluster_ip = _first_of_family(spec.cluster_ips or (spec.cluster_ip,), family)
    if cluster_ip is None:
        return ()
    external = tuple(ip for text in spec.external_ips or () if (ip := canonical_of(text, family)) is not None)
    key = ServiceKey(service.metadata.namespace, service.metadata.name)
    ports: dict[ServicePortName, ServicePort] = {}
    for port in spec.ports or ():
        name = ServicePortName(key, port.name, port.protocol)
        if name in ports or port.protocol not in PROTOCOLS or not 0 < port.port <= PORT_MAX:
            continue
        ports[name] = ServicePort(
            name=name,
            cluster_ip=cluster_ip,
            port=port.port,
            node_port=port.node_port,
            external_ips=external,
            internal_local=spec.internal_traffic_policy == "Local",
            external_local=spec.external_traffic_policy == "Local" and (spec.type in _EXTERNAL_TYPES or bool(external)),
        )
    return tuple(ports.values())


def _first_of_family(texts: tuple[str, ...], family: Family) -> str | None:
    for text in texts:
        address = canonical_of(text, family)
        if address is not None:
            return address
    return None
