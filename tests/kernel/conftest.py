"""Real packets need root, nft, iptables and iproute2.  In CI their absence is a failure, elsewhere
a reason to skip.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from tests.kernel.cluster import serving
from tests.kernel.fabric import Fabric
from tests.kernel.netns import Host, Net


@pytest.fixture(scope="session", autouse=True)
def kernel_is_usable() -> None:
    missing = [
        program for program in ("nft", "ip", "iptables", "ipset") if shutil.which(program) is None
    ]
    if os.geteuid() != 0:
        missing.append("root")
    if missing:
        why = f"kernel tests need {', '.join(missing)}"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    """A switch, to which a test module adds its hosts."""
    with Net("spt") as made:
        yield made


@pytest.fixture(scope="module")
def backends(net: Net) -> list[Host]:
    """``b1``, ``b2`` and ``b3``, which serve their names."""
    return serving(net, 3)


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    """Two nodes with their pods."""
    with Fabric("spn") as made:
        yield made
