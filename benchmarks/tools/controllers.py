"""The controllers in a process of their own, over HTTPS, as they run beside an existing API server.

Run as ``python -m benchmarks.tools.controllers KUBECONFIG``; prints ``ready`` when every cache is filled.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time

import uvloop

from sliceplane.kit.rng import Rng
from sliceplane.shell.client.http import HttpClient
from sliceplane.shell.client.kubeconfig import load
from sliceplane.shell.controllers import default_controllers
from sliceplane.shell.host import ControllerHost


async def serve(kubeconfig: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client = HttpClient(load(kubeconfig))
    host = ControllerHost(client, rng=Rng(1), clock=time.time)
    for entry in default_controllers():
        host.add(entry.make, max_in_flight=entry.max_in_flight)
    try:
        host.start()
        while not all(controller.synced for controller in host.status().controllers):
            await asyncio.sleep(0.05)
        print("ready", flush=True)
        await stop.wait()
    finally:
        await host.close()
        await client.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(sys.argv[1]))
