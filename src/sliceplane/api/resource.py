"""The row of one resource in the scheme: names, version, scope, subresources and per-kind rules
that are data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from sliceplane.api.meta import Object
from sliceplane.kit.names import check_dns_subdomain

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
READ_VERBS = ("get", "list", "watch")

GenerationRule = Literal["none", "spec", "template", "content"]
DeleteReply = Literal["status", "object"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One served resource (a plural in one group and version)."""

    group: str = ""
    version: str = "v1"
    kind: str
    #: the kind in lower case with an s, if not said
    plural: str = ""
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    #: what readers see of an object
    projection: type[Object] = Object
    #: names of rows of ``api.requests``; only these are routed
    subresources: tuple[str, ...] = ()
    #: resources that are two views of one stored object share this (core and events.k8s.io Events)
    storage: str = ""
    #: the version whose form is stored, if it is another; ``server.documents.conversion`` goes to
    #: it and back
    hub: Resource | None = None
    check_name: Callable[[str], tuple[str, ...]] = check_dns_subdomain
    #: field selector names beyond metadata.name and metadata.namespace, mapped to a JSON path
    #: ``a.b.c`` in the document; a missing value selects as ""
    selectable_fields: tuple[tuple[str, str], ...] = ()
    #: "content": +1 when anything outside metadata, or a label, changes; else the member that
    #: counts
    generation: GenerationRule = "none"
    unconditional_update: bool = True
    #: a cluster may lack it, or keep it from a reader, and readers go on without it
    #: (``is_done_without``)
    dispensable: bool = False
    create_on_update: bool = False
    delete_reply: DeleteReply = "status"
    #: as upstream: served straight from storage, which a client can tell by limits and errors
    uncached: bool = False

    # Asked for many times in every request, so they are put together once.
    singular: str = field(init=False, compare=False)
    api_version: str = field(init=False, compare=False)
    #: ``plural.group`` (core: the plural alone); the storage prefix and the name in messages
    key: str = field(init=False, compare=False)
    #: key of the version's schema: ``key``, with the version in it if it is not the hub's
    schema_key: str = field(init=False, compare=False)
    storage_key: str = field(init=False, compare=False)
    #: objects of another resource under other names, see ``server.documents.conversion``; an older
    #: version is none
    is_view: bool = field(init=False, compare=False)
    has_status: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        plural = self.plural or f"{self.kind.lower()}s"
        key = f"{plural}.{self.group}" if self.group else plural
        derived = {
            "plural": plural,
            "singular": self.kind.lower(),
            "api_version": f"{self.group}/{self.version}" if self.group else self.version,
            "key": key,
            "schema_key": key if self.hub is None else f"{plural}.{self.version}.{self.group}",
            "storage_key": self.storage or key,
            "is_view": bool(self.storage) and self.storage != key,
            "has_status": "status" in self.subresources,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def list_kind(self) -> str:
        """``ServiceList``, for ``Service``."""
        return f"{self.kind}List"

    @property
    def path_prefix(self) -> str:
        """``/api/v1`` or ``/apis/GROUP/VERSION``."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of the resource, of one object, or of its subresource."""
        parts = [self.path_prefix]
        if namespace and self.namespaced:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        parts.extend(part for part in (name, subresource) if part)
        return "/".join(parts)
