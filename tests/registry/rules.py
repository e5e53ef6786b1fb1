"""The rules of validation, and which of them the tests of this room break.

A rule is a place in ``sliceplane.registry`` that makes a ``FieldError``, or that calls a function of the package which
makes one for several callers.  ``note`` exchanges the functions of ``api.errors`` for ones that note where
they are called from: that costs something only where an object is refused.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import sliceplane.registry
from sliceplane.api import errors

PACKAGE = Path(sliceplane.registry.__file__).parent
FACTORIES = (
    *("FieldError", "duplicate", "forbidden_field", "invalid_value", "not_supported", "required", "too_long"),
    "too_many",
)


class Rule(NamedTuple):
    #: of ``registry``
    file: str
    line: int

    def __str__(self) -> str:
        text = (PACKAGE / self.file).read_text(encoding="utf-8").splitlines()[self.line - 1].strip()
        return f"src/sliceplane/registry/{self.file}:{self.line}: {text}"


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
        own = [rule for rule in places if not name.startswith("_") or rule.file in checking.get(name, ())]
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
        isinstance(called_function, ast.Name) and called_function.id in FACTORIES for called_function in called
    )
    return is_maker and "FieldError" in ast.unparse(function.returns)


@cache
def rules() -> frozenset[Rule]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return frozenset(rules_in({str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in paths}))


#: of this process
broken: set[Rule] = set()


def note() -> None:
    """From now on ``broken`` has the places from which complaints came."""
    for module in pkgutil.walk_packages(sliceplane.registry.__path__, "sliceplane.registry."):
        importlib.import_module(module.name)
    exchanged = {name: _noting(getattr(errors, name)) for name in FACTORIES}
    for module_name, loaded in list(sys.modules.items()):
        if module_name.startswith("sliceplane.registry."):
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
            frame = frame.f_back
        return factory(*arguments, **members)

    return make


_PREFIX = f"{PACKAGE}/"
