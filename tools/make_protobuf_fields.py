"""Write ``src/sliceplane/server/documents/protobuf/fields.txt`` from the facts in
``tools/protobuf_facts.txt``.

A development script, run by hand when a kind is added::

    .venv/bin/python tools/make_protobuf_fields.py

The facts are every message of the stable versions of ``k8s.io/api``, served or not, in the form of the output.  They
are taken anew when a new Kubernetes version is to be followed::

    go mod download k8s.io/kubernetes          (in tests/peers/kubernetes)
    .venv/bin/python tools/make_protobuf_fields.py ~/go/pkg/mod/k8s.io v0.36.2

The messages are the kinds of ``api.scheme`` and of the bodies of subresources with their lists, the
kinds of ``meta.k8s.io`` that the table has, and every message that they refer to; of the kinds that
are only listed, which have no objects, the metadata alone. Facts only are read: names, numbers and
types of fields from ``generated.proto``, and presence from the structs beside it.

The output has a line ``kind|message PACKAGE NAME`` for each message, followed by its fields in the
order of their numbers: ``NUMBER JSON TYPE PRESENCE``, with ``[]`` before the type of a repeated
field and ``{}`` before the value type of a map. A type of the same package is written without the
package. Presence is one of

pointer   absent and zero differ, and neither wire nor JSON has an absent one;
always    a plain value, in JSON even when it is zero;
omit      a plain value (or a list or a map), left out of JSON when it is zero;
inline    a message whose members are members of the parent in JSON
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sliceplane.api.requests import SUBRESOURCES
from sliceplane.api.scheme import DESCRIBED, LISTED, OPTIONAL_RESOURCES
from sliceplane.server.documents.protobuf.schema import META, SCALARS, package_of

FACTS: Final = Path(__file__).parent / "protobuf_facts.txt"
OUTPUT: Final = Path(__file__).parent.parent / "src/sliceplane/server/documents/protobuf/fields.txt"
#: packages that stay as they are: forms that no struct shows
#: (``server.documents.protobuf.special``), and discovery, whose lists the server writes even if
#: they are empty
KEPT: Final = ("k8s.io.apimachinery.pkg", "k8s.io.api.apidiscovery")
_STABLE: Final = re.compile(r"\.v\d+$")
_MESSAGE: Final = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD: Final = re.compile(
    r"^  (?:(optional|repeated) ([.\w]+)|map<string, ([.\w]+)>) (\w+) = (\d+);", re.MULTILINE
)
_STRUCT: Final = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_MEMBER: Final = re.compile(r"^\t(?:\w+ +)?(\S+) +`([^`]*)`", re.MULTILINE)


class Package:
    """The messages and structs of one folder."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        proto = (folder / "generated.proto").read_text()
        self.messages = dict(_MESSAGE.findall(proto))
        self.structs: dict[str, str] = {}
        for path in sorted(folder.glob("*.go")):
            if (
                not path.name.startswith(("zz_", "generated", "types_swagger"))
                and "_test" not in path.name
            ):
                self.structs.update(_STRUCT.findall(path.read_text()))

    def lines(self, message: str) -> list[str]:
        """The header of *message* and its fields."""
        struct = self.structs.get(message, "")
        members = dict(map(_member, _MEMBER.findall(struct)))
        word = "kind" if "metav1.TypeMeta" in struct else "message"
        fields: list[tuple[int, str]] = []
        for label, kind, value, name, number in _FIELD.findall(self.messages[message]):
            json, presence = members.get(name, (name, "omit"))
            mark = "{}" if value else "[]" if label == "repeated" else ""
            # A list or a map without a member is null in Go's JSON, which documents do not have.
            presence = "omit" if mark else presence
            spelled = (value or kind).lstrip(".").removeprefix(f"{self.name}.")
            fields.append((int(number), f"{number} {json or '-'} {mark}{spelled} {presence}"))
        return [f"{word} {self.name} {message}", *(text for _, text in sorted(fields))]


def _member(found: tuple[str, str]) -> tuple[str, tuple[str, str]]:
    """A struct's member: its name in the .proto file, its name in JSON and its presence."""
    kind, tags = found
    name = re.search(r'protobuf:"[^"]*name=(\w+)', tags)
    json = re.search(r'json:"([^"]*)"', tags)
    spelled, *options = json.group(1).split(",") if json else [""]
    presence = (
        "pointer"
        if kind.startswith("*")
        else "omit"
        if {"omitempty", "omitzero"} & {*options}
        else "always"
    )
    return name.group(1) if name else spelled or kind[0].lower() + kind[1:], (
        spelled,
        "inline" if "inline" in options else presence,
    )


def roots() -> list[str]:
    """Full names of the messages that the table has for their own sake."""
    bodies = [row.body for row in SUBRESOURCES.values() if row.body is not None]
    names: list[str] = []
    for resource in (*DESCRIBED, *OPTIONAL_RESOURCES, *bodies):
        package = f"k8s.io.api.{package_of(resource.group)}.{resource.version}"
        names += [f"{package}.{resource.kind}", f"{package}.{resource.kind}List"]
    return names


def listed() -> dict[str, list[str]]:
    """The messages of empty lists and of bookmarks of a watch."""
    lines: dict[str, list[str]] = {}
    for resource in LISTED:
        package = f"k8s.io.api.{package_of(resource.group)}.{resource.version}"
        lines[f"{package}.{resource.kind}"] = [
            f"kind {package} {resource.kind}",
            f"1 metadata {META}.ObjectMeta omit",
        ]
        lines[f"{package}.{resource.list_kind}"] = [
            f"kind {package} {resource.list_kind}",
            f"1 metadata {META}.ListMeta omit",
            f"2 items []{resource.kind} omit",
        ]
    return lines


def blocks(table: str) -> dict[str, list[str]]:
    """The lines of each message of a table, by its full name."""
    lines = [block.split("\n") for block in re.split(r"\n(?=kind|message)", table.strip())]
    return {".".join(block[0].split(" ")[1:]): block for block in lines}


def taken(modules: Path, version: str) -> str:
    """The facts of the stable versions, and of the older ones that the scheme has."""
    folder = modules / f"api@{version}"
    served = {name.rpartition(".")[0] for name in roots()}
    found: list[list[str]] = []
    for proto in sorted(folder.glob("*/*/generated.proto")):
        name = ".".join(("k8s.io.api", *proto.parent.relative_to(folder).parts))
        if _STABLE.search(name) or name in served:
            package = Package(name, proto.parent)
            found += [package.lines(message) for message in package.messages]
    return joined(found)


def joined(messages: Iterable[list[str]]) -> str:
    ordered = sorted(messages, key=lambda lines: lines[0].split(" ")[1:])
    return "".join(f"{line}\n" for lines in ordered for line in lines)


def made(facts: str, table: str) -> str:
    """The whole file.  *table* is the present one."""
    known = blocks(facts)
    done = {
        name: lines for name, lines in blocks(table).items() if name.startswith(KEPT)
    } | listed()
    wanted = roots()
    while wanted:
        name = wanted.pop()
        if name in done:
            continue
        if name not in known:
            assert name in roots(), f"{name} is not in {FACTS.name}"
            assert name.endswith("List"), f"{name} is not in {FACTS.name}"
            continue
        done[name] = known[name]
        for line in done[name][1:]:
            kind = line.split(" ")[2].lstrip("[]{}")
            if kind not in SCALARS:
                wanted.append(kind if "." in kind else f"{name.rpartition('.')[0]}.{kind}")
    return joined(done.values())


if __name__ == "__main__":
    if len(sys.argv) == 3:
        FACTS.write_text(taken(Path(sys.argv[1]), sys.argv[2]))
    elif len(sys.argv) != 1:
        sys.exit(__doc__)
    OUTPUT.write_text(made(FACTS.read_text(), OUTPUT.read_text()))
