"""The table of messages, read from ``fields.txt`` (made by ``tools/make_protobuf_fields.py``, which
tells its form).
"""

from __future__ import annotations

import pkgutil
from functools import cache
from typing import Final, Literal, cast

import msgspec

from sliceplane.api.requests import SUBRESOURCES
from sliceplane.api.scheme import SERVED

Label = Literal["one", "list", "map"]
Presence = Literal["pointer", "always", "omit", "inline"]

SCALARS: Final = frozenset(("string", "bool", "int32", "int64", "bytes"))
META: Final = "k8s.io.apimachinery.pkg.apis.meta.v1"

#: PartialObjectMetadata is the same message in both
_META_VERSIONS: Final = ("meta.k8s.io/v1", "meta.k8s.io/v1beta1")
_GROUPS: Final = frozenset(
    {"apidiscovery.k8s.io"}
    | {resource.group for resource in SERVED}
    | {row.body.group for row in SUBRESOURCES.values() if row.body is not None}
)


class ProtobufField(msgspec.Struct, frozen=True):
    """One field.  ``type`` is a scalar's name or a message's full name; ``name`` is "" for an
    inlined message.
    """

    number: int
    name: str
    type: str
    label: Label
    presence: Presence


class Message(msgspec.Struct, frozen=True):
    name: str
    is_kind: bool
    fields: tuple[ProtobufField, ...]

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]


@cache
def _blocks() -> dict[str, str]:
    """Full name of each message to its lines; cut apart only, since most messages are never
    used.
    """
    data = pkgutil.get_data(__name__, "fields.txt")
    assert data is not None, "fields.txt is part of the package"
    blocks: dict[str, list[str]] = {}
    current: list[str] = []
    for line in data.decode().splitlines():
        if line[0].isdigit():
            current.append(line)
        else:
            word, package, name = line.split(" ")
            current = blocks[f"{package}.{name}"] = [word]
    return {name: "\n".join(lines) for name, lines in blocks.items()}


@cache
def message(name: str) -> Message:
    """The message of that full name; it must exist."""
    word, *lines = _blocks()[name].split("\n")
    package = name.rpartition(".")[0]
    return Message(name, word == "kind", tuple(_field(line, package) for line in lines))


def _field(line: str, package: str) -> ProtobufField:
    number, name, kind, presence = line.split(" ")
    label: Label = "list" if kind.startswith("[]") else "map" if kind.startswith("{}") else "one"
    kind = kind.lstrip("[]{}")
    if kind not in SCALARS and "." not in kind:
        kind = f"{package}.{kind}"
    inline = presence == "inline"
    return ProtobufField(
        int(number), "" if inline else name, kind, label, cast("Presence", presence)
    )


@cache
def _packages() -> frozenset[str]:
    return frozenset(name.rpartition(".")[0] for name in _blocks())


def message_names() -> tuple[str, ...]:
    return tuple(_blocks())


def package_of(group: str) -> str:
    """The word for an API group in the names of upstream's packages."""
    return (group or "core").partition(".")[0]


def find_kind(api_version: str, kind: str) -> Message | None:
    """The message of a kind, or ``None``. Strangers name kinds: nothing is remembered of those that
    do not exist.

    The kinds of meta.k8s.io (Status, DeleteOptions, ...) exist in every group and version that we
    know.
    """
    group, _, version = api_version.rpartition("/")
    package = f"k8s.io.api.{package_of(group)}.{version}" if group in _GROUPS else ""
    if package not in _packages() and api_version not in _META_VERSIONS:
        return None
    for name in (f"{package}.{kind}", f"{META}.{kind}"):
        if name in _blocks() and message(name).is_kind:
            return message(name)
    return None
