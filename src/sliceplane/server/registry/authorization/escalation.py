"""Prevention of privilege escalation: the check on every write of a role or binding.

As upstream (pkg/registry/rbac: policybased/storage.go of the four kinds, escalation_check.go,
helpers.go), every write compares the *whole* resulting object with the rights of the writer, not
only its changes: even a label may grant its rules to others.

- A role requires its own rules, or the verb ``escalate`` on it. A role that gathers others, or did,
  requires all possible rules, as the rules that it will gather are unknown.
- A binding requires the rules of its role, or the verb ``bind`` on that role.
- ``system:masters`` may write anything, and every user may write the members of garbage collection
  (owners and finalizers).

The refusal lists the missing rules as upstream does, up to ``LISTED_CHARACTERS_MAX``.
"""

from __future__ import annotations

from collections.abc import Iterator

from sliceplane.api.errors import not_found, quote
from sliceplane.api.meta import Document
from sliceplane.api.scheme import RBAC_GROUP, ClusterRoleBindings, ClusterRoles, Resource, Roles
from sliceplane.api.users import MASTERS, User
from sliceplane.server.registry.authorization.coverage import StepsExceeded, covers, missing
from sliceplane.server.registry.authorization.index import (
    RESOURCES,
    PolicyIndex,
    resolution_errors,
    role_key,
)
from sliceplane.server.registry.authorization.rules import ALL, PolicyRule, go_list, rules_of
from sliceplane.server.registry.documents import canonical, refused
from sliceplane.server.registry.types import Attributes, Target

#: maximum length of the list in one refusal; the last line says that there are more
LISTED_CHARACTERS_MAX = 16 * 1024
_MUST_BE_ADMIN = "must have cluster-admin privileges to use the aggregationRule"
_EVERYTHING = (
    PolicyRule(verbs=(ALL,), groups=(ALL,), resources=(ALL,)),
    PolicyRule(verbs=(ALL,), urls=(ALL,)),
)
_OF_GARBAGE_COLLECTION = frozenset(
    {"finalizers", "managedFields", "ownerReferences", "resourceVersion"}
)


def check_write(
    policy: PolicyIndex, user: User, target: Target, new: Document, old: Document | None
) -> None:
    """Checks *new* before it replaces *old* (``None``: create); ignores kinds that grant nothing.

    *new* need not be valid; validation always follows. Raises the 403 ``StatusError``, and the 404
    for a binding to a role that does not exist.
    """
    resource = target.resource
    if resource.storage_key not in RESOURCES or MASTERS in user.groups:
        return
    if resource in (Roles, ClusterRoles):
        # The name of the request, not of the object: a POST has none, so a rule with names does not
        # match it.
        lifted = _attributes("escalate", resource, target.namespace, target.name)
        if policy.decide(user, lifted).allowed or _collects_garbage(resource, new, old):
            return
        _confirm(policy, user, target, new, rules_of(new))
        gathers = _gathers(new) or (old is not None and _gathers(old))
        if gathers and not _covers(policy, policy.rules_for(user, ""), _EVERYTHING):
            raise refused(target.resource, new, _MUST_BE_ADMIN)
        return
    if _collects_garbage(resource, new, old):
        return
    reference = new.get("roleRef", {})
    kinds = ("ClusterRole",) if resource is ClusterRoleBindings else ("ClusterRole", "Role")
    if reference.get("kind") not in kinds or not reference.get("name"):
        return  # grants nothing, and is not valid
    role = role_key(new, target.namespace)
    role_resource = Roles if role.resource == Roles.storage_key else ClusterRoles
    if policy.decide(user, _attributes("bind", role_resource, target.namespace, role.name)).allowed:
        return
    rules = policy.role(role)
    if rules is None:
        raise not_found(role_resource.plural, role_resource.group, role.name)
    _confirm(policy, user, target, new, rules)


def _attributes(verb: str, role: Resource, namespace: str, name: str) -> Attributes:
    return Attributes(
        verb=verb, group=RBAC_GROUP, resource=role.plural, namespace=namespace, name=name
    )


def _gathers(role: Document) -> bool:
    return bool((role.get("aggregationRule") or {}).get("clusterRoleSelectors"))


def _collects_garbage(resource: Resource, new: Document, old: Document | None) -> bool:
    """Returns True if only owners and finalizers change."""
    return old is not None and _but_for_garbage(resource, new) == _but_for_garbage(resource, old)


def _but_for_garbage(resource: Resource, document: Document) -> Document:
    shaped = canonical(resource, document)
    head = {
        name: value
        for name, value in shaped["metadata"].items()
        if name not in _OF_GARBAGE_COLLECTION
    }
    # An empty list equals an absent one.
    return {name: value for name, value in {**shaped, "metadata": head}.items() if value != []}


def _confirm(
    policy: PolicyIndex, user: User, target: Target, new: Document, granted: tuple[PolicyRule, ...]
) -> None:
    owned = policy.rules_for(user, target.namespace)
    if _covers(policy, owned, granted):
        return
    subject = f"user {quote(user.name)} (groups={go_list(user.groups)})"
    listed = "\n".join(_listed(owned, granted))
    absent = policy.absent_roles(user, target.namespace)
    more = f"; resolution errors: [{resolution_errors(absent)}]" if absent else ""
    why = f"{subject} is attempting to grant RBAC permissions not currently held:\n{listed}{more}"
    raise refused(target.resource, new, why)


def _covers(
    policy: PolicyIndex, owned: tuple[PolicyRule, ...], granted: tuple[PolicyRule, ...]
) -> bool:
    try:
        return covers(owned, granted)
    except StepsExceeded:
        # Rules that cannot be compared count as not owned.
        policy.comparisons_aborted += 1
        return False


def _listed(owned: tuple[PolicyRule, ...], granted: tuple[PolicyRule, ...]) -> Iterator[str]:
    """Yields the lines of the missing rules, up to the limit."""
    remaining = LISTED_CHARACTERS_MAX
    try:
        for rule in missing(owned, granted):
            line = str(rule)
            if len(line) > remaining:
                if remaining == LISTED_CHARACTERS_MAX:
                    yield line[:remaining] + "..."
                yield "... and more"
                return
            remaining -= len(line)
            yield line
    except StepsExceeded:
        yield "... too many rules to compare them one by one; write fewer into one role"
