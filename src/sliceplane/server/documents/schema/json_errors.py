"""Go's complaint about a text that is not JSON.

Clients see Go's words in the 400 for a body that does not parse, down to the offending character.
This scanner runs only on texts that another parser has refused, and only to word the refusal, so it
is written to be read: each step reads one thing and names the next step. Depth costs no recursion.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

#: bytes of a bad body that the error quotes
EXCERPT_BYTES: Final = 30
_SPACE: Final = b" \t\r\n"
_DEPTH_MAX: Final = 10_000
_STRING_PLAIN: Final = re.compile(rb'[^"\\\x00-\x1f]*')
_DIGITS: Final = re.compile(rb"[0-9]*")
_TRUNCATED: Final = "unexpected end of JSON input"
#: reads on, and says what is to be read next; ``None`` at the end of a good text
_Step = Callable[[], Any]
_LITERALS: Final = {ord("t"): b"true", ord("f"): b"false", ord("n"): b"null"}


class _Complaint(Exception):
    """The complaint."""


def describe_syntax_error(raw: bytes) -> str:
    """Go's complaint about *raw*, "" if *raw* is good JSON by Go's rules (which do not look at
    encodings).
    """
    scanner = _Scanner(raw)
    try:
        scanner.scan()
    except _Complaint as complaint:
        return str(complaint)
    return ""


def _show(byte: int) -> str:
    if byte == ord("'"):
        return "'\\''"
    if byte == ord('"'):
        return "'\"'"
    escapes = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 92: "\\\\"}
    if byte in escapes:
        return f"'{escapes[byte]}'"
    if byte < 0x20 or byte == 0x7F:
        return f"'\\x{byte:02x}'"
    # A byte stands for the code point of its value, as Go shows it; those in between have no glyph.
    return f"'\\u{byte:04x}'" if 0x80 <= byte <= 0xA0 or byte == 0xAD else f"'{chr(byte)}'"


class _Scanner:
    """One pass over one text; ``at`` is the next byte."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0
        self.open: list[int] = []

    def _next(self) -> int:
        """The next byte that is not white space; it is not consumed."""
        raw = self.raw
        at = self.at
        while at < len(raw) and raw[at] in _SPACE:
            at += 1
        self.at = at
        return self._byte()

    def _byte(self) -> int:
        if self.at >= len(self.raw):
            raise _Complaint(_TRUNCATED)
        return self.raw[self.at]

    def _fail(self, byte: int, context: str) -> _Complaint:
        return _Complaint(f"invalid character {_show(byte)} {context}")

    def scan(self) -> None:
        step: _Step | None = self._value
        while step is not None:
            step = step()

    def _value(self) -> _Step | None:
        byte = self._next()
        if byte == ord("{"):
            return self._descend(byte, self._first_member)
        if byte == ord("["):
            return self._descend(byte, self._first_element)
        if byte == ord('"'):
            self._string()
        elif byte == ord("-") or 0x30 <= byte <= 0x39:
            self._number(byte)
        elif byte in _LITERALS:
            self._literal(_LITERALS[byte])
        else:
            raise self._fail(byte, "looking for beginning of value")
        return self._after_value

    def _first_member(self) -> _Step | None:
        return self._ascend() if self._next() == ord("}") else self._member()

    def _first_element(self) -> _Step | None:
        return self._ascend() if self._next() == ord("]") else self._value()

    def _member(self) -> _Step | None:
        byte = self._next()
        if byte != ord('"'):
            raise self._fail(byte, "looking for beginning of object key string")
        self._string()
        byte = self._next()
        if byte != ord(":"):
            raise self._fail(byte, "after object key")
        self.at += 1
        return self._value

    def _after_value(self) -> _Step | None:
        if not self.open:
            rest = self.raw[self.at :].lstrip(_SPACE)
            if rest:
                raise self._fail(rest[0], "after top-level value")
            return None
        in_object = self.open[-1] == ord("{")
        byte = self._next()
        if byte == ord(","):
            self.at += 1
            return self._member if in_object else self._value
        if byte != (ord("}") if in_object else ord("]")):
            raise self._fail(
                byte, "after object key:value pair" if in_object else "after array element"
            )
        return self._ascend()

    def _descend(self, byte: int, then: _Step) -> _Step:
        self.open.append(byte)
        self.at += 1
        if len(self.open) > _DEPTH_MAX:
            raise _Complaint("exceeded max depth")
        return then

    def _ascend(self) -> _Step:
        self.open.pop()
        self.at += 1
        return self._after_value

    def _string(self) -> None:
        self.at += 1
        while True:
            plain = _STRING_PLAIN.match(self.raw, self.at)
            assert plain is not None
            self.at = plain.end()
            byte = self._byte()
            self.at += 1
            if byte == ord('"'):
                return
            if byte != ord("\\"):
                raise self._fail(byte, "in string literal")
            byte = self._byte()
            self.at += 1
            if byte == ord("u"):
                for _ in range(4):
                    byte = self._byte()
                    if byte not in b"0123456789abcdefABCDEF":
                        raise self._fail(byte, "in \\u hexadecimal character escape")
                    self.at += 1
            elif byte not in b'bfnrt\\/"':
                raise self._fail(byte, "in string escape code")

    def _number(self, byte: int) -> None:
        if byte == ord("-"):
            self.at += 1
            byte = self._byte()
            if not 0x30 <= byte <= 0x39:
                raise self._fail(byte, "in numeric literal")
        self.at += 1
        if byte != ord("0"):
            self._digits()
        if self._peek() == ord("."):
            self.at += 1
            self._some_digits("after decimal point in numeric literal")
        if self._peek() in {ord("e"), ord("E")}:
            self.at += 1
            if self._peek() in {ord("+"), ord("-")}:
                self.at += 1
            self._some_digits("in exponent of numeric literal")

    def _peek(self) -> int:
        return self.raw[self.at] if self.at < len(self.raw) else -1

    def _digits(self) -> None:
        digits = _DIGITS.match(self.raw, self.at)
        assert digits is not None
        self.at = digits.end()

    def _some_digits(self, context: str) -> None:
        byte = self._byte()
        if not 0x30 <= byte <= 0x39:
            raise self._fail(byte, context)
        self._digits()

    def _literal(self, word: bytes) -> None:
        for expected in word:
            byte = self._byte()
            if byte != expected:
                raise self._fail(byte, f"in literal {word.decode()} (expecting {chr(expected)!r})")
            self.at += 1


def start_of(raw: bytes) -> str:
    """Returns a bad body as Kubernetes quotes it: the start of what may be JSON, hexadecimal of anything
    else.
    """
    if not raw:
        return "<empty>"
    head = raw[:EXCERPT_BYTES]
    text = head.decode("utf-8", "replace") if raw.startswith(b"{") else head.hex()
    return f"{text} ..." if len(raw) > EXCERPT_BYTES else text
