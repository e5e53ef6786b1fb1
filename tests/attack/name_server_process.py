"""A name server as a process of its own, over a cluster that it makes up: ten headless Services of
5,000 endpoints.

``python -m tests.attack.name_server_process FORWARD``: FORWARD is a server for names of others, or
"none". Prints ``ready PORT``; then, for each line on standard input, the longest step of its loop
in milliseconds of CPU since the line before.
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio import events
from collections.abc import Iterator
from typing import Any

from tests.dns.world import endpoint, headless, namespace, service, slice_of

from sliceplane.api.meta import Object
from sliceplane.cli.entry import spare_collector
from sliceplane.dns.clients import AnswerConfig
from sliceplane.dns.cluster_names import ZoneConfig
from sliceplane.dns.io.service import Resolver
from sliceplane.dns.io.upstream import ForwardFlags
from sliceplane.watch.cache import Change

SERVICES = 10
ENDPOINTS = 5000
_PORTS = [{"name": "http", "port": 8080, "protocol": "TCP"}]


def objects() -> Iterator[Object]:
    yield namespace("default")
    yield service(clusterIP="10.96.0.7", ports=[{"name": "http", "port": 80}])
    for number in range(SERVICES):
        name = f"big{number}"
        yield headless(name)
        for part in range(0, ENDPOINTS, 1000):
            members = [
                endpoint(f"10.{number}.{at // 250}.{at % 250}", zone=f"z{at % 3}")
                for at in range(part, part + 1000)
            ]
            yield slice_of(name, *members, name=f"{name}-{part}", ports=_PORTS)


class Steps:
    """The longest step of the loop."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        run = events.Handle._run  # type: ignore[attr-defined]

        def timed(handle: Any) -> None:
            began = time.thread_time()
            run(handle)
            self.longest_ms = max(self.longest_ms, (time.thread_time() - began) * 1000)

        events.Handle._run = timed  # type: ignore[attr-defined]


async def main(forward: str) -> None:
    flags = None if forward == "none" else ForwardFlags(forward=(forward,))
    loop = asyncio.get_running_loop()
    resolver = Resolver(
        ZoneConfig(), AnswerConfig(forwards=flags is not None), clock=loop.time, forward=flags
    )
    ((_, port),) = await resolver.listen((("0.0.0.0", 0),))
    resolver.server.apply([Change(type(item).__name__, None, item) for item in objects()], 1.0)
    resolver.server.on_synced()
    looking = asyncio.create_task(resolver._check_caches())
    spare_collector()  # as every command of ours
    steps = Steps()
    print(f"ready {port}", flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(f"{steps.longest_ms:.2f}", flush=True)
        steps.longest_ms = 0.0
    looking.cancel()
    await resolver.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
