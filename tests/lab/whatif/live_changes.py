"""Random changes on an emulated plane that runs, each foreseen before it is made.

``python -m tests.lab.whatif.live_changes --changes 50`` The plane runs in this process with sockets,
disk and clocks. Before each change a snapshot is taken and asked; after it, when everything is at
rest, the recording says what happened, as ``what-if --verify`` does.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab.whatif.asked import ask, deployment, service
from tests.waiting import eventually

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.discovery import LABEL_ZONE
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import Deployments, EndpointSlices, Nodes, Pods, Resource, Services
from sliceplane.cli.query.recorder import read
from sliceplane.consume.io.client.connecting import connect
from sliceplane.controllers.io.catalogue import default_controllers, emulation_controllers
from sliceplane.controllers.io.embedded import ControllerService
from sliceplane.diagnose.io import recordings, snapshot
from sliceplane.emulation.nodes import EmulationConfig, make_nodes
from sliceplane.lab.whatif.state import of_snapshot
from sliceplane.lab.whatif.verify import Figure, compared, read_outcome
from sliceplane.server.io.config import PlaneConfig
from sliceplane.server.io.plane import ServerPlane
from sliceplane.watch.io.http.client import HttpClient

ZONES = ("zone-a", "zone-b", "zone-c")
NODES = 6
PODS_MAX = 60
#: nothing was written for so long: slices are looked at again a second after they changed
QUIET_S = 1.5
TERMINATION_S = 1.0
DISTRIBUTIONS = ("PreferSameZone", "PreferSameNode", "none")


class Outcome(NamedTuple):
    change: str
    figures: tuple[Figure, ...]

    @property
    def missed(self) -> list[Figure]:
        return [figure for figure in self.figures if not figure.is_as_predicted]

    def line(self) -> str:
        writes = self.figures[:3]
        least, most, real = (sum(int(figure[at]) for figure in writes) for at in (1, 2, 3))
        missed = ", ".join(
            f"{figure.what} {figure.actual} not in {figure.least}..{figure.most}"
            for figure in self.missed
        )
        return (
            f"{self.change:<38} writes {least:>4} to {most:<4} happened {real:<4} "
            f"{missed or 'as foreseen'}"
        )


class Live:
    """One plane with one Service, which ``change`` changes."""

    def __init__(self, client: HttpClient, folder: Path, seed: int) -> None:
        self._client = client
        self._folder = folder
        self._rng = random.Random(seed)
        self._replicas = 11

    async def begin(self) -> None:
        await self._client.create(Deployments, "default", encode(deployment(self._replicas)))
        await self._client.create(Services, "default", encode(service()))
        await self._rest()

    async def change(self) -> Outcome:
        taken = self._folder / "taken.snapshot"
        recording = self._folder / "after.recording"
        word, make = self._draw()
        await snapshot.save(self._client, taken)
        with taken.open("rb") as lines:
            state = of_snapshot(lines, "taken", time.time())
        found = await asyncio.to_thread(
            partial(ask, state, word, now=(f"termination={TERMINATION_S:g}s",))
        )
        await make()
        await self._rest()
        recording.unlink(missing_ok=True)
        await recordings.save(self._client, recording)
        return Outcome(word, compared(found, read_outcome(found, state, read(recording))))

    def _draw(self) -> tuple[str, Callable[[], Awaitable[None]]]:
        match self._rng.choice(
            ("replicas", "replicas", "rollout", "rollout", "distribution", "zone")
        ):
            case "replicas":
                self._replicas = self._rng.randint(1, PODS_MAX)
                return f"replicas={self._replicas}", self._patched(
                    Deployments, {"spec": {"replicas": self._replicas}}
                )
            case "rollout":
                stamp = {"kubectl.kubernetes.io/restartedAt": str(self._rng.random())}
                template = {"metadata": {"annotations": stamp}}
                return "rollout=yes", self._patched(Deployments, {"spec": {"template": template}})
            case "distribution":
                value = self._rng.choice(DISTRIBUTIONS)
                spec = {"trafficDistribution": None if value == "none" else value}
                return f"traffic-distribution={value}", self._patched(Services, {"spec": spec})
        node, zone = f"node-{self._rng.randint(1, NODES)}", self._rng.choice(ZONES)
        change = {"metadata": {"labels": {LABEL_ZONE: zone}}}
        return f"node-zone={node}:{zone}", self._patched(Nodes, change, node)

    def _patched(
        self, resource: Resource, change: Any, name: str = "cart"
    ) -> Callable[[], Awaitable[None]]:
        async def patch() -> None:
            namespace = "default" if resource.namespaced else ""
            await self._client.patch(resource, namespace, name, encode(change), patch_type="merge")

        return patch

    async def _rest(self) -> None:
        """Every Pod is as it should be, and nothing was written for a while."""
        seen: dict[str, float] = {}

        async def rests() -> bool:
            versions = await self._versions()
            since = seen.setdefault(versions, time.monotonic())
            return bool(versions) and time.monotonic() - since >= QUIET_S

        await eventually(rests, within_s=300.0)

    async def _versions(self) -> str:
        """Versions of all that a change writes; "" while Pods come or go."""
        lists = {}
        for resource in (Pods, EndpointSlices, Deployments):
            lists[resource] = [
                decode_document(body)
                for body in (await self._client.list(Selection(resource, "default"))).items
            ]
        (owner,) = lists[Deployments]
        status = owner.get("status") or {}
        settled = status.get("observedGeneration") == owner["metadata"][
            "generation"
        ] and status.get("updatedReplicas", 0) == status.get(
            "readyReplicas", 0
        ) == self._replicas == len(lists[Pods])
        heads = [item["metadata"] for items in lists.values() for item in items]
        return (
            ",".join(f"{head['name']}@{head['resourceVersion']}" for head in heads)
            if settled
            else ""
        )


async def run(
    changes: int, seed: int, tell: Callable[[str], None] = lambda _: None
) -> list[Outcome]:
    outcomes = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        emulation = EmulationConfig(nodes=make_nodes(NODES, ZONES), termination_s=TERMINATION_S)
        entries = (*default_controllers(), *emulation_controllers(emulation))
        config = PlaneConfig(data_dir=str(folder / "data"), secure_port=0)
        plane = ServerPlane(config, (ControllerService(entries),))
        async with plane, connect(plane.kubeconfig) as client:
            live = Live(client, folder, seed)
            await live.begin()
            for _ in range(changes):
                outcomes.append(await live.change())
                tell(outcomes[-1].line())
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    outcomes = asyncio.run(run(chosen.changes, chosen.seed, lambda line: print(line, flush=True)))
    within = sum(not outcome.missed for outcome in outcomes)
    print(f"{within} of {len(outcomes)} changes lie within the range that was foreseen")


if __name__ == "__main__":
    main()
