"""What mkdocs needs to be told about our documents, which are written for GitHub and for a terminal.

README.md, CONTRIBUTING.md and CHANGELOG.md become pages.  A link to a file that is no page leads to the repository.
Lists get the four spaces that Python-Markdown asks for.  Cells of a table say which column they are of, for
narrow screens.  A site that would fetch something from elsewhere is an error.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
#: page of the site: file of the repository
OUTSIDE = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}

_LINK = re.compile(r"(?P<before>!?\[[^\]\n]*(?:\n[^\]\n]+)?\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
_ITEM = re.compile(r"^ *(?:[*-]|\d+\.) ")
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\bsrc=\"(?:https?:)?//"
    r"|<link(?![^>]*rel=\"canonical\")[^>]*\bhref=\"(?:https?:)?//|@import|url\(\"?(?:https?:)?//"
)


def on_files(files: Files, config: Any) -> Files:
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    source = OUTSIDE.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    parts = re.split(r"(^ *```.*?^ *```$)", deepened(markdown), flags=re.DOTALL | re.MULTILINE)
    for number in range(0, len(parts), 2):
        parts[number] = _LINK.sub(lambda link: _retargeted(link, source, config, files), parts[number])
    return "".join(parts)


def _retargeted(link: re.Match[str], source: str, config: Any, files: Files) -> str:
    target, anchor = link["target"], link["anchor"] or ""
    if re.match(r"[a-z]+:", target):
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    pages = {name: page for page, name in OUTSIDE.items()}
    page = pages.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
    if page and files.get_file_from_path(page) is not None:
        return f"{link['before']}{page}{anchor}"
    if not (ROOT / path).exists():
        raise PluginError(f"{source}: {target} leads nowhere")
    return f"{link['before']}{config.repo_url}/blob/main/{path}{anchor}"


def deepened(markdown: str) -> str:
    """Lists as Python-Markdown reads them: an empty line before them, their inside by four spaces a level."""
    made: list[str] = []
    inside = fenced = False
    shift = 0
    for line in markdown.splitlines():
        bare = line.lstrip(" ")
        indent = len(line) - len(bare)
        if bare.startswith("```"):
            shift = (4 * ((indent + 1) // 2) - indent if inside else 0) if not fenced else shift
            inside, fenced = inside and (fenced or indent > 0), not fenced
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


def on_page_content(html: str, **_: Any) -> str:
    return _TABLE.sub(lambda table: _labelled(table[0]), html)


def _labelled(table: str) -> str:
    heads = [re.sub(r"<.*?>", "", head) for head in re.findall(r"<th[^>]*>(.*?)</th>", table, re.DOTALL)]

    def row(cells: re.Match[str]) -> str:
        names = iter(heads)

        def cell(_: re.Match[str]) -> str:
            name = next(names, "")
            return f'<td data-label="{name}"' if name else "<td"

        return re.sub(r"<td", cell, cells[0])

    return re.sub(r"<tr>.*?</tr>", row, table, flags=re.DOTALL)


def on_post_build(config: Any) -> None:
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix in (".html", ".css") and (found := _FETCHED.search(path.read_text(encoding="utf-8"))):
            raise PluginError(f"{path.name} fetches from elsewhere: {found[0]}")
