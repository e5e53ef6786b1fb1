"""Parses a file's bytes into the fields that it sets, with the line of each.

It is strict, unlike upstream, which falls back to ignoring unknown fields: with a misspelt field, or
one of a newer release, the administrator would rely on a setting that the proxy does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from sliceplane.api.errors import (
    FieldError,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
)
from sliceplane.kit.times import parse_duration
from sliceplane.kit.yaml_documents import ParsedYaml, YamlError, parse_yaml_stream
from sliceplane.node.configuration.fields import (
    API_VERSION,
    BY_PATH,
    KIND,
    SECTIONS,
    ConfigField,
    Value,
)

DEPTH_MAX: Final = 20
_LINE: Final = re.compile(r"line (\d+): (.*)")
_INT32: Final = range(-(1 << 31), 1 << 31)
_ZEROS: Final = (None, "", 0, False, "0", "0s")


class Problem(msgspec.Struct, frozen=True):
    """A mistake in a file.  ``line`` counts from 1; 0: the whole file.  ``text`` names the field."""

    line: int
    text: str


class ParsedConfig(msgspec.Struct, frozen=True):
    """``values``: value by path, sorted. ``lines``: where every path of the file is. With
    ``problems`` the rest is as much as could be read.
    """

    values: Mapping[str, Value]
    lines: Mapping[str, int]
    problems: tuple[Problem, ...]

    def at(self, error: FieldError) -> Problem:
        """Returns *error* with the line of its field, or of the nearest enclosing one."""
        path = error.field.partition("[")[0]
        while path and path not in self.lines:
            path = path.rpartition(".")[0]
        return Problem(self.lines.get(path, 0), str(error))


def parse_config(raw: bytes) -> ParsedConfig:
    """Parses a file.  Never raises."""
    try:
        documents = parse_yaml_stream(raw, depth_max=DEPTH_MAX)
        parsed = documents[0] if documents else ParsedYaml(None, ())
        lines, more_at = _lines_by_path(raw)
    except YamlError as error:
        return ParsedConfig({}, {}, (_problem(error.placed),))
    problems = [_problem(text) for problem in parsed.problems for text in problem.splitlines()[1:]]
    if more_at:
        problems.append(Problem(more_at, "a second document: the file may hold one"))
    if not isinstance(parsed.value, dict):
        problems.append(
            Problem(
                0,
                f"{'is empty' if parsed.value is None else 'is not a mapping'}: a {KIND} is "
                "expected",
            )
        )
        return ParsedConfig({}, lines, tuple(problems))
    draft = ParsedConfig({}, lines, ())
    errors = list(_kind_errors(parsed.value))
    values: dict[str, Value] = {}
    if not errors:  # a file of another kind is one mistake, not twenty
        errors += _fields(parsed.value, values)
    problems += [draft.at(error) for error in errors]
    problems.sort(key=lambda problem: problem.line)
    return ParsedConfig(dict(sorted(values.items())), lines, tuple(problems))


def _problem(text: str) -> Problem:
    match = _LINE.search(text)
    return Problem(int(match[1]), match[2]) if match else Problem(0, text)


def _lines_by_path(raw: bytes) -> tuple[dict[str, int], int]:
    """Returns the line of each path of at most two parts, and of a second document (0: there is none).
    Raises ``YamlError`` if the text after the first document is invalid.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    lines: dict[str, int] = {}
    try:
        roots = [
            root for root in yaml.compose_all(raw.decode(), Loader=loader) if root.end_mark.index
        ]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise YamlError(
            f"yaml: {f'line {mark.line + 1}: ' if mark else ''}{error.problem}"
        ) from None
    for key, node in _members(roots[0]) if roots else ():
        lines[key] = lines.get(key, node.start_mark.line + 1)
        lines.update({f"{key}.{name}": inner.start_mark.line + 1 for name, inner in _members(node)})
    real = [root for root in roots[1:] if root.value]
    return lines, real[0].start_mark.line + 1 if real else 0


def _members(node: Any) -> Iterator[tuple[str, Any]]:
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield str(key.value), value


def _kind_errors(document: dict[str, Any]) -> Iterator[FieldError]:
    for name, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        value = document.get(name)
        if not value:
            yield required(name, f"must be {expected}")
        elif value == "ConfigMap":
            yield forbidden_field(
                name, "a ConfigMap holds the file, as its key config.conf: name the file itself"
            )
            return
        elif value != expected and document.get("kind") != "ConfigMap":
            yield not_supported(name, value, (expected,))


def _fields(document: dict[str, Any], values: dict[str, Value]) -> Iterator[FieldError]:
    """Adds the fields that are set to *values*."""
    for name, value in document.items():
        if name in {"apiVersion", "kind"}:
            continue
        if name in SECTIONS:
            if isinstance(value, dict):
                for inner, member in value.items():
                    yield from _field(f"{name}.{inner}", member, values)
            elif value is not None:
                yield invalid_value(name, value, "must be a mapping")
        else:
            yield from _field(name, value, values)


def _field(path: str, value: Any, values: dict[str, Value]) -> Iterator[FieldError]:
    field = BY_PATH.get(path)
    if field is None:
        near = get_close_matches(path, BY_PATH, n=1, cutoff=0.8)
        hint = f"; did you mean {near[0]}?" if near else ""
        yield forbidden_field(path, f"unknown field{hint}")
        return
    try:
        parsed = _value(field, value)
    except ValueError as error:
        yield invalid_value(path, value, str(error))
        return
    if parsed is not None and (field.pointer or parsed not in {"", False, ()}):
        values[path] = parsed


def _value(field: ConfigField, value: Any) -> Value:
    """Returns the value in the form of ``Value``.  Raises ``ValueError`` with the expected type."""
    if value is None:
        return None
    match field.kind:
        case "string" if isinstance(value, str):
            return value
        case "boolean" if isinstance(value, bool):
            return value
        case "integer" if (
            isinstance(value, int) and not isinstance(value, bool) and value in _INT32
        ):
            return value
        case "number" if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        case "duration" if (
            isinstance(value, str) and (seconds := parse_duration(value)) is not None
        ):
            return seconds
        case "strings" if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        case "gates" if isinstance(value, dict) and all(
            isinstance(on, bool) for on in value.values()
        ):
            return tuple(sorted(value.items()))
        case "free":
            return None if _is_zero(value) else str(value)
    raise ValueError(_MUST_BE[field.kind])


_MUST_BE: Final = {
    "string": "must be a string",
    "boolean": "must be true or false",
    "integer": "must be a 32-bit integer",
    "number": "must be a number",
    "duration": "must be a duration with its unit, such as 30s or 1m30s",
    "strings": "must be a list of strings",
    "gates": "must be a mapping from names to true or false",
}


def _is_zero(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_zero(member) for member in value.values())
    return not value if isinstance(value, list) else value in _ZEROS
