"""RuntimeClass: a way to run containers that a Pod can name."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldError, duplicate, while_few
from sliceplane.api.meta import Document
from sliceplane.api.scheme import RuntimeClasses
from sliceplane.kit.names import check_dns_label
from sliceplane.server.documents.table.columns import AGE, NAME, Column
from sliceplane.server.registry.kinds.plain import FieldRule, plain_kind, printer
from sliceplane.server.registry.metadata import in_go, validate_labels
from sliceplane.server.registry.validation.scheduling import check_tolerations

_IDENTITY: Final = ("key", "operator", "value", "effect")


def _validate(document: Document) -> list[FieldError]:
    scheduling = document.get("scheduling", {})
    tolerations: list[Document] = scheduling.get("tolerations", [])
    errors = validate_labels(scheduling.get("nodeSelector", {}), "scheduling.nodeSelector")
    errors += check_tolerations("scheduling.tolerations", tolerations)
    seen: set[tuple[str, ...]] = set()
    for index, toleration in while_few(errors, enumerate(tolerations)):
        identity = tuple(toleration.get(member, "") for member in _IDENTITY)
        if identity in seen:
            shown = in_go(toleration, *_IDENTITY, "tolerationSeconds", **dict.fromkeys(_IDENTITY, ""))
            errors.append(duplicate(f"scheduling.tolerations[{index}]", shown))
        seen.add(identity)
    return errors


RUNTIME_CLASS: Final = plain_kind(
    RuntimeClasses,
    (FieldRule("handler", required=True, check=check_dns_label, immutable=True),),
    printer(NAME, (Column(name="Handler", description="What the container runtime calls it."), "handler"), AGE),
    validate=_validate,
)
