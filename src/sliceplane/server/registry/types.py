"""Requests to the registry and its answers: what is asked, by whom, what a user may do, who signs
tokens.

Frozen; everything that a verb needs besides the store is in here.
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

    ``resource`` is the version that is stored, also where an older one was given: that is in
    ``via`` then.
    """

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    #: the older version that the request names, where ``resource`` is the stored one
    via: Resource | None = None

    def __post_init__(self) -> None:
        older = self.resource
        if older.hub is not None:
            msgspec.structs.force_setattr(self, "resource", older.hub)
            msgspec.structs.force_setattr(self, "via", older)

    @property
    def spoken(self) -> Resource:
        """The version that the client reads and writes."""
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
    #: ``orphanDependents: false``: a 202 then says that the object is not gone yet
    forbids_orphans: bool = False


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded request body: the document and what a lenient reader would have passed over."""

    document: Document = msgspec.field(default_factory=dict)
    #: strict-decoding problems, e.g. ``unknown field "spec.foo"``, ``duplicate field
    #: "metadata.name"``
    problems: tuple[str, ...] = ()
    #: in the place of ``document``: decoded by each attempt at the write, which may then keep what
    #: it decoded
    own: OwnJson | None = None
    #: ``own`` decoded already, for the first attempt to take out, and whether it is tidy
    #: (``server.registry.decoding``)
    parsed: list[Document] = msgspec.field(default_factory=list)
    is_tidy: bool = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a write.

    The caller must not answer before ``revision`` is durable (0: nothing was written). ``body`` is
    the JSON to answer with: the object, or for some deletes a ``Status``.
    """

    code: int
    body: bytes
    revision: int = 0
    warnings: tuple[str, ...] = ()


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    label_selector: str = ""
    field_selector: str = ""
    #: counts with the feature gate ShardedListAndWatch
    shard_selector: str | None = None
    #: as the client sent it; ``None``: not sent
    resource_version: str | None = None
    resource_version_match: str | None = None
    limit: int = 0
    continue_token: str = ""
    #: only watches may ask for it; here to be refused
    send_initial_events: bool | None = None


class ListOutcome(msgspec.Struct, frozen=True, kw_only=True):
    records: tuple[Record, ...]
    resource_version: int
    continue_token: str = ""
    remaining: int | None = None
    #: the selector of the shard that this is, "" for the whole collection
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
    - ``since=N``: events strictly after N, from the history or from the future;
    - neither: events from now on;
    - ``wait_for=N``: the store is not there yet; wait as long as for a list, then end the stream
      with ``api.errors.too_large_resource_version`` as an ERROR event;
    - ``newest``: no version was named, so what it begins with must not be old.
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
    """The action of a request, in the terms that rules are written in.

    ``verb`` is a resource verb (get, list, watch, create, ...) or, where ``resource`` is "", the
    method in lower case, and ``path`` says on what. A Namespace object counts as lying in itself.
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
        """``pods`` or ``pods/status``: how rules spell it."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Decision(msgspec.Struct, frozen=True):
    """``reason`` is for people and the audit log; "" where there is nothing to say."""

    allowed: bool
    reason: str = ""


def creation_of(target: Target) -> Attributes:
    """Creating what *target* names, which is what a PUT or an apply to a free name does."""
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
    """Signs and reads tokens; knows nothing of accounts or of time."""

    @property
    def issuer(self) -> str: ...

    @property
    def audiences(self) -> tuple[str, ...]:
        """The audiences of tokens if a request names none; a token that is shown to us must have
        one of them.
        """

    def sign(self, claims: Document) -> str:
        """A JSON Web Token of *claims*."""

    def read(self, token: str) -> Document | User | None:
        """The claims of a token with a signature of ours, the user of a static token, or
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
    """The user of a token, and the requested audiences that it is good for.

    ``supports`` are the objects without which it is worth nothing, ``until`` is when that is so in
    any case.
    """

    user: User
    audiences: tuple[str, ...]
    supports: tuple[Key, ...] = ()
    until: float | None = None
