"""Runs on a node beside kube-proxy and ``sliceplane observe``: changes a Service's slice, connects to
its cluster IP without a pause, and reads the node's Lease.

Prints JSON: for each change when its revision was reported and when the last connection reached an
endpoint that it removed, in seconds since it was written; and each connection to such an endpoint that
began after the report.

``python -m tests.peers.observed_node KUBECONFIG ROUNDS SEED ADDRESS...``
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from sliceplane.api.scheme import EndpointSlices, Leases
from sliceplane.consume.progress import ANNOTATION_REPORT, ANNOTATION_REVISION
from sliceplane.kit.rng import Rng
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

SERVICE_IP = "10.96.0.100"
#: connections at a time
CLIENTS = 16
#: seconds that a report may take on a busy machine
PATIENCE_S = 60.0
#: seconds for which connections are judged after a report
AFTER_S = 0.5


class Node:
    def __init__(self, client: Client, addresses: list[str]) -> None:
        self.client = client
        self.addresses = addresses
        #: (began, address that answered)
        self.connections: list[tuple[float, str]] = []
        self.failed = 0

    async def connect_repeatedly(self) -> None:
        while True:
            began = time.monotonic()
            try:
                reader, writer = await asyncio.open_connection(SERVICE_IP, 80)
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                answer = await reader.read()
                writer.close()
                self.connections.append((began, answer.decode().splitlines()[-1]))
            except OSError:
                self.failed += 1
                await asyncio.sleep(0.01)

    async def reported(self) -> int:
        raw = await self.client.get(Leases, "kube-node-lease", "sliceplane-proxy-node-1")
        annotations = json.loads(raw)["metadata"].get("annotations") or {}
        return int(annotations.get(ANNOTATION_REVISION, 0))

    async def change(self, ready: list[str], word: str) -> int:
        """Sets the ready endpoints, asks for a report, and returns the revision."""
        document: dict[str, Any] = {
            "metadata": {
                "name": "web-1",
                "annotations": {ANNOTATION_REPORT: f"{word}/0"},
            },
            "endpoints": [
                {"addresses": [address], "conditions": {"ready": address in ready}}
                for address in self.addresses
            ],
        }
        raw = await self.client.patch(
            EndpointSlices, "demo", "web-1", json.dumps(document).encode(), patch_type="merge"
        )
        return int(json.loads(raw)["metadata"]["resourceVersion"])


async def main(kubeconfig: str, rounds: int, seed: int, addresses: list[str]) -> None:
    rng = Rng(seed)
    results: list[dict[str, Any]] = []
    async with HttpClient(load(kubeconfig)) as client:
        node = Node(client, addresses)
        tasks = [asyncio.create_task(node.connect_repeatedly()) for _ in range(CLIENTS)]
        for number in range(rounds):
            ready = [address for address in addresses if rng.below(2)] or addresses[:1]
            if rng.below(4) == 0:  # a change that the next one undoes
                await node.change([addresses[-1]], f"undone-{number}")
            written = time.monotonic()
            revision = await node.change(ready, f"round-{number}")
            while await node.reported() < revision:
                assert time.monotonic() - written < PATIENCE_S, (
                    f"revision {revision} is not reported"
                )
                await asyncio.sleep(0.01)
            reported = time.monotonic()
            await asyncio.sleep(AFTER_S)
            stale = [at for at, address in node.connections if address not in ready]
            results.append(
                {
                    "reported_s": reported - written,
                    "last_stale_s": max([at - written for at in stale if at >= written], default=0),
                    "stale_after_report": len([at for at in stale if at >= reported]),
                }
            )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        counts = {"connections": len(node.connections), "failed": node.failed}
        print(json.dumps({"rounds": results, **counts}))


if __name__ == "__main__":
    assert Path(sys.argv[1]).exists(), sys.argv[1]
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
