"""Clients of a plane that is upgraded under them: each writes down what it asked, what it was told,
and when.

A request is sent again in the cases in which any client may: no connection, or one that broke
before an answer, and 429 or 503 with Retry-After. Everything else that is not what was asked for is
a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import Leases, Pods, Resource
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.http.client import HttpClient

NAMESPACE = "/api/v1/namespaces/default"
REQUEST_SECONDS_MAX = 60.0
ATTEMPTS_MAX = 60
RETRY_SECONDS = 0.1


@dataclass
class Record:
    """All requests of all writers of a time."""

    acknowledged: list[float] = field(default_factory=list)
    #: no connection, or a connection that broke before the answer
    broken: list[str] = field(default_factory=list)
    #: 429 and 503 with Retry-After
    put_off: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    @property
    def longest_gap_s(self) -> float:
        return max(
            (later - sooner for sooner, later in pairwise(sorted(self.acknowledged))), default=0.0
        )

    def line(self) -> str:
        return (
            f"{len(self.acknowledged)} writes acknowledged, {len(self.broken)} connections "
            f"broken, {len(self.put_off)} "
            f"put off, {len(self.failed)} failed; slowest {self.slowest_s * 1000:.0f} ms, longest "
            "gap "
            f"{self.longest_gap_s * 1000:.0f} ms"
        )


class Requests:
    """One address, and the rules by which a request is sent again."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self.record = Record()

    async def call(
        self, method: str, path: str, document: Any = None, content_type: str = "application/json"
    ) -> dict[str, Any]:
        """The answer; ``{}`` for a failure, which is recorded.  A creation that turns out to have
        happened is one.
        """
        began, in_doubt, record = time.monotonic(), False, self.record
        body = None if document is None else json.dumps(document)
        for _ in range(ATTEMPTS_MAX):
            try:
                async with self._session.request(
                    method, self._url + path, data=body, headers={"Content-Type": content_type}
                ) as response:
                    text = await response.text()
            except aiohttp.ClientPayloadError as error:
                record.failed.append(f"{method} {path}: cut off in its answer: {error}")
                return {}
            except (aiohttp.ClientConnectionError, ConnectionError) as error:
                if isinstance(error, TimeoutError):
                    record.failed.append(f"{method} {path}: no answer")
                    return {}
                record.broken.append(f"{time.monotonic():.3f} {method} {path}: {error!r}")
                in_doubt = True
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except TimeoutError:
                record.failed.append(f"{method} {path}: no answer within {REQUEST_SECONDS_MAX:g} s")
                return {}
            if response.status in (429, 503) and "Retry-After" in response.headers:
                record.put_off.append(f"{method} {path}: {response.status} {text}")
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if response.status == 409 and in_doubt and method == "POST":
                return await self.call("GET", f"{path}/{document['metadata']['name']}")
            if response.status >= 300:
                record.failed.append(f"{method} {path}: {response.status} {text}")
                return {}
            if method != "GET":
                record.acknowledged.append(time.monotonic())
            record.slowest_s = max(record.slowest_s, time.monotonic() - began)
            return dict(json.loads(text))
        record.failed.append(f"{method} {path}: given up after {ATTEMPTS_MAX} attempts")
        return {}


class Flipper:
    """Turns the readiness of its Pods on and off; alone does so, so each has the value that was
    acknowledged last.
    """

    def __init__(self, requests: Requests, pods: list[str], period_s: float) -> None:
        self._requests, self._pods, self._period_s = requests, pods, period_s
        self.ready: dict[str, tuple[str, int]] = {}

    async def run(self, over: Callable[[], bool]) -> None:
        number = 0
        while not over():
            number += 1
            pod, value = (
                self._pods[number % len(self._pods)],
                str(bool(number // len(self._pods) % 2)),
            )
            patch = {"status": {"conditions": [{"type": "Ready", "status": value}]}}
            answer = await self._requests.call(
                "PATCH",
                f"{NAMESPACE}/pods/{pod}/status",
                patch,
                "application/strategic-merge-patch+json",
            )
            if answer:
                self.ready[pod] = (value, int(answer["metadata"]["resourceVersion"]))
            await asyncio.sleep(self._period_s)


class Creator:
    """Makes Services, one after the other."""

    def __init__(self, requests: Requests, selector: dict[str, str], period_s: float) -> None:
        self._requests, self._selector, self._period_s = requests, selector, period_s
        #: name and uid of each that was acknowledged
        self.created: dict[str, str] = {}

    async def run(self, over: Callable[[], bool]) -> None:
        number = 0
        while not over():
            number += 1
            name = f"made-{number}"
            ports = [{"port": 80, "targetPort": 8080}]
            service = {
                "metadata": {"name": name},
                "spec": {"selector": self._selector, "ports": ports},
            }
            answer = await self._requests.call("POST", f"{NAMESPACE}/services", service)
            if answer:
                self.created[name] = answer["metadata"]["uid"]
            await asyncio.sleep(self._period_s)


class RawWatch:
    """Watches without a cache: every event as it came, resumed at the last version that was
    told.
    """

    def __init__(self, client: HttpClient, since: str, resource: Resource = Pods) -> None:
        self._client, self._resource = client, resource
        self.version = since
        self.events: list[tuple[str, str, int]] = []
        self.streams = 0
        self.ended = 0
        self.broken: list[str] = []
        #: errors that cost a client a new list
        self.refused: list[str] = []

    async def run(self) -> None:
        while True:
            try:
                async with self._client.watch(
                    self._resource, namespace="default", resource_version=self.version
                ) as messages:
                    self.streams += 1
                    async for message in messages:
                        self._take(message.type, json.loads(message.body))
                self.ended += 1
            except Unreachable as error:
                self.broken.append(str(error))
            except StatusError as error:
                if error.code == 410:
                    self.refused.append(str(error))
            await asyncio.sleep(0.05)

    def _take(self, kind: str, document: Any) -> None:
        if kind == "ERROR":
            self.refused.append(str(document))
            return
        version = document["metadata"]["resourceVersion"]
        assert int(version) >= int(self.version), f"{kind} {version} after {self.version}"
        if kind != "BOOKMARK":
            assert int(version) > int(self.version), f"{kind} {version} twice"
            self.events.append((kind, document["metadata"]["name"], int(version)))
        self.version = version


class Holders:
    """Who held the Lease of the controllers, from when on; "" for nobody."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self.seen: list[tuple[float, str]] = []

    async def run(self) -> None:
        while True:
            with contextlib.suppress(Unreachable):
                lease = json.loads(
                    await self._client.get(Leases, "kube-system", "sliceplane-controllers")
                )
                holder = str(lease["spec"].get("holderIdentity") or "")
                if not self.seen or self.seen[-1][1] != holder:
                    self.seen.append((time.monotonic(), holder))
            await asyncio.sleep(0.05)


async def cancelled(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
