"""PriorityClass: a name for how important Pods are.  One of them may be that of Pods that name none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from sliceplane.api.errors import FieldError, forbidden, forbidden_field, invalid_value, not_supported, required
from sliceplane.api.meta import Document
from sliceplane.api.scheme import PriorityClasses
from sliceplane.server.documents.table.columns import AGE, NAME, Cell, Column, Printer, age, flag, name_of, number, text
from sliceplane.server.registry.documents import document_of
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.metadata import IMMUTABLE
from sliceplane.server.store.mvcc import Store

if TYPE_CHECKING:
    from sliceplane.server.registry.core import Core

_SYSTEM: Final = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
_SYSTEM_PREFIX: Final = "system-"
_VALUE_MAX: Final = 1_000_000_000
_POLICIES: Final = ("PreemptLowerPriority", "Never")


def _default(document: Document) -> None:
    document.setdefault("value", 0)
    document.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _validate(document: Document) -> list[FieldError]:
    errors: list[FieldError] = []
    name = document["metadata"].get("name", "")
    value = document["value"]
    policy = document["preemptionPolicy"]
    if name.startswith(_SYSTEM_PREFIX):
        why = _not_a_system_class(name, value, is_default=document.get("globalDefault", False))
        if why:
            detail = f"priority class names with 'system-' prefix are reserved for system use only. error: {why}"
            errors.append(forbidden_field("metadata.name", detail))
    elif value > _VALUE_MAX:
        errors.append(forbidden_field("value", f"maximum allowed value of a user defined priority is {_VALUE_MAX}"))
    if not policy:
        errors.append(required("preemptionPolicy"))
    elif policy not in _POLICIES:
        errors.append(not_supported("preemptionPolicy", policy, _POLICIES))
    return errors


def _not_a_system_class(name: str, value: int, *, is_default: bool) -> str:
    if name not in _SYSTEM:
        return f"{name} is not a known system priority class"
    if value != _SYSTEM[name]:
        return f"value of {name} PriorityClass must be {_SYSTEM[name]}"
    return f"globalDefault of {name} PriorityClass must be false" if is_default else ""


def _validate_update(new: Document, old: Document) -> list[FieldError]:
    errors: list[FieldError] = []
    if new["value"] != old["value"]:
        errors.append(forbidden_field("value", "may not be changed in an update."))
    if new["preemptionPolicy"] != old["preemptionPolicy"]:
        errors.append(invalid_value("preemptionPolicy", new["preemptionPolicy"], IMMUTABLE))
    return errors


def default_class(store: Store) -> Document | None:
    """That of Pods which name none; of several, which only an older server let in, the least important."""
    classes = map(document_of, store.iter_latest(PriorityClasses.storage_key))
    return min((each for each in classes if each.get("globalDefault")), key=lambda each: each["value"], default=None)


def _admit(core: Core, new: Document, _old: Document | None) -> None:
    """Raises the 403 ``StatusError``."""
    name = new["metadata"]["name"]
    default = default_class(core.store) if new.get("globalDefault") else None
    if default is not None and default["metadata"]["name"] != name:
        taken = default["metadata"]["name"]
        why = f"PriorityClass {taken} is already marked as default. Only one default can exist"
        raise forbidden(PriorityClasses.plural, PriorityClasses.group, name, why)


def _cells(priority_class: Document, now: float) -> tuple[Cell, ...]:
    return (
        name_of(priority_class),
        number(priority_class, "value"),
        flag(priority_class, "globalDefault"),
        age(priority_class, now),
        text(priority_class, "preemptionPolicy"),
    )


_STORED: Final = kind.stored_as_sent(
    resource=PriorityClasses,
    defaults=_default,
    validate=_validate,
    validate_update=_validate_update,
    warnings=kind.no_warnings,
    quota=kind.UNCOUNTED,
    granted=kind.NOT_GRANTED,
    columns=Printer(
        (
            NAME,
            Column(name="Value", type="integer", description="The priority; higher is more important."),
            Column(name="Global-Default", type="boolean", description="Whether Pods without a class have this one."),
            AGE,
            Column(name="PreemptionPolicy", description="Whether Pods may push out less important ones."),
        ),
        _cells,
    ),
)
PRIORITY_CLASS: Final = replace(_STORED, admission=replace(kind.ADMITTED, admit=_admit))
