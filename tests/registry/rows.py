"""Cases of validation as data: the sections of ``cases/*.yaml``.

A section names its resource, perhaps a subresource (``part``), whether defaults are filled in, and
the place that its patches change (``at``). A case is ``[patch, complaint, ...]``; a change is
``[patch of the old object, patch of the new one, complaint, ...]``. A patch is a JSON merge patch
(RFC 7386) of the resource's document in ``valid.yaml``. In a complaint ``@`` stands for the place,
and an end ``...`` for any text; ``<name>`` stands for a text of ``texts.yaml`` everywhere.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from sliceplane.api.errors import FieldError
from sliceplane.api.scheme import Resource, by_key
from sliceplane.server.documents.patch import apply_merge
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.verbs.answers import validate_create, validate_update

FOLDER = Path(__file__).parent / "cases"
#: how the message of each type of complaint begins
BEGINNINGS = {
    "FieldValueDuplicate": "Duplicate value: ",
    "FieldValueForbidden": "Forbidden: ",
    "FieldValueInvalid": "Invalid value: ",
    "FieldValueNotFound": "Not found: ",
    "FieldValueNotSupported": "Unsupported value: ",
    "FieldValueRequired": "Required value",
    "FieldValueTooLong": "Too long: ",
    "FieldValueTooMany": "Too many: ",
    "InternalError": "Internal error: ",
}


class Case(NamedTuple):
    resource: Resource
    name: str
    part: str
    new: Any
    old: Any
    expected: list[str]

    def __str__(self) -> str:
        return f"{self.resource.key} {self.part}: {self.name}"


def load(name: str) -> Any:
    raw = json.dumps(yaml.load((FOLDER / name).read_text(encoding="utf-8"), yaml.CSafeLoader))
    for short, text in texts().items():
        raw = raw.replace(f"<{short}>", json.dumps(text)[1:-1])
    return json.loads(raw)


@cache
def texts() -> Any:
    return yaml.load((FOLDER / "texts.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)


@cache
def documents() -> Any:
    return load("valid.yaml")


def valid(resource: Resource, patch: Any = None, at: str = "", *, defaults: bool = True) -> Any:
    """The valid document of *resource*, changed by *patch* at the place *at*."""
    head = {"name": "x", "uid": "u"} | ({"namespace": "default"} if resource.namespaced else {})
    names = (resource.key, *((f"{resource.key} without defaults",) if not defaults else ()))
    full = {name: member for key in names for name, member in documents().get(key, {}).items()}
    document = apply_merge({"metadata": head}, copy.deepcopy(full))
    *steps, last = [int(step) if step.isdigit() else step for step in re.findall(r"\w+", f"_.{at}")]
    place: Any = {"_": document}
    for step in steps:
        place = place[step] if isinstance(step, int) else place.setdefault(step, {})
    old = place[last] if isinstance(last, int) else place.get(last, {})
    place[last] = apply_merge(old, copy.deepcopy(patch or {}))
    document = place[last] if last == "_" else document
    if defaults:
        kind_of(resource).defaults(document)
    return document


def cases(member: str) -> list[Case]:
    """The cases of all sections' *member*: ``cases``, ``changes`` or ``warnings``."""
    return [case for path in sorted(FOLDER.glob("*.yaml")) for case in _cases(path.name, member)]


def _cases(file: str, member: str) -> Iterator[Case]:
    sections = load(file)
    for section in sections if isinstance(sections, list) else ():
        of = dict(section["of"])
        resource, part = by_key(of.pop("resource")), of.pop("part", "")
        assert resource is not None
        for name, row in section.get(member, {}).items():
            patches, errors = (row[:2], row[2:]) if member == "changes" else (row[:1], row[1:])
            objects = [valid(resource, patch, **of) for patch in patches]
            old = objects[0] if member == "changes" else None
            expected = [text.replace("@", of["at"]) if "at" in of else text for text in errors]
            yield Case(resource, str(name), part, objects[-1], old, expected)


def complaints(resource: Resource, new: Any, old: Any = None, part: str = "") -> list[str]:
    """The complaints about *new*, each of which begins as its type has it."""
    if old is None:
        errors = validate_create(resource, new)
    else:
        errors = validate_update(resource, new, old, part)
    return [checked(error) for error in errors]


def checked(error: FieldError) -> str:
    assert error.message.startswith(BEGINNINGS[error.type]), error
    return str(error)


def judge(errors: list[str], expected: list[str]) -> None:
    """Compares complaints with those of a row."""
    is_same = [
        text.startswith(row.removesuffix("...")) if row.endswith("...") else text == row
        for text, row in zip(errors, expected, strict=False)
    ]
    assert len(errors) == len(expected), errors
    assert all(is_same), errors
