"""Reviews, which are POSTed like objects and never stored: of access, of rules, of the user, and of
tokens.

They serve ``kubectl auth can-i`` and ``kubectl auth whoami``, and servers that check their own
clients with this one; the answer is the review with a status.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api import codec
from sliceplane.api.errors import FieldErrors, bad_request, invalid, invalid_value
from sliceplane.api.meta import Document
from sliceplane.api.scheme import (
    LocalSubjectAccessReviews,
    SelfSubjectAccessReviews,
    SelfSubjectReviews,
    SelfSubjectRulesReviews,
    SubjectAccessReviews,
    TokenReviews,
)
from sliceplane.api.users import User, user_info
from sliceplane.kit.times import format_time
from sliceplane.server.registry import metadata
from sliceplane.server.registry.authentication import bearer
from sliceplane.server.registry.authorization.index import PolicyIndex, absence
from sliceplane.server.registry.authorization.rules import PolicyRule, document_of_rule
from sliceplane.server.registry.core import WriteCall
from sliceplane.server.registry.decoding import decode_body
from sliceplane.server.registry.types import Attributes, Body, Outcome, Target


def answer(call: WriteCall, body: Body) -> Outcome:
    """Returns a 201 with the answered review.  Raises StatusError: 400, 422."""
    resource = call.target.resource
    document, warnings = decode_body(resource, body, call.options)
    answered = _REVIEWS[resource.key](call, document)
    whole = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": {}, **answered}
    return Outcome(code=201, body=codec.encode(whole), warnings=warnings)


def _review_self(call: WriteCall, _review: Document) -> Document:
    return {
        "metadata": {"creationTimestamp": format_time(call.ctx.now)},
        "status": {"userInfo": user_info(call.ctx.user)},
    }


def _review_token(call: WriteCall, review: Document) -> Document:
    """Raises a 400 ``StatusError``."""
    spec: Document = review.get("spec", {})
    token = spec.get("token", "")
    if not token:
        raise bad_request("token is required for TokenReview in authentication")
    authenticated = bearer.authenticate(
        call.core, token, tuple(spec.get("audiences", ())), call.ctx.now
    )
    if authenticated is None:
        return {"spec": spec, "status": {"user": {}, "error": "invalid bearer token"}}
    status: Document = {"authenticated": True, "user": user_info(authenticated.user)}
    if authenticated.audiences:
        status["audiences"] = list(authenticated.audiences)
    return {"spec": spec, "status": status}


def _review_access(call: WriteCall, review: Document) -> Document:
    target = call.target
    spec: Document = review.get("spec", {})
    head: Document = {}
    if target.resource.namespaced:
        metadata.match_namespace(target, review["metadata"])
        head["namespace"] = target.namespace
    return {
        "metadata": head,
        "spec": spec,
        "status": _access_status(call.core.policy, call.ctx.user, target, spec),
    }


def _review_rules(call: WriteCall, review: Document) -> Document:
    """Raises a 400 ``StatusError``."""
    namespace = review.get("spec", {}).get("namespace", "")
    if not namespace:
        raise bad_request("no namespace on request")
    status = _rules_status(call.core.policy.rules_for(call.ctx.user, namespace))
    missing = absence(call.core.policy.absent_roles(call.ctx.user, namespace))
    if missing:
        status["evaluationError"] = missing
    return {"spec": {}, "status": status}


_REVIEWS: Final = {
    LocalSubjectAccessReviews.key: _review_access,
    SelfSubjectAccessReviews.key: _review_access,
    SelfSubjectReviews.key: _review_self,
    SelfSubjectRulesReviews.key: _review_rules,
    SubjectAccessReviews.key: _review_access,
    TokenReviews.key: _review_token,
}


def _access_status(
    policy: PolicyIndex, requester: User, target: Target, spec: Document
) -> Document:
    """Returns the status of an access review: of the user of *spec*, or for a self review of the
    requester.
    """
    of_others = target.resource is not SelfSubjectAccessReviews
    errors = _problems(target, spec, of_others=of_others)
    if errors:
        raise invalid(target.resource.kind, target.resource.group, "", errors)
    user = requester
    if of_others:
        extra = tuple(
            (name, tuple(values)) for name, values in sorted(spec.get("extra", {}).items())
        )
        groups = tuple(spec.get("groups", ()))
        user = User(name=spec.get("user", ""), uid=spec.get("uid", ""), groups=groups, extra=extra)
    decision = policy.decide(user, _attributes(spec))
    status: Document = {"allowed": decision.allowed}
    if decision.reason:
        status["reason"] = decision.reason
    return status


def _problems(target: Target, spec: Document, *, of_others: bool) -> FieldErrors:
    on_resource = spec.get("resourceAttributes")
    on_path = spec.get("nonResourceAttributes")
    errors = []
    if on_resource is not None and on_path is not None:
        detail = "cannot be specified in combination with resourceAttributes"
        errors.append(invalid_value("spec.nonResourceAttributes", on_path, detail))
    if on_resource is None and on_path is None:
        detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        errors.append(invalid_value("spec.resourceAttributes", None, detail))
    if of_others and not spec.get("user") and not spec.get("groups"):
        errors.append(
            invalid_value("spec.user", "", "at least one of user or group must be specified")
        )
    if target.resource.namespaced:
        inside = (on_resource or {}).get("namespace", "")
        if on_resource is not None and inside != target.namespace:
            path = "spec.resourceAttributes.namespace"
            errors.append(invalid_value(path, inside, "must match metadata.namespace"))
        if on_path is not None:
            errors.append(
                invalid_value(
                    "spec.nonResourceAttributes", on_path, "disallowed on this kind of request"
                )
            )
    return errors


def _attributes(spec: Document) -> Attributes:
    on_path = spec.get("nonResourceAttributes")
    if on_path is not None:
        return Attributes(verb=on_path.get("verb", ""), path=on_path.get("path", ""))
    members = ("verb", "group", "resource", "subresource", "namespace", "name")
    return Attributes(**{member: spec["resourceAttributes"].get(member, "") for member in members})


def _rules_status(rules: tuple[PolicyRule, ...]) -> Document:
    """Returns the status of a rules review.  Empty lists are included: clients iterate over
    them.
    """
    return {
        "resourceRules": [document_of_rule(rule) for rule in rules if not rule.urls],
        "nonResourceRules": [document_of_rule(rule) for rule in rules if rule.urls],
        "incomplete": False,
    }
