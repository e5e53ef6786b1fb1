"""Writes by the account of an agent: the resulting slice or Lease is checked against the grant of
the account.

RBAC restricts the account to names. Labels decide which Service a slice serves and which agent owns
a Lease, and an agent writes them itself, so they are compared with the name
(``consume.agents.grants``); addresses are compared with the networks of the grant. Other API
servers do the same by a ValidatingAdmissionPolicy (``agent.policies``).

The annotation by which the control plane refused a slice stays until the control plane removes it,
and the slice must not serve meanwhile. Otherwise an agent could restore a withdrawn endpoint at
once.

A grant without networks excludes the addresses of the cluster's machines and Services; they are
refused here before they are stored. Only the controller knows the networks of Pods, and withdraws
their addresses.
"""

from __future__ import annotations

from sliceplane.api.meta import Document
from sliceplane.api.scheme import EndpointSlices, Leases, Nodes, Roles, ServiceAccounts
from sliceplane.api.users import User
from sliceplane.consume.agents.grants import (
    AgentGrant,
    Marks,
    contains,
    lease_misfit,
    parse_networks,
    read_grant,
    read_slice_document,
    slice_misfit,
)
from sliceplane.consume.agents.registration import ANNOTATION_REFUSED, LABEL_AGENT, account_name
from sliceplane.kit.ip import parse_strict
from sliceplane.server.registry.authentication.bearer import USER_PREFIX
from sliceplane.server.registry.core import Core
from sliceplane.server.registry.documents import document_of, refused
from sliceplane.server.registry.types import Target
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key

_ACCOUNT_PREFIX = account_name("")
_CHECKED = frozenset({EndpointSlices.storage_key, Leases.storage_key})


def check_agent_write(
    core: Core, user: User, target: Target, new: Document, old: Document | None
) -> None:
    """Checks *new*, which is valid, before it replaces *old* (``None``: create).

    Ignores other kinds and other users.  Raises the 403 ``StatusError``.
    """
    resource = target.resource
    if resource.storage_key not in _CHECKED:
        return
    grant = _grant_of(core.store, user)
    if grant is None:
        return
    head = new["metadata"]
    if resource.storage_key == Leases.storage_key:
        why = lease_misfit(grant.agent, head.get("name", ""), head.get("labels"))
    else:
        why = _slice_problem(grant, new, old) or _cluster_problem(core, grant, new)
    if why:
        raise refused(resource, new, why)


def _grant_of(store: Store, user: User) -> AgentGrant | None:
    if not user.name.startswith(USER_PREFIX):
        return None
    namespace, _, name = user.name.removeprefix(USER_PREFIX).partition(":")
    if not name.startswith(_ACCOUNT_PREFIX):
        return None
    role, account = (
        _marks(store, Key(kind.storage_key, namespace, name)) for kind in (Roles, ServiceAccounts)
    )
    return read_grant(namespace, name, role, account)


def _marks(store: Store, key: Key) -> Marks | None:
    record = store.latest(key)
    if record is None or LABEL_AGENT not in record.labels:
        return None
    return Marks(record.labels, document_of(record)["metadata"].get("annotations") or {})


def _slice_problem(grant: AgentGrant, new: Document, old: Document | None) -> str:
    written = read_slice_document(new)
    misfit = slice_misfit(grant, written)
    if misfit:
        return misfit
    refused = read_slice_document(old).refused if old is not None else ""
    if written.refused != refused:
        return f"only the control plane may write the annotation {ANNOTATION_REFUSED}"
    if refused and written.serves:
        return f"it is refused, so its endpoint must be neither ready nor serving: {refused}"
    return ""


def _cluster_problem(core: Core, grant: AgentGrant, new: Document) -> str:
    if grant.networks is not None:
        return ""  # an administrator named its networks
    for endpoint in new.get("endpoints") or ():
        for text in endpoint["addresses"]:
            address = parse_strict(text)
            assert address is not None, f"{text} passed validation"
            if any(
                contains(network, address) for network in parse_networks(core.config.service_cidrs)
            ):
                return f"{text} belongs to the network of Services"
            # A Node has its addresses as they are printed; to decode thousands of Nodes would take
            # too long.
            spelled = f'"{address}"'.encode()
            for node in core.store.iter_latest(Nodes.storage_key):
                if spelled in node.body:
                    return f"{text} belongs to Node {node.key.name}; a grant with --cidr allows it"
    return ""
