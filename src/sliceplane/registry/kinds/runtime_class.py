"""RuntimeClass: a way to run containers that a Pod can name."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldError, duplicate, invalid_value, not_supported, required, while_few
from sliceplane.api.meta import Document
from sliceplane.api.scheme import RuntimeClasses
from sliceplane.documents.table.columns import AGE, NAME, Cell, Column, Printer, age, name_of, text
from sliceplane.kit.names import check_dns_label, check_label_value, check_qualified_name
from sliceplane.registry.kinds import kind
from sliceplane.registry.metadata import IMMUTABLE, in_go, validate_labels

_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_OPERATORS: Final = ("Equal", "Exists")
_IDENTITY: Final = ("key", "operator", "value", "effect")
_NEEDS_EXISTS: Final = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'


def _validate(document: Document) -> list[FieldError]:
    handler = document.get("handler", "")
    scheduling = document.get("scheduling", {})
    errors = [invalid_value("handler", handler, problem) for problem in check_dns_label(handler) if handler]
    errors += [] if handler else [required("handler")]
    errors += validate_labels(scheduling.get("nodeSelector", {}), "scheduling.nodeSelector")
    tolerations: list[Document] = scheduling.get("tolerations", [])
    for index, toleration in while_few(errors, enumerate(tolerations)):
        errors += _toleration(f"scheduling.tolerations[{index}]", toleration)
    seen: set[tuple[str, ...]] = set()
    for index, toleration in while_few(errors, enumerate(tolerations)):
        identity = tuple(toleration.get(member, "") for member in _IDENTITY)
        if identity in seen:
            shown = in_go(toleration, *_IDENTITY, "tolerationSeconds", **dict.fromkeys(_IDENTITY, ""))
            errors.append(duplicate(f"scheduling.tolerations[{index}]", shown))
        seen.add(identity)
    return errors


def _toleration(path: str, toleration: Document) -> list[FieldError]:
    key, operator, value, effect = (toleration.get(member, "") for member in _IDENTITY)
    errors = [invalid_value(f"{path}.key", key, problem) for problem in check_qualified_name(key) if key]
    if not key and operator != "Exists":
        errors.append(invalid_value(f"{path}.operator", operator, _NEEDS_EXISTS))
    if "tolerationSeconds" in toleration and effect != "NoExecute":
        detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        errors.append(invalid_value(f"{path}.effect", effect, detail))
    if operator in ("", "Equal"):
        problems = check_label_value(value)
        errors += [invalid_value(f"{path}.operator", value, ";".join(problems))] if problems else []
    elif operator != "Exists":
        errors.append(not_supported(f"{path}.operator", operator, _OPERATORS))
    elif value:
        errors.append(invalid_value(f"{path}.operator", value, "value must be empty when `operator` is 'Exists'"))
    if effect and effect not in _EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, _EFFECTS))
    return errors


def _validate_update(new: Document, old: Document) -> list[FieldError]:
    errors = _validate(new)
    if new.get("handler", "") != old.get("handler", ""):
        errors.append(invalid_value("handler", new.get("handler", ""), IMMUTABLE))
    return errors


def _cells(runtime_class: Document, now: float) -> tuple[Cell, ...]:
    return name_of(runtime_class), text(runtime_class, "handler"), age(runtime_class, now)


RUNTIME_CLASS: Final = kind.stored_as_sent(
    resource=RuntimeClasses,
    defaults=kind.no_defaults,
    validate=_validate,
    validate_update=_validate_update,
    warnings=kind.no_warnings,
    quota=kind.UNCOUNTED,
    granted=kind.NOT_GRANTED,
    columns=Printer((NAME, Column(name="Handler", description="What the container runtime calls it."), AGE), _cells),
)
