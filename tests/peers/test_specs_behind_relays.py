"""Upstream's end-to-end specs of watches, of lists in chunks and of tables, unmodified, behind one and
two relays: what they ask for is passed on.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from itertools import count
from pathlib import Path

import pytest
from benchmarks.tools.peers import OPTIMISED
from tests.peers import kubernetes
from tests.peers.programs import build
from tests.relay.test_conformance_through_relays import behind_relays

from sliceplane.testing import Plane

pytestmark = [pytest.mark.peer, pytest.mark.timeout(3600)]

FOCUS = "Watchers|chunking|Tables"
#: of upstream 1.36: a list in chunks whose first version is compacted takes six minutes
AT_LEAST = 9


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a program with the specs."""
    return build(kubernetes.MODULE, tmp_path_factory.mktemp("specs"), "./specs", OPTIMISED)


async def keep_busy(plane: Plane) -> None:
    """Writes something now and then: in a cluster that stands still no version is compacted, which one
    of the specs waits for.
    """
    for number in count():
        data = {"number": str(number)}
        plane.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "busy"}, "data": data}
        )
        await asyncio.sleep(5.0)


@pytest.mark.parametrize("levels", [1, 2])
async def test_upstreams_specs_pass(specs: str, levels: int, tmp_path: Path) -> None:
    async with behind_relays(levels, tmp_path, controllers=True) as (plane, relay):
        command = [
            specs,
            f"--kubeconfig={plane.kubeconfig}",
            f"--ginkgo.focus={FOCUS}",
            "--ginkgo.no-color",
        ]
        busy = asyncio.create_task(keep_busy(plane))
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=False, timeout=3000
        )
        busy.cancel()
        passed = re.search(r"(\d+) Passed \| (\d+) Failed", done.stdout)
        assert passed is not None, done.stdout[-3000:] + done.stderr[-3000:]
        assert passed[2] == "0", done.stdout[-20_000:]
        assert int(passed[1]) >= AT_LEAST
        assert relay.relay.front._passage.passed.value > 100
