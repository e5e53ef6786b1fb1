"""Refresh the parts of docs/cli.md, docs/api.md and docs/what-if.md that follow from the code.

Run from the root of the repository: ``PYTHONPATH=src:. .venv/bin/python tools/make_reference.py``.

Two sorts of parts, told by the comment before them:

- ``<!-- run -->``: a console block.  Each line ``$ sliceplane ARGUMENTS`` is followed by what that prints in a
  terminal of ``COLUMNS`` columns, ``$ echo $?`` by its exit code.  Only commands that end by themselves; those that
  name ``cart.snapshot`` find one (``tests.whatif.asked``) and have 80 columns.
- ``<!-- table NAME -->``: a table that ``TABLES`` makes out of ``api.scheme``, up to the next empty line.

``tests/test_docs.py`` refreshes the same parts and fails if anything changes.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from click.testing import CliRunner, Result
from tests.whatif.asked import cart_snapshot

from sliceplane.api.requests import SUBRESOURCES
from sliceplane.api.scheme import RESOURCES, Resource
from sliceplane.cli.main import main as sliceplane

DOCS = Path(__file__).parents[1] / "docs"
DOCUMENTS = (DOCS / "cli.md", DOCS / "api.md", DOCS / "what-if.md")
SNAPSHOT = "cart.snapshot"
COLUMNS = 100

_MEANWHILE = re.compile(r"[0-9]+ s: ")
_RUN = re.compile(r"(?<=<!-- run -->\n```console\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
_TABLE = re.compile(
    r"(?<=^<!-- table )(?P<name>[\w-]+)( -->\n).*?(?=\n\n)", re.DOTALL | re.MULTILINE
)


def refreshed(text: str) -> str:
    """*text* with every such part made anew."""
    text = _RUN.sub(lambda block: _run_again(block[0]), text)
    return _TABLE.sub(lambda table: f"{table[1]}{table[2]}{TABLES[table[1]]()}", text)


def _run_again(block: str) -> str:
    lines: list[str] = []
    code = 0
    for line in block.splitlines():
        if line == "$ echo $?":
            lines += [line, str(code)]
        elif line.startswith("$ sliceplane"):
            words = shlex.split(line)[2:]
            result = _run_over_snapshot(words) if SNAPSHOT in words else _run(words, None)
            code = result.exit_code
            # What is told meanwhile depends on how busy the machine is.
            lines += [
                line,
                *(
                    said
                    for said in result.output.rstrip().splitlines()
                    if not _MEANWHILE.match(said)
                ),
            ]
    return "\n".join(lines) + "\n"


def _run(words: list[str], columns: str | None) -> Result:
    """Without *columns* tables are as wide as they are, on any machine and terminal."""
    runner = CliRunner(env={"COLUMNS": columns})
    return runner.invoke(sliceplane, words, prog_name="sliceplane", terminal_width=COLUMNS)


def _run_over_snapshot(words: list[str]) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, SNAPSHOT)
        path.write_bytes(cart_snapshot())
        return _run([str(path) if word == SNAPSHOT else word for word in words], "80")


def resource_table() -> str:
    rows = [
        "| resource | group/version | kind | short names | namespaced | subresources |",
        "|---|---|---|---|---|---|",
    ]
    for resource in RESOURCES:
        short = ", ".join(f"`{name}`" for name in resource.short_names)
        below = ", ".join(f"`{name}`" for name in resource.subresources)
        scope = "yes" if resource.namespaced else "no"
        rows.append(
            f"| `{resource.plural}` | `{resource.api_version}` | {resource.kind} | {short} | "
            f"{scope} | {below} |"
        )
    return "\n".join(rows)


def subresource_table() -> str:
    rows = ["| subresource | of | verbs |", "|---|---|---|"]
    for name, row in sorted(SUBRESOURCES.items()):
        of = ", ".join(
            f"`{resource.plural}`" for resource in RESOURCES if name in resource.subresources
        )
        rows.append(f"| `{name}` | {of} | {', '.join(row.verbs)} |")
    return "\n".join(rows)


def field_table() -> str:
    rows = ["| resource | fields beyond `metadata.name` and `metadata.namespace` |", "|---|---|"]
    for resource in RESOURCES:
        if resource.selectable_fields:
            names = ", ".join(f"`{name}`" for name, _ in resource.selectable_fields)
            rows.append(f"| `{resource.plural}` | {names} |")
    return "\n".join(rows)


def rule_table() -> str:
    def yes(resource: Resource, rule: Callable[[Resource], bool]) -> str:
        return "yes" if rule(resource) else "no"

    rows = [
        (
            "| resource | PUT creates | PUT without resourceVersion | generation counts | a delete "
            "answers |"
        ),
        "|---|---|---|---|---|",
    ]
    counts = {name: f"changes of `{name}`" for name in ("spec", "template")}
    counts |= {"none": "never", "content": "changes outside metadata, and of labels"}
    replies = {"status": "Status", "object": "the object"}
    for resource in RESOURCES:
        cells = (
            yes(resource, lambda one: one.create_on_update),
            yes(resource, lambda one: one.unconditional_update),
            counts[resource.generation],
            replies[resource.delete_reply],
        )
        rows.append(f"| `{resource.plural}` | {' | '.join(cells)} |")
    return "\n".join(rows)


TABLES: dict[str, Callable[[], str]] = {
    "fields": field_table,
    "resources": resource_table,
    "rules": rule_table,
    "subresources": subresource_table,
}


def documents() -> Iterator[tuple[Path, str]]:
    for path in DOCUMENTS:
        yield path, path.read_text(encoding="utf-8")


if __name__ == "__main__":
    for document, content in documents():
        document.write_text(refreshed(content), encoding="utf-8")
