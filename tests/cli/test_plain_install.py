"""``pip install sliceplane`` without an extra: the commands that only ask work, the others say what
to install.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from tests.e2e.running import ROOT
from tests.lab.whatif.asked import cart_snapshot

from sliceplane.kit.io.extras import EXTRA_OF, requirement

#: runs the program as if the modules of all extras were missing
PLAIN = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(EXTRA_OF)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from sliceplane.cli.entry import main
main()
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PLAIN, *words],
        env={
            "PATH": f"{os.environ['PATH']}:/usr/sbin",
            "PYTHONPATH": str(ROOT / "src"),
            "HOME": "/nonexistent",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--version",),
        ("--help",),
        ("version",),
        ("up", "--help"),
        ("proxy", "--help"),
        ("controllers", "--help"),
        ("estimate", "--pods", "2", "--nodes", "1"),
        ("simulate", "--steps", "1"),
        ("completion", "bash"),
        (
            "proxy",
            "render",
            "-f",
            str(ROOT / "tests/node/objects.yaml"),
            "--hostname-override",
            "node-1",
        ),
    ],
    ids=" ".join,
)
def test_what_works_without_an_extra(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("up", "--data-dir", "memory:"), "server"),
        (("controllers", "--once", "--kubeconfig", "KUBECONFIG"), "server"),
        (("proxy", "--kubeconfig", "KUBECONFIG"), "proxy"),
        (("what-if", "cart", "--snapshot", "SNAPSHOT", "--plot", "/nonexistent/x.png"), "plot"),
    ],
)
def test_what_needs_an_extra_says_which(words: tuple[str, ...], extra: str, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        '{"clusters":[{"name":"a","cluster":{"server":"http://127.0.0.1:1"}}],"current-context":"a",'
        '"contexts":[{"name":"a","context":{"cluster":"a"}}]}'
    )
    snapshot = tmp_path / "cart.snapshot"
    snapshot.write_bytes(cart_snapshot())
    files = {"KUBECONFIG": str(kubeconfig), "SNAPSHOT": str(snapshot)}
    done = run(*(files.get(word, word) for word in words))
    assert done.returncode == 1
    assert f"sliceplane[{extra}]" in done.stderr
    assert len(done.stderr.splitlines()) == 2, done.stderr


@pytest.mark.parametrize(
    ("origin", "told"),
    [
        (None, "'sliceplane[server]'"),
        ({"url": "file:///src", "dir_info": {}}, "'sliceplane[server] @ file:///src'"),
        (
            {"url": "https://example.net/s.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "'sliceplane[server] @ git+https://example.net/s.git@abc'",
        ),
    ],
)
def test_the_line_to_paste_names_where_the_package_came_from(
    origin: object, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr(metadata, "distribution", lambda name: Installed())
    assert requirement("server") == told


def test_every_extra_that_is_named_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRA_OF.values()) | {"proxy"} == set(project["optional-dependencies"])


def test_what_is_imported_is_what_an_installation_brings() -> None:
    """In functions too: the tests have more installed than a user has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plain = {re.split(r"[^\w-]", line)[0].lower() for line in project["dependencies"]}
    brought = {
        name
        for name, distributions in metadata.packages_distributions().items()
        if plain & {each.lower() for each in distributions} or name in EXTRA_OF
    }
    others = {"pytest"}  # it is there where its plugin is loaded
    others.add("jsonpointer")  # jsonpatch is made of it
    for path in (ROOT / "src").rglob("*.py"):
        for node in _statements(ast.parse(path.read_text())):
            match node:
                case ast.Import():
                    names = [each.name for each in node.names]
                case ast.ImportFrom():
                    names = [node.module or ""]
                case _:
                    continue
            for name in (each.partition(".")[0] for each in names):
                known = name in sys.stdlib_module_names or name == "sliceplane"
                assert known or name in brought | others, f"{path}:{node.lineno} imports {name}"


def test_uvicorn_still_has_what_the_connection_extends() -> None:
    """Before 0.45 one method has no such name: pipelined disconnects were handled no more, in
    silence.
    """
    import inspect

    from uvicorn.protocols.http import httptools_impl

    theirs = httptools_impl.HttpToolsProtocol
    assert "self._start_asgi_task(" in inspect.getsource(theirs.on_headers_complete)
    assert callable(theirs._unset_keepalive_if_required)


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement, also of functions.  Expressions, most of a tree, are not walked: no import
    is in one.
    """
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting.extend(getattr(node, part, ()))
