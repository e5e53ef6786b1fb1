"""The plug-in as a user's project has it: found by its entry point, free when unused, the same in every mode."""

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
"""

PLAIN = """
import pytest

@pytest.fixture
def sliceplane_options():
    return {"controllers": False}

def test_one(sliceplane):
    sliceplane.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}})
    assert [each["metadata"]["name"] for each in sliceplane.list("configmaps")] == ["mine"]

def test_each_test_has_its_own(sliceplane):
    assert sliceplane.list("configmaps") == []

def test_any_number(sliceplane_planes):
    planes = [sliceplane_planes(controllers=False) for _ in range(3)]
    for number, plane in enumerate(planes):
        plane.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"of-{number}"}})
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
    assert "1 passed" in passed(run_pytest(tmp_path, "-p", "no:asyncio", site=tmp_path))


def test_a_plane_for_each_test_and_any_number_of_them(tmp_path: Path) -> None:
    tmp_path.joinpath("test_plain.py").write_text(PLAIN)
    assert "3 passed" in passed(run_pytest(tmp_path, "-W", "error", "-p", "no:asyncio", site=tmp_path))


@pytest.mark.parametrize(
    ("mark", "flags"),
    [
        ("@pytest.mark.asyncio", ("-o", "asyncio_mode=strict", *SCOPE)),
        ("", ("-o", "asyncio_mode=auto", *SCOPE)),
        ("@pytest.mark.asyncio(loop_scope='session')", ("-o", "asyncio_mode=strict", *SCOPE)),
        ("@pytest.mark.anyio", ("-p", "no:asyncio")),
    ],
    ids=["strict", "auto", "session", "anyio"],
)
def test_coroutines_in_every_mode(tmp_path: Path, mark: str, flags: tuple[str, ...]) -> None:
    backend = "" if "anyio" not in mark else "\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    tmp_path.joinpath("test_coroutine.py").write_text(COROUTINE.format(mark=mark) + backend)
    assert "1 passed" in passed(run_pytest(tmp_path, "-W", "error", *flags, site=tmp_path))


def test_workers_side_by_side(tmp_path: Path) -> None:
    """As pytest-xdist runs them: processes that start planes in the same moment."""
    folders = [tmp_path / str(number) for number in range(3)]
    for folder in folders:
        folder.mkdir()
        folder.joinpath("test_plain.py").write_text(PLAIN)
    workers = [run_pytest(folder, site=tmp_path) for folder in folders]
    for worker in workers:
        assert "3 passed" in passed(worker)
