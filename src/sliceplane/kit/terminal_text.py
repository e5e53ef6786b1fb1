"""Text of strangers on a terminal: names, messages and file contents that the program prints but
did not write.

A terminal obeys control characters (ECMA-48: colours, cursor, window title, the clipboard), and
bidirectional overrides change the order in which a line is read (CVE-2021-42574). Both may stand in
an object of an API server, in a header of a recording, in a manifest. Every text that leaves the
program for a person passes one of the two functions here, at the latest in ``cli.answers``, so no
command decides by itself what is harmless.

Escaped is every character for which ``str.isprintable`` is false: C0, DEL, C1, format characters
(bidirectional ones, zero-width ones, byte order marks), line and paragraph separators, surrogates,
private and unassigned characters, and spaces other than U+0020. The form is that of Python's
source: ``\\x1b``, ``\\u202e``, ``\\U000e0001``.
"""

from __future__ import annotations

from typing import Final

#: characters of layout: the program's own lines and columns have them
_LAYOUT: Final = str.maketrans("", "", "\n\t")


def printable(text: str) -> str:
    """Returns *text* as one part of a line: it can neither steer a terminal nor begin a line of its
    own.

    Ends of lines and tabs are escaped, too. For names, values and messages before they are put into
    a sentence.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _escaped(character) for character in text
    )


def printable_lines(text: str) -> str:
    """Returns *text* with its lines and tabs as they are, and every other control character
    escaped.

    For a whole answer, whose lines the program made. A stranger's value within it may still begin a
    line, unless ``printable`` was applied to that value.
    """
    if text.translate(_LAYOUT).isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in "\n\t" else _escaped(character)
        for character in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
