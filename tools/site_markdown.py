"""Our Markdown as Python-Markdown reads it, and its tables for narrow screens: text in, text out
(``site_hooks``).
"""

from __future__ import annotations

import re

_ITEM = re.compile(r"^ *(?:[*-]|\d+\.) ")
#: a name in running text that is too long for a narrow column
_LONG = re.compile(r"<code>([^<\n]{25,})</code>")
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)


def deepened(markdown: str) -> str:
    """Lists as Python-Markdown reads them: an empty line before them, their inside by four spaces a
    level.
    """
    made: list[str] = []
    inside = fenced = False
    shift = 0
    for line in markdown.splitlines():
        bare = line.lstrip(" ")
        indent = len(line) - len(bare)
        if bare.startswith("```"):
            shift = (4 * ((indent + 1) // 2) - indent if inside else 0) if not fenced else shift
            inside = inside and (fenced or indent > 0)
            fenced = not fenced
            made.append(" " * shift + line)
        elif fenced:
            made.append(" " * shift + line)
        elif _ITEM.match(line):
            if not inside and made and made[-1].strip():
                made.append("")
            inside = True
            made.append(" " * (4 * (indent // 2)) + bare)
        elif inside and indent:
            made.append(" " * (4 * ((indent + 1) // 2 if indent != 3 else 1)) + bare)
        else:
            inside = inside and not bare
            made.append(line)
    return "\n".join(made) + "\n"


def labelled(html: str) -> str:
    """Each cell of a table says which column it is of."""
    return _TABLE.sub(lambda table: _labelled_table(table[0]), html)


def breakable(html: str) -> str:
    """Long names may be broken where their words end."""
    return _LONG.sub(
        lambda name: "<code>" + re.sub(r"(::|[_/.,])(?=\w)", r"\1<wbr>", name[1]) + "</code>", html
    )


def _labelled_table(table: str) -> str:
    heads = [
        re.sub(r"<.*?>", "", head) for head in re.findall(r"<th[^>]*>(.*?)</th>", table, re.DOTALL)
    ]

    def row(cells: re.Match[str]) -> str:
        names = iter(heads)

        def cell(_: re.Match[str]) -> str:
            name = next(names, "")
            return f'<td data-label="{name}"' if name else "<td"

        return re.sub(r"<td", cell, cells[0])

    return re.sub(r"<tr>.*?</tr>", row, table, flags=re.DOTALL)
