"""The plug-in as a user's project has it: found by its entry point, free when unused, the same in
every mode.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.testing.places import passed
from tests.testing.places import pytest as run_pytest

pytestmark = pytest.mark.timeout(300)

#: pytest-asyncio warns without it
SCOPE = ("-o", "asyncio_default_fixture_loop_scope=function")

IDLE = """
import sys

def test_nothing_is_loaded():
    assert sorted(name for name in sys.modules if name.startswith("sliceplane.")) == ["sliceplane.pytest_plugin"]

def test_what_is_loaded_later_is_not_rewritten():
    from importlib.machinery import SourceFileLoader
    import sliceplane.testing
    assert type(sliceplane.testing.__spec__.loader) is SourceFileLoader
"""

ONE = """
import pytest

@pytest.fixture
def sliceplane_options():
    return {"controllers": False}

def test_one(sliceplane):
    sliceplane.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}})
    assert [each["metadata"]["name"] for each in sliceplane.list("configmaps")] == ["mine"]
"""

PLAIN = f"""{ONE}
def test_each_test_has_its_own(sliceplane):
    assert sliceplane.list("configmaps") == []

def test_any_number(sliceplane_planes):
    planes = [sliceplane_planes(controllers=False) for _ in range(3)]
    for number, plane in enumerate(planes):
        plane.apply({{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {{"name": f"of-{{number}}"}}}})
    assert [[each["metadata"]["name"] for each in plane.list("configmaps")] for plane in planes] == [
        ["of-0"], ["of-1"], ["of-2"]
    ]
"""

COROUTINE = """
import asyncio
import pytest

{mark}
async def test_a_coroutine_beside_its_plane(sliceplane):
    async with sliceplane.client() as client:
        from sliceplane.client import Namespaces
        page = await client.list(Namespaces)
        assert len(page.items) >= 1
    assert await sliceplane.until(lambda: sliceplane.get("Namespace", "default"))
"""


def test_it_costs_nothing_when_it_is_not_used(tmp_path: Path) -> None:
    tmp_path.joinpath("test_idle.py").write_text(IDLE)
    assert "2 passed" in passed(run_pytest(tmp_path, "-p", "no:asyncio", site=tmp_path))


def test_a_plane_for_each_test_and_any_number_of_them(tmp_path: Path) -> None:
    tmp_path.joinpath("test_plain.py").write_text(PLAIN)
    assert "3 passed" in passed(
        run_pytest(tmp_path, "-W", "error", "-p", "no:asyncio", site=tmp_path)
    )


@pytest.mark.parametrize(
    ("marks", "modes"),
    [
        (
            ("@pytest.mark.asyncio", "@pytest.mark.asyncio(loop_scope='session')"),
            ("asyncio_mode=strict",),
        ),
        (("",), ("asyncio_mode=auto",)),
        (("@pytest.mark.anyio",), ()),
    ],
    ids=["strict", "auto", "anyio"],
)
def test_coroutines_in_every_mode(
    tmp_path: Path, marks: tuple[str, ...], modes: tuple[str, ...]
) -> None:
    backend = "" if modes else "\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    for number, mark in enumerate(marks):
        tmp_path.joinpath(f"test_coroutine_{number}.py").write_text(
            COROUTINE.format(mark=mark) + backend
        )
    flags = ("-o", *modes, *SCOPE) if modes else ("-p", "no:asyncio")
    assert f"{len(marks)} passed" in passed(
        run_pytest(tmp_path, "-W", "error", *flags, site=tmp_path)
    )


def test_workers_side_by_side(tmp_path: Path) -> None:
    """As pytest-xdist runs them: processes that start planes in the same moment."""
    folders = [tmp_path / str(number) for number in range(2)]
    for folder in folders:
        folder.mkdir()
        folder.joinpath("test_plain.py").write_text(ONE)
    workers = [run_pytest(folder, site=tmp_path) for folder in folders]
    for worker in workers:
        assert "1 passed" in passed(worker)
