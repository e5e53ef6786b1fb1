"""Rules that hold for every Service, for servers and for readers.

Servers ask it of documents and readers of projections, so each rule takes the plain values of the
fields that it rests on. Upstream has these rules in ``pkg/apis/core/validation/validation.go``,
``pkg/apis/core/v1/defaults.go`` and ``pkg/api/v1/service/util.go``; families of addresses are in
``kit.ip``.
"""

from __future__ import annotations

from typing import Final

#: in the order in which messages list them
TYPES: Final = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
#: types that are given node ports, and that traffic from outside is meant for
EXTERNAL_TYPES: Final = ("LoadBalancer", "NodePort")
#: types that have a cluster IP, unless they are headless
CLUSTER_IP_TYPES: Final = ("ClusterIP", *EXTERNAL_TYPES)
PROTOCOLS: Final = ("TCP", "UDP", "SCTP")
#: what a port without one has
PROTOCOL_DEFAULT: Final = "TCP"
POLICIES: Final = ("Cluster", "Local")
#: in place of a cluster IP: the Service is headless, clients connect to its Pods themselves
NO_CLUSTER_IP: Final = "None"
PORT_MAX: Final = 65535
#: of ``sessionAffinity: ClientIP`` where the Service does not say
AFFINITY_TIMEOUT_DEFAULT_S: Final = 10_800
AFFINITY_TIMEOUT_MAX_S: Final = 86_400


def is_port(number: int) -> bool:
    """Returns True if a port can have this number."""
    return 0 < number <= PORT_MAX


def is_externally_accessible(service_type: str | None, external_ips: object) -> bool:
    """Returns True if ``externalTrafficPolicy`` applies: it is then required, and otherwise
    refused.
    """
    return service_type in EXTERNAL_TYPES or (service_type == "ClusterIP" and bool(external_ips))


def has_health_check_port(service_type: str | None, external_policy: str | None) -> bool:
    """Returns True if a load balancer asks each node if it has endpoints: ``healthCheckNodePort``
    is then allocated, and otherwise refused.
    """
    return service_type == "LoadBalancer" and external_policy == "Local"


def takes_node_ports(service_type: str | None, allocates: bool | None) -> bool:
    """Returns True if every port gets a node port. *allocates*: ``allocateLoadBalancerNodePorts``,
    which counts for load balancers alone.
    """
    return service_type == "NodePort" or (service_type == "LoadBalancer" and allocates is not False)
