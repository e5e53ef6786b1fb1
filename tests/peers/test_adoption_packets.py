"""``adopt``, ``release`` and ``helm uninstall`` under packets: on Kubernetes' own kube-apiserver,
kube-controller-manager and three kube-proxies no connection to the Service fails while it moves.

The chart is installed by ``helm``, so our controllers and the hook's Job run with its ServiceAccounts,
their rights and the arguments of its containers.

``python -m tests.peers.test_adoption_packets FOLDER PODS RATE MODE...`` prints the figures; FOLDER has
the three programs.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from tests.deploy.helm import CHART, helm
from tests.e2e.running import kubectl
from tests.figures import tell
from tests.kernel.test_drain_packets import connecting
from tests.peers.control_plane import PodProcesses
from tests.peers.kubernetes import create
from tests.peers.played_nodes import SERVICE, Cluster, Programs, cluster, deployment
from tests.peers.test_adoption import sliceplane
from tests.waiting import eventually

from sliceplane.api.discovery import LABEL_MANAGED_BY, LABEL_SERVICE_NAME, MANAGED_BY_CONTROLLER
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Services
from sliceplane.api.selectors.adoption import ANNOTATION_SELECTOR, MANAGED_BY_ADOPTED

pytestmark = [pytest.mark.peer, pytest.mark.kernel, pytest.mark.timeout(2400)]

NAMESPACE: Final = "sliceplane"
ROUNDS: Final = 3
#: seconds of the hook of a Pod that ends: node proxies follow within that, also on a busy machine
HOOK_S: Final = 20
#: seconds of load after each move
AFTER_S: Final = 2.0
#: an adopted Service that the hook's Job cannot release
BROKEN: Final = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "broken", "annotations": {ANNOTATION_SELECTOR: "=nothing"}},
    "spec": {"ports": [{"port": 80}]},
}


class Installed:
    """The chart on the cluster, and the Service under load."""

    def __init__(self, place: Cluster, address: str, rate: int) -> None:
        self.place = place
        self._address = address
        self._rate = rate

    async def helm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [helm(), *arguments, "--namespace", NAMESPACE]
        environment = self.place.plane.environment
        return await asyncio.to_thread(
            subprocess.run, command, env=environment, capture_output=True, text=True, check=False
        )

    async def get(self, kind: str, name: str, path: str) -> str:
        command = ("get", kind, name, "-n", NAMESPACE, "-o", path)
        return await asyncio.to_thread(kubectl, self.place.plane, *command)

    async def is_managed_by(self, manager: str) -> bool:
        """The Service has slices of *manager* alone."""
        selection = Selection(EndpointSlices, "default", f"{LABEL_SERVICE_NAME}=web")
        found = [json.loads(body) for body in (await self.place.client.list(selection)).items]
        return {each["metadata"]["labels"][LABEL_MANAGED_BY] for each in found} == {manager}

    async def has_selector(self) -> bool:
        service = json.loads(await self.place.client.get(Services, "default", "web"))
        return bool(service["spec"].get("selector"))

    async def adopt(self) -> None:
        await self._move("adopt", MANAGED_BY_ADOPTED)

    async def release(self) -> None:
        await self._move("release", MANAGED_BY_CONTROLLER)

    async def _move(self, direction: str, manager: str) -> None:
        await sliceplane(self.place.plane, direction, "service", "web", "-n", "default")
        await eventually(lambda: self.is_managed_by(manager))
        assert await self.has_selector() == (manager == MANAGED_BY_CONTROLLER)

    async def roll_out(self) -> None:
        """All Pods are replaced while our controllers write the slices."""
        old = await self.place.readiness()
        command = ("rollout", "restart", "deployment/web")
        await asyncio.to_thread(kubectl, self.place.plane, *command)
        await self.place.until_replaced(old, len(old))

    async def uninstall(self) -> None:
        done = await self.helm("uninstall", "sliceplane", "--wait", "--timeout=300s")
        assert done.returncode == 0, done.stdout + done.stderr
        await eventually(lambda: self.is_managed_by(MANAGED_BY_CONTROLLER))
        assert await self.has_selector()

    @asynccontextmanager
    async def load(self, name: str) -> AsyncIterator[dict[str, Any]]:
        """The figures of the block are in the result afterwards."""
        hosts = list(self.place.hosts.values())
        figures: dict[str, Any] = {}
        began = time.monotonic()
        async with connecting(hosts, self._rate, [self._address]) as results:
            yield figures
            figures["seconds"] = round(time.monotonic() - began, 1)
            await asyncio.sleep(AFTER_S)
        made, failed = (sum(result[index] for result in results) for index in (0, 1))
        figures |= {
            "move": name,
            "connections": made,
            "perSecond": round((made + failed) / max(result[3] for result in results)),
            "failed": failed,
            "faults": [fault for result in results for fault in result[2]][:3],
        }
        tell(json.dumps(figures))


@asynccontextmanager
async def installed(
    folder: Path, programs: Programs, mode: str, pods: int, rate: int
) -> AsyncIterator[Installed]:
    async with cluster(folder, programs, mode, pods=2 * pods + max(pods // 2, 4)) as place:
        workload = deployment(pods, grace_s=30)
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        container["lifecycle"] = {"preStop": {"sleep": {"seconds": HOOK_S}}}
        await asyncio.to_thread(create, place.plane, SERVICE, workload)
        processes = PodProcesses(place.plane, place.client, folder, NAMESPACE, {"node-1": ()})
        async with processes.running() as running:
            await place.until_replaced((), pods)
            service = json.loads(await place.client.get(Services, "default", "web"))
            made = Installed(place, service["spec"]["clusterIP"], rate)
            values = ("--set=controllers.adoptedOnly=true", "--create-namespace")
            done = await made.helm(
                "install", "sliceplane", str(CHART), *values, "--wait", "--timeout=300s"
            )
            assert done.returncode == 0, done.stdout + done.stderr
            yield made
            assert not running.done(), running.exception()


async def moves(made: Installed) -> list[dict[str, Any]]:
    """The Service moves there and back, then there and back by the uninstall."""
    figures = []
    steps = [*(made.adopt, made.release) * ROUNDS, made.adopt, made.roll_out, made.uninstall]
    for step in steps:
        async with made.load(step.__name__) as found:
            await step()
        figures.append(found)
    return figures


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
async def test_no_connection_fails_while_a_service_moves_and_the_chart_is_uninstalled(
    kube_apiserver: str, manager: str, kube_proxy: str, tmp_path: Path, mode: str
) -> None:
    programs = Programs(kube_apiserver, manager, kube_proxy)
    async with installed(tmp_path, programs, mode, 6, 300) as made:
        if mode == "nftables":
            await refuses_while_a_service_cannot_move(made)
        for found in await moves(made):
            assert found["connections"] > 0
            assert found["failed"] == 0, found


async def refuses_while_a_service_cannot_move(made: Installed) -> None:
    """The failed Job keeps the chart: its controllers go on, and the Service stays adopted."""
    await asyncio.to_thread(create, made.place.plane, BROKEN)
    done = await made.helm("uninstall", "sliceplane", "--wait", "--timeout=300s")
    assert done.returncode != 0, done.stdout
    failed = 'jsonpath={.status.conditions[?(@.type=="Failed")].reason}'
    assert await made.get("job", "sliceplane-release", failed) == "BackoffLimitExceeded"
    ready = "jsonpath={.status.readyReplicas}"
    assert await made.get("deployment", "sliceplane-controllers", ready) == "2"
    await asyncio.to_thread(kubectl, made.place.plane, "delete", "service", "broken")


async def main(folder: Path, pods: int, rate: int, modes: Sequence[str]) -> None:
    names = ("kube-apiserver", "kube-controller-manager", "kube-proxy")
    programs = Programs(*(str(folder / name) for name in names))
    for mode in modes:
        with tempfile.TemporaryDirectory() as own:
            async with installed(Path(own), programs, mode, pods, rate) as made:
                await moves(made)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
