"""Shard selectors: a slice of a collection by hash, so that several readers share one collection
(KEP-5866, alpha).

    shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000') || shardRange(...)

A range has its start and not its end; bounds have sixteen hexadecimal digits, but for the end of
everything, ``0x10000000000000000``. The hash is FNV-1a of 64 bits over the field's text; all ranges
are of one field.

The grammar is a corner of CEL: calls, ``||`` and brackets around them. What else CEL knows is
refused by name.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from sliceplane.api.errors import bad_request, show

FIELD_UID: Final = "object.metadata.uid"
FIELD_NAMESPACE: Final = "object.metadata.namespace"
END: Final = 1 << 64

_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_TOKEN: Final = re.compile(
    r"\s*(?:(\|\|)|([(),])|('[^'\\\n]*'|\"[^\"\\\n]*\")|([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)|(\S))"
)
_HEX: Final = re.compile(r"[0-9a-f]+")
_BRACKETS_MAX: Final = 50


class ShardSelector(msgspec.Struct, frozen=True):
    """``ranges``: start inclusive, end exclusive.  ``str`` is the canonical text, which lists
    echo.
    """

    field: str
    ranges: tuple[tuple[int, int], ...]

    def matches(self, uid: str, namespace: str) -> bool:
        value = fnv1a(uid if self.field == FIELD_UID else namespace)
        return any(start <= value < end for start, end in self.ranges)

    def __str__(self) -> str:
        return " || ".join(
            f"shardRange({self.field}, '0x{start:016x}', '0x{end:016x}')"
            for start, end in self.ranges
        )


def fnv1a(text: str) -> int:
    """FNV-1a with 64 bits."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
    return value


def parse_shards(text: str) -> ShardSelector:
    """Raises a 400 StatusError."""
    reader = _Reader(text)
    try:
        parsed = reader.alternatives()
        reader.expect_end()
        return parsed
    except _Problem as problem:
        raise bad_request(f"invalid shard selector: {problem}") from None


class _Problem(Exception):
    """The error of a text."""


class _Reader:
    """Tokens of one text, left to right."""

    def __init__(self, text: str) -> None:
        if not text.strip():
            raise bad_request(
                "invalid shard selector: empty shard selector is not allowed; omit the parameter "
                "for unfiltered lists"
            )
        self._tokens = [match[0].strip() for match in _TOKEN.finditer(text) if match[0].strip()]
        self._at = 0
        self._depth = 0

    def alternatives(self) -> ShardSelector:
        first = self._term()
        ranges = list(first.ranges)
        while self._peek() == "||":
            self._at += 1
            other = self._term()
            if other.field != first.field:
                raise _Problem(
                    f"all shard ranges must use the same field, got {show(first.field)} and "
                    f"{show(other.field)}"
                )
            ranges += other.ranges
        return ShardSelector(first.field, tuple(ranges))

    def expect_end(self) -> None:
        if self._at < len(self._tokens):
            raise _Problem(f"unexpected {show(self._peek())}; only shardRange() and || are allowed")

    def _term(self) -> ShardSelector:
        token = self._next()
        if token == "(":
            self._depth += 1
            if self._depth > _BRACKETS_MAX:
                raise _Problem(f"more than {_BRACKETS_MAX} brackets are open")
            parsed = self.alternatives()
            self._take(")")
            self._depth -= 1
            return parsed
        if token != "shardRange":
            what = "function" if self._peek() == "(" else "expression"
            raise _Problem(
                f"unsupported {what} {show(token)}; only shardRange() and || are allowed"
            )
        self._take("(")
        arguments = [self._next()]
        while self._peek() == ",":
            self._at += 1
            arguments.append(self._next())
        self._take(")")
        if len(arguments) != 3:
            raise _Problem(f"shardRange() requires exactly 3 arguments, got {len(arguments)}")
        field, start, end = arguments
        if field not in (FIELD_UID, FIELD_NAMESPACE):
            raise _Problem(
                f"unsupported field path {show(field)}; supported: {FIELD_UID}, {FIELD_NAMESPACE}"
            )
        bounds = (_bound(start, "hexStart"), _bound(end, "hexEnd"))
        if bounds[0] >= bounds[1]:
            raise _Problem(f"shard range start {start[1:-1]} must be less than end {end[1:-1]}")
        return ShardSelector(field, (bounds,))

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise _Problem("the expression ends too early")
        self._at += 1
        return token

    def _take(self, expected: str) -> None:
        token = self._next()
        if token != expected:
            raise _Problem(f"expected {show(expected)}, got {show(token)}")


def _bound(token: str, name: str) -> int:
    if token[0] not in "'\"":
        raise _Problem(f"{name} must be a string literal (e.g. '0xff'), got {show(token)}")
    text = token[1:-1]
    digits = text.removeprefix("0x")
    if digits == text:
        raise _Problem(f"{name} must have '0x' prefix, got {show(text)}")
    if not digits:
        raise _Problem(f"{name}: hex value is required after '0x'")
    if len(digits) > 17:
        raise _Problem(f"{name}: hex value too long ({len(digits)} chars, max 17): {show(digits)}")
    if not _HEX.fullmatch(digits):
        wrong = next(each for each in digits if not _HEX.fullmatch(each))
        raise _Problem(f"{name}: invalid hex character {show(wrong)} in {show(text)}")
    value = int(digits, 16)
    if len(digits) == 17:
        if value != END:
            raise _Problem(
                f"{name}: 17-digit hex value must be '0x10000000000000000' (2^64), got {show(text)}"
            )
    elif len(digits) != 16:
        padded = f"0x{digits:0>16}"
        raise _Problem(
            f"{name} must be a 0x-prefixed 16-digit hex value, got {show(text)} (did you mean "
            f"{show(padded)}?)"
        )
    return value
