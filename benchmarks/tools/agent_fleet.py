"""Agents as a server sees them: each has four TLS connections, one that renews its Lease, and three
that watch its Lease, its slice and its Service by name. What is written is made by the production
code; there is no client library, so that two processes can play a thousand.

``python -m benchmarks.tools.agent_fleet KUBECONFIG FIRST COUNT SERVICES``; says "ready" when all of
them serve, and answers each line with the number of renewals so far.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.tools.load_clients import Client
from sliceplane.agent.tenure import SPREAD, AgentConfig, Tenure
from sliceplane.api.codec import encode
from sliceplane.api.requests import Write
from sliceplane.api.scheme import EndpointSlices, Leases, Resource, Services
from sliceplane.consume.agents.registration import (
    FIELD_MANAGER,
    AgentPort,
    Registration,
    lease_name,
)
from sliceplane.kit.rng import Rng
from sliceplane.watch.io.kubeconfig import load

NAMESPACE: Final = "default"
#: that begin together; the next when these serve, so that a busy machine is not asked for more than
#: it can
TOGETHER: Final = 20
TRIES: Final = 5
_MEDIA: Final = {"apply": "application/apply-patch+yaml", "merge": "application/merge-patch+json"}


class Agent:
    def __init__(self, number: int, services: int, clients: list[Client]) -> None:
        self._client, *self._watchers = clients
        self._config = AgentConfig(name=f"vm{number}", host=f"host-{number}", start="1")
        self._tenure = Tenure(self._config, NAMESPACE)
        self._rng = Rng(number)
        self._registration = Registration(
            agent=self._config.name,
            namespace=NAMESPACE,
            service=f"web-{number % services}",
            addresses=(f"198.18.{number // 250}.{number % 250 + 1}",),
            ports=(AgentPort("http", 8080),),
        )
        self.renewals = 0

    async def begin(self) -> None:
        await self._client.open()
        await self._renew()
        assert self._tenure.lease is not None, "the Lease was applied"
        ((name, family, _),) = self._registration.slices
        uid = self._tenure.lease.metadata.uid
        document = self._registration.document(
            family, "passing", lease_uid=uid, hint=False, publish_not_ready=False
        )
        await self._perform(
            Write(
                verb="patch",
                resource=EndpointSlices,
                namespace=NAMESPACE,
                name=name,
                body=encode(document),
                patch_type="apply",
                force=True,
            )
        )
        watched: tuple[tuple[Resource, str], ...] = (
            (Leases, lease_name(self._config.name)),
            (EndpointSlices, name),
            (Services, self._registration.service),
        )
        for client, (resource, watched_name) in zip(self._watchers, watched, strict=True):
            path = f"{resource.path(NAMESPACE)}?watch=1&allowWatchBookmarks=true"
            await client.open()  # not before: a server ends connections that ask for nothing
            await client.begin_watch(f"{path}&fieldSelector=metadata.name%3D{watched_name}")

    async def renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(
                self._config.terms.renew_s * self._rng.uniform(1 - SPREAD, 1 + SPREAD)
            )
            await self._renew()
            self.renewals += 1

    async def _renew(self) -> None:
        now = time.time()
        write = self._tenure.renewal(self._tenure.ownership(now), now)
        self._tenure.on_answer(write, await self._perform(write), 1.0, time.time())

    async def _perform(self, write: Write) -> bytes:
        path = f"{write.resource.path(write.namespace, write.name)}?fieldManager={FIELD_MANAGER}"
        media = _MEDIA[write.patch_type]
        return await self._client.exchange(
            "PATCH", f"{path}{'&force=true' if write.force else ''}", write.body, media
        )


async def begun(agent: Agent) -> None:
    """Again after a while if a busy server has ended a connection that had asked for nothing
    yet.
    """
    for _ in range(TRIES - 1):
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await agent.begin()
            return
        await asyncio.sleep(1.0)
    await agent.begin()


async def run(kubeconfig: Path, first: int, count: int, services: int) -> None:
    connection = load(kubeconfig)
    host, _, port = connection.server.removeprefix("https://").rpartition(":")
    context = connection.ssl_context
    assert context is not None, connection.server
    agents = []
    tasks = []
    for at in range(first, first + count, TOGETHER):
        batch = [
            Agent(number, services, [Client(number, host, int(port), context) for _ in range(4)])
            for number in range(at, min(at + TOGETHER, first + count))
        ]
        await asyncio.gather(*map(begun, batch))
        tasks += [asyncio.create_task(agent.renew_for_ever()) for agent in batch]
        agents += batch
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        failed = [task.exception() for task in tasks if task.done()]
        assert not failed, failed[:3]
        print(sum(agent.renewals for agent in agents), flush=True)


def main() -> None:
    kubeconfig, *numbers = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(Path(kubeconfig), *map(int, numbers)))


if __name__ == "__main__":
    main()
