"""Every cache and share of the tree stands in the table of what clients fill (docs/security.md),
and what the table names is there.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.fuzz.application import Application, Ask
from tests.fuzz.heavy_bodies import APPLY, CONFIG_MAPS, JSON_PATCH, MERGE, STRATEGIC, asked
from tests.fuzz.requests import JSON, PROTOBUF, YAML

from sliceplane import __path__ as package_path
from sliceplane.server.io.offload.pool import Inline
from sliceplane.server.io.offload.service import OffloadService

SOURCE = Path(package_path[0])
SECURITY = SOURCE.parents[1] / "docs" / "security.md"
HEADING = "## Memory that clients control"
#: what makes a table that lives as long as the process or its owner
_MAKERS = {"lru_cache", "remembered", "Passed", "Shares", "OrderedDict", "cache"}
#: programs of one user, or of tests: their tables end with the command
_OTHERS = ("cli", "client", "lab", "testing", "pytest_plugin")


def _calls(node: ast.AST) -> set[str]:
    names = set()
    for part in ast.walk(node):
        made = part.func if isinstance(part, ast.Call) else None
        while isinstance(made, ast.Subscript | ast.Attribute | ast.Call):
            made = (
                made.func
                if isinstance(made, ast.Call)
                else made.value
                if isinstance(made, ast.Subscript)
                else None
            )
        if isinstance(made, ast.Name):
            names.add(made.id)
    return names


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    plain = {decorator.id for decorator in node.decorator_list if isinstance(decorator, ast.Name)}
    return plain.union(*(_calls(decorator) for decorator in node.decorator_list))


def _tables(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    """Names of tables below *node*, and what makes each."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _tables(child, f"{prefix}.{child.name}")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            for maker in _decorators(child) & _MAKERS:
                yield f"{prefix}.{child.name}", maker
            yield from _tables(child, prefix)
        elif isinstance(child, ast.Assign | ast.AnnAssign) and child.value is not None:
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            for maker in _calls(child.value) & _MAKERS:
                for target in targets:
                    if isinstance(target, ast.Attribute):
                        yield f"{prefix}.{target.attr}", maker
                    elif isinstance(target, ast.Name):
                        yield f"{prefix}.{target.id}", maker
        else:
            yield from _tables(child, prefix)


@cache
def tables() -> dict[str, str]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[0] in _OTHERS or parts[:3] == ("consume", "io", "client"):
            continue
        module = ".".join(part for part in parts if part != "__init__")
        text = path.read_text(encoding="utf-8")
        made = dict(_tables(ast.parse(text), module))
        # There is another function of that name.
        ours = "kit.containers import" in text
        found.update({name: maker for name, maker in made.items() if maker != "remembered" or ours})
    return found


def rows() -> list[list[str]]:
    section = SECURITY.read_text(encoding="utf-8").partition(HEADING)[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def named() -> set[str]:
    return {name for row in rows() for name in re.findall(r"`([^`]+)`", row[-1])}


def test_every_cache_and_share_is_in_the_table() -> None:
    known = named()
    assert len(tables()) > 30, "the search finds what is there"
    # ``cache`` is for what the program itself has: kinds, schemas, types; see the test below.
    missing = sorted(
        name for name, maker in tables().items() if name not in known and maker != "cache"
    )
    assert missing == [], (
        f"say in {SECURITY.name}, {HEADING!r}, how many bytes clients can put there"
    )


@pytest.mark.parametrize("row", rows(), ids=lambda row: re.sub(r"\W+", "-", row[0])[:40])
def test_a_row_says_what_bounds_it(row: list[str]) -> None:
    assert len(row) == 6, row
    what, each, _, outcome, freed, where = row
    assert all((what, each, outcome, freed, where)), row
    assert re.search(r"\d", each), f"{what}: a bound is a number"


def test_what_the_table_names_is_there() -> None:
    for name in sorted(named()):
        module, _, rest = _split(name)
        path = SOURCE.joinpath(*module.split(".")).with_suffix(".py")
        path = path if path.exists() else SOURCE.joinpath(*module.split("."), "__init__.py")
        text = path.read_text(encoding="utf-8")
        for part in rest.split("."):
            assert re.search(rf"\b{re.escape(part)}\b", text), f"{name}: {path.name} has no {part}"


def _split(name: str) -> tuple[str, str, str]:
    """The longest part of *name* that is a module, and the rest."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        base = SOURCE.joinpath(*parts[:end])
        if base.with_suffix(".py").exists() or (base / "__init__.py").exists():
            return ".".join(parts[:end]), ".", ".".join(parts[end:])
    raise AssertionError(f"{name} is in no module")


async def test_what_is_remembered_without_a_bound_does_not_grow_with_what_clients_say() -> None:
    """Every ``functools.cache`` has as many entries after a second round of invented requests as
    after the first.
    """
    sizes = []
    async with Application(1, OffloadService(Inline())) as application:
        for number in range(3):
            for ask in invented(number):
                await application.whole(ask)
            sizes.append(
                {name: _cached(name) for name, maker in tables().items() if maker == "cache"}
            )
    assert len(sizes[-1]) > 20
    grown = {
        name: (sizes[1][name], size) for name, size in sizes[-1].items() if size > sizes[1][name]
    }
    assert grown == {}


def _cached(name: str) -> int:
    module, _, rest = _split(name)
    loaded = sys.modules.get(f"sliceplane.{module}")
    return 0 if loaded is None else int(getattr(loaded, rest).cache_info().currsize)


def invented(number: int) -> Iterator[Ask]:
    """Requests whose every word is of the client's."""
    word = f"word{number}"
    document = {
        "apiVersion": f"{word}/v1",
        "kind": word.title(),
        "metadata": {"name": word, word: word},
        word: {word: 1},
    }
    body = json.dumps(document).encode()
    for path in (
        f"/openapi/v3/{word}",
        f"/openapi/v3/apis/{word}/v1",
        f"/apis/{word}/v1/{word}",
        f"/{word}",
    ):
        for accept in (JSON, PROTOBUF, f"{JSON};as=Table;v=v1;g=meta.k8s.io", word):
            yield asked("GET", path, b"", query=f"{word}={word}".encode(), accept=accept)
    for media in (JSON, YAML, PROTOBUF, word):
        yield asked(
            "POST",
            CONFIG_MAPS,
            body if media != PROTOBUF else b"k8s\0\n\x08" + word.encode(),
            media,
        )
    for media in (MERGE, JSON_PATCH, STRATEGIC, APPLY):
        yield asked("PATCH", f"{CONFIG_MAPS}/{word}", body, media, f"fieldManager={word}".encode())
    yield asked(
        "GET",
        CONFIG_MAPS,
        b"",
        query=f"labelSelector={word}%3D{word}&fieldSelector={word}%3D1".encode(),
    )
