"""No text of a stranger reaches a terminal with a character that the terminal obeys."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from sliceplane.kit.terminal_text import printable, printable_lines

#: categories of Unicode that a terminal or the order of reading obeys, or that show nothing
OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_every_character_that_a_terminal_obeys_is_escaped() -> None:
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        if unicodedata.category(character) in OBEYED:
            escaped = printable(character)
            assert escaped[0] == "\\", hex(number)
            assert escaped.isascii(), hex(number)
            assert escaped.isprintable(), hex(number)


@pytest.mark.parametrize(
    ("text", "line", "lines"),
    [
        ("plain – ✓ é 名", "plain – ✓ é 名", "plain – ✓ é 名"),
        ("a\nb\tc", "a\\nb\\tc", "a\nb\tc"),
        ("\x1b]52;c;cm0=\x07", "\\x1b]52;c;cm0=\\x07", "\\x1b]52;c;cm0=\\x07"),
        ("\x9b31m\x7f\r", "\\x9b31m\\x7f\\r", "\\x9b31m\\x7f\\r"),
        (
            "\u202egnp.exe\u2028x\U000e0001",
            "\\u202egnp.exe\\u2028x\\U000e0001",
            "\\u202egnp.exe\\u2028x\\U000e0001",
        ),
        ("\ud800", "\\ud800", "\\ud800"),
        ("", "", ""),
    ],
)
def test_what_becomes_of_a_text(text: str, line: str, lines: str) -> None:
    assert printable(text) == line
    assert printable_lines(text) == lines
    assert printable(line) == line, "escaping twice changes nothing"
