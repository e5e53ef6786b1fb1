"""A consumer's tests with the Python client: a view follows real controllers, and survives what
servers do to it.

Run with ``pytest``; the fixtures come with Sliceplane (in a clone, ``pip install '.[server]'``).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sliceplane.client import EndpointView
from sliceplane.testing import Plane

WEB = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: web}]}
"""


@pytest.fixture
def sliceplane_options() -> dict[str, Any]:
    return {"nodes": 2, "zones": ("east", "west")}


def test_a_pod_that_is_not_ready_gets_no_request(sliceplane: Plane) -> None:
    async def story() -> None:
        sliceplane.apply(WEB)
        async with sliceplane.client() as client, EndpointView(client, "web") as view:
            await view.wait_ready(10, count=3)
            unlucky = view.usable[0].pod
            sliceplane.set_ready(unlucky, False)
            await sliceplane.until(lambda: len(view.usable) == 2)
            picker = view.random()
            assert unlucky not in {picker.pick().pod for _ in range(100)}

    asyncio.run(story())


def test_a_delete_behind_a_410_is_not_lost(sliceplane: Plane) -> None:
    async def story() -> None:
        sliceplane.apply(WEB)
        async with sliceplane.client() as client, EndpointView(client, "web") as view:
            await view.wait_ready(10, count=3)
            with sliceplane.faults.outage():
                sliceplane.apply(WEB.replace("replicas: 3", "replicas: 1"))
                await sliceplane.until(lambda: len(sliceplane.endpoints("web")) == 1)
                assert len(view.endpoints) == 3, "it cannot know yet, and keeps what it knew"
                sliceplane.faults.expire()
            await sliceplane.until(lambda: len(view.endpoints) == 1, timeout=30)
            assert view.endpoints == sliceplane.endpoints("web")

    asyncio.run(story())
