"""Refreshes the parts of docs/cli.md, docs/api.md and docs/what-if.md that follow from the code.

Run from the root of the repository: ``PYTHONPATH=src:. .venv/bin/python tools/make_reference.py``.

There are three sorts of parts, marked by the comment before them:

- ``<!-- run -->``: a console block.  Each line ``$ sliceplane ARGUMENTS`` is followed by its output in a terminal of
  ``COLUMNS`` columns, ``$ echo $?`` by its exit code.  Only commands that end by themselves; those that name
  ``cart.snapshot`` find one (``tests.lab.whatif.asked``) and have 80 columns.  A help text is shown without
  its options.
- ``<!-- options COMMAND -->``: a list of the command's options, up to ``<!-- end -->``.  An option that three commands
  share word by word is in the list ``<!-- options -->`` alone, one that ``up`` has, too, only in the list of ``up``.
- ``<!-- table NAME -->``: a table that ``TABLES`` makes out of ``api.scheme``, up to the next empty line.

``tests/test_docs.py`` refreshes the same parts and fails if anything changes.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from click.testing import CliRunner, Result
from msgspec import Struct
from tests.lab.whatif.asked import cart_snapshot

from sliceplane.api.requests import SUBRESOURCES
from sliceplane.api.scheme import RESOURCES, Resource
from sliceplane.cli.main import main as sliceplane

DOCS = Path(__file__).parents[1] / "docs"
DOCUMENTS = (DOCS / "cli.md", DOCS / "api.md", DOCS / "what-if.md")
SNAPSHOT = "cart.snapshot"
COLUMNS = 100
#: an option that so many commands have word by word is shown once
COMMON_MIN = 3
#: the command whose options others refer to
WHOLE = "up"

_MEANWHILE = re.compile(r"[0-9]+ s: ")
_RUN = re.compile(r"(?<=<!-- run -->\n```console\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
_TABLE = re.compile(
    r"(?<=^<!-- table )(?P<name>[\w-]+)( -->\n).*?(?=\n\n)", re.DOTALL | re.MULTILINE
)
_OPTIONS = re.compile(r"(<!-- options ?([\w -]*?) -->\n).*?(?=<!-- end -->)", re.DOTALL)
_TITLE = re.compile(r"(?P<title>\S.*):")
_DEFAULT = re.compile(r"(?:^|  )\[default: (?P<value>.*?)\](?=  \[|$)")


class Option(Struct, frozen=True):
    """One option of a help text, below its *group*'s title."""

    group: str
    flags: str
    text: str

    def names(self) -> list[str]:
        return re.findall(r"(?<![\w-])--[a-z][\w-]*", self.flags)

    def line(self) -> str:
        text = _DEFAULT.sub(r" Default: \g<value>.", self.text).strip()
        return f"* `{self.flags}`: {' '.join(text.split())}" if text else f"* `{self.flags}`"


def _split(help_text: str) -> tuple[list[str], list[Option]]:
    """Returns the lines of *help_text* without its options, and these."""
    lines: list[str] = []
    options: list[Option] = []
    title = ""
    is_option = False
    for line in help_text.splitlines():
        if line.startswith("  -"):
            flags, _, text = line.strip().partition("  ")
            options.append(Option(title, flags, text.strip()))
            is_option = True
        elif is_option and line.startswith("     "):
            last = options[-1]
            # two blanks before a remark in brackets, which a new line replaces
            gap = "  " if line.lstrip().startswith("[") else " "
            options[-1] = Option(last.group, last.flags, f"{last.text}{gap}{line.strip()}".strip())
        else:
            is_option = False
            named = _TITLE.fullmatch(line)
            title = named["title"] if named else title
            lines.append(line)
    titles = {f"{option.group}:" for option in options}
    kept = [line for line in lines if line not in titles]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    return text.splitlines(), options


@cache
def _options(command: str) -> list[Option]:
    output = _run([*command.split(), "--help"], None).output
    return [option for option in _split(output)[1] if "--help" not in option.names()]


@cache
def _documented() -> tuple[str, ...]:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    return tuple(command for _, command in _OPTIONS.findall(text) if command)


@cache
def _common() -> frozenset[tuple[str, str]]:
    """Flags and texts of the options that many commands share."""
    pairs = {
        (option.flags, option.text, command.split()[0])
        for command in _documented()
        for option in _options(command)
    }
    counts = Counter((flags, text) for flags, text, _ in pairs)
    return frozenset(option for option, count in counts.items() if count >= COMMON_MIN)


def _earlier(command: str) -> Iterator[str]:
    """Commands that explain options of *command*: ``up``, and those before it of its group."""
    if command != WHOLE:
        yield WHOLE
    for other in _documented():
        if other == command:
            return
        if other.split()[0] == command.split(maxsplit=1)[0]:
            yield other


def option_list(command: str) -> str:
    if not command:
        return "".join(f"{Option('', *option).line()}\n" for option in sorted(_common()))
    explained = dict.fromkeys(_common(), "[Common options](#common-options)")
    for other in _earlier(command):
        for each in _options(other):
            explained.setdefault((each.flags, each.text), f"As `{other}`")
    lines: list[str] = []
    references: dict[str, list[str]] = {}
    group = "Options"
    for option in _options(command):
        place = explained.get((option.flags, option.text))
        if place is not None:
            references.setdefault(place, []).extend(f"`{name}`" for name in option.names())
            continue
        if option.group != group:
            group = option.group
            lines += ["", f"{group}:", ""]
        lines.append(option.line())
    for place, names in sorted(references.items()):
        lines += ["", f"{place}: {', '.join(names)}."]
    return "\n".join(lines).strip() + "\n\n"


def refreshed(text: str) -> str:
    """Returns *text* with every such part built again."""
    text = _RUN.sub(lambda block: _run_again(block[0]), text)
    text = _OPTIONS.sub(lambda part: f"{part[1]}{option_list(part[2])}", text)
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
            output = result.output.rstrip()
            if words[-1] == "--help" and words != ["--help"]:
                output = "\n".join(_split(output)[0])
            # What is told meanwhile depends on how busy the machine is.
            lines += [
                line,
                *(said for said in output.splitlines() if not _MEANWHILE.match(said)),
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
