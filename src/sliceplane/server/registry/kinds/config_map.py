"""ConfigMap: keys, size, and the immutable flag."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldError, duplicate, forbidden_field, invalid_value, too_long, while_few
from sliceplane.api.meta import Document
from sliceplane.api.scheme import ConfigMaps
from sliceplane.server.documents.table.columns import AGE, NAME, Cell, Column, Printer, age, mapping, name_of
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.validation.environment import key_problems

DATA_MAX_BYTES = 1024 * 1024


def _validate(document: Document) -> list[FieldError]:
    errors: list[FieldError] = []
    text: dict[str, str] = document.get("data", {})
    binary: dict[str, str] = document.get("binaryData", {})
    size = 0
    for key, value in while_few(errors, text.items()):
        errors += validate_key(f"data[{key}]", key)
        if key in binary:
            errors.append(duplicate(f"data[{key}]", key))
        size += len(value.encode())
    for key, value in while_few(errors, binary.items()):
        errors += validate_key(f"binaryData[{key}]", key)
        size += len(value) * 3 // 4
    if size > DATA_MAX_BYTES:
        errors.append(too_long("[]", DATA_MAX_BYTES))
    return errors


def _validate_update(new: Document, old: Document) -> list[FieldError]:
    errors: list[FieldError] = []
    if old.get("immutable"):
        detail = "field is immutable when `immutable` is set"
        if not new.get("immutable"):
            errors.append(forbidden_field("immutable", detail))
        errors += [
            forbidden_field(member, detail)
            for member in ("data", "binaryData")
            if new.get(member, {}) != old.get(member, {})
        ]
    return errors + _validate(new)


def validate_key(path: str, key: str) -> list[FieldError]:
    return [invalid_value(path, key, problem) for problem in key_problems(key)]


def _cells(config_map: Document, now: float) -> tuple[Cell, ...]:
    return (
        name_of(config_map),
        len(mapping(config_map, "data")) + len(mapping(config_map, "binaryData")),
        age(config_map, now),
    )


CONFIG_MAP: Final = kind.stored_as_sent(
    resource=ConfigMaps,
    defaults=kind.no_defaults,
    validate=_validate,
    validate_update=_validate_update,
    warnings=kind.no_warnings,
    quota=kind.counted_as(ConfigMaps.plural),
    granted=kind.edited(),
    columns=Printer((NAME, Column(name="Data", description="How many entries there are."), AGE), _cells),
)
