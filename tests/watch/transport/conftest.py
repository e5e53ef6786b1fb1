"""Both clients, over the same registry code: in this process, and over TLS to a real server in
another thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
import pytest_asyncio
from tests.server.serving import Server, run_plane

from sliceplane.api import codec
from sliceplane.api.scheme import Namespaces
from sliceplane.server.io.inprocess import InProcessClient
from sliceplane.server.io.plane import PlaneConfig, ServerPlane
from sliceplane.watch.io import kubeconfig
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.http.client import HttpClient

_numbers = count()


@pytest.fixture(scope="session")
def plane_server() -> Iterator[Server]:
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0))
    yield Server(plane)
    end()


@pytest_asyncio.fixture
async def inprocess() -> AsyncIterator[InProcessClient]:
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0)) as plane:
        yield plane.client("system:admin")


@pytest_asyncio.fixture
async def over_http(plane_server: Server) -> AsyncIterator[HttpClient]:
    client = HttpClient(kubeconfig.load(plane_server.plane.kubeconfig))
    yield client
    await client.close()


@pytest.fixture(params=["inprocess", "over_http"])
def client(request: pytest.FixtureRequest) -> Client:
    found: Client = request.getfixturevalue(request.param)
    return found


@pytest_asyncio.fixture
async def namespace(client: Client) -> str:
    """A namespace of the test's own: servers are shared."""
    name = f"clients-{next(_numbers)}"
    await client.create(Namespaces, "", codec.encode({"metadata": {"name": name}}))
    return name
