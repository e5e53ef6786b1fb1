"""What a client asks of an API server, and what it is answered, as frozen values.

Controllers hand out ``Write`` and watch a ``Selection``; a client in the process, one over HTTP and the simulator
perform the same values.  Bodies are JSON bytes on purpose: a caller that needs an object decodes the projection
that it uses, and no body is decoded twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sliceplane.api.scheme import Resource

Verb = Literal["create", "update", "patch", "delete", "get", "list"]
PatchType = Literal["json", "merge", "strategic", "apply"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects of a resource in one namespace ("": all, or cluster scope) that the selectors leave."""

    resource: Resource
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One API write; or a read (``get``, ``list``), for a controller that must not believe a cache before it does harm.

    A ``list`` asks for the newest state, whole, and is answered with ``{"items": [...]}``; it alone has a selector.

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
    label_selector: str = ""
    #: errors that count as success, by reason (a delete that finds nothing, say)
    tolerate: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page: item bodies (without kind and apiVersion, maybe), the list's version, the rest's token."""

    items: tuple[bytes, ...]
    resource_version: str
    continue_token: str = ""
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class WatchMessage:
    """One watch event: ``type`` is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR; ``body`` its object."""

    type: str
    body: bytes
