"""Requests to an API server and its answers as frozen values; and the table of subresources.

Controllers hand out ``Write`` and watch a ``Selection``; a client in the process, one over HTTP and
the simulator perform the same values. Bodies are JSON bytes on purpose: a caller that needs an
object decodes the projection that it uses, and no body is decoded twice.

Paths, discovery, OpenAPI, the decoding of bodies, the reference of the command line, the client in
the process and the simulator read ``SUBRESOURCES``; ``server.registry.registry`` has a function for
each whose objects are not the resource's own. Which resources have which is said in their rows
(``api.scheme``, ``Resource.subresources``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import msgspec

from sliceplane.api.scheme import Resource

STATUS_VERBS: Final = ("get", "patch", "update")
Verb = Literal["create", "update", "patch", "delete", "get", "list", "probe", "ask"]
PatchType = Literal["json", "merge", "strategic", "apply"]


class BodyKind(NamedTuple):
    """The kind of what an endpoint reads and answers."""

    group: str
    version: str
    kind: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


class Subresource(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    verbs: tuple[str, ...]
    #: ``None``: the resource's own kind
    body: BodyKind | None
    #: whether the keys of the server are needed for it, so that no other process can do it
    signs: bool = False

    @property
    def is_posted(self) -> bool:
        """Returns True if the subresource is only posted (a question or an order) and cannot be
        read.
        """
        return self.verbs == ("create",)


_ROWS: Final = (
    Subresource(name="binding", verbs=("create",), body=BodyKind("", "v1", "Binding")),
    Subresource(name="ephemeralcontainers", verbs=STATUS_VERBS, body=None),
    Subresource(name="eviction", verbs=("create",), body=BodyKind("policy", "v1", "Eviction")),
    Subresource(name="finalize", verbs=("update",), body=None),
    Subresource(name="resize", verbs=STATUS_VERBS, body=None),
    Subresource(name="scale", verbs=STATUS_VERBS, body=BodyKind("autoscaling", "v1", "Scale")),
    Subresource(name="status", verbs=STATUS_VERBS, body=None),
    Subresource(
        name="token",
        verbs=("create",),
        body=BodyKind("authentication.k8s.io", "v1", "TokenRequest"),
        signs=True,
    ),
)
SUBRESOURCES: Final = {row.name: row for row in _ROWS}


def body_kind(subresource: str) -> BodyKind | None:
    """The kind of the objects at *subresource* ("": the resource itself), if it is not the
    resource's own.
    """
    row = SUBRESOURCES.get(subresource)
    return row.body if row else None


class Selection(msgspec.Struct, frozen=True):
    """The objects of a resource in one namespace ("": all, or cluster scope) that the selectors
    leave.
    """

    resource: Resource
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""

    @property
    def is_of_one(self) -> bool:
        """Returns True if at most one object can match: it is selected by its name."""
        is_placed = bool(self.namespace) or not self.resource.namespaced
        return (
            is_placed
            and self.field_selector.startswith("metadata.name=")
            and "," not in self.field_selector
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One API write; or a read (``get``, ``list``), for a controller that must not believe a cache
    before it does harm.

    A ``list`` asks for the newest state, whole, and is answered with ``{"items": [...]}``; it alone
    has a selector. ``ask`` is a question of ``consume.drain.reports``.

    ``body`` is JSON bytes: the object for create and update, the patch for patch, DeleteOptions (or
    empty) for delete.  ``name`` is "" for create, but for a subresource.
    """

    verb: Verb
    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    body: bytes = b""
    patch_type: PatchType = "merge"
    #: of an "apply": fields that another manager owns are taken over
    force: bool = False
    label_selector: str = ""
    #: errors that count as success, by reason (a delete that finds nothing, say)
    tolerate: tuple[str, ...] = ()
    #: of the answer its metadata is used and nothing else; the rest may be left out
    metadata_only: bool = False
    #: of an EndpointSlice: its endpoints as they are in ``body``, one by one. One that did not
    #: change since the write before is the same bytes object, so a reader finds those that did
    #: without reading the body
    parts: Collection[bytes] = field(default=(), compare=False, repr=False)


class ListPage(msgspec.Struct, frozen=True):
    """One page: item bodies (without kind and apiVersion, maybe), the list's version, the rest's
    token.
    """

    items: tuple[bytes, ...]
    resource_version: str
    continue_token: str = ""
    remaining: int | None = None


class WatchMessage(msgspec.Struct, frozen=True):
    """One watch event: ``type`` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR; ``body`` its
    object.
    """

    type: str
    body: bytes


def listed_items(bodies: Iterable[bytes]) -> bytes:
    """The answer to a ``Write`` that lists."""
    return b'{"items":[' + b",".join(bodies) + b"]}"


#: where a ``Write`` that asks is sent to (``consume.drain.reports``)
PROGRESS_PATH: Final = "/sliceplane/progress"

#: the answer to a ``Write`` that probes, where the port refused no connection; where it did, there
#: is none
NOT_REFUSED: Final = b'{"kind":"Status","apiVersion":"v1","status":"Success"}'


#: how a connection from here ended; ``silent``: nobody answered, or there was no way
ProbeOutcome = Literal["open", "refused", "silent"]


class PortProbe(NamedTuple):
    """Where a TCP connection is tried; the body of a ``Write`` that probes."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"
