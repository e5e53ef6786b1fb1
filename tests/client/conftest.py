"""A live plane that anybody may fill with slices by hand, and a namespace for each test."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest_asyncio
from tests.server.live import client, live

from sliceplane.api import codec
from sliceplane.client import EndpointSlices, HttpClient, Namespaces, StatusError

_numbers = count()


__all__ = ["client", "live"]


class Writer:
    """Writes slices of the Service ``web`` of one namespace, as somebody else's controller."""

    def __init__(self, client: HttpClient, namespace: str) -> None:
        self._client = client
        self.namespace = namespace
        #: the UID of the Service, which owns the slices; "": none
        self.owner = ""

    async def put(
        self, name: str, *endpoints: dict[str, Any], ports: list[dict[str, Any]] | None = None
    ) -> None:
        body: dict[str, Any] = {
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "endpoints": list(endpoints),
            "ports": ports if ports is not None else [{"name": "http", "port": 8080}],
        }
        if self.owner:
            owner = {"apiVersion": "v1", "kind": "Service", "name": "web", "uid": self.owner}
            body["metadata"]["ownerReferences"] = [owner]
        try:
            await self._client.update(EndpointSlices, self.namespace, name, codec.encode(body))
        except StatusError as error:
            if error.code != 404:
                raise
            await self._client.create(EndpointSlices, self.namespace, codec.encode(body))

    async def delete(self, name: str) -> None:
        await self._client.delete(EndpointSlices, self.namespace, name)


def endpoint(
    number: int, *, ready: bool = True, terminating: bool = False, zone: str = ""
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "addresses": [f"10.1.0.{number}"],
        "conditions": {"ready": ready, "serving": True, "terminating": terminating},
        "targetRef": {"kind": "Pod", "name": f"web-{number}", "uid": f"uid-{number}"},
        "nodeName": f"node-{number % 2}",
    }
    if zone:
        made |= {"zone": zone, "hints": {"forZones": [{"name": zone}]}}
    return made


@pytest_asyncio.fixture
async def writer(client: HttpClient) -> Writer:
    name = f"views-{next(_numbers)}"
    await client.create(Namespaces, "", codec.encode({"metadata": {"name": name}}))
    return Writer(client, name)
