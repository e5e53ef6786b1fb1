"""The facts of Pods and Nodes that endpoints are built from, computed once and shared by all
Services.

A ``PodFacts`` is one version of one Pod, a ``NodeFacts`` one version of one Node; both are
immutable. They contain *pieces of JSON*, and an endpoint is a concatenation of a few pieces. So the
endpoint for the hundredth Service costs about a microsecond, and two endpoints are equal exactly if
their bytes are. The pieces equal the output of ``api.codec.encode`` for
``api.discovery.SliceEndpoint``; a test compares the two.
"""

from __future__ import annotations

from decimal import DecimalException
from math import ceil
from typing import Final

from msgspec.structs import replace

from sliceplane.api.codec import encode
from sliceplane.api.core import Node, Pod
from sliceplane.api.discovery import ANNOTATION_DRAIN, LABEL_REGION, LABEL_ZONE
from sliceplane.api.meta import ObjectReference, find_condition
from sliceplane.api.quantity import amount
from sliceplane.kit.ip import Family, canonical_with_family
from sliceplane.kit.times import parse_nanoseconds
from sliceplane.slices.heuristics.types import EndpointLocation

_CONTROL_PLANE_LABELS = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
#: ``PodFacts.readiness`` of an endpoint that takes new traffic
READY: Final = 2

#: (name, protocol, container port), in the order of lookup
NamedPorts = tuple[tuple[str, str, int], ...]


class Addresses:
    """A Pod's addresses of one family: the identity of an endpoint with them, and their JSON."""

    __slots__ = ("first", "head", "identity")

    def __init__(self, pod: str, addresses: tuple[str, ...]) -> None:
        self.first: Final = addresses[0]
        self.identity: Final = endpoint_identity(pod, addresses, None)
        self.head: Final = b'{"addresses":' + encode(addresses) + b',"conditions":'


class PodFacts:
    """One version of a Pod.

    ``excluded``: never an endpoint (finished, or without any address). ``addresses`` has an entry
    for each family in ``status.podIPs``. ``drained``: an annotation requests its removal from its
    Services. ``takes_traffic``: it may be an endpoint, and takes new traffic (``readiness`` is
    ``READY``).
    """

    __slots__ = (
        "_named_ports",
        "_transition_ns",
        "addresses",
        "drained",
        "excluded",
        "hostname",
        "labels",
        "name",
        "namespace",
        "node_name",
        "pod",
        "serving",
        "subdomain",
        "takes_traffic",
        "target",
        "terminating",
        "transition",
    )

    def __init__(self, pod: Pod, earlier: PodFacts | None = None) -> None:
        """*earlier* are the facts of an earlier version; its pieces are reused where they are
        equal.
        """
        meta = pod.metadata
        spec = pod.spec
        status = pod.status
        self.pod: Final = pod
        self.namespace: Final = meta.namespace
        self.name: Final = meta.name
        self.labels: Final[dict[str, str]] = meta.labels or {}
        self.node_name: Final = spec.node_name
        self.hostname: Final = spec.hostname
        self.subdomain: Final = spec.subdomain
        self.terminating: Final = meta.deletion_timestamp is not None
        self.excluded: Final = pod.has_ended or not (status.pod_ip or status.pod_ips)
        reusable = earlier if earlier is not None and earlier.pod.metadata.uid == meta.uid else None
        same_ips = reusable is not None and reusable.pod.status.pod_ips == status.pod_ips
        self.addresses: Final[dict[Family, Addresses]] = (
            reusable.addresses if reusable is not None and same_ips else _addresses(pod)
        )
        self.target: Final[bytes] = _target(pod) if reusable is None else reusable.target
        self._named_ports: NamedPorts | None = None
        ready = find_condition(status.conditions, "Ready")
        self.drained: Final = ANNOTATION_DRAIN in (meta.annotations or {})
        self.serving: Final = ready is not None and ready.status == "True" and not self.drained
        self.takes_traffic: Final = self.serving and not self.terminating and not self.excluded
        #: the time (RFC 3339) at which readiness last changed: the Pod's part of the trigger time
        self.transition: Final = None if ready is None else ready.last_transition_time
        self._transition_ns: int | None = None

    @property
    def transition_ns(self) -> int:
        """``transition`` in nanoseconds since the epoch; 0 for none."""
        if self._transition_ns is None:
            self._transition_ns = parse_nanoseconds(self.transition)
        return self._transition_ns

    @property
    def readiness(self) -> int:
        """Readiness as a number: 2, takes new traffic; 1, still serving but terminating; 0,
        neither.
        """
        return 0 if not self.serving else 1 if self.terminating else 2

    @property
    def is_unready_by_node(self) -> bool:
        """True if the Pod is not ready although its containers and gates are: its Node stopped
        reporting.
        """
        if self.serving or self.terminating or self.excluded or self.drained:
            return False
        true = {
            condition.type
            for condition in self.pod.status.conditions or ()
            if condition.status == "True"
        }
        gates = self.pod.spec.readiness_gates or ()
        return "ContainersReady" in true and all(gate.condition_type in true for gate in gates)

    @property
    def topology_keys(self) -> tuple[str, ...]:
        """Topology keys of the Pod's spread constraints, for heuristics."""
        return tuple(
            constraint.topology_key
            for constraint in self.pod.spec.topology_spread_constraints or ()
        )

    @property
    def named_ports(self) -> NamedPorts:
        """Named ports of containers, then of sidecars (init containers that restart always)."""
        if self._named_ports is None:
            ports: list[tuple[str, str, int]] = []
            for container in self.pod.spec.containers or ():
                for port in container.ports or ():
                    if port.name:
                        ports.append((port.name, port.protocol, port.container_port))  # noqa: PERF401 - half the time
            for container in self.pod.spec.init_containers or ():
                if container.restart_policy == "Always":
                    ports.extend(
                        (p.name, p.protocol, p.container_port)
                        for p in container.ports or ()
                        if p.name
                    )
            self._named_ports = tuple(ports)
        return self._named_ports


def endpoint_identity(pod: str, addresses: tuple[str, ...], hostname: str | None) -> str:
    """Returns the identity of an endpoint within the namespace of its slice: equal for two versions
    of the same endpoint.

    The Pod's name comes first and ends at the first blank (``pod_of``).
    """
    joined = addresses[0] if len(addresses) == 1 else ",".join(sorted(addresses))
    return f"{pod} {joined} {hostname}" if hostname else f"{pod} {joined}"


def pod_of(identity: str) -> str:
    return identity.partition(" ")[0]


def _target(pod: Pod) -> bytes:
    meta = pod.metadata
    reference = ObjectReference(kind="Pod", namespace=meta.namespace, name=meta.name, uid=meta.uid)
    return b',"targetRef":' + encode(reference)


def _addresses(pod: Pod) -> dict[Family, Addresses]:
    by_family: dict[Family, tuple[str, ...]] = {}
    for ip in pod.status.ips:
        address = canonical_with_family(ip)
        if address is not None:
            kind, text = address
            by_family[kind] = (*by_family.get(kind, ()), text)
    return {kind: Addresses(pod.metadata.name, addresses) for kind, addresses in by_family.items()}


class NodeFacts:
    """One version of a Node: its zone, and the JSON of an endpoint's ``nodeName``, ``zone`` and
    hints.

    ``view`` is the location of its endpoints as heuristics get it, without the Pod's part.
    ``counted``: the Node is ready and not part of the control plane, so traffic starts there;
    ``cpu_milli`` is then its share.
    """

    __slots__ = (
        "counted",
        "cpu_milli",
        "location",
        "name",
        "node_hint",
        "view",
        "zone",
        "zone_hint",
        "zone_location",
    )

    def __init__(self, node: Node) -> None:
        labels = node.metadata.labels or {}
        self.name: Final = node.metadata.name
        self.zone: Final = labels.get(LABEL_ZONE, "")
        self.view: Final = EndpointLocation(
            zone=self.zone, region=labels.get(LABEL_REGION, ""), node=self.name
        )
        self.counted: Final = node.is_ready and not any(
            label in labels for label in _CONTROL_PLANE_LABELS
        )
        self.cpu_milli: Final = _milli((node.status.allocatable or {}).get("cpu", 0))
        name = encode(self.name)
        zone = encode(self.zone)
        #: location of the endpoint, without and with the Node's name
        self.zone_location: Final = b',"zone":' + zone if self.zone else b""
        self.location: Final = encode_node_location(self.name) + self.zone_location
        for_zones = _for_zones(self.zone) if self.zone else b""
        for_nodes = b'"forNodes":[{"name":' + name + b"}]"
        #: hints for PreferSameZone (none without a zone) and for PreferSameNode
        self.zone_hint: Final = zone_hint(self.zone)
        self.node_hint: Final = (
            b',"hints":{' + b",".join(filter(None, (for_zones, for_nodes))) + b"}"
        )

    @property
    def topology(self) -> tuple[str, str, int] | None:
        """The values that zones and their shares depend on; ``None`` for a Node that does not
        count.
        """
        return (self.zone, self.view.region, self.cpu_milli) if self.counted else None


def encode_node_location(name: str) -> bytes:
    """Returns the piece for a Node of which only the name is known; empty for no name."""
    return b',"nodeName":' + encode(name) if name else b""


def zone_hint(zone: str) -> bytes:
    """Returns the piece that hints an endpoint for one zone; empty for no zone."""
    return b',"hints":{' + _for_zones(zone) + b"}" if zone else b""


def hint_piece(zones: tuple[str, ...], nodes: tuple[str, ...] = ()) -> bytes:
    """Returns the piece that hints an endpoint for these zones and nodes; empty for none."""
    lists = [b'"forZones":' + _names(zones)] if zones else []
    if nodes:
        lists.append(b'"forNodes":' + _names(nodes))
    return b',"hints":{' + b",".join(lists) + b"}" if lists else b""


def _names(names: tuple[str, ...]) -> bytes:
    return encode([{"name": name} for name in names])


def _for_zones(zone: str) -> bytes:
    return b'"forZones":[{"name":' + encode(zone) + b"}]"


def _milli(quantity: str | int) -> int:
    """Returns a quantity in thousandths, rounded up; 0 if it is invalid."""
    try:
        return max(0, ceil(amount(quantity) * 1000))
    except (AssertionError, KeyError, DecimalException):
        return 0


def endpoint_location(facts: PodFacts, node: NodeFacts | None) -> EndpointLocation:
    """Returns the location of an endpoint, as heuristics get it."""
    view = EndpointLocation(node=facts.node_name) if node is None else node.view
    keys = facts.topology_keys
    return replace(view, topology_keys=keys) if keys else view
