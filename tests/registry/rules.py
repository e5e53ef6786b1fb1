"""The rules of validation, and which of them the tests of this room break.

A rule is a place in ``SCOPE`` that makes a ``FieldError``, or that calls a function which makes one
for several callers, or a row (``Field``) of the tables of a module. ``note`` exchanges the
functions of ``api.errors`` for ones that note where they are called from: that costs something only
where an object is refused. ``RuleCheck`` collects what the tests of all workers break, and fails a
run of the whole room in which a rule was never broken.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections.abc import Callable, Generator
from functools import cache, wraps
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.workers import takes_long

import sliceplane.server.registry
from sliceplane.api import errors
from sliceplane.server.registry.kinds.kind import Kind
from sliceplane.server.registry.validation.rules import Field, Rules

ROOM = Path(__file__).parent
PACKAGE = Path(sliceplane.server.registry.__file__).parent
#: rules of objects, not of options or reviews
SCOPE = ("admission/", "kinds/", "metadata.py", "validation/")
FACTORIES = (
    *(
        "FieldError",
        "duplicate",
        "forbidden_field",
        "invalid_value",
        "not_supported",
        "required",
        "too_long",
    ),
    "too_many",
)


class Rule(NamedTuple):
    #: of ``registry``
    file: str
    line: int

    def __str__(self) -> str:
        text = (PACKAGE / self.file).read_text(encoding="utf-8").splitlines()[self.line - 1].strip()
        return f"src/sliceplane/server/registry/{self.file}:{self.line}: {text}"


def rules_in(texts: dict[str, str]) -> set[Rule]:
    """The rules in the source *texts* of files."""
    checking: dict[str, set[str]] = {}
    calls: dict[str, list[Rule]] = {}
    for file, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.returns is not None and _checks(node):
                checking.setdefault(node.name, set()).add(file)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                calls.setdefault(node.func.id, []).append(Rule(file, node.lineno))
    found: set[Rule] = set()
    for name, places in calls.items():
        # A private function is called in its own file.
        own = [
            rule
            for rule in places
            if not name.startswith("_") or rule.file in checking.get(name, ())
        ]
        if name in FACTORIES:
            found.update(places)
        elif name in checking and len(own) > 1:
            found.update(own)
    return found


def _checks(function: ast.FunctionDef) -> bool:
    """Returns True for a function that makes complaints."""
    assert function.returns is not None
    called = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    is_maker = any(
        isinstance(called_function, ast.Name) and called_function.id in FACTORIES
        for called_function in called
    )
    return is_maker and "FieldError" in ast.unparse(function.returns)


@cache
def rules() -> frozenset[Rule]:
    paths = sorted(PACKAGE.rglob("*.py"))
    found = rules_in(
        {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in paths}
    )
    return frozenset(rule for rule in found if rule.file.startswith(SCOPE)) | {*rows().values()}


@cache
def rows() -> dict[int, Rule]:
    """The rule that each row stands for, by the row's identity."""
    found: dict[int, Rule] = {}
    for name, module in sorted(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "")
        if name.startswith("sliceplane.server.registry.") and path.is_relative_to(PACKAGE):
            file = str(path.relative_to(PACKAGE))
            lines = _lines_of_rows(path.read_text(encoding="utf-8"), vars(module))
            for row in _rows_in(list(vars(module).values())):
                if id(row) not in found and _facts(row) in lines and file.startswith(SCOPE):
                    found[id(row)] = Rule(file, lines[_facts(row)])
    return found


def _lines_of_rows(text: str, names: dict[str, Any]) -> dict[tuple[Any, ...], int]:
    """Where rows are written that check something themselves, by their facts; those of functions
    are left out.
    """
    lines: dict[tuple[Any, ...], int] = {}
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "Field"
        ):
            try:
                row = eval(compile(ast.Expression(node), "row", "eval"), dict(names))
            except NameError:
                continue
            if (
                any(is_set for test, is_set in row._checks() if test.__name__ in _OWN_CHECKS)
                or row.required
            ):
                lines.setdefault(_facts(row), node.lineno)
    return lines


_OWN_CHECKS = ("_length", "_choice", "_bounds", "_bytes", "_form")


def _facts(row: Field) -> tuple[Any, ...]:
    """What is in a row but for its functions."""
    return tuple(value for value in msgspec.structs.astuple(row) if not callable(value))


def _rows_in(values: list[Any]) -> Generator[Field, None, None]:
    """The rows of tables and kinds, those inside others too."""
    seen: set[int] = set()
    while values:
        value = values.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Field):
            yield value
            values += [value.rows, value.whole]
        elif isinstance(value, Rules):
            values += [*value._fields, *(rule for _, rule in value._rules)]
        elif isinstance(value, Kind):
            values.append(value.rules)
        elif isinstance(value, dict | tuple | list):
            values += value.values() if isinstance(value, dict) else value


#: of this process
broken: set[Rule] = set()


def note() -> None:
    """From now on ``broken`` has the places from which complaints came."""
    for module in pkgutil.walk_packages(
        sliceplane.server.registry.__path__, "sliceplane.server.registry."
    ):
        importlib.import_module(module.name)
    exchanged = {name: _noting(getattr(errors, name)) for name in FACTORIES}
    for module_name, loaded in list(sys.modules.items()):
        if module_name.startswith("sliceplane.server.registry."):
            for name in FACTORIES:
                if vars(loaded).get(name) is getattr(errors, name):
                    setattr(loaded, name, exchanged[name])


def _noting(factory: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(factory)
    def make(*arguments: Any, **members: Any) -> Any:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            path = frame.f_code.co_filename
            if path.startswith(_PREFIX):
                broken.add(Rule(path[len(_PREFIX) :], frame.f_lineno))
                row = frame.f_locals.get("self")
                if isinstance(row, Field) and id(row) in rows():
                    broken.add(rows()[id(row)])
            frame = frame.f_back
        return factory(*arguments, **members)

    return make


_PREFIX = f"{PACKAGE}/"


class RuleCheck:
    """A plug-in of pytest, in the parent and in each worker."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._told: set[Rule] = set()
        self._broken: set[Rule] = set()
        self._is_whole = False
        note()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """A run that leaves out a test of the room by its name, or that ends early, says nothing of
        rules.
        """
        options = self._config.option
        chosen = (
            options.keyword
            or options.maxfail
            or getattr(options, "lf", False)
            or options.collectonly
        )
        files = {item.path for item in session.items if item.path.is_relative_to(ROOM)}
        is_quick, root = getattr(options, "quick", False), self._config.rootpath
        wanted = {
            path for path in ROOM.rglob("test_*.py") if not (is_quick and takes_long(path, root))
        }
        self._is_whole = (
            not chosen and files >= wanted and not any("::" in name for name in self._config.args)
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        new = broken - self._told
        if new and item.path.is_relative_to(ROOM):
            self._told |= new
            report.user_properties.append(("rules", sorted(new)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == "rules":
                assert isinstance(value, list)
                self._broken.update(Rule(*rule) for rule in value)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._is_whole and session.exitstatus == pytest.ExitCode.OK and self.untested:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._is_whole and self.untested:
            terminalreporter.section("rules without a test", red=True)
            terminalreporter.write_line(
                "No quick test of tests/registry breaks these; a row of its cases/*.yaml does."
            )
            for rule in self.untested:
                terminalreporter.write_line(str(rule))

    @property
    def untested(self) -> list[Rule]:
        return sorted(rules() - self._broken)
