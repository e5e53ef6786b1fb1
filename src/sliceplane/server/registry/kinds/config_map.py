"""ConfigMap: keys, size, and the immutable flag."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldErrors, duplicate, forbidden_field, too_long, while_few
from sliceplane.api.meta import Document
from sliceplane.api.scheme import ConfigMaps
from sliceplane.server.documents.table.columns import AGE, NAME, Column, Printer, mapping
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.validation.environment import key_problems
from sliceplane.server.registry.validation.rules import Rules, of_form

DATA_MAX_BYTES = 1024 * 1024
_KEPT: Final = "field is immutable when `immutable` is set"


def _validate(_path: str, document: Document) -> FieldErrors:
    errors: FieldErrors = []
    text: dict[str, str] = document.get("data", {})
    binary: dict[str, str] = document.get("binaryData", {})
    size = 0
    for key, value in while_few(errors, text.items()):
        errors += of_form(f"data[{key}]", key, key_problems)
        if key in binary:
            errors.append(duplicate(f"data[{key}]", key))
        size += len(value.encode())
    for key, value in while_few(errors, binary.items()):
        errors += of_form(f"binaryData[{key}]", key, key_problems)
        size += len(value) * 3 // 4
    return [*errors, too_long("[]", DATA_MAX_BYTES)] if size > DATA_MAX_BYTES else errors


def check_kept(new: Document, old: Document) -> FieldErrors:
    """The complaints about changes of what ``immutable`` fixes: that flag itself, and the data."""
    if not old.get("immutable"):
        return []
    flag = [] if new.get("immutable") else ["immutable"]
    changed = [
        member for member in ("data", "binaryData") if new.get(member, {}) != old.get(member, {})
    ]
    return [forbidden_field(member, _KEPT) for member in (*flag, *changed)]


CONFIG_MAP: Final = kind.Kind(
    resource=ConfigMaps,
    rules=Rules(_validate),
    update_rules=lambda new, old: check_kept(new, old) + _validate("", new),
    quota=kind.counted_as(ConfigMaps.plural),
    granted=kind.edited(),
    columns=Printer(
        (
            NAME,
            Column(
                "Data",
                "How many entries there are.",
                lambda config_map: (
                    len(mapping(config_map, "data")) + len(mapping(config_map, "binaryData"))
                ),
            ),
            AGE,
        )
    ),
)
