"""What a request wants, and what was decided about it.  Frozen."""

from __future__ import annotations

from dataclasses import dataclass

from sliceplane.registry.types import Target

MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
#: who has shown nothing
ANONYMOUS_NAME = "system:anonymous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """What a request wants to do, in the terms that rules are written in.

    ``verb`` is a resource verb (get, list, watch, create, ...) or, where ``resource`` is "", the method in
    lower case, and ``path`` says on what.  A Namespace object counts as lying in itself.
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


@dataclass(frozen=True, slots=True)
class Decision:
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
