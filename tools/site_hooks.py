"""What mkdocs needs to be told about our documents, which are written for GitHub and for a
terminal.

README.md, CONTRIBUTING.md and CHANGELOG.md become pages. A link to a file that is no page leads to
the repository. Lists get the four spaces that Python-Markdown asks for. Cells of a table say which
column they are of, for narrow screens. A site that would fetch something from elsewhere is an
error.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from site_markdown import breakable, deepened, labelled

ROOT = Path(__file__).parents[1]
#: page of the site: file of the repository
OUTSIDE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}

_LINK = re.compile(
    r"(?P<before>!?\[[^\]\n]*(?:\n[^\]\n]+)?\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))"
)
_FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\bsrc=\"(?:https?:)?//"
    r"|<link(?![^>]*rel=\"canonical\")[^>]*\bhref=\"(?:https?:)?//|@import|url\(\"?(?:https?:)?//"
)


def on_files(files: Files, config: Any) -> Files:
    for page, source in OUTSIDE.items():
        files.append(
            File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8"))
        )
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    source = OUTSIDE.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    parts = re.split(r"(^ *```.*?^ *```$)", deepened(markdown), flags=re.DOTALL | re.MULTILINE)
    for number in range(0, len(parts), 2):
        parts[number] = _LINK.sub(
            lambda link: _retargeted(link, source, config, files), parts[number]
        )
    return "".join(parts)


def _retargeted(link: re.Match[str], source: str, config: Any, files: Files) -> str:
    target = link["target"]
    anchor = link["anchor"] or ""
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


def on_page_content(html: str, **_: Any) -> str:
    return breakable(labelled(html))


def on_post_build(config: Any) -> None:
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix in (".html", ".css") and (
            found := _FETCHED.search(path.read_text(encoding="utf-8"))
        ):
            raise PluginError(f"{path.name} fetches from elsewhere: {found[0]}")
