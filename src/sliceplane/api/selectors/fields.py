"""Field selectors: ``metadata.name=x,spec.nodeName!=y`` and which names each kind knows.

Terms are joined by commas (all must hold); only ``=``, ``==`` and ``!=`` exist; a backslash takes
the meaning from a following backslash, comma or equals sign. Terms are checked in the order of
their text, as upstream does, which decides which error a client sees.

What a field's value is, is decided where records are made: a matcher looks names up in
``Record.fields``, where a missing name is the empty string (or "false", for the two boolean
fields).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from sliceplane.api.errors import StatusError, bad_request, show
from sliceplane.api.scheme import Resource, by_key
from sliceplane.kit.names import check_path_segment

NAME: Final = "metadata.name"
NAMESPACE: Final = "metadata.namespace"

#: booleans select as "true" or "false", never as ""
_BOOLEAN_FIELDS: Final = frozenset(("spec.hostNetwork", "spec.unschedulable"))
#: as upstream: names that are accepted and never have a value
_VALUELESS_FIELDS: Final = {"pods": ("status.podIPs",)}
_OPERATORS: Final = ("!=", "==", "=")  # in this order: "==" before its own prefix


class FieldRequirement(msgspec.Struct, frozen=True):
    """``field`` is the name under which ``Record.fields`` has it."""

    field: str
    equal: bool
    value: str

    def __str__(self) -> str:
        return f"{self.field}{'=' if self.equal else '!='}{_escape(self.value)}"


@dataclass(frozen=True, slots=True)
class FieldRequirements:
    """A conjunction.  ``exact_name`` and ``exact_namespace`` are set where only that one can
    match.
    """

    requirements: tuple[FieldRequirement, ...] = ()
    exact_name: str | None = None
    exact_namespace: str | None = None
    #: by field, of which a resource has a few: values of which it must be each, and none
    _by_field: tuple[tuple[str, frozenset[str], frozenset[str]], ...] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        merged: dict[str, tuple[set[str], set[str]]] = {}
        for requirement in self.requirements:
            required, excluded = merged.setdefault(requirement.field, (set(), set()))
            (required if requirement.equal else excluded).add(requirement.value)
        by_field = tuple(
            (name, frozenset(required), frozenset(excluded))
            for name, (required, excluded) in merged.items()
        )
        object.__setattr__(self, "_by_field", by_field)

    @property
    def empty(self) -> bool:
        return not self.requirements

    def matches(self, name: str, namespace: str, fields: Mapping[str, str]) -> bool:
        if self.exact_name is not None and name != self.exact_name:
            return False
        for where, required, excluded in self._by_field:
            if where == NAME:
                actual = name
            elif where == NAMESPACE:
                actual = namespace
            else:
                actual = fields.get(where, "") or ("false" if where in _BOOLEAN_FIELDS else "")
            if actual in excluded or (required and (len(required) > 1 or actual not in required)):
                return False
        return True

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


NO_FIELDS: Final = FieldRequirements()


def parse_fields(text: str, resource: Resource) -> FieldRequirements:
    """Raises StatusError 400: for the grammar first, for names that *resource* does not have
    then.
    """
    if not text:
        return NO_FIELDS
    terms = [_parse_term(term, text) for term in sorted(_split(text)) if term]
    requirements = tuple(
        FieldRequirement(_indexed_field(term.field, resource), term.equal, term.value)
        for term in terms
    )
    return FieldRequirements(
        requirements, _exact(requirements, NAME), _exact(requirements, NAMESPACE)
    )


def selected_name(text: str) -> str:
    """The only name that *text* can match, whatever the resource; "" if there is none, or no sense
    in *text*.
    """
    if NAME not in text:
        return ""
    try:
        terms = tuple(_parse_term(term, text) for term in sorted(_split(text)) if term)
    except StatusError:
        return ""
    name = _exact(terms, NAME) or ""
    return "" if check_path_segment(name) else name


def _exact(requirements: tuple[FieldRequirement, ...], field: str) -> str | None:
    return next((r.value for r in requirements if r.field == field and r.equal), None)


def _split(text: str) -> Iterator[str]:
    """The terms of *text*: split at commas that no backslash precedes."""
    start = 0
    escaped = False
    for index, character in enumerate(text):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == ",":
            yield text[start:index]
            start = index + 1
    yield text[start:]


def _parse_term(term: str, text: str) -> FieldRequirement:
    """*term* divided at its first operator."""
    for index in range(len(term)):
        for operator in _OPERATORS:
            if term.startswith(operator, index):
                value = _unescape(term[index + len(operator) :])
                return FieldRequirement(term[:index], operator != "!=", value)
    raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")


def _unescape(value: str) -> str:
    if not any(character in value for character in "\\,="):
        return value
    out: list[str] = []
    escaped = False
    for character in value:
        if escaped:
            if character not in "\\,=":
                raise bad_request(f"invalid field selector: invalid escape sequence: \\{character}")
            out.append(character)
            escaped = False
        elif character == "\\":
            escaped = True
        elif character in ",=":
            raise bad_request(
                f"invalid field selector: unescaped character in value: {ord(character)}"
            )
        else:
            out.append(character)
    if escaped:
        raise bad_request("invalid field selector: invalid escape sequence: \\")
    return "".join(out)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")


def _indexed_field(field: str, resource: Resource) -> str:
    """The name that records use for *field*; 400 if *resource* has no such field."""
    has_own_fields = bool(resource.selectable_fields)
    if field == NAME or (field == NAMESPACE and (resource.namespaced or not has_own_fields)):
        return field
    path = dict(resource.selectable_fields).get(field)
    if path is not None:
        return _stored_name(field, path, resource)
    if field in _VALUELESS_FIELDS.get(resource.key, ()):
        return field
    if has_own_fields:
        raise bad_request(f"field label not supported: {field}")
    raise bad_request(
        f"{show(field)} is not a known field selector: only {show(NAME)}, {show(NAMESPACE)}"
    )


def _stored_name(field: str, path: str, resource: Resource) -> str:
    """Several names can stand for one value (spec.host and spec.nodeName; the two Event APIs):
    the first name that the stored form has for the path is the one in records."""
    stored = by_key(resource.storage_key) or resource
    return next(
        (name for name, stored_path in stored.selectable_fields if stored_path == path), field
    )
