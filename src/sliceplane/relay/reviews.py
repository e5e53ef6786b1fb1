"""Questions to the parent about a child, who it is and what it may do, and the answers' lifetime.

Upstream's webhook authenticator and authorizer are the model: an answer counts for ``VERDICT_S``,
whether it allows or denies. So a revoked right ends within that time.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from sliceplane.api import codec
from sliceplane.api.meta import Document
from sliceplane.api.users import NODES, User, user_info
from sliceplane.consume.drain.relayed import RELAY_PREFIX
from sliceplane.consume.progress import LEASE_PREFIX
from sliceplane.server.registry.types import Attributes, Decision

V = TypeVar("V")

VERDICT_S: Final = 10.0
VERDICTS_MAX: Final = 20_000
#: of the reason of a refusal, in characters
REASON_MAX: Final = 256
#: of the user of a Pod's token
_NODE_NAME: Final = "authentication.kubernetes.io/node-name"
_POD_NAME: Final = "authentication.kubernetes.io/pod-name"
READING: Final = ("get", "list", "watch")


class ParentVerdict(NamedTuple, Generic[V]):
    """An answer of the parent, and when it was asked for."""

    value: V
    asked_at: float


class Verdicts(Generic[V]):
    """The newest answer to each question, at most *most* of them: the oldest goes first.

    Questions are kept as digests, so that a long name costs no more than a short one.
    """

    def __init__(self, keep_s: float, most: int = VERDICTS_MAX) -> None:
        self._keep_s = keep_s
        self._most = most
        self._by_question: OrderedDict[bytes, ParentVerdict[V]] = OrderedDict()

    def newest(self, question: bytes) -> ParentVerdict[V] | None:
        """Returns the last answer, however old."""
        return self._by_question.get(_digest(question))

    def fresh(
        self, question: bytes, now: float, age_s_max: float = math.inf
    ) -> ParentVerdict[V] | None:
        """Returns the last answer if it still counts, and is no older than *age_s_max*."""
        verdict = self.newest(question)
        keep_s = min(self._keep_s, age_s_max)
        return verdict if verdict is not None and now < verdict.asked_at + keep_s else None

    def put(self, question: bytes, value: V, asked_at: float) -> None:
        key = _digest(question)
        self._by_question.pop(key, None)
        self._by_question[key] = ParentVerdict(value, asked_at)
        if len(self._by_question) > self._most:
            self._by_question.popitem(last=False)


def token_review(token: str) -> bytes:
    """Returns the TokenReview that asks whose *token* is."""
    return codec.encode(
        {
            "kind": "TokenReview",
            "apiVersion": "authentication.k8s.io/v1",
            "spec": {"token": token},
        }
    )


def access_reviews(user: User, attributes: Attributes) -> Iterator[bytes]:
    """Yields the SubjectAccessReviews that ask whether *user* may do what *attributes* say: first
    for all names, then for the one named. One answer allows.

    Thousands of node proxies are one user, and each renews a Lease with a name of its own.
    """
    if attributes.name:
        yield _access_review(user, replace(attributes, name=""))
    yield _access_review(user, attributes)


def _access_review(user: User, attributes: Attributes) -> bytes:
    spec: Document = user_info(user)
    spec["user"] = spec.pop("username", "")
    if attributes.resource:
        members = ("verb", "group", "resource", "subresource", "namespace", "name")
        asked = {member: getattr(attributes, member) for member in members}
        spec["resourceAttributes"] = {name: value for name, value in asked.items() if value}
    else:
        spec["nonResourceAttributes"] = {"verb": attributes.verb, "path": attributes.path}
    return codec.encode(
        {
            "kind": "SubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "spec": spec,
        }
    )


class _UserInfo(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] | None = None
    extra: dict[str, tuple[str, ...]] | None = None


class _Status(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _UserInfo = _UserInfo()
    #: of a SelfSubjectReview
    user_info: _UserInfo = msgspec.field(name="userInfo", default=_UserInfo())
    allowed: bool = False
    reason: str = ""


class _Review(msgspec.Struct, frozen=True):
    status: _Status = _Status()


_decode = msgspec.json.Decoder(_Review).decode


def user_of(answer: bytes) -> User | None:
    """Returns the user of an answered TokenReview; ``None``: the token is not valid.  Raises
    ``msgspec.DecodeError``.
    """
    status = _decode(answer).status
    if not status.authenticated or not status.user.username:
        return None
    user = status.user
    return User(
        name=user.username,
        uid=user.uid,
        groups=user.groups or (),
        extra=tuple(sorted((user.extra or {}).items())),
    )


def self_of(answer: bytes) -> str:
    """Returns the user name of an answered SelfSubjectReview; "": it has none."""
    try:
        return _decode(answer).status.user_info.username
    except msgspec.DecodeError:
        return ""


def decision_of(answer: bytes) -> Decision:
    """Returns the decision of an answered SubjectAccessReview.  Raises ``msgspec.DecodeError``."""
    status = _decode(answer).status
    return Decision(status.allowed, "" if status.allowed else status.reason[:REASON_MAX])


def is_node_reading(user: User, attributes: Attributes) -> bool:
    """Returns True if a node reads a resource, which ``--trust-nodes`` allows without a
    question.
    """
    return (
        NODES in user.groups
        and user.name.startswith("system:node:")
        and attributes.verb in READING
        and bool(attributes.resource)
    )


def may_report(user: User, lease: str) -> bool:
    """Returns False if *user*'s token is that of a Pod, and *lease* of another relay's or of
    another node (KEP-4193).
    """
    extra = dict(user.extra)
    nodes, pods = extra.get(_NODE_NAME, ()), extra.get(_POD_NAME, ())
    own = [LEASE_PREFIX + node for node in nodes] + [RELAY_PREFIX + pod for pod in pods]
    return not own or lease in own


def _digest(question: bytes) -> bytes:
    return hashlib.sha256(question).digest()
