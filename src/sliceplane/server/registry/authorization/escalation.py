"""No user hands out more than they have: the check on every write of a role or binding.

As upstream (pkg/registry/rbac: policybased/storage.go of the four kinds, escalation_check.go,
helpers.go), at every write the *whole* object that results is held against the writer, whatever of
it is new: its label may be what hands its rules to others.

- A role takes its rules in one's own hands, or the verb ``escalate`` on it. One that gathers
  others, or did, takes all rules that there are, as it is not known what it gathers tomorrow, or
  what it was meant to keep.
- A binding takes the rules of the role that it leads to, or the verb ``bind`` on that role.
- ``system:masters`` may do anything, and every user may write what garbage collection writes
  (owners and finalizers).

The refusal lists what is missing as upstream does, up to ``LISTED_CHARACTERS_MAX``.
"""

from __future__ import annotations

from collections.abc import Iterator

from sliceplane.api.errors import not_found, quote
from sliceplane.api.meta import Document
from sliceplane.api.scheme import RBAC_GROUP, ClusterRoleBindings, ClusterRoles, Resource, Roles
from sliceplane.api.users import MASTERS, User
from sliceplane.server.registry.authorization.coverage import TooManySteps, covers, missing
from sliceplane.server.registry.authorization.index import (
    RESOURCES,
    PolicyIndex,
    resolution_errors,
    role_key,
)
from sliceplane.server.registry.authorization.rules import ALL, PolicyRule, go_list, rules_of
from sliceplane.server.registry.documents import canonical, refused
from sliceplane.server.registry.types import Attributes, Target

#: of the list in one refusal; the last line says that there would be more
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
    """*new* is about to be stored in place of *old* (``None``: create); kinds that grant nothing
    are passed over.

    *new* need not be valid; validation comes afterwards, always. Raises the 403 ``StatusError``,
    and the 404 for a binding to a role that does not exist.
    """
    resource = target.resource
    if resource.storage_key not in RESOURCES or MASTERS in user.groups:
        return
    if resource in (Roles, ClusterRoles):
        # Of the request, not of the object: a POST names nothing, so that a rule with names does
        # not fit it.
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
        return  # leads to nothing, and is not valid
    role = role_key(new, target.namespace)
    of = Roles if role.resource == Roles.storage_key else ClusterRoles
    if policy.decide(user, _attributes("bind", of, target.namespace, role.name)).allowed:
        return
    rules = policy.role(role)
    if rules is None:
        raise not_found(of.plural, of.group, role.name)
    _confirm(policy, user, target, new, rules)


def _attributes(verb: str, of: Resource, namespace: str, name: str) -> Attributes:
    return Attributes(
        verb=verb, group=RBAC_GROUP, resource=of.plural, namespace=namespace, name=name
    )


def _gathers(role: Document) -> bool:
    return bool((role.get("aggregationRule") or {}).get("clusterRoleSelectors"))


def _collects_garbage(resource: Resource, new: Document, old: Document | None) -> bool:
    """Nothing changes but who owns the object and who holds it back."""
    return old is not None and _but_for_garbage(resource, new) == _but_for_garbage(resource, old)


def _but_for_garbage(resource: Resource, document: Document) -> Document:
    shaped = canonical(resource, document)
    head = {
        name: value
        for name, value in shaped["metadata"].items()
        if name not in _OF_GARBAGE_COLLECTION
    }
    # An empty list and none are the same.
    return {name: value for name, value in {**shaped, "metadata": head}.items() if value != []}


def _confirm(
    policy: PolicyIndex, user: User, target: Target, new: Document, wanted: tuple[PolicyRule, ...]
) -> None:
    held = policy.rules_for(user, target.namespace)
    if _covers(policy, held, wanted):
        return
    who = f"user {quote(user.name)} (groups={go_list(user.groups)})"
    listed = "\n".join(_listed(held, wanted))
    absent = policy.absent_roles(user, target.namespace)
    more = f"; resolution errors: [{resolution_errors(absent)}]" if absent else ""
    why = f"{who} is attempting to grant RBAC permissions not currently held:\n{listed}{more}"
    raise refused(target.resource, new, why)


def _covers(
    policy: PolicyIndex, held: tuple[PolicyRule, ...], wanted: tuple[PolicyRule, ...]
) -> bool:
    try:
        return covers(held, wanted)
    except TooManySteps:
        # What cannot be shown to be held is not held.
        policy.given_up += 1
        return False


def _listed(held: tuple[PolicyRule, ...], wanted: tuple[PolicyRule, ...]) -> Iterator[str]:
    """The lines that fit."""
    left = LISTED_CHARACTERS_MAX
    try:
        for rule in missing(held, wanted):
            line = str(rule)
            if len(line) > left:
                if left == LISTED_CHARACTERS_MAX:
                    yield line[:left] + "..."
                yield "... and more"
                return
            left -= len(line)
            yield line
    except TooManySteps:
        yield "... too many rules to compare them one by one; write fewer into one role"
