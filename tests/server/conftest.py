"""Fixtures: a real server on a free port; see ``serving``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.serving import Server, run_plane

from sliceplane.server.io.plane import PlaneConfig


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A plane that keeps nothing, shared by the tests of a module: use names of your own."""
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0))
    yield Server(plane)
    end()


@pytest.fixture
def kept(tmp_path: Path) -> PlaneConfig:
    """The configuration of a plane with a data folder."""
    return PlaneConfig(data_dir=str(tmp_path / "data"), secure_port=0)
