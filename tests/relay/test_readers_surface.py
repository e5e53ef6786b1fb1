"""Everything that clients see of lists, watches and writes is the same through ``--readers``: the
tests of the server itself, whose requests meet one of two processes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.server.serving import Server, run_plane
from tests.server.test_http_resources import *  # noqa: F403
from tests.server.test_surface_lists import *  # noqa: F403
from tests.server.test_surface_watches import *  # noqa: F403
from tests.server.test_surface_writes import *  # noqa: F403

from sliceplane.server.io.config import PlaneConfig


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0, readers=2))
    yield Server(plane)
    end()
