"""Services and what is behind them: Service, Endpoints, EndpointSlice, ServiceCIDR."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sliceplane.api.meta import Document
from sliceplane.documents.table.ages import age
from sliceplane.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    UNSET,
    Cell,
    Column,
    Printer,
    first_few,
    labels_text,
    mapping,
    name_of,
    number,
    objects,
    text,
    texts,
)


def _service(service: Document, now: float) -> tuple[Cell, ...]:
    cluster_ips = texts(service, "spec", "clusterIPs")
    return (
        name_of(service),
        text(service, "spec", "type"),
        (cluster_ips[0] if cluster_ips else text(service, "spec", "clusterIP")) or NONE,
        _external_ip(service),
        ",".join(map(_port, objects(service, "spec", "ports"))) or NONE,
        age(service, now),
        labels_text(mapping(service, "spec", "selector")),
    )


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


def _endpoints(endpoints: Document, now: float) -> tuple[Cell, ...]:
    subsets = objects(endpoints, "subsets")
    shown = first_few(_host_ports(subsets), "", count=sum(map(_pairs, subsets))) if subsets else NONE
    return name_of(endpoints), shown, age(endpoints, now)


def _pairs(subset: Document) -> int:
    return len(objects(subset, "addresses")) * max(1, len(objects(subset, "ports")))


def _host_ports(subsets: list[Document]) -> Iterator[str]:
    """Ready addresses times ports, ports outside; addresses alone where a subset has no port."""
    for subset in subsets:
        ips = [text(address, "ip") for address in objects(subset, "addresses")]
        ports = objects(subset, "ports")
        if not ports:
            yield from ips
        for port in ports:
            for ip in ips:
                host = f"[{ip}]" if ":" in ip else ip
                yield f"{host}:{number(port, 'port')}"


def _endpoint_slice(endpoint_slice: Document, now: float) -> tuple[Cell, ...]:
    ports = objects(endpoint_slice, "ports")
    addresses = [
        address for endpoint in objects(endpoint_slice, "endpoints") for address in texts(endpoint, "addresses")
    ]
    return (
        name_of(endpoint_slice),
        text(endpoint_slice, "addressType"),
        first_few(map(_slice_port, ports), UNSET, count=len(ports)),
        first_few(addresses, UNSET, count=len(addresses)),
        age(endpoint_slice, now),
    )


def _slice_port(port: Document) -> str:
    """The number; else the name; "*" only if there is neither [quirk: a name of "" is a name]."""
    if port.get("port") is not None:
        return str(number(port, "port"))
    return text(port, "name") if port.get("name") is not None else "*"


def _service_cidr(cidr: Document, now: float) -> tuple[Cell, ...]:
    return name_of(cidr), ",".join(texts(cidr, "spec", "cidrs")), age(cidr, now)


def _ip_address(address: Document, _now: float) -> tuple[Cell, ...]:
    """The parent as RESOURCE.GROUP/NAMESPACE/NAME, without what it has not."""
    parent = mapping(address, "spec", "parentRef")
    resource = ".".join(part for part in (text(parent, "resource"), text(parent, "group")) if part)
    parts = (resource.lower(), text(parent, "namespace"), text(parent, "name"))
    return name_of(address), "/".join(part for part in parts if part) or NONE


PRINTERS: Final = {
    "services": Printer(
        (
            NAME,
            Column(name="Type", description="How the service is exposed."),
            Column(name="Cluster-IP", description="First virtual address of the service inside the cluster."),
            Column(name="External-IP", description="Addresses under which the service is reached from outside."),
            Column(name="Port(s)", description="Ports of the service, with node ports where there are any."),
            AGE,
            Column(name="Selector", priority=1, description="Labels that select the service's pods."),
        ),
        _service,
    ),
    "endpoints": Printer(
        (NAME, Column(name="Endpoints", description="Ready addresses with their ports."), AGE), _endpoints
    ),
    "endpointslices.discovery.k8s.io": Printer(
        (
            NAME,
            Column(name="AddressType", description="Family of the slice's addresses: IPv4, IPv6 or FQDN."),
            Column(name="Ports", description="Ports that every endpoint of the slice has."),
            Column(name="Endpoints", description="Addresses of the endpoints, ready or not."),
            AGE,
        ),
        _endpoint_slice,
    ),
    "servicecidrs.networking.k8s.io": Printer(
        (NAME, Column(name="CIDRs", description="Ranges that cluster IPs are taken from."), AGE), _service_cidr
    ),
    "ipaddresses.networking.k8s.io": Printer(
        (NAME, Column(name="ParentRef", description="The object that holds the address.")), _ip_address
    ),
}
