"""Decimal numbers from untrusted texts.

``int`` is too lenient for them: it accepts digits of every script, blanks and underscores, and
raises another error beyond some thousand digits. This module accepts what Go's ``strconv`` accepts
with base 10 and 64 bits.
"""

from __future__ import annotations

import re

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
UINT64_MAX = 2**64 - 1

_SIGNED = re.compile(r"[+-]?[0-9]+")
_UNSIGNED = re.compile(r"[0-9]+")
#: of the largest number; longer texts are numbers out of range, or have leading zeros
_DIGITS_MAX = 20


class NotAnInteger(ValueError):
    """``why`` is strconv's phrase: "invalid syntax" or "value out of range"."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def parse_int64(text: str) -> int:
    """Raises ``NotAnInteger``."""
    return _parse(text, _SIGNED, INT64_MIN, INT64_MAX)


def parse_uint64(text: str) -> int:
    """Raises ``NotAnInteger``."""
    # Nearly all of them are versions, several for every event: short, and digits only.
    if len(text) < _DIGITS_MAX - 1 and text.isdigit() and text.isascii():
        return int(text)
    return _parse(text, _UNSIGNED, 0, UINT64_MAX)


def _parse(text: str, form: re.Pattern[str], least: int, greatest: int) -> int:
    if not form.fullmatch(text):
        raise NotAnInteger("invalid syntax")
    sign = "-" if text[0] == "-" else ""
    digits = text.lstrip("+-").lstrip("0") or "0"
    number = int(sign + digits) if len(digits) <= _DIGITS_MAX else greatest + 1
    if not least <= number <= greatest:
        raise NotAnInteger("value out of range")
    return number
