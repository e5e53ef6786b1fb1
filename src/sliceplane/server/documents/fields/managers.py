"""``metadata.managedFields``: entries as they are stored, and as the algebra wants them.

A manager is told apart from others by its name, what it does (Apply or Update), the subresource it
does it through and, where it updates, the API version it speaks (``Identity``). An applier keeps
its entry when it changes its version.

Stored entries are canonical (``encode`` made them), so reading them costs no more than taking their
parts. Entries from clients are checked and brought to that form first (``received``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

import msgspec

from sliceplane.api.meta import Document
from sliceplane.kit.times import format_time, parse_time
from sliceplane.server.documents.fields import sets
from sliceplane.server.documents.fields.sets import FieldSet

Operation = Literal["Apply", "Update"]

UNKNOWN_MANAGER: Final = "unknown"
FIELDS_TYPE: Final = "FieldsV1"


class Identity(NamedTuple):
    manager: str
    operation: Operation
    #: "" for Apply
    api_version: str
    subresource: str

    def __str__(self) -> str:
        """Returns the name that conflicts show: ``"kubectl" with subresource "status" using
        v1``.
        """
        text = f'"{self.manager}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return text if self.operation == "Apply" else f"{text} using {self.api_version}"


class ManagerEntry(msgspec.Struct, frozen=True):
    """The fields that one manager owns. ``time`` is RFC 3339, or "" where the first apply changed
    nothing.
    """

    fields: FieldSet
    api_version: str
    time: str = ""
    #: the set as it is stored, in order, if it is; still so as long as ``fields`` is the same
    #: object
    stored: FieldSet | None = None


Managers = dict[Identity, ManagerEntry]
#: from a set and the version it was written in to the names that the caller works with and back;
#: ``None``: the version is not served any more
Translate = Callable[[FieldSet, str], FieldSet | None]


class MalformedManagers(ValueError):
    """Entries that cannot be read."""


def identity(manager: str, operation: Operation, api_version: str, subresource: str) -> Identity:
    return Identity(
        manager or UNKNOWN_MANAGER,
        operation,
        "" if operation == "Apply" else api_version,
        subresource,
    )


def decode(entries: list[Document], translate: Translate, *, ordered: bool = True) -> Managers:
    """Entries as ``encode`` made them, or in canonical form without being *ordered*.

    One whose version is unknown by now is forgotten.
    """
    managers: Managers = {}
    for entry in entries:
        version = entry["apiVersion"]
        stored = entry.get("fieldsV1", {})
        fields = translate(stored, version)
        if fields is not None:
            owner = identity(
                entry.get("manager", ""), entry["operation"], version, entry.get("subresource", "")
            )
            managers[owner] = ManagerEntry(
                fields, version, entry.get("time", ""), stored if ordered else None
            )
    return managers


def encode(managers: Managers, translate: Translate) -> list[Document]:
    """Entries in their order: Apply before Update, then by time, then by name."""
    entries: list[Document] = []
    for owner, entry in sorted(managers.items(), key=_order):
        fields = translate(entry.fields, entry.api_version)
        assert fields is not None, f"an entry of the unknown version {entry.api_version} was kept"
        document: Document = {
            "manager": owner.manager,
            "operation": owner.operation,
            "apiVersion": entry.api_version,
        }
        if entry.time:
            document["time"] = entry.time
        document["fieldsType"] = FIELDS_TYPE
        document["fieldsV1"] = fields if fields is entry.stored else sets.ordered(fields)
        if owner.subresource:
            document["subresource"] = owner.subresource
        entries.append(document)
    return entries


def _order(item: tuple[Identity, ManagerEntry]) -> tuple[str, str, str, str, str]:
    owner, entry = item
    # Times are whole seconds in UTC here, so that they sort as text.
    return owner.operation, entry.time, owner.manager, entry.api_version, owner.subresource


def is_reset(sent: Any) -> bool:
    """``[]`` or ``[{}]``: the client wants everything forgotten."""
    return isinstance(sent, list) and (not sent or (len(sent) == 1 and not _has_values(sent[0])))


def _has_values(entry: Any) -> bool:
    return not isinstance(entry, dict) or any(value for value in entry.values())


def received(sent: list[Any]) -> list[Document]:
    """Entries of a client as ``encode`` would have made them.  Raises ``MalformedManagers``."""
    entries: list[Document] = []
    for position, entry in enumerate(sent):
        if not isinstance(entry, dict):
            raise MalformedManagers(f"entry {position} is not an object")
        operation = entry.get("operation")
        version = entry.get("apiVersion")
        if operation not in ("Apply", "Update"):
            raise MalformedManagers("operation must be `Apply` or `Update`")
        if not version:
            raise MalformedManagers("apiVersion must not be empty")
        if entry.get("fieldsType") != FIELDS_TYPE:
            raise MalformedManagers(
                f"invalid fieldsType {entry.get('fieldsType')!r} in managed fields entry {position}"
            )
        clean: Document = {
            "manager": entry.get("manager") or "",
            "operation": operation,
            "apiVersion": version,
        }
        try:
            if entry.get("time"):
                clean["time"] = format_time(parse_time(entry["time"]))
            clean["fieldsV1"] = sets.from_wire(entry.get("fieldsV1") or {})
        except (ValueError, OverflowError) as error:
            raise MalformedManagers(f"error decoding entry: {error}") from error
        if entry.get("subresource"):
            clean["subresource"] = entry["subresource"]
        entries.append(clean)
    return entries


def same_but_times(left: list[Document], right: list[Document]) -> bool:
    """Returns True if two lists of stored entries differ in their times at most."""
    return len(left) == len(right) and all(
        _timeless(before) == _timeless(after) for before, after in zip(left, right, strict=True)
    )


def _timeless(entry: Document) -> Document:
    return {name: value for name, value in entry.items() if name != "time"}
