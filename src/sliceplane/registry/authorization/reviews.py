"""Questions that are POSTed like objects and never stored: may I, what may I, who am I (reference B17).

Served so that ``kubectl auth can-i`` and ``kubectl auth whoami`` work; the answer is the question with a status.
"""

from __future__ import annotations

from sliceplane.api import codec
from sliceplane.api.errors import bad_request, invalid, invalid_value
from sliceplane.api.meta import Document
from sliceplane.api.scheme import SelfSubjectAccessReviews, SelfSubjectReviews
from sliceplane.kit.times import format_time
from sliceplane.registry.authorization.index import PolicyIndex
from sliceplane.registry.authorization.rules import Rule, document_of_rule
from sliceplane.registry.authorization.types import Attributes
from sliceplane.registry.decoding import decode_body
from sliceplane.registry.types import Body, Context, Outcome, Target, User, WriteOptions


def answer(policy: PolicyIndex, ctx: Context, target: Target, body: Body, options: WriteOptions) -> Outcome:
    """201 with the answered review.  Raises StatusError: 400, 422."""
    resource = target.resource
    document, warnings = decode_body(resource, body, options)
    head: Document = {}
    spec = document.get("spec", {})
    answered: Document = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": head}
    if resource is SelfSubjectReviews:
        head["creationTimestamp"] = format_time(ctx.now)
        answered["status"] = {"userInfo": user_info(ctx.user)}
    elif resource is SelfSubjectAccessReviews:
        decision = policy.decide(ctx.user, _wanted(spec))
        answered["spec"] = spec
        answered["status"] = {"allowed": decision.allowed}
        if decision.reason:
            answered["status"]["reason"] = decision.reason
    else:
        namespace = spec.get("namespace", "")
        if not namespace:
            raise bad_request("no namespace on request")
        answered["spec"] = {}
        answered["status"] = _rules_status(policy.rules_for(ctx.user, namespace))
    return Outcome(code=201, body=codec.encode(answered), warnings=warnings)


def user_info(user: User) -> Document:
    """A UserInfo without empty members."""
    members = {"username": user.name, "uid": user.uid, "groups": list(user.groups)}
    return {name: value for name, value in members.items() if value}


def _wanted(spec: Document) -> Attributes:
    on_resource, on_path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if on_resource is None and on_path is None:
        detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        raise _invalid("spec.resourceAttributes", None, detail)
    if on_resource is not None and on_path is not None:
        detail = "cannot be specified in combination with resourceAttributes"
        raise _invalid("spec.nonResourceAttributes", on_path, detail)
    if on_path is not None:
        return Attributes(verb=on_path.get("verb", ""), path=on_path.get("path", ""))
    assert on_resource is not None, "one of the two is given"
    members = ("verb", "group", "resource", "subresource", "namespace", "name")
    return Attributes(**{member: on_resource.get(member, "") for member in members})


def _invalid(path: str, value: Document | None, detail: str) -> Exception:
    review = SelfSubjectAccessReviews
    return invalid(review.kind, review.group, "", [invalid_value(path, value, detail)])


def _rules_status(rules: tuple[Rule, ...]) -> Document:
    """Both lists are there also when they are empty: clients iterate over them."""
    return {
        "resourceRules": [document_of_rule(rule) for rule in rules if not rule.urls],
        "nonResourceRules": [document_of_rule(rule) for rule in rules if rule.urls],
        "incomplete": False,
    }
