"""Rolling restarts of a Deployment on Kubernetes' own kube-apiserver, kube-controller-manager and three
kube-proxies with their observers, while every node opens new connections: with no hook, with hooks
that sleep, with Pods that close at the barrier's answer, and by ``sliceplane drain deployment``.

``python -m tests.peers.test_rolling_restart FOLDER PODS RATE MODE...`` prints the figures; FOLDER has
the three programs.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from tests.e2e.running import PYTHON_ENVIRONMENT, ROOT, kubectl
from tests.figures import tell
from tests.kernel.netns import Host
from tests.kernel.test_drain_packets import SentSyns, connecting
from tests.peers.control_plane import PodProcesses
from tests.peers.kubernetes import create, items
from tests.peers.played_nodes import (
    REPLACED_S,
    SERVICE,
    Cluster,
    PreStop,
    Programs,
    cluster,
    deployment,
    sleep_hook,
)
from tests.waiting import eventually

from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Leases
from sliceplane.client import drain
from sliceplane.consume.progress import ANNOTATION_REVISION

pytestmark = [pytest.mark.peer, pytest.mark.kernel, pytest.mark.timeout(2400)]

OBSERVER: Final = ROOT / "deploy" / "manifests" / "observer.yaml"
#: the longest hook; Pods that end by the barrier may take as long
GRACE_S: Final = 60
#: seconds of load before the restart, and after it
BEFORE_S: Final = 3.0
AFTER_S: Final = 2.0


class Restart(NamedTuple):
    """One way to replace all Pods: the seconds that the template's hook sleeps, how a Pod ends, and
    the command.
    """

    name: str
    sleep_s: int
    pre_stop: Callable[[Restarts], PreStop]
    run: Callable[[Restarts], Awaitable[None]]


class Restarts:
    """A Deployment whose Pods are all replaced, again and again."""

    def __init__(self, place: Cluster, pods: int, address: str) -> None:
        self.place = place
        self._pods = pods
        self._address = address
        self._sent = SentSyns(list(place.hosts.values()), place.pods)
        #: SYNs that had been sent to a Pod when its hook ended, or the barrier was answered
        self._sent_at_answer: dict[Host, int] = {}
        self._unanswered: list[Host] = []
        self._outcomes: list[str] = []

    async def measure(self, restart: Restart, rate: int) -> dict[str, Any]:
        await self._prepare(restart.sleep_s)
        self.place.kubelets.pre_stop = restart.pre_stop(self)
        self._sent_at_answer, self._outcomes = {}, []
        old = await self.place.readiness()
        async with connecting(list(self.place.hosts.values()), rate, [self._address]) as results:
            await asyncio.sleep(BEFORE_S)
            began = time.monotonic()
            await restart.run(self)
            replaced_s = time.monotonic() - began
            await self.place.until_replaced(old, self._pods)
            ended_s = time.monotonic() - began
            await asyncio.sleep(AFTER_S)
        assert len(self._sent_at_answer) == self._pods
        late = [
            sum(await self._sent.read(host)) - before
            for host, before in self._sent_at_answer.items()
        ]
        made = sum(result[0] for result in results)
        failed = sum(result[1] for result in results)
        return {
            "restart": restart.name,
            "connections": made,
            "perSecond": round((made + failed) / max(result[3] for result in results)),
            "failed": failed,
            "synAfterAnswer": sum(late),
            "replaced_s": round(replaced_s, 1),
            "ended_s": round(ended_s, 1),
            "outcomes": self._outcomes,
            "faults": [fault for result in results for fault in result[2]][:3],
        }

    async def _prepare(self, sleep_s: int) -> None:
        """The template has the hook, and so have all Pods; all nodes have followed."""
        hook = {"preStop": {"sleep": {"seconds": sleep_s}}} if sleep_s else None
        container = {"name": "web", "image": "web", "lifecycle": hook}
        patch = json.dumps({"spec": {"template": {"spec": {"containers": [container]}}}})
        self.place.kubelets.pre_stop = _no_hook
        old = await self.place.readiness()
        said = await self.kubectl("patch", "deployment", "web", "-p", patch)
        await self.place.until_replaced(() if "no change" in said else old, self._pods)
        await eventually(self._nodes_follow, within_s=REPLACED_S)

    async def _nodes_follow(self) -> bool:
        """All nodes report the last change of a slice."""
        client = self.place.client
        slices = await client.list(Selection(EndpointSlices, "default"))
        last = max(int(json.loads(body)["metadata"]["resourceVersion"]) for body in slices.items)
        leases = await client.list(Selection(Leases, "kube-node-lease"))
        revisions = [
            int(json.loads(body)["metadata"].get("annotations", {}).get(ANNOTATION_REVISION, 0))
            for body in leases.items
        ]
        return len(revisions) == len(self.place.hosts) and min(revisions) >= last

    async def kubectl(self, *arguments: str) -> str:
        return await asyncio.to_thread(kubectl, self.place.plane, *arguments)

    # How Pods end

    async def answered(self, host: Host) -> None:
        """From now on no node may send a SYN to the Pod; another one gets the address in the next
        restart.
        """
        self._sent_at_answer[host] = sum(await self._sent.read(host))

    async def sleep(self, name: str, spec: dict[str, Any], host: Host) -> None:
        await sleep_hook(name, spec, host)
        await self.answered(host)

    async def wait_for_barrier(self, name: str, _spec: dict[str, Any], host: Host) -> None:
        """As ``examples/fastapi_drain.py`` does when it is told to end."""
        async with drain(self.place.client, f"default/{name}", timeout=GRACE_S) as answer:
            await self.answered(host)
            self._outcomes.append(answer.outcome)

    async def sleep_until_answered(self, name: str, spec: dict[str, Any], host: Host) -> None:
        """Under ``drain deployment``, which had the answer for a Pod before it removed the next."""
        await self.answer_all()
        self._unanswered.append(host)
        await sleep_hook(name, spec, host)
        if (
            host in self._unanswered
        ):  # the drain waits for the replacement, or the hook is too short
            self._unanswered.remove(host)
            await self.answered(host)

    async def answer_all(self) -> None:
        while self._unanswered:
            await self.answered(self._unanswered.pop())

    # Commands

    async def roll_out(self) -> None:
        await self.kubectl("rollout", "restart", "deployment/web")
        await self.kubectl("rollout", "status", "deployment/web", f"--timeout={REPLACED_S:g}s")

    async def drain_deployment(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sliceplane", "drain", "deployment", "web", "--evict"),
            *("--kubeconfig", self.place.plane.kubeconfig, "-o", "json"),
            env=PYTHON_ENVIRONMENT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await process.communicate()
        assert process.returncode == 0, (out, errors)
        await self.answer_all()
        self._outcomes += [pod["outcome"] for pod in json.loads(out)["pods"]]


async def _no_hook(_name: str, _spec: dict[str, Any], _host: Host) -> None:
    """The Pod ends at once."""


NO_HOOK: Final = Restart("no hook", 0, lambda own: own.sleep, Restarts.roll_out)
SLEEP_5: Final = Restart("sleep 5", 5, lambda own: own.sleep, Restarts.roll_out)
SLEEP_30: Final = Restart("sleep 30", 30, lambda own: own.sleep, Restarts.roll_out)
BARRIER: Final = Restart("barrier", 0, lambda own: own.wait_for_barrier, Restarts.roll_out)
DRAIN: Final = Restart(
    "drain deployment", 30, lambda own: own.sleep_until_answered, Restarts.drain_deployment
)


@asynccontextmanager
async def restarted(
    folder: Path, programs: Programs, mode: str, pods: int
) -> AsyncIterator[Restarts]:
    """The Deployment is complete, and all nodes have reported."""
    # those that a rolling update adds, and as many that terminate
    hosts = 2 * pods + max(pods // 2, 4)
    async with cluster(folder, programs, mode, pods=hosts) as place:
        await asyncio.to_thread(create, place.plane, SERVICE, deployment(pods, grace_s=GRACE_S))
        await asyncio.to_thread(kubectl, place.plane, "apply", "-f", str(OBSERVER))
        nodes = {name: tuple(host.place.command()) for name, host in place.hosts.items()}
        processes = PodProcesses(place.plane, place.client, folder, "kube-system", nodes)
        async with processes.running() as observers:
            address = json.loads(
                await asyncio.to_thread(kubectl, place.plane, "get", "svc", "web", "-o", "json")
            )["spec"]["clusterIP"]
            made = Restarts(place, pods, address)
            await place.until_replaced((), pods)
            await eventually(lambda: asyncio.to_thread(_observers, place), within_s=REPLACED_S)
            yield made
            assert not observers.done(), observers.exception()


def _observers(place: Cluster) -> bool:
    (found,) = items(place.plane, "daemonset", "-n", "kube-system")
    return bool(found["status"].get("numberReady") == len(place.hosts))


async def measure(
    programs: Programs, mode: str, pods: int, rate: int, restarts: Sequence[Restart]
) -> dict[str, dict[str, Any]]:
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with restarted(Path(folder), programs, mode, pods) as made:
            for restart in restarts:
                figures[restart.name] = found = await made.measure(restart, rate)
                tell(json.dumps({"mode": mode, "pods": pods, **found}))
    return figures


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
async def test_no_connection_fails_while_all_pods_are_replaced(
    kube_apiserver: str, manager: str, kube_proxy: str, mode: str
) -> None:
    programs = Programs(kube_apiserver, manager, kube_proxy)
    figures = await measure(programs, mode, 8, 300, (NO_HOOK, BARRIER, DRAIN))
    assert figures["no hook"]["failed"] > 0, "the load notices Pods that end too soon"
    for name in ("barrier", "drain deployment"):
        found = figures[name]
        assert (found["failed"], found["synAfterAnswer"]) == (0, 0), found
        assert found["outcomes"] == ["drained"] * 8, found


async def main(folder: Path, pods: int, rate: int, modes: Sequence[str]) -> None:
    names = ("kube-apiserver", "kube-controller-manager", "kube-proxy")
    programs = Programs(*(str(folder / name) for name in names))
    for mode in modes:
        await measure(programs, mode, pods, rate, (NO_HOOK, BARRIER, SLEEP_5, SLEEP_30, DRAIN))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
