"""Nobody hands out more than they have: the check on every write of a role or binding (reference B17).

Writing a role takes its rules in one's own hands (one that gathers others: all rules that there are), or the verb
``escalate`` on it; writing a binding takes the rules of the role that it leads to, or the verb ``bind`` on that role.
``system:masters`` may do anything.
"""

from __future__ import annotations

from sliceplane.api.errors import forbidden, not_found
from sliceplane.api.meta import Document
from sliceplane.api.scheme import RBAC_GROUP, ClusterRoles, Resource, Roles
from sliceplane.registry.authorization.index import RESOURCES, PolicyIndex, role_key
from sliceplane.registry.authorization.rules import ALL, Rule, go_list, rules_of, uncovered
from sliceplane.registry.authorization.types import MASTERS, Attributes
from sliceplane.registry.types import User

_EVERYTHING = (Rule(verbs=(ALL,), groups=(ALL,), resources=(ALL,)), Rule(verbs=(ALL,), urls=(ALL,)))


def check_write(policy: PolicyIndex, user: User, resource: Resource, new: Document, old: Document | None) -> None:
    """*new* is about to be stored in place of *old* (``None``: create); kinds that grant nothing are passed over.

    Raises the 403 ``StatusError``, and the 404 for a binding to a role that does not exist.
    """
    if resource.storage_key not in RESOURCES or MASTERS in user.groups:
        return
    head = new["metadata"]
    gathers = False
    name, namespace = head["name"], head.get("namespace", "")
    if resource in (Roles, ClusterRoles):
        gathers = "aggregationRule" in new or (old is not None and "aggregationRule" in old)
        if old is not None and new.get("rules") == old.get("rules") and not gathers:
            return
        wanted = rules_of(new)
        lifted = Attributes(verb="escalate", group=RBAC_GROUP, resource=resource.plural, namespace=namespace, name=name)
    else:
        role = role_key(new, namespace)
        of = Roles if role.resource == Roles.storage_key else ClusterRoles
        lifted = Attributes(verb="bind", group=RBAC_GROUP, resource=of.plural, namespace=namespace, name=role.name)
        found = policy.role(role)
        if found is None:
            if policy.decide(user, lifted).allowed:
                return
            raise not_found(of.plural, of.group, role.name)
        wanted = found
    if policy.decide(user, lifted).allowed:
        return
    missing = uncovered(policy.rules_for(user, namespace), wanted)
    if missing:
        raise forbidden(resource.plural, resource.group, name, _why(user, missing))
    if gathers and uncovered(policy.rules_for(user, ""), _EVERYTHING):
        # What it gathers later is not known now, and what it stops gathering somebody may have meant to keep.
        why = "must have cluster-admin privileges to use the aggregationRule"
        raise forbidden(resource.plural, resource.group, name, why)


def _why(user: User, missing: tuple[Rule, ...]) -> str:
    listed = "\n".join(map(str, missing))
    return (
        f'user "{user.name}" (groups={go_list(user.groups)}) is attempting to grant RBAC permissions not currently '
        f"held:\n{listed}"
    )
