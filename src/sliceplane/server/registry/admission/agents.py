"""Writes by the account of an agent: a slice or a Lease is checked as it will be, against the grant
of that account.

RBAC binds the account to names. Labels decide which Service a slice serves and which agent a Lease
is for, and an agent writes them itself, so they are compared with the name
(``consume.agents.grants``); addresses are compared with the networks of the grant. Other API
servers do the same by a ValidatingAdmissionPolicy (``agent.policies``).

A sentence by which the control plane refused a slice stays until the control plane takes it away,
and nothing in the slice serves meanwhile. Otherwise an agent could put back at once what was
withdrawn.

A grant without networks leaves out the addresses of the cluster's machines and Services, which are
refused here before they are stored; networks of Pods are known to the controller alone, which
withdraws them.
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
    """*new*, which is valid, is about to be stored in place of *old* (``None``: create).

    Other kinds and other users are passed over.  Raises the 403 ``StatusError``.
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
        return f"the annotation {ANNOTATION_REFUSED} is the control plane's"
    if refused and written.serves:
        return f"it is refused, so its endpoint is neither ready nor serving: {refused}"
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
            # A Node names its addresses as they are printed; decoding thousands of Nodes would take
            # too long.
            spelled = f'"{address}"'.encode()
            for node in core.store.iter_latest(Nodes.storage_key):
                if spelled in node.body:
                    return f"{text} belongs to Node {node.key.name}; a grant with --cidr allows it"
    return ""
