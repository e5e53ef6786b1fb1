"""The objects of the cluster, and the Services that concern an address."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import cached_property

import msgspec

from sliceplane.api.core import Node, Pod, Service, ServiceCIDR
from sliceplane.consume.model import ServedPort, ServiceKey, canonical_of
from sliceplane.consume.servicemap import service_ports, why_not_served
from sliceplane.diagnose.trace.question import family_of
from sliceplane.kit.ip import Family, networks


class TracedCluster(msgspec.Struct, frozen=True, dict=True):
    """``pods``: with one of the addresses of the query. ``unread``: a sentence for each list that
    the server refused.
    """

    services: tuple[Service, ...] = ()
    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    service_cidrs: tuple[ServiceCIDR, ...] = ()
    unread: tuple[str, ...] = msgspec.field(default=())

    @cached_property
    def by_key(self) -> dict[ServiceKey, Service]:
        """Sorted by key."""
        services = {
            ServiceKey(service.metadata.namespace, service.metadata.name): service
            for service in self.services
        }
        return {key: services[key] for key in sorted(services)}

    @cached_property
    def node_by_name(self) -> dict[str, Node]:
        return {
            node.metadata.name: node
            for node in sorted(self.nodes, key=lambda node: node.metadata.name)
        }

    def ports(self, key: ServiceKey, family: Family) -> tuple[ServedPort, ...]:
        """Returns the ports that a proxy serves."""
        if (key, family) not in self._served:
            service = self.by_key.get(key)
            self._served[key, family] = (
                service_ports(service, family) if service is not None else ()
            )
        return self._served[key, family]

    @cached_property
    def _served(self) -> dict[tuple[ServiceKey, Family], tuple[ServedPort, ...]]:
        return {}

    def node_of(self, ip: str) -> Node | None:
        """Returns the Node that has the address *ip*."""
        return next(
            (
                node
                for node in self.node_by_name.values()
                if ip in node_addresses(node, family_of(ip))
            ),
            None,
        )

    def pod_of(self, ip: str) -> Pod | None:
        """Returns the Pod that has *ip*; if several have it, one that is not being deleted."""
        family = family_of(ip)
        pods = [
            pod
            for pod in self.pods
            if not pod.has_ended and ip in {canonical_of(text, family) for text in pod.status.ips}
        ]
        pods.sort(key=lambda pod: (pod.metadata.deletion_timestamp is not None, pod.metadata.key))
        return pods[0] if pods else None

    def roles(self, ip: str, port: int) -> tuple[str, ...]:
        """Describes the roles of *ip* (with *port*); empty: it is unknown to the cluster."""
        family = family_of(ip)
        node = self.node_of(ip)
        pod = self.pod_of(ip)
        roles = [
            f"{role} of Service {key}"
            for key in self.by_key
            for role in dict.fromkeys(
                role_of(service_port, ip, port) for service_port in self.ports(key, family)
            )
            if role and (role != "node port" or node is not None)
        ]
        if node is not None:
            roles.append(f"address of Node {node.metadata.name}")
        if pod is not None:
            roles.append(f"address of Pod {pod.metadata.key}")
        if not roles:
            roles += [
                f"cluster IP of Service {key}, which no proxy serves: {why}"
                for key, why in self._unserved(ip)
            ]
        if not roles and (inside := self.range_of(ip)):
            roles.append(f"unallocated, in the range {inside} of cluster IPs")
        return tuple(roles)

    def _unserved(self, ip: str) -> list[tuple[ServiceKey, str]]:
        family = family_of(ip)
        return [
            (key, why_not_served(service))
            for key, service in self.by_key.items()
            if why_not_served(service)
            and ip
            in {
                canonical_of(text, family)
                for text in service.spec.cluster_ips or (service.spec.cluster_ip,)
            }
        ]

    def range_of(self, ip: str) -> str:
        texts = [
            text for service_cidr in self.service_cidrs for text in service_cidr.spec.cidrs or ()
        ]
        address = ipaddress.ip_address(ip)
        ranges = networks(texts, family_of(ip))
        return next((text for text in ranges if address in ipaddress.ip_network(text)), "")

    def claimants(
        self, family: Family, targets: Iterable[tuple[str, int]]
    ) -> frozenset[ServiceKey]:
        """Returns the Services that can affect a packet to any of *targets* (address, port): those
        that claim the address, on any port, and those that claim the port as a node port.
        O(Services).
        """
        pairs = list(targets)
        ips = {ip for ip, _ in pairs}
        ports = {port for _, port in pairs}
        return frozenset(
            key
            for key in self.by_key
            for port in self.ports(key, family)
            if port.node_port in ports
            or not ips.isdisjoint((port.cluster_ip, *port.external_ips, *port.vips))
        )


def role_of(port: ServedPort, ip: str, number: int) -> str:
    """Returns the role of a packet to *ip* and *number* for a service port, whatever the number of
    that port; "": none.
    """
    if ip == port.cluster_ip:
        return "cluster IP"
    if ip in port.external_ips:
        return "external IP"
    if ip in port.vips:
        return "load balancer address"
    return "node port" if port.node_port and number == port.node_port else ""


def node_addresses(node: Node, family: Family) -> tuple[str, ...]:
    """Returns the canonical addresses, in the order of the Node."""
    addresses = (canonical_of(entry.address, family) for entry in node.status.addresses or ())
    return tuple(dict.fromkeys(ip for ip in addresses if ip is not None))
