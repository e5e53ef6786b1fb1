"""Requests to the registry and its answers: target, user, options, decisions, the token service.

Frozen; with the store this is everything that a verb needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from sliceplane.api.codec import OwnJson
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource
from sliceplane.api.users import (
    User,
)
from sliceplane.server.store.types import Key, Record

FieldValidation = Literal["Ignore", "Warn", "Strict"]
PatchType = Literal["json", "merge", "strategic", "apply"]
Propagation = Literal["Background", "Foreground", "Orphan"]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a request. ``name`` is "" for a collection; ``namespace`` is "" for cluster
    scope and for a list across namespaces.

    ``resource`` is the stored version, also if the request names an older one, which is in ``via``
    then.
    """

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    #: the older version that the request names, if it is not the stored one
    via: Resource | None = None

    def __post_init__(self) -> None:
        requested = self.resource
        if requested.hub is not None:
            msgspec.structs.force_setattr(self, "resource", requested.hub)
            msgspec.structs.force_setattr(self, "via", requested)

    @property
    def requested(self) -> Resource:
        """The version of the resource that the client reads and writes."""
        return self.via or self.resource

    @property
    def converted(self) -> bool:
        """Returns True if the client reads and writes another form than the stored one."""
        return self.via is not None or self.resource.is_view


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The user of a request, and its time (seconds since the epoch)."""

    now: float
    user: User


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    dry_run: bool = False
    field_manager: str = ""
    field_validation: FieldValidation = "Warn"
    force: bool = False


#: how the server writes objects of its own
BY_THE_SERVER = WriteOptions(field_manager="kube-apiserver")


class DeleteOptions(msgspec.Struct, frozen=True, kw_only=True):
    dry_run: bool = False
    grace_period_s: int | None = None
    propagation: Propagation | None = None
    precondition_uid: str | None = None
    precondition_resource_version: str | None = None
    #: ``orphanDependents: false``: the answer is a 202 if the object still exists
    forbids_orphans: bool = False


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded request body: the document, and the problems that a lenient reader ignores."""

    document: Document = msgspec.field(default_factory=dict)
    #: strict-decoding problems, e.g. ``unknown field "spec.foo"``, ``duplicate field
    #: "metadata.name"``
    problems: tuple[str, ...] = ()
    #: instead of ``document``: each attempt at the write decodes it and owns the result
    own: OwnJson | None = None
    #: the decoded ``own``, which the first attempt takes; and whether it is tidy
    #: (``server.registry.decoding``)
    parsed: list[Document] = msgspec.field(default_factory=list)
    is_tidy: bool = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a write.

    The caller must not answer before ``revision`` is durable (0: nothing was written). ``body`` is
    the JSON of the answer: the object, or for some deletes a ``Status``.
    """

    code: int
    body: bytes
    revision: int = 0
    warnings: tuple[str, ...] = ()


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    label_selector: str = ""
    field_selector: str = ""
    #: applies only with the feature gate ShardedListAndWatch
    shard_selector: str | None = None
    #: as the client sent it; ``None``: not sent
    resource_version: str | None = None
    resource_version_match: str | None = None
    limit: int = 0
    continue_token: str = ""
    #: allowed for watches only; lists refuse it
    send_initial_events: bool | None = None


class ListOutcome(msgspec.Struct, frozen=True, kw_only=True):
    records: tuple[Record, ...]
    resource_version: int
    continue_token: str = ""
    remaining: int | None = None
    #: the selector of the returned shard, "" for the whole collection
    shard: str = ""


class WatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    label_selector: str = ""
    field_selector: str = ""
    shard_selector: str | None = None
    resource_version: str | None = None
    resource_version_match: str | None = None
    allow_bookmarks: bool = False
    send_initial_events: bool | None = None
    timeout_s: int | None = None


class WatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A watch whose options are valid, as ``server.store.hub.Hub.subscribe`` needs it.

    - ``initial``: begin with ADDED for the present state; with ``bookmarks`` its end is marked;
    - ``since=N``: events strictly after N, past or future ones;
    - neither: events from now on;
    - ``wait_for=N``: the store has not reached N yet; wait as long as for a list, then end the
      stream with ``api.errors.too_large_resource_version`` as an ERROR event;
    - ``newest``: no version was requested, so the initial state must be the newest.
    """

    resource: Resource
    namespace: str
    name: str
    matches: Callable[[Record], bool] | None
    #: names ``matches``: equal texts mean equal predicates
    selector: str
    initial: bool
    since: int | None
    bookmarks: bool
    wait_for: int | None = None
    timeout_s: int | None = None
    newest: bool = False


class Attributes(msgspec.Struct, frozen=True, kw_only=True):
    """The action of a request, in the terms of RBAC rules.

    ``verb`` is a resource verb (get, list, watch, create, ...). If ``resource`` is "", it is the
    method in lower case, and ``path`` is the URL path. The ``namespace`` of a Namespace object is
    itself.
    """

    verb: str
    path: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def combined_resource(self) -> str:
        """``pods`` or ``pods/status``: the spelling of rules."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Decision(msgspec.Struct, frozen=True):
    """The result of an authorization.  ``reason`` is for users and the audit log, or ""."""

    allowed: bool
    reason: str = ""


def creation_of(target: Target) -> Attributes:
    """Returns the action of creating *target*, as a PUT or an apply to an unused name does."""
    resource = target.resource
    return Attributes(
        verb="create",
        group=resource.group,
        resource=resource.plural,
        namespace=target.namespace,
        name=target.name,
    )


REFUSED = Decision(allowed=False)


class TokenService(Protocol):
    """Signs and verifies tokens, without regard to accounts and time."""

    @property
    def issuer(self) -> str: ...

    @property
    def audiences(self) -> tuple[str, ...]:
        """The default audiences of tokens; an accepted token must have one of them."""

    def sign(self, claims: Document) -> str:
        """Returns a JSON Web Token of *claims*."""

    def read(self, token: str) -> Document | User | None:
        """Returns the claims of a token with a valid signature, the user of a static token, or
        ``None``.
        """


class NoTokens:
    """The ``TokenService`` of a registry without tokens."""

    issuer = ""
    audiences: tuple[str, ...] = ()

    def sign(self, claims: Document) -> str:
        raise AssertionError(f"there is no key to sign the token of {claims.get('sub')}")

    def read(self, token: str) -> Document | User | None:
        return None


class Authenticated(msgspec.Struct, frozen=True):
    """The user of a token, and the requested audiences for which it is valid.

    The token is valid while the objects ``dependencies`` exist, and at most until ``until``.
    """

    user: User
    audiences: tuple[str, ...]
    dependencies: tuple[Key, ...] = ()
    until: float | None = None
