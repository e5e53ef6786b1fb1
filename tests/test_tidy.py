"""The repository keeps its own rules: file and function sizes, docstrings, the order of packages,
nothing left over.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tools.draw_imports import essential, imports, layers

import sliceplane

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FILE_LINES_MAX = 620
FILE_LINES_MIN = 45
FUNCTION_LINES_MAX = 110
FOLDER_FILES_MAX = 15
PARAMETERS_MAX = 7
#: of the public client: each option of its users is a keyword
LARGE_CONSTRUCTORS = {"EndpointView", "Informer"}
#: no docstring should begin so
DIALECT = ("What", "Of", "Those", "Whether", "Who", "Which", "That")
#: a command (imported when it runs), a heuristic, a kind: each is a module, however small
_KINDS = "server/registry/kinds"
UNITS = (
    *("cli", "cli/query", "cli/run", "cli/lab", "slices/heuristics"),
    *(_KINDS, f"{_KINDS}/network", f"{_KINDS}/pods", f"{_KINDS}/workloads"),
)
#: other files of fewer lines, with the reason why each stands alone; this list only shrinks
SMALL = {
    "__main__.py": "python -m sliceplane",
    "testing.py": "the public names",
    "api/selectors/distribution.py": "which hints a Service requests; clients do not load it",
    "api/images.py": "the grammar of image names, which the server and emulated kubelets share",
    "consume/drain/options.py": "what a drain is asked for, by commands and programs that start one",
    "lab/wire.py": "how bytes are counted, which estimate and what-if share",
    "kit/io/extras.py": "what the entry point and a plane for tests say of a missing extra",
    "kit/io/start_error.py": "an interface between rooms",
}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def definitions(module: ast.Module) -> tuple[Definition, ...]:
    """The *module*, its classes and its functions, however deep; expressions hold none."""
    found: list[Definition] = [module]
    waiting: list[ast.AST] = [module]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(child)
            if not isinstance(child, ast.expr):
                waiting.append(child)
    return tuple(found)


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None, "parsed from a file"
    return function.end_lineno - function.lineno + 1


def long_functions(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in definitions(module):
        if not isinstance(node, ast.Module | ast.ClassDef) and length(node) > FUNCTION_LINES_MAX:
            yield node


def troubles(path: Path) -> Iterator[str]:
    tree = parsed(path)
    if not ast.get_docstring(tree):
        yield f"{path}: a module docstring tells the theory of operation"
    if path.read_text().count("\n") > FILE_LINES_MAX:
        yield f"{path}: over {FILE_LINES_MAX} lines; which two stories does it tell?"
    for node in long_functions(tree):
        yield f"{path}:{node.lineno} {node.name} has {length(node)} lines"


def test_modules_tell_their_stories_and_stay_small() -> None:
    """All in one test: one for each file would cost more than what it looks at."""
    found = [text for path in SOURCES for text in troubles(path)]
    assert not found, "\n".join(found)


def test_a_long_function_is_found_however_deep_it_is() -> None:
    body = "    pass\n" * FUNCTION_LINES_MAX
    inner = "  " + body.replace("\n", "\n  ")
    cases = f"match x:\n case 1:\n  def c():\n{inner}\n"
    handler = f"try:\n pass\nexcept OSError:\n  def d():\n{inner}\n"
    tree = ast.parse(f"def a():\n{body}\ndef b():\n{body[9:]}\n{cases}\n{handler}")
    assert sorted(function.name for function in long_functions(tree)) == ["a", "c", "d"]


def test_a_small_module_has_a_reason() -> None:
    root = ROOT / "src" / "sliceplane"
    modules = {str(path.relative_to(root)): path for path in SOURCES if path.is_relative_to(root)}
    small = {
        name
        for name, path in modules.items()
        if path.name != "__init__.py"
        and str(Path(name).parent) not in UNITS
        and path.read_text().count("\n") < FILE_LINES_MIN
    }
    assert small <= SMALL.keys(), "join it with what uses it, or say in SMALL why it stands alone"
    assert SMALL.keys() <= small, "it is no small file any more: take it from SMALL"


def test_the_reading_order_names_every_package_after_those_that_it_imports() -> None:
    assert sliceplane.__doc__ is not None
    order = [
        name
        for line in re.findall(r"^- [^:]+: ([^;.]+)[;.]", sliceplane.__doc__, re.MULTILINE)
        for name in line.split(", ")
    ]
    packages = sorted(
        path.parent.name for path in (ROOT / "src" / "sliceplane").glob("*/__init__.py")
    )
    assert sorted(order) == packages
    rooms = {(importer.split(".")[0], imported.split(".")[0]) for importer, imported in imports()}
    for importer, imported in rooms - {(name, name) for name, _ in rooms}:
        if importer not in order:  # a module beside the rooms
            continue
        assert order.index(imported) < order.index(importer), f"{importer} imports {imported}"


def test_imports_go_down() -> None:
    rows = layers()
    assert essential(imports(), rows)
    for upward in (("kit", "api"), ("watch", "slices"), ("api", "server")):
        with pytest.raises(
            ValueError, match=f"{upward[0]} imports {upward[1]}, which does not stand below it"
        ):
            essential({*imports(), upward}, rows)


#: modules that a core must not import: it decides, and what runs it waits, reads clocks and writes
IO = frozenset(
    {
        *(
            "asyncio",
            "time",
            "random",
            "secrets",
            "uuid",
            "socket",
            "ssl",
            "select",
            "selectors",
            "os",
            "pathlib",
        ),
        *(
            "subprocess",
            "threading",
            "multiprocessing",
            "concurrent",
            "logging",
            "http",
            "urllib",
            "sqlite3",
            "signal",
        ),
        *(
            "tempfile",
            "structlog",
            "prometheus_client",
            "aiohttp",
            "uvicorn",
            "uvloop",
            "httptools",
            "click",
        ),
        *("cryptography", "grpc", "joserfc"),
    }
)
#: rooms that are no cores, and what others import
OUTER = ("lab", "cli", "client.py", "testing.py", "pytest_plugin.py", "__main__.py")


def is_core(parts: tuple[str, ...]) -> bool:
    return parts[0] not in OUTER and "io" not in parts


def test_cores_do_no_io() -> None:
    """No I/O, no clock, no randomness, no logs: the same events give the same actions."""
    seen = 0
    for path in SOURCES:
        parts = path.relative_to(ROOT / "src" / "sliceplane").parts
        if not is_core(parts):
            continue
        seen += 1
        for node in ast.walk(parsed(path)):
            match node:
                case ast.Import(names=names):
                    imported = {alias.name.split(".")[0] for alias in names} & IO
                case ast.ImportFrom(module=str(module)):
                    first, *below = module.split(".")
                    imported = set(below) & {"io"} if first == "sliceplane" else {first} & IO
                case _:
                    continue
            assert not imported, f"{path}:{node.lineno} imports {sorted(imported)}"
    assert seen > 300


def test_rooms_are_few() -> None:
    """A newcomer finds the room for a change from the folder names: at most 16 at the top."""
    rooms = {path.parent.name for path in (ROOT / "src" / "sliceplane").glob("*/__init__.py")}
    assert len(rooms) <= 16, sorted(rooms)


def test_test_modules_tell_one_story_each() -> None:
    found = []
    for path in TESTS:
        text = path.read_text()
        if not re.match(r'(#.*\n)*r?"""', text):
            found.append(f"{path}: a module docstring says what the tests are about")
        if text.count("\n") > FILE_LINES_MAX:
            found.append(f"{path}: over {FILE_LINES_MAX} lines; split it by story")
    assert not found, "\n".join(found)


def test_waiting_is_left_to_those_who_say_what_they_saw() -> None:
    """A loop that only sleeps is a third ``until``; its failure is a time-out that says nothing."""
    polling = re.compile(
        r"^ +while [^\n]*:\n +(?:await asyncio|time)\.sleep\((?!0\))", re.MULTILINE
    )
    alone = [
        path for path in TESTS if path.name.startswith("test_") and polling.search(path.read_text())
    ]
    assert alone == [], "tests/waiting.py waits"


def test_folders_are_small() -> None:
    """A room, and each folder in it, has at most 15 modules."""
    sizes: dict[str, int] = {}
    for path in SOURCES:
        if path.name != "__init__.py":
            folder = str(path.parent.relative_to(ROOT / "src" / "sliceplane"))
            sizes[folder] = sizes.get(folder, 0) + 1
    large = {folder: size for folder, size in sizes.items() if size > FOLDER_FILES_MAX}
    assert large == {}


def test_constructors_are_small() -> None:
    """At most seven parameters; a class that needs more has two jobs."""
    large = {
        owner.name
        for path in SOURCES
        for owner in definitions(parsed(path))
        if isinstance(owner, ast.ClassDef)
        for function in owner.body
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
        if len(function.args.args) - 1 + len(function.args.kwonlyargs) > PARAMETERS_MAX
    }
    assert large == LARGE_CONSTRUCTORS


def test_the_formatter_has_no_exceptions() -> None:
    found = [path for path in [*SOURCES, *TESTS] if "fmt: " + "skip" in path.read_text()]
    assert found == []


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    """And not with What, Of or Those."""
    first_words = (
        (ast.get_docstring(node) or "-").split()[0].rstrip(",:")
        for path in SOURCES
        for node in definitions(parsed(path))
    )
    count = sum(word in DIALECT for word in first_words)
    assert count == 0


def test_nothing_left_over() -> None:
    marks = ("FIX" + "ME", "XX" + "X:", "TO" + "DO")
    for path in [*SOURCES, *TESTS]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not any(mark in line for mark in marks), f"{path}:{number}: {line.strip()}"


def test_a_public_class_name_stands_once() -> None:
    """So that a name found anywhere leads to one place."""
    named: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named.setdefault(node.name, []).append(str(path.relative_to(ROOT / "src")))
    doubled = {name: paths for name, paths in named.items() if len(paths) > 1}
    assert doubled == {}, "say of what it is: NftPlane, ServerPlane"
