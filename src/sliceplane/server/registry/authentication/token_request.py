"""POST serviceaccounts/NAME/token: a token for an account, optionally bound to a Pod, Secret or
Node (KEP-1205).

Nothing is stored. A token ends at its expiration, or when its account or bound object is deleted.
"""

from __future__ import annotations

from typing import Any

from sliceplane.api import codec
from sliceplane.api.errors import bad_request, conflict, invalid, invalid_value
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Nodes, Pods, Resource, Secrets
from sliceplane.kit.times import format_time
from sliceplane.server.registry.authentication.bearer import PRIVATE_CLAIM, USER_PREFIX
from sliceplane.server.registry.core import Core, WriteCall
from sliceplane.server.registry.decoding import decoded_as
from sliceplane.server.registry.documents import document_of
from sliceplane.server.registry.types import Body, Outcome, Target
from sliceplane.server.store.types import Key

GROUP = "authentication.k8s.io"
KIND = "TokenRequest"
EXPIRATION_DEFAULT_S = 3600
SECONDS_MIN = 600
SECONDS_MAX = 1 << 32
_BINDABLE: dict[str, Resource] = {"Node": Nodes, "Pod": Pods, "Secret": Secrets}


def grant(call: WriteCall, body: Body) -> Outcome:
    """Returns a 201 with the TokenRequest and its ``status.token``.  Raises StatusError: 400, 404,
    409, 422.
    """
    core, ctx, target, options = call
    request = decoded_as(f"{GROUP}/v1", KIND, body.document)
    head = request.get("metadata", {})
    spec = request.get("spec", {})
    _match(target, head)
    account = core.latest(target)
    _match_uid(target, head, account.uid)
    audiences = spec.get("audiences") or list(core.tokens.audiences)
    seconds = spec.get("expirationSeconds", EXPIRATION_DEFAULT_S)
    _check_seconds(seconds)
    reference = spec.get("boundObjectRef")
    bound = {} if reference is None else _bound(core, target, reference)
    issued = int(ctx.now)
    answer: Document = {
        "kind": KIND,
        "apiVersion": f"{GROUP}/v1",
        "metadata": {
            "name": target.name,
            "namespace": target.namespace,
            "creationTimestamp": format_time(ctx.now),
        },
        "spec": {"audiences": audiences, "expirationSeconds": seconds},
        "status": {"token": "", "expirationTimestamp": format_time(issued + seconds)},
    }
    if reference is not None:
        answer["spec"]["boundObjectRef"] = reference
    if not options.dry_run:
        claims: Document = {
            "aud": audiences,
            "exp": issued + seconds,
            "iat": issued,
            "iss": core.tokens.issuer,
            "jti": core.rng.uuid(),
            PRIVATE_CLAIM: {
                "namespace": target.namespace,
                **bound,
                "serviceaccount": {"name": target.name, "uid": account.uid},
            },
            "nbf": issued,
            "sub": f"{USER_PREFIX}{target.namespace}:{target.name}",
        }
        answer["status"]["token"] = core.tokens.sign(claims)
    return Outcome(code=201, body=codec.encode(answer))


def _match(target: Target, head: Document) -> None:
    """Checks that name and namespace, if specified, are those of the URL."""
    for member, own in (("name", target.name), ("namespace", target.namespace)):
        sent = head.get(member)
        if sent and sent != own:
            error = invalid_value(
                f"metadata.{member}", sent, f"must match the service account {member} if specified"
            )
            raise invalid(KIND, GROUP, target.name, [error])


def _match_uid(target: Target, head: Document, uid: str) -> None:
    if head.get("uid", uid) in ("", uid):
        return
    why = (
        f"the UID in the token request ({head['uid']}) does not match the UID of the service "
        f"account ({uid})"
    )
    raise conflict(KIND, GROUP, target.name, why)


def _check_seconds(seconds: int) -> None:
    if SECONDS_MIN <= seconds <= SECONDS_MAX:
        return
    than = "less than 10 minutes" if seconds < SECONDS_MIN else "larger than 2^32 seconds"
    error = invalid_value("spec.expirationSeconds", seconds, f"may not specify a duration {than}")
    raise invalid(KIND, GROUP, "", [error])


def _bound(core: Core, target: Target, reference: dict[str, Any]) -> Document:
    """Returns the private claims about the object to which the token is bound."""
    group, _, version = reference.get("apiVersion", "").rpartition("/")
    kind = reference.get("kind", "")
    name = reference.get("name", "")
    resource = None if group else _BINDABLE.get(kind)
    if resource is None:
        spelled = f"{group}/{version}" if group or version else ""
        raise bad_request(f"cannot bind token to object of type {spelled}, Kind={kind}")
    record = core.latest(Target(resource=resource, namespace=target.namespace, name=name))
    claims: Document = {}
    if resource is Pods:
        claims = _node_of(core, target, document_of(record))
    if reference.get("uid", "") not in ("", record.uid):
        why = (
            f"the UID in the bound object reference ({reference['uid']}) does not match the UID "
            "in record"
        )
        raise conflict(
            kind, group, name, f"{why}. The object might have been deleted and then recreated"
        )
    return {**claims, resource.singular: {"name": name, "uid": record.uid}}


def _node_of(core: Core, target: Target, pod: Document) -> Document:
    """Returns the claim about the node of the token's Pod, if it has one; the claim of a missing
    node has no uid.
    """
    spec = pod.get("spec", {})
    if spec.get("serviceAccountName", "") != target.name:
        why = (
            f'cannot bind token for serviceaccount "{target.name}" to pod running with different '
            "serviceaccount name."
        )
        raise bad_request(why)
    name = spec.get("nodeName")
    if not name:
        return {}
    record = core.store.latest(Key(Nodes.storage_key, "", name))
    return {"node": {"name": name, "uid": record.uid} if record else {"name": name}}
