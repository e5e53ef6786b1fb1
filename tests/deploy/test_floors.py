"""Lower bounds are promises: a file that pins them says what pyproject says; ``make floors`` runs
the tests on it.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from tests.deploy.test_locked_installation import pinned

import sliceplane.server.registry.kinds

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "environments", ROOT / "tools" / "environments.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_floors_are_what_pyproject_says(tool: ModuleType) -> None:
    """``python tools/environments.py pin`` makes the file anew."""
    bounds = tool.bounds()
    assert {"aiohttp", "uvicorn", "grpcio", "matplotlib"} <= set(bounds)
    floors = pinned("requirements-floors.lock")
    assert {name: Version(floors[name]) for name in bounds} == {
        name: Version(version) for name, version in bounds.items()
    }


def test_a_bound_that_is_missing_is_told(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "ROOT", tmp_path)

    def asked(*wanted: str) -> dict[str, str]:
        listed = ", ".join(f'"{each}"' for each in wanted)
        extras = 'a = ["httptools>=0.6"]\nb = ["own[a]"]'
        text = (
            '[project]\nname = "own"\ndependencies = '
            f"[{listed}]\n[project.optional-dependencies]\n{extras}\n"
        )
        (tmp_path / "pyproject.toml").write_text(text)
        return dict(tool.bounds())

    assert asked("uvicorn[standard]>=0.45,<0.55") == {"uvicorn": "0.45", "httptools": "0.6"}
    with pytest.raises(SystemExit, match="'click' has no lower bound"):
        asked("click")
    with pytest.raises(SystemExit, match="httptools has two lower bounds"):
        asked("httptools>=0.7")


def test_every_locked_version_is_allowed(tool: ModuleType) -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [each for extra in project["optional-dependencies"].values() for each in extra]
    for lock in ("requirements-dev.lock", "requirements-floors.lock"):
        versions = pinned(lock)
        for wanted in map(Requirement, (*project["dependencies"], *extras)):
            if wanted.name != project["name"]:
                assert wanted.specifier.contains(versions[wanted.name]), (lock, str(wanted))


def test_matrix_names_the_pythons_that_the_package_names(tool: ModuleType) -> None:
    named = re.findall(
        r'"Programming Language :: Python :: ([0-9.]+)"', (ROOT / "pyproject.toml").read_text()
    )
    assert tuple(named) == tool.VERSIONS
    assert f'requires-python = ">={tool.VERSIONS[0]}"' in (ROOT / "pyproject.toml").read_text()
    assert tool.interpreters()


#: private names of others: each needs a bound in pyproject.toml, or a test of what it must be like
PRIVATE = {
    # ssl, in every Python of the matrix: the chain of a client's certificate, with fields and not
    # only as bytes
    "_sslobj",
    # uvicorn, which is bounded above: tests/cli/test_plain_install.py
    "_unset_keepalive_if_required",
}
#: documented, for all its spelling
DOCUMENTED = {"_asdict", "_exit"}


def test_who_leans_on_private_names_of_others_is_known() -> None:
    used: set[str] = set()
    ours: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and node.attr.startswith("_")
                and not node.attr.startswith("__")
            ):
                own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                (ours if own and isinstance(node.ctx, ast.Store) else used).add(node.attr)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                ours.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                ours.add(node.id)
            elif isinstance(node, ast.ImportFrom | ast.Import):
                ours.update(alias.asname or alias.name for alias in node.names)
    assert used - ours - DOCUMENTED == PRIVATE


def test_assertions_of_the_package_are_not_rewritten() -> None:
    """Our plug-in takes the package from a private set of pytest; without it each process compiles
    all of it.
    """
    specification = sliceplane.server.registry.kinds.__spec__
    assert specification is not None
    assert type(specification.loader) is SourceFileLoader
