"""The table of subresources: what each is called, which verbs it has, and of what kind its objects are.

Paths, discovery, OpenAPI, the decoding of bodies, the reference of the command line, the client in the process and the
simulator read it; ``registry.registry`` has a function for each whose objects are not the resource's own.  Which
resources have which is said in their rows (``api.scheme``, ``Resource.subresources``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple


class BodyKind(NamedTuple):
    """The kind of what an endpoint reads and answers."""

    group: str
    version: str
    kind: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Subresource:
    name: str
    verbs: tuple[str, ...]
    #: ``None``: the resource's own kind
    body: BodyKind | None
    #: whether the keys of the server are needed for it, so that no other process can do it
    signs: bool = False

    @property
    def is_posted(self) -> bool:
        """Whether it is a question or an order, and nothing that can be read again."""
        return self.verbs == ("create",)


STATUS_VERBS: Final = ("get", "patch", "update")
_ROWS: Final = (
    Subresource(name="binding", verbs=("create",), body=BodyKind("", "v1", "Binding")),
    Subresource(name="finalize", verbs=("update",), body=None),
    Subresource(name="scale", verbs=STATUS_VERBS, body=BodyKind("autoscaling", "v1", "Scale")),
    Subresource(name="status", verbs=STATUS_VERBS, body=None),
    Subresource(
        name="token", verbs=("create",), body=BodyKind("authentication.k8s.io", "v1", "TokenRequest"), signs=True
    ),
)
SUBRESOURCES: Final = {row.name: row for row in _ROWS}


def body_kind(subresource: str) -> BodyKind | None:
    """The kind of the objects at *subresource* ("": the resource itself), if it is not the resource's own."""
    row = SUBRESOURCES.get(subresource)
    return row.body if row else None
