"""The objects that an agent keeps in the cluster for one Service: names, labels and the documents
of its slices.

Consumers need nothing for it: a slice with the Service's name in ``kubernetes.io/service-name`` and
a manager of its own is merged with those of the control plane, which leaves it alone (KEP-0752,
"EndpointSlice Naming" and "Mirroring"). A slice has one address family, one address an endpoint,
and the ports that the *process* has, under the names that the Service gives them.

The annotation ``agent.sliceplane.dev/state`` says in a word why the conditions are as they are. The
agent writes it, and the judge writes ``lost`` over it; ``agent.sliceplane.dev/refused`` is the
judge's alone, a sentence for people, and as long as it stands the agent leaves its endpoint not
ready.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from hashlib import sha256
from itertools import islice
from typing import Final, Literal

import msgspec

from sliceplane.api.core import Service
from sliceplane.api.discovery import LABEL_MANAGED_BY, LABEL_SERVICE_NAME
from sliceplane.api.meta import Document
from sliceplane.api.service_rules import NO_CLUSTER_IP
from sliceplane.consume.agents.checks import CheckSpec
from sliceplane.kit.ip import FAMILIES, Family, family, parse_strict
from sliceplane.kit.names import SUBDOMAIN_MAX, check_dns_label, check_dns_subdomain

MANAGED_BY: Final = "agent.sliceplane.dev"
FIELD_MANAGER: Final = "sliceplane-agent"
LABEL_AGENT: Final = "agent.sliceplane.dev/name"
ANNOTATION_STATE: Final = "agent.sliceplane.dev/state"
ANNOTATION_REFUSED: Final = "agent.sliceplane.dev/refused"
#: of a Role: the Services of its agent, with commas between them
ANNOTATION_SERVICES: Final = "agent.sliceplane.dev/services"
#: of a Role: networks that its agent may use, with commas between them
ANNOTATION_CIDRS: Final = "agent.sliceplane.dev/cidrs"
#: of a Service: its retained endpoints are removed; any new value requests that once
ANNOTATION_RELEASE: Final = "agent.sliceplane.dev/release"
#: of a Service: agents of it became silent, and their endpoints are retained
CONDITION_AGENT_REMOVAL: Final = "AgentRemovalHeld"
LEASE_PREFIX: Final = "agent-"
#: what a Lease lasts; it is renewed three times meanwhile (``tenure``)
LEASE_S: Final = 15.0
#: an agent that requests another duration gets the nearest of these: a silent one must not serve
#: for hours, and one of milliseconds would be judged without end
LEASE_MIN_S: Final = 1.0
LEASE_MAX_S: Final = 300.0
#: ports of one slice
PORTS_MAX: Final = 64
#: names of a Service's ports that a sentence has
_NAMED_MAX: Final = 5
_HASH_LENGTH: Final = 10
_HASH_PATTERN: Final = re.compile(f"[0-9a-f]{{{_HASH_LENGTH}}}")

#: ``unknown``: no check has said anything; ``lost``: the judge's word for an agent that fell silent
State = Literal["unknown", "passing", "failing", "draining", "lost"]


class AgentPort(msgspec.Struct, frozen=True):
    """``name``: of the Service's port; "" where the Service has one port without a name."""

    name: str
    port: int
    protocol: str = "TCP"
    app_protocol: str | None = None


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """One process behind one Service.  ``addresses``: at most one of each family, canonical."""

    agent: str
    namespace: str
    service: str
    addresses: tuple[str, ...]
    ports: tuple[AgentPort, ...]
    checks: tuple[CheckSpec, ...] = ()
    zone: str = ""
    node_name: str = ""

    def __post_init__(self) -> None:
        """Raises ``ValueError`` with a sentence that names what is wrong."""
        for what, name in (
            ("agent", self.agent),
            ("namespace", self.namespace),
            ("Service", self.service),
        ):
            for problem in check_dns_label(name):
                raise ValueError(f"the name {name!r} of the {what} {problem}")
        for problem in check_dns_subdomain(self.node_name) if self.node_name else ():
            raise ValueError(f"the node name {self.node_name!r} {problem}")
        families = [family_of(address) for address in self.addresses]
        if not families:
            raise ValueError("an address is needed: --address IP, or auto")
        if len(set(families)) < len(families):
            raise ValueError(f"one address of each family at most, not {', '.join(self.addresses)}")
        names = [port.name for port in self.ports]
        if not names:
            raise ValueError("a port is needed: --port NAME=PORT, as http=8080, or --port 8080")
        if len(names) > PORTS_MAX:
            raise ValueError(
                f"{len(names)} ports are too many: an agent registers at most {PORTS_MAX}"
            )
        if len(set(names)) < len(names):
            raise ValueError(
                f"two ports are called {next(name for name in names if names.count(name) > 1)!r}"
            )
        for port in self.ports:
            if not 0 < port.port < 65536:
                raise ValueError(f"port {port.port} is not between 1 and 65535")
            for problem in check_dns_label(port.name) if port.name else ():
                raise ValueError(f"the name {port.name!r} of a port {problem}")

    @property
    def key(self) -> str:
        """``namespace/name`` of the Service."""
        return f"{self.namespace}/{self.service}"

    @property
    def slices(self) -> tuple[tuple[str, Family, str], ...]:
        """Name, family and address of each slice."""
        by_family = {family_of(address): address for address in self.addresses}
        return tuple(
            (
                slice_name(self.service, self.agent, address_family),
                address_family,
                by_family[address_family],
            )
            for address_family in FAMILIES
            if address_family in by_family
        )

    def document(
        self,
        address_family: Family,
        state: State,
        *,
        lease_uid: str,
        hint: bool,
        publish_not_ready: bool,
    ) -> Document:
        """The slice of the family *address_family*, as it is applied.

        *hint*: the Service prefers what is near. One endpoint without hints switches them off for
        the whole Service (kubernetes.io, "Topology Aware Routing"), so an endpoint with a zone then
        has that zone as its hint.
        """
        name, _, address = next(entry for entry in self.slices if entry[1] == address_family)
        endpoint: Document = {
            "addresses": [address],
            "conditions": conditions(state, publish_not_ready=publish_not_ready),
            "hostname": self.agent,
        }
        if self.node_name:
            endpoint["nodeName"] = self.node_name
        if self.zone:
            endpoint["zone"] = self.zone
            if hint:
                endpoint["hints"] = {"forZones": [{"name": self.zone}]}
        owner = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "name": lease_name(self.agent),
            "uid": lease_uid,
        }
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": {
                    LABEL_SERVICE_NAME: self.service,
                    LABEL_MANAGED_BY: MANAGED_BY,
                    LABEL_AGENT: self.agent,
                },
                "annotations": {ANNOTATION_STATE: state},
                "ownerReferences": [owner],
            },
            "addressType": address_family,
            "endpoints": [endpoint],
            "ports": [_port(port) for port in self.ports],
        }


def _port(port: AgentPort) -> Document:
    document: Document = {"name": port.name, "port": port.port, "protocol": port.protocol}
    if port.app_protocol is not None:
        document["appProtocol"] = port.app_protocol
    return document


def conditions(state: State, *, publish_not_ready: bool) -> Document:
    """As the EndpointSlice controller would give them to a Pod in that state (KEP-1672)."""
    serving = state in ("passing", "draining")
    alive = state in ("unknown", "passing", "failing")
    return {
        "ready": state == "passing" or (publish_not_ready and alive),
        "serving": serving,
        "terminating": state == "draining",
    }


def family_of(address: str) -> Family:
    """Returns the family of an address that can be an endpoint. Raises ``ValueError`` for others,
    and says why.
    """
    parsed = parse_strict(address)
    if parsed is None:
        raise ValueError(f"{address!r} is no IP address")
    if str(parsed) != address:
        raise ValueError(f"{address!r} is to be written {str(parsed)!r}")
    for is_wrong, what in (
        (parsed.is_loopback, "a loopback address: no other machine reaches it"),
        (parsed.is_link_local, "a link-local address: it means something else on each link"),
        (parsed.is_multicast, "a multicast address"),
        (parsed.is_unspecified, "the unspecified address"),
        (parsed == ipaddress.ip_address("255.255.255.255"), "the broadcast address"),
    ):
        if is_wrong:
            raise ValueError(f"{address} is {what}")
    return family(parsed)


def account_name(agent: str) -> str:
    return f"{LEASE_PREFIX}{agent}"


def lease_name(agent: str) -> str:
    return f"{LEASE_PREFIX}{agent}"


def lease_duration_s(written: int | None, default_s: float = LEASE_S) -> float:
    """The duration by which a Lease is judged, whatever *written* says."""
    return min(max(float(written or default_s), LEASE_MIN_S), LEASE_MAX_S)


def slice_name(service: str, agent: str, address_family: Family) -> str:
    """``SERVICE-AGENT-4`` or ``-6``; a name stands for one Service, one agent and one family.

    Names of Services and agents may hold dashes, so ``a-b`` of ``c`` and ``a`` of ``b-c`` would be
    alike. A hash tells them apart where the agent's name has a dash, where it looks like such a
    hash itself, and where the whole is too long.
    """
    suffix = address_family[-1]
    plain = f"{service}-{agent}-{suffix}"
    if "-" not in agent and not _HASH_PATTERN.fullmatch(agent) and len(plain) <= SUBDOMAIN_MAX:
        return plain
    digest = sha256(f"{service}/{agent}".encode()).hexdigest()[:_HASH_LENGTH]
    return f"{service}-{agent}-{digest}-{suffix}"


def why_unreached(key: str, ports: Iterable[str], service: Service | None) -> str:
    """A sentence if a port of an agent has a name that no port of its Service (*key*) has, so no
    client reaches it.
    """
    if service is None:
        return f"there is no Service {key}"
    names = dict.fromkeys(port.name for port in service.spec.ports or ())
    missing = [name for name in ports if name not in names]
    if (
        not missing or service.spec.cluster_ip == NO_CLUSTER_IP
    ):  # without a cluster IP the agent's ports count alone
        return ""
    names_text = ", ".join(map(repr, islice(names, _NAMED_MAX))) or "none"
    names_text += f" and {len(names) - _NAMED_MAX:,} more" if len(names) > _NAMED_MAX else ""
    return (
        f"Service {key} has no port {missing[0]!r}: its ports are {names_text}; name it with --port "
        "NAME=PORT"
    )
