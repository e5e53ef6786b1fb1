"""The 403 of a request that no rule allows, in upstream's words (k8s.io/apiserver, responsewriters.Forbidden)."""

from __future__ import annotations

from sliceplane.api.errors import StatusError, forbidden, quote
from sliceplane.registry.authorization.index import PolicyIndex
from sliceplane.registry.authorization.types import Attributes, Decision
from sliceplane.registry.types import User

#: nothing in the message is markup, should it ever be shown as such
_NO_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def require(policy: PolicyIndex, user: User, wanted: Attributes) -> None:
    """Raises the 403 ``StatusError`` unless *user* may do what is *wanted*."""
    require_allowed(user, wanted, policy.decide(user, wanted))


def require_allowed(user: User, wanted: Attributes, decision: Decision) -> None:
    """Raises the 403 ``StatusError`` unless it was decided that *user* may do what is *wanted*."""
    if not decision.allowed:
        raise refusal(user, wanted, decision.reason)


def refusal(user: User, wanted: Attributes, reason: str = "") -> StatusError:
    """*reason* is what the decision said: bindings to roles that do not exist."""
    who = f"User {quote(user.name)} cannot {wanted.verb}"
    more = f": {reason}" if reason else ""
    if not wanted.resource:
        why = f"{who} path {quote(wanted.path)}".translate(_NO_MARKUP)
        return StatusError(403, "Forbidden", f"forbidden: {why}{more}", {})
    where = f"in the namespace {quote(wanted.namespace)}" if wanted.namespace else "at the cluster scope"
    why = f"{who} resource {quote(wanted.combined_resource)} in API group {quote(wanted.group)} {where}"
    return forbidden(wanted.resource, wanted.group, wanted.name, why.translate(_NO_MARKUP) + more)
