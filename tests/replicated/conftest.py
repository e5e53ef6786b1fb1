"""One etcd for all tests of this folder that leave it alone; each uses a prefix of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.replicated.members import Member, cluster


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("etcd"), 1) as (member,):
        yield member
