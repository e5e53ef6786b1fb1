"""RuntimeClass: a way to run containers that a Pod can name."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldErrors
from sliceplane.api.meta import Document
from sliceplane.api.scheme import RuntimeClasses
from sliceplane.kit.names import check_dns_label
from sliceplane.server.documents.table.columns import AGE, NAME, Column, Printer
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.metadata import in_go, validate_labels
from sliceplane.server.registry.validation.rules import Field, Rules, each, only_once
from sliceplane.server.registry.validation.scheduling import check_tolerations

_IDENTITY: Final = ("key", "operator", "value", "effect")


def _tolerations(path: str, tolerations: list[Document]) -> FieldErrors:
    seen: set[tuple[str, ...]] = set()

    def once(where: str, toleration: Document) -> FieldErrors:
        identity = tuple(toleration.get(member, "") for member in _IDENTITY)
        shown = in_go(toleration, *_IDENTITY, "tolerationSeconds", **dict.fromkeys(_IDENTITY, ""))
        return only_once(where, identity, seen, shown)

    return check_tolerations(path, tolerations) + each(path, tolerations, once)


RUNTIME_CLASS: Final = kind.Kind(
    resource=RuntimeClasses,
    rules=Rules(
        Field("handler", required=True, form=check_dns_label, immutable=True),
        Field("scheduling?.nodeSelector", rows=lambda path, labels: validate_labels(labels, path)),
        Field("scheduling?.tolerations", whole=_tolerations),
    ),
    columns=Printer(
        (NAME, Column("Handler", "What the container runtime calls it.", "handler"), AGE)
    ),
)
