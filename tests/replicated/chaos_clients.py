"""Clients of the chaos: they do one thing after the other and write down what they were told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable
from typing import Any

import aiohttp
from tests.replicated.history import Operation, Segment, Version

#: Some writers lose patience sooner than others, and never know.
PATIENCE_SECONDS_MIN, PATIENCE_SECONDS_MAX = 0.3, 6.0
#: Lists and watches leave a silent server for another after so long, which is far above an answer
#: of a slow machine.
SILENT_SECONDS_MAX = 12.0
NO_ANSWER = (aiohttp.ClientError, OSError, TimeoutError)


class Collection:
    """Objects that hold a value each: ConfigMaps."""

    path = "/api/v1/namespaces/default/configmaps"

    def document(self, metadata: dict[str, Any], value: str) -> dict[str, Any]:
        data = {"value": value}
        return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": data}

    def value(self, document: dict[str, Any]) -> str:
        return str(document["data"]["value"])

    def read_path(self, name: str) -> str:
        return f"/{name}"

    def read(self, code: int, answer: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The object of the answer to a read, or its Status."""
        return code, answer


CONFIG_MAPS = Collection()


class Writer:
    """One client, on one server; what it wrote it sometimes reads from another at once."""

    def __init__(
        self,
        name: str,
        session: aiohttp.ClientSession,
        url: str,
        other: str,
        names: list[str],
        seed: int,
        collection: Collection = CONFIG_MAPS,
    ) -> None:
        self.name = name
        self._collection = collection
        self._session = session
        self._url = url
        self._other = other
        self._names = names
        self._random = random.Random(seed)
        self._known: dict[str, int] = {}
        self._count = 0
        self.history: list[Operation] = []

    async def run(self, stop: Callable[[], bool]) -> None:
        while not stop():
            await self._once()
            await asyncio.sleep(self._random.uniform(0.005, 0.04))

    async def _once(self) -> None:
        name = self._random.choice(self._names)
        known = self._known.get(name, 0)
        chosen = self._random.random()
        if chosen < 0.25:
            operation = self._operation("read", name)
            await self._perform(operation, "GET", self._collection.read_path(name), None)
        elif chosen < 0.35:
            operation = self._operation("create", name)
            await self._perform(operation, "POST", "", self._document(operation))
        elif chosen < 0.42 and known:
            operation = self._operation("delete", name, condition=known)
            condition = {"preconditions": {"resourceVersion": str(known)}}
            await self._perform(
                operation,
                "DELETE",
                f"/{name}",
                {"kind": "DeleteOptions", "apiVersion": "v1", **condition},
            )
        else:
            condition = known if chosen < 0.65 else 0
            operation = self._operation("update", name, condition=condition)
            await self._perform(operation, "PUT", f"/{name}", self._document(operation))
            if operation.outcome == "ok":
                await self._go_elsewhere(name, operation.revision)

    async def _go_elsewhere(self, name: str, written: int) -> None:
        """The other server must know what was acknowledged here: to read it, and to take it as a
        condition.
        """
        chosen = self._random.random()
        if chosen < 0.3:
            operation = self._operation("read", name)
            path = self._collection.read_path(name)
            await self._perform(operation, "GET", path, None, at=self._other)
        elif chosen < 0.6:
            operation = self._operation("update", name, condition=written)
            await self._perform(
                operation, "PUT", f"/{name}", self._document(operation), at=self._other
            )

    def _operation(self, verb: Any, name: str, condition: int = 0) -> Operation:
        self._count += 1
        value = f"{self.name}-{self._count}" if verb in ("create", "update") else ""
        return Operation(self.name, verb, name, time.monotonic(), value=value, condition=condition)

    def _document(self, operation: Operation) -> dict[str, Any]:
        head = {"name": operation.name}
        if operation.condition:
            head["resourceVersion"] = str(operation.condition)
        return self._collection.document(head, operation.value)

    async def _perform(
        self, operation: Operation, method: str, path: str, body: Any, at: str = ""
    ) -> None:
        patience = aiohttp.ClientTimeout(
            total=self._random.uniform(PATIENCE_SECONDS_MIN, PATIENCE_SECONDS_MAX)
        )
        try:
            async with self._session.request(
                method,
                (at or self._url) + self._collection.path + path,
                json=body,
                timeout=patience,
            ) as response:
                code, answer = response.status, json.loads(await response.read())
        except aiohttp.ClientConnectorError:
            await asyncio.sleep(0.1)  # it was never sent
            return
        except (*NO_ANSWER, ValueError):
            self.history.append(operation)
            return
        operation.end = time.monotonic()
        self._judge(operation, code, answer)

    def _judge(self, operation: Operation, code: int, answer: dict[str, Any]) -> None:
        if operation.verb == "read":
            code, answer = self._collection.read(code, answer)
        operation.code = code
        if code in (200, 201):
            operation.outcome = "ok"
            if operation.verb != "delete":
                operation.revision = self._known[operation.name] = int(
                    answer["metadata"]["resourceVersion"]
                )
            if operation.verb == "read":
                operation.value = self._collection.value(answer)
        else:
            operation.reason = str(answer.get("reason", ""))
            certain = code < 500 or "storage is unavailable" in str(answer.get("message"))
            operation.outcome = "refused" if certain else "unknown"
        if operation.outcome == "unknown":
            operation.end = float("inf")  # it may take effect at any time
        if operation.reason in ("Conflict", "NotFound"):
            self._known.pop(operation.name, None)
        self.history.append(operation)


class Watcher:
    """Lists and watches for ever; whatever ends a stream, the next one goes on where it ended,
    maybe elsewhere.
    """

    def __init__(
        self,
        name: str,
        session: aiohttp.ClientSession,
        urls: list[str],
        seed: int,
        collection: Collection = CONFIG_MAPS,
    ) -> None:
        self.name = name
        self._collection = collection
        self._session = session
        self._urls = urls
        self._random = random.Random(seed)
        self.segments: list[Segment] = []
        self.reached = 0
        self.streams = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            url = self._random.choice(self._urls)
            with contextlib.suppress(*NO_ANSWER, ValueError):
                if self.reached == 0:
                    await self._list(url)
                else:
                    await self._watch(url)
            await asyncio.sleep(self._random.uniform(0.01, 0.2))

    async def _list(self, url: str) -> None:
        timeout = aiohttp.ClientTimeout(total=SILENT_SECONDS_MAX)
        async with self._session.get(url + self._collection.path, timeout=timeout) as response:
            listed = json.loads(await response.read())
        if response.status != 200:
            return
        state = {
            item["metadata"]["name"]: (
                int(item["metadata"]["resourceVersion"]),
                self._collection.value(item),
            )
            for item in listed["items"]
        }
        self.reached = int(listed["metadata"]["resourceVersion"])
        self.segments.append(Segment(self.name, self.reached, state))

    async def _watch(self, url: str) -> None:
        query = {
            "watch": "1",
            "resourceVersion": str(self.reached),
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._random.randint(4, 20)),
        }
        timeout = aiohttp.ClientTimeout(
            total=None, sock_read=SILENT_SECONDS_MAX, sock_connect=SILENT_SECONDS_MAX
        )
        path = url + self._collection.path
        async with self._session.get(path, params=query, timeout=timeout) as response:
            if self._is_lost(response.status):
                self.reached = 0
            if response.status != 200:
                return
            self.streams += 1
            async for line in response.content:
                message = json.loads(line)
                if message["type"] == "ERROR":
                    if self._is_lost(message["object"].get("code")):
                        self.reached = 0
                    return
                self._note(message["type"], message["object"], line)

    def _is_lost(self, code: int) -> bool:
        """Whether the client must list again."""
        return code == 410

    def _note(self, kind: str, shown: dict[str, Any], line: bytes) -> None:
        head = shown["metadata"]
        value = self._collection.value(shown) if kind in ("ADDED", "MODIFIED") else ""
        version = Version(int(head["resourceVersion"]), kind, head.get("name", ""), value)
        self.segments[-1].events.append(version)
        self.reached = max(self.reached, version.revision)
