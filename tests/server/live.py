"""A plane that tests of a session share, and a client of it: fixtures, for a ``conftest`` to
name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from tests.server.serving import Server, run_plane

from sliceplane.client import HttpClient, connect
from sliceplane.server.io.plane import PlaneConfig


@pytest.fixture(scope="session")
def live() -> Iterator[Server]:
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0))
    yield Server(plane)
    end()


@pytest_asyncio.fixture
async def client(live: Server) -> AsyncIterator[HttpClient]:
    async with connect(live.plane.kubeconfig) as made:
        yield made
