"""PriorityClass and RuntimeClass: names for how important Pods are, and for how their containers
run.

One PriorityClass may be that of Pods that name none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sliceplane.api.errors import FieldErrors, forbidden_field
from sliceplane.api.meta import Document
from sliceplane.api.scheme import PriorityClasses, RuntimeClasses
from sliceplane.kit.names import check_dns_label
from sliceplane.server.documents.table.columns import AGE, NAME, Column, Printer, flag_at, number_at
from sliceplane.server.registry.documents import document_of, refused
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.metadata import in_go, validate_labels
from sliceplane.server.registry.validation.rules import Defaults, Field, Rules, check_unique, each
from sliceplane.server.registry.validation.scheduling import check_tolerations
from sliceplane.server.store.mvcc import Store

if TYPE_CHECKING:
    from sliceplane.server.registry.core import Core

#: the classes of the system, and their values
PRIORITY_CLASSES: Final = {
    "system-node-critical": 2_000_001_000,
    "system-cluster-critical": 2_000_000_000,
}
_SYSTEM_PREFIX: Final = "system-"
_VALUE_MAX: Final = 1_000_000_000


def _value(_path: str, document: Document) -> FieldErrors:
    name = document["metadata"].get("name", "")
    value = document["value"]
    if name.startswith(_SYSTEM_PREFIX):
        why = _not_a_system_class(name, value, is_default=document.get("globalDefault", False))
        detail = (
            "priority class names with 'system-' prefix are reserved for system use only. error: "
            f"{why}"
        )
        return [forbidden_field("metadata.name", detail)] if why else []
    if value <= _VALUE_MAX:
        return []
    return [
        forbidden_field(
            "value", f"maximum allowed value of a user defined priority is {_VALUE_MAX}"
        )
    ]


def _not_a_system_class(name: str, value: int, *, is_default: bool) -> str:
    if name not in PRIORITY_CLASSES:
        return f"{name} is not a known system priority class"
    if value != PRIORITY_CLASSES[name]:
        return f"value of {name} PriorityClass must be {PRIORITY_CLASSES[name]}"
    return f"globalDefault of {name} PriorityClass must be false" if is_default else ""


def _changes(new: Document, old: Document) -> FieldErrors:
    same_value = (
        []
        if new["value"] == old["value"]
        else [forbidden_field("value", "may not be changed in an update.")]
    )
    return same_value + _ROWS.changed(new, old)


def default_class(store: Store) -> Document | None:
    """Returns the class of Pods that name none; of several, which only an older server let in, the
    least important.
    """
    classes = map(document_of, store.iter_latest(PriorityClasses.storage_key))
    return min(
        (each for each in classes if each.get("globalDefault")),
        key=lambda each: each["value"],
        default=None,
    )


def _admit(core: Core, new: Document, _old: Document | None) -> None:
    """Raises the 403 ``StatusError``."""
    name = new["metadata"]["name"]
    default = default_class(core.store) if new.get("globalDefault") else None
    if default is not None and default["metadata"]["name"] != name:
        taken = default["metadata"]["name"]
        why = f"PriorityClass {taken} is already marked as default. Only one default can exist"
        raise refused(PriorityClasses, new, why)


_ROWS: Final = Rules(
    _value,
    Field(
        "preemptionPolicy", required=True, choices=("PreemptLowerPriority", "Never"), immutable=True
    ),
)
PRIORITY_CLASS: Final = kind.Kind(
    resource=PriorityClasses,
    defaults=Defaults({"value": 0, "preemptionPolicy?": "PreemptLowerPriority"}),
    rules=_ROWS,
    update_rules=_changes,
    admission=kind.Admission(admit=_admit),
    columns=Printer(
        (
            NAME,
            Column(
                "Value",
                "The priority; higher is more important.",
                number_at("value"),
                type="integer",
            ),
            Column(
                "Global-Default",
                "Whether Pods without a class have this one.",
                flag_at("globalDefault"),
                type="boolean",
            ),
            AGE,
            Column(
                "PreemptionPolicy",
                "Whether Pods may push out less important ones.",
                "preemptionPolicy",
            ),
        )
    ),
)


_IDENTITY: Final = ("key", "operator", "value", "effect")


def _tolerations(path: str, tolerations: list[Document]) -> FieldErrors:
    seen: set[tuple[str, ...]] = set()

    def toleration_errors(where: str, toleration: Document) -> FieldErrors:
        identity = tuple(toleration.get(member, "") for member in _IDENTITY)
        rendered = in_go(
            toleration, *_IDENTITY, "tolerationSeconds", **dict.fromkeys(_IDENTITY, "")
        )
        return check_unique(where, identity, seen, rendered)

    return check_tolerations(path, tolerations) + each(path, tolerations, toleration_errors)


RUNTIME_CLASS: Final = kind.Kind(
    resource=RuntimeClasses,
    rules=Rules(
        Field("handler", required=True, form=check_dns_label, immutable=True),
        Field("scheduling?.nodeSelector", rows=validate_labels),
        Field("scheduling?.tolerations", whole=_tolerations),
    ),
    columns=Printer(
        (NAME, Column("Handler", "What the container runtime calls it.", "handler"), AGE)
    ),
)
