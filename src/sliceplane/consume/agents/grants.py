"""The grant of an agent's account, and the slices and Leases that fit it.

The grant is the Role ``agent-NAME`` with the label ``agent.sliceplane.dev/name: NAME``: its rules
bind the *names* of slices and Lease (``agent.rights``), two annotations record the Services and the
networks. It is not the ServiceAccount, which every editor of a namespace may write: who writes a
Role must hold its rules (kubernetes.io, "Using RBAC Authorization", "Restrictions on role creation
or update"). Grants of earlier versions have their networks on the ServiceAccount alone, and are
read from there.

A name of a slice stands for one Service, one agent and one family (``registration.slice_name``), so
labels that say anything else are wrong, whoever reads them: an agent writes its labels itself.

``slice_misfit`` and ``lease_misfit`` are the same rules for the three places that apply them:
admission of our own server, the controller of external endpoints, and (as CEL, ``agent.policies``)
a ValidatingAdmissionPolicy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from sliceplane.api.discovery import LABEL_MANAGED_BY, LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.errors import quote
from sliceplane.api.meta import Document
from sliceplane.consume.agents.registration import (
    ANNOTATION_CIDRS,
    ANNOTATION_REFUSED,
    ANNOTATION_SERVICES,
    LABEL_AGENT,
    LEASE_PREFIX,
    MANAGED_BY,
    PORTS_MAX,
    account_name,
    lease_name,
    slice_name,
)
from sliceplane.kit.ip import (
    FAMILIES,
    Address,
    Family,
    Network,
    parse_network_lenient,
    parse_strict,
)
from sliceplane.kit.names import check_dns_label

#: Services, and networks, of one grant; further ones are not granted
GRANT_ENTRIES_MAX: Final = 64
#: entries that a sentence lists
_LISTED_MAX: Final = 8


class AgentGrant(msgspec.Struct, frozen=True):
    """``services`` is ``None`` in a grant that does not name them (written before grants did): the
    names that RBAC binds are the only bound. ``networks`` is ``None`` without ``--cidr``.
    """

    namespace: str
    agent: str
    services: tuple[str, ...] | None
    networks: tuple[Network, ...] | None

    @property
    def key(self) -> str:
        """``namespace/name of the agent``."""
        return f"{self.namespace}/{self.agent}"

    @property
    def slices(self) -> dict[str, tuple[str, Family]]:
        """Service and family of each slice that the grant names, by the slice's name."""
        return {
            slice_name(service, self.agent, family): (service, family)
            for service in self.services or ()
            for family in FAMILIES
        }

    def allows(self, address: Address) -> bool:
        return self.networks is None or any(contains(network, address) for network in self.networks)


class WrittenSlice(msgspec.Struct, frozen=True):
    """The parts of an EndpointSlice that a grant is about. ``addresses``: those of each endpoint;
    ``serves``: an endpoint is ready or serving, as consumers read it; ``refused``: the sentence of
    the controller.
    """

    namespace: str
    name: str
    labels: Mapping[str, str]
    family: str
    addresses: tuple[tuple[str, ...], ...]
    ports: int
    serves: bool
    refused: str

    @property
    def service(self) -> str:
        """The name of the Service that consumers merge it into."""
        return self.labels.get(LABEL_SERVICE_NAME, "")


class Marks(NamedTuple):
    """Labels and annotations of a Role or a ServiceAccount."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def read_grant(
    namespace: str, name: str, role: Marks | None, account: Marks | None
) -> AgentGrant | None:
    """The grant of the ServiceAccount *name*; ``None`` if it is no agent's.  *role*: of the same
    name.
    """
    role, account = (marks if _is_agents(marks, name) else None for marks in (role, account))
    marks = role or account
    if marks is None:
        return None
    services = None
    if role is not None and ANNOTATION_SERVICES in role.annotations:
        services = _entries(role.annotations[ANNOTATION_SERVICES])
        services = tuple(service for service in services if not check_dns_label(service))
        cidrs = role.annotations.get(ANNOTATION_CIDRS)
    else:
        cidrs = account.annotations.get(ANNOTATION_CIDRS) if account is not None else None
    networks = None if cidrs is None else parse_networks(_entries(cidrs))
    return AgentGrant(namespace, marks.labels[LABEL_AGENT], services, networks)


def _is_agents(marks: Marks | None, name: str) -> bool:
    return marks is not None and name == account_name(marks.labels.get(LABEL_AGENT, "") or "-")


def _entries(text: str) -> tuple[str, ...]:
    return tuple(entry for part in text.split(",", GRANT_ENTRIES_MAX) if (entry := part.strip()))[
        :GRANT_ENTRIES_MAX
    ]


def read_slice(stored: EndpointSlice) -> WrittenSlice:
    """Reads a slice of an informer's cache."""
    meta = stored.metadata
    endpoints = stored.endpoints or ()
    return WrittenSlice(
        meta.namespace,
        meta.name,
        meta.labels or {},
        stored.address_type,
        tuple(endpoint.addresses for endpoint in endpoints),
        len(stored.ports or ()),
        any(
            _serves(endpoint.conditions.ready, endpoint.conditions.serving)
            for endpoint in endpoints
        ),
        (meta.annotations or {}).get(ANNOTATION_REFUSED, ""),
    )


def read_slice_document(document: Document) -> WrittenSlice:
    """Reads a document that passed validation."""
    head = document["metadata"]
    endpoints: list[Document] = document.get("endpoints") or []
    conditions: list[dict[str, Any]] = [endpoint.get("conditions") or {} for endpoint in endpoints]
    return WrittenSlice(
        head.get("namespace", ""),
        head.get("name", ""),
        head.get("labels") or {},
        document.get("addressType", ""),
        tuple(tuple(endpoint.get("addresses") or ()) for endpoint in endpoints),
        len(document.get("ports") or ()),
        any(_serves(condition.get("ready"), condition.get("serving")) for condition in conditions),
        (head.get("annotations") or {}).get(ANNOTATION_REFUSED, ""),
    )


def _serves(ready: bool | None, serving: bool | None) -> bool:
    """Returns True as consumers read it: a condition that is not set is true."""
    return ready is not False or serving is not False


def agent_of_labels(written: WrittenSlice) -> str:
    """The agent that a slice names by its labels, if its name is the one that they stand for; else
    "".
    """
    agent = written.labels.get(LABEL_AGENT, "")
    if not agent or written.labels.get(LABEL_MANAGED_BY) != MANAGED_BY:
        return ""
    names = (slice_name(written.service, agent, family) for family in FAMILIES)
    return agent if written.service and written.name in names else ""


def agent_of_account(name: str) -> str:
    """The agent whose ServiceAccount and Role have that name; "" for others."""
    return agent_of_lease(name)  # the names are alike


def agent_of_lease(name: str) -> str:
    """The agent whose Lease has that name; "" for other Leases."""
    return name.removeprefix(LEASE_PREFIX) if name.startswith(LEASE_PREFIX) else ""


def lease_misfit(agent: str, name: str, labels: Mapping[str, str] | None) -> str:
    """Returns a sentence if a Lease of that name and these labels is not the Lease of *agent*, else
    "".
    """
    if name != lease_name(agent):
        return f"the account of agent {agent} may write the Lease {lease_name(agent)} alone"
    return _label_misfit(labels or {}, LABEL_AGENT, agent)


def slice_misfit(grant: AgentGrant, written: WrittenSlice) -> str:
    """Returns a sentence if the slice does not fit *grant*, else ""."""
    service, family = _meaning(grant, written)
    if not service:
        return _name_misfit(grant)
    for label, value in (
        (LABEL_SERVICE_NAME, service),
        (LABEL_MANAGED_BY, MANAGED_BY),
        (LABEL_AGENT, grant.agent),
    ):
        sentence = _label_misfit(written.labels, label, value)
        if sentence:
            return sentence
    if written.family != family:
        return f"the addressType of a slice with this name is {family}, not {quote(written.family)}"
    return shape_misfit(written) or _address_misfit(grant, written)


def shape_misfit(written: WrittenSlice) -> str:
    """Returns a sentence if no agent writes such a slice, granted or not, else ""."""
    count = sum(map(len, written.addresses))
    if count > 1 or len(written.addresses) > 1 or written.ports > PORTS_MAX:
        return (
            f"a slice of an agent has one address and at most {PORTS_MAX} ports, not {count} and "
            f"{written.ports}"
        )
    return ""


def _meaning(grant: AgentGrant, written: WrittenSlice) -> tuple[str, str]:
    """Service and family that the slice's name stands for, as far as the grant goes; ("", "") if it
    stands for none.
    """
    if grant.services is None or written.namespace != grant.namespace:
        names = {slice_name(written.service, grant.agent, family): family for family in FAMILIES}
        return (
            (written.service, names[written.name])
            if written.service and written.name in names
            else ("", "")
        )
    return grant.slices.get(written.name, ("", ""))


def _name_misfit(grant: AgentGrant) -> str:
    if grant.services is None:
        return (
            f"the name of a slice of agent {grant.key} and its label {LABEL_SERVICE_NAME} must "
            "stand for one Service"
        )
    return f"the grant of agent {grant.key} is for these slices alone: {listed(grant.slices)}"


def _label_misfit(labels: Mapping[str, str], label: str, value: str) -> str:
    if labels.get(label) == value:
        return ""
    text = quote(labels[label]) if label in labels else "missing"
    return f"by its name, the label {label} must be {quote(value)}; it is {text}"


def _address_misfit(grant: AgentGrant, written: WrittenSlice) -> str:
    for addresses in written.addresses:
        for text in addresses:
            address = parse_strict(text)
            if address is None:
                return f"{quote(text)} is no IP address"
            if not grant.allows(address):
                networks = listed(map(str, grant.networks or ()))
                return (
                    f"{text} is not among the addresses that the account of agent {grant.key} may "
                    f"use: {networks}"
                )
    return ""


def listed(entries: Iterable[str] | None) -> str:
    """The first entries, for a sentence."""
    texts = list(entries or ())
    more = f" and {len(texts) - _LISTED_MAX} more" if len(texts) > _LISTED_MAX else ""
    return (", ".join(texts[:_LISTED_MAX]) or "none") + more


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Texts that are no networks are left out: they allow nothing."""
    return tuple(network for text in texts if (network := parse_network_lenient(text)) is not None)


def contains(network: Network, address: Address) -> bool:
    return network.version == address.version and address in network
