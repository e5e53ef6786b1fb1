"""The documents say what is so: names exist, links lead somewhere, outputs and figures are today's,
examples run.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import http.client
import importlib
import re
import ssl
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import pytest_asyncio
from tests.code_names import sliceplane
from tests.waiting import eventually
from tools.draw_imports import PICTURE, drawn
from tools.make_findings import FINDINGS, INDEX, indexed, pages
from tools.make_reference import DOCUMENTS, refreshed

from sliceplane.cli.main import COMMANDS, main
from sliceplane.controllers.io.catalogue import default_controllers
from sliceplane.controllers.io.embedded import ControllerService
from sliceplane.server.io.plane import PlaneConfig, ServerPlane

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "sliceplane"
DOCS = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "findings").glob("*.md"))]
PAGES = [*DOCS, *(path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if path.exists())]
#: findings are real transcripts, whose IPv6 addresses look like names of tests
GUARANTEES = ROOT / "docs" / "guarantees.md"
TEST_NAMING = [
    ROOT / "tests" / "upstream_tests.md",
    *(path for path in PAGES if path.parent.name != "findings"),
]
#: documents whose dotted names in backticks are names of the package
NAMING = [
    ROOT / "docs" / name
    for name in ("architecture.md", "guarantees.md", "operations.md", "cli.md", "api.md")
]

_TEST = re.compile(r"(?P<path>tests/[\w/]+\.py)?(?P<names>(?:::\w+)+)|(?P<file>tests/[\w/]+\.py)")
_LINK = re.compile(r"\[[^\]\n]*(?:\n[^\]\n]+)?\]\((?P<target>[^)\s]+)\)")
_DOTTED = re.compile(r"`(?P<name>[a-z]\w*(?:\.\w+)+)`")
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_EXAMPLE = re.compile(
    r"<!-- example (?P<name>\w+) -->\n```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)
#: numbered sections of, and marks for, texts that are not in the repository
_PRIVATE = re.compile(
    r"\b[Rr]eference[,:]?\s+\(?(?:[AB]?\d|[a-z-]+\.md|users-and-peers)|\bcontrollers(?:\.md)?,?\s+(?:section\s+\d|\d\.\d)|\[quirk"
)
#: paths of Python files and pages, with a folder or without
_FILE = re.compile(r"(?<![\w/.:~$}{<>*-])(?:(?:[a-z_]+/)+[\w-]+\.(?:py|md)|[\w-]+\.md)\b")
_CODE_NAME = re.compile(r"``(?:sliceplane\.)?(?P<name>[a-z]\w*(?:\.\w+)+)``")
#: first folders of files in Kubernetes' repositories
_UPSTREAM = ("pkg/", "staging/", "keps/", "sig-scalability/")
#: pages that only the site has
_SITE = {"index.md", "contributing.md", "changelog.md"}
#: everything that may cite a file or a name
CITING = [
    *(path for path in PAGES if path.parent == ROOT),
    *(
        path
        for folder in ("src", "tests", "docs", "benchmarks", "tools", "demo", "examples")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".md", ".sh"} and path.name != Path(__file__).name
    ),
]
_UNITS = {"": 1, "s": 1, "levels": 1, "KiB": 1024, "MiB": 1024**2, "characters": 1}


def page(path: Path) -> str:
    return str(path.relative_to(ROOT))


def section(path: Path, title: str) -> str:
    text = path.read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@cache
def names_in(path: Path) -> frozenset[str]:
    """What is defined in a module: ``name`` and ``Class.member``, also by assignment; what a
    package imports to offer it.
    """
    names: set[str] = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    names.add(prefix + name)
                case ast.ClassDef(name=name, body=inside):
                    names.add(prefix + name)
                    collect(inside, f"{prefix}{name}.")
                case ast.Assign(targets=targets):
                    names.update(
                        prefix + target.id for target in targets if isinstance(target, ast.Name)
                    )
                case ast.AnnAssign(target=ast.Name(id=name)):
                    names.add(prefix + name)
                case ast.ImportFrom(names=aliases) if path.name == "__init__.py":
                    names.update(alias.asname or alias.name for alias in aliases)

    collect(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return frozenset(names)


# Names


@pytest.mark.parametrize("path", TEST_NAMING, ids=page)
def test_tests_that_are_named_exist(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        current: Path | None = None
        for match in _TEST.finditer(line):
            named = match["path"] or match["file"]
            if named:
                current = ROOT / named
                assert current.is_file(), f"{page(path)}: no such file: {named}"
            if match["names"]:
                assert current is not None, f"{page(path)}: {match['names']} follows no file"
                name = match["names"].removeprefix("::").replace("::", ".")
                assert name in names_in(current), f"{page(path)}: no {name} in {page(current)}"


def missing_names(names: re.Pattern[str], text: str) -> list[str]:
    """Those of our packages' dotted names in *text* that do not exist."""
    dotted = [match["name"] for match in names.finditer(text)]
    code = sliceplane()
    ours = [
        name
        for name in dotted
        if name.split(".")[0] in code.texts
        and not name.endswith((".py", ".md", ".yaml", ".k8s.io"))
        and not name.startswith(("node.id", "node.metadata.", "node.locality."))  # Envoy's
    ]
    return [f"sliceplane.{name} does not exist" for name in ours if not code.resolves(name)]


@pytest.mark.parametrize("path", NAMING, ids=page)
def test_dotted_names_exist(path: Path) -> None:
    assert not missing_names(_DOTTED, _FENCE.sub("", path.read_text(encoding="utf-8"))), page(path)


@cache
def pages_beside(folder: Path) -> frozenset[str]:
    return frozenset(
        {path.name for path in (*ROOT.glob("*.md"), *DOCS, *folder.glob("*.md"))} | _SITE
    )


@cache
def is_file(path: Path) -> bool:
    return path.is_file()


def citations_that_lead_nowhere(text: str, folder: Path) -> list[str]:
    """What *text*, which stands in *folder*, cites and a reader who has only the repository cannot
    open.
    """
    files = [
        match.group()
        for match in _FILE.finditer(text)
        if "NAME" not in match.group() and not match.group().startswith(_UPSTREAM)
    ]
    roots = (ROOT, ROOT / "src", SOURCE, ROOT / "tests", folder)
    return [
        *(" ".join(match.group().split()) for match in _PRIVATE.finditer(text)),
        *(
            name
            for name in files
            if name not in pages_beside(folder) and not any(is_file(root / name) for root in roots)
        ),
        *missing_names(_CODE_NAME, text),
    ]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (
            (
                "KEP-0752, RFC 6902, kubernetes/kubernetes#1; pkg/apis/core/types.go, "
                "docs/deploy.md, "
                "deploy.md, kit/names.py"
            ),
            [],
        ),
        (
            "``server.store.mvcc.Store`` of ``discovery.k8s.io``, ``api.Group``",
            ["sliceplane.api.Group does not exist"],
        ),
        ("as upstream (reference\n    B4), controllers 5.2", ["reference B4", "controllers 5.2"]),
        (
            "[quirk: a name]; see controllers.md and api/defaults.py",
            ["[quirk", "controllers.md", "api/defaults.py"],
        ),
    ],
)
def test_a_citation_that_leads_nowhere_is_seen(text: str, problems: list[str]) -> None:
    assert citations_that_lead_nowhere(text, ROOT / "src") == problems


def test_citations_lead_to_what_a_reader_can_open() -> None:
    problems = [
        f"{page(path)}: {problem}"
        for path in CITING
        for problem in citations_that_lead_nowhere(path.read_text(encoding="utf-8"), path.parent)
    ]
    assert not problems, "\n".join(problems)


def test_every_guarantee_names_a_test() -> None:
    text = section(GUARANTEES, "Invariants").partition("\n### ")[2]
    guarantees = re.findall(r"^\* (.*?)(?=^\* |^#|\Z)", text, re.DOTALL | re.MULTILINE)
    assert len(guarantees) > 200
    for guarantee in guarantees:
        _, by, rest = guarantee.partition("\n  - held by")
        held, _, tested = rest.partition("\n  - tested by")
        assert by, f"{guarantee}: held by nothing"
        assert _DOTTED.search(held), f"{guarantee}: held by nothing"
        assert "::" in tested, f"{guarantee}: tested by nothing"


def test_every_historic_bug_has_a_test_of_its_name() -> None:
    """Lines that concern controllers; the first test of each bears the number of an issue of its
    line.
    """
    stories = re.findall(
        r"^\| (\d+) \| [^|]+ \| ([^|]+) \| [^|]+ \| ([^|]+) \| (?:yes|no) \|$",
        section(GUARANTEES, "Historic bugs"),
        re.MULTILINE,
    )
    assert [int(line) for line, *_ in stories] == [
        *range(1, 10),
        12,
        13,
        *range(16, 21),
        *range(22, 25),
    ]
    for line, issues, tests in stories:
        named = _TEST.search(tests)
        assert named is not None, f"line {line} has no test"
        numbers = re.findall(r"#(\d+)", issues)
        assert any(f"_{number}_" in named["names"] for number in numbers), (
            f"line {line}: {named['names']} of {issues}"
        )


def test_rooms_of_the_architecture_are_those_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    there = {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()}
    assert named == there, (
        f"only named: {sorted(named - there)}; only there: {sorted(there - named)}"
    )


# Links


@cache
def anchors(path: Path) -> set[str]:
    """The anchors of headings, as GitHub makes them."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ +(.*?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=page)
def test_links_lead_somewhere(path: Path) -> None:
    for match in _LINK.finditer(_FENCE.sub("", path.read_text(encoding="utf-8"))):
        target = match["target"]
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        page_linked = (path.parent / file).resolve() if file else path
        assert page_linked.exists(), f"{page(path)}: {target} leads nowhere"
        if anchor and page_linked.suffix == ".md":
            assert anchor in anchors(page_linked), f"{page(path)}: no heading for {target}"


# Words

#: words of a dialect, which documents replace by their subject (the controller, a client, no node)
_DIALECT = re.compile(r"\b(?:nobody|somebody|whoever|everybody|anew|told)\b(?!-)", re.IGNORECASE)
_GENERATED = re.compile(r"<!-- (?:options|findings|runs|figures).*?<!-- end -->", re.DOTALL)


@pytest.mark.parametrize(
    "path", [path for path in PAGES if path.parent.name != "findings"], ids=page
)
def test_documents_use_the_terms_of_the_field(path: Path) -> None:
    """Code and generated parts have the words of what they show; a quoted word is discussed."""
    text = _GENERATED.sub("", _FENCE.sub("", path.read_text(encoding="utf-8")))
    found = _DIALECT.findall(re.sub(r"`[^`\n]*`|\"\w+\"", "", text))
    assert not found, f"{page(path)}: {found}"


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CHANGELOG.md"], ids=page)
def test_no_figure_is_still_to_be_filled_in(path: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", path.read_text(encoding="utf-8")))
    assert not re.findall(r"@@|\bTBD\b|\?\?\?", text)


#: all files of docs/ together; raw results and further transcripts belong elsewhere
DOCS_BYTES_MAX = 1_132_000
#: pages of the site, README, CONTRIBUTING and CHANGELOG included; findings have pages of their own.
#: A new subject is a section of the page where a reader looks for it
DOCS_PAGES_MAX = 26
GLOSSARY_WORDS_MAX = 40


def test_documents_stay_small() -> None:
    files = [path for path in (ROOT / "docs").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= DOCS_BYTES_MAX
    assert len(list((ROOT / "docs").glob("*.md"))) + len(_SITE) <= DOCS_PAGES_MAX
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| (?!word |-)", glossary, re.MULTILINE)
    assert 0 < len(words) <= GLOSSARY_WORDS_MAX


# Made parts, flags, figures


@pytest.mark.parametrize("path", DOCUMENTS, ids=page)
def test_made_parts_are_as_made_now(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "<!-- " in text
    assert text == refreshed(text), f"{page(path)}: run tools/make_reference.py"


def test_pages_of_findings_are_as_made_now() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FINDINGS.glob("*.md")}
    assert written == pages(), "run tools/make_findings.py"
    index = INDEX.read_text(encoding="utf-8")
    assert index == indexed(index), "run tools/make_findings.py"


def test_the_picture_of_imports_is_as_drawn_now() -> None:
    """Which it can only be if every import goes down."""
    assert PICTURE.read_text(encoding="utf-8") == drawn(), "run tools/draw_imports.py"


def flags_of(command: click.Command) -> set[str]:
    """Those of its subcommands too."""
    own = {flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")}
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return own.union(*map(flags_of, below))


def test_flags_of_the_command_line() -> None:
    """Outside the help texts, too, every flag is named where its command is described, and no other
    anywhere.
    """
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    sections = dict(
        re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", _FENCE.sub("", text), re.DOTALL | re.MULTILINE)
    )
    commands = {name: main.get_command(click.Context(main), name) for name in COMMANDS}
    known = {"--help", "--version"}
    for name, command in commands.items():
        assert command is not None, f"{name} has no command"
        known |= flags_of(command)
        missing = flags_of(command) - set(_FLAG.findall(sections[f"`sliceplane {name}`"]))
        assert not missing, f"docs/cli.md does not describe {sorted(missing)} of {name}"
    assert set(_FLAG.findall(text)) <= known, (
        f"no such flags: {sorted(set(_FLAG.findall(text)) - known)}"
    )


def value_of(dotted: str) -> Any:
    """A constant, or the default of a value's member."""
    parts = dotted.split(".")
    length = next(
        n
        for n in range(len(parts), 0, -1)
        if SOURCE.joinpath(*parts[:n]).with_suffix(".py").is_file()
    )
    value: Any = importlib.import_module(".".join(("sliceplane", *parts[:length])))
    for part in parts[length:]:
        is_value = isinstance(value, type) and issubclass(value, msgspec.Struct)
        defaults = (
            {member.name: member.default for member in msgspec.structs.fields(value)}
            if is_value
            else {}
        )
        value = defaults[part] if part in defaults else getattr(value, part)
    return value


def test_limits_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| [^|]+ \| ([\d,]+) ?([A-Za-z]*) \|[^|]+\| `([\w.]+)` \|$", text, re.MULTILINE
    )
    assert len(rows) > 25
    for number, unit, constant in rows:
        documented = int(number.replace(",", "")) * _UNITS[unit]
        assert documented == value_of(constant), (
            f"{constant} is {value_of(constant)}, docs/operations.md says {documented}"
        )


# What a running server shows, and examples


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ServerPlane]:
    """A plane with the controllers that ``up`` runs."""
    services = (ControllerService(default_controllers()),)
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), services) as plane:
        await eventually(lambda: fetch(plane, "/readyz"), lambda answer: answer == "ok")
        yield plane


async def fetch(plane: ServerPlane, path: str) -> str:
    context = ssl.create_default_context(cafile=str(plane.pki.ca_file))
    context.load_cert_chain(plane.pki.admin_file, plane.pki.admin_key_file)

    def read() -> bytes:
        connection = http.client.HTTPSConnection(
            plane.url.removeprefix("https://"), context=context, timeout=60
        )
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read()

    return (await asyncio.to_thread(read)).decode()


async def test_metrics_are_those_of_a_server(server: ServerPlane) -> None:
    shown = dict(re.findall(r"^# TYPE (\w+) (\w+)$", await fetch(server, "/metrics"), re.MULTILINE))
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    documented = dict(
        re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram) \|", text, re.MULTILINE)
    )
    assert documented == shown


async def test_health_checks_are_those_of_a_server(server: ServerPlane) -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `(\w+)` \| (?:all|`/readyz`)", text, re.MULTILINE)
    answered = await fetch(server, "/readyz?verbose")
    shown = re.findall(r"^\[\+\](\w+) ok$", answered, re.MULTILINE)
    assert sorted(documented) == sorted(shown)


def examples() -> dict[str, str]:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    return {match["name"]: match["code"] for match in _EXAMPLE.finditer(text)}


async def test_examples_of_the_api(server: ServerPlane) -> None:
    """The informer of one example sees the slice that the other one makes come and go."""
    informer: dict[str, Any] = {}
    exec(compile(examples()["informer"], "docs/api.md", "exec"), informer)
    client: dict[str, Any] = {"KUBECONFIG": str(server.kubeconfig)}
    seen = asyncio.Event()

    def gone(slices: dict[str, Any]) -> bool:
        if "default/billing-1" in slices:
            seen.set()
        return seen.is_set() and not slices

    following = asyncio.create_task(informer["follow"](client["KUBECONFIG"], "billing", gone))
    await asyncio.to_thread(exec, compile(examples()["kubernetes"], "docs/api.md", "exec"), client)
    assert client["addresses"] == ["198.51.100.7"]
    async with asyncio.timeout(60):
        await seen.wait()
        await asyncio.to_thread(
            client["discovery"].delete_namespaced_endpoint_slice, "billing-1", "default"
        )
        assert await following == {}
    client["discovery"].api_client.close()
