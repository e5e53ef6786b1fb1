"""The 403 of a request that no rule allows, in the words of reference B17."""

from __future__ import annotations

from sliceplane.api.errors import StatusError, forbidden, show
from sliceplane.registry.authorization.index import PolicyIndex
from sliceplane.registry.authorization.types import Attributes
from sliceplane.registry.types import User


def require(policy: PolicyIndex, user: User, wanted: Attributes) -> None:
    """Raises the 403 ``StatusError`` unless *user* may do what is *wanted*."""
    if not policy.decide(user, wanted).allowed:
        raise refusal(user, wanted)


def refusal(user: User, wanted: Attributes) -> StatusError:
    who = f"User {show(user.name)} cannot {wanted.verb}"
    if not wanted.resource:
        return StatusError(403, "Forbidden", f"forbidden: {who} path {show(wanted.path)}", {})
    where = f"in the namespace {show(wanted.namespace)}" if wanted.namespace else "at the cluster scope"
    why = f"{who} resource {show(wanted.combined_resource)} in API group {show(wanted.group)} {where}"
    return forbidden(wanted.resource, wanted.group, wanted.name, why)
