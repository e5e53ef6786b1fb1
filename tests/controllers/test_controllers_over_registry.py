"""The three controllers together over the real registry: its defaults, preconditions, finalizers
and patches.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.waiting import eventually

from sliceplane.api.codec import decode, decode_document, encode
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import (
    ConfigMaps,
    EndpointSlices,
    Namespaces,
    Nodes,
    Pods,
    Resource,
    Services,
)
from sliceplane.controllers.endpointslice import EndpointSliceController
from sliceplane.controllers.objects.garbage_collector import GarbageCollector
from sliceplane.controllers.objects.namespace import NamespaceController
from sliceplane.kit.rng import Rng
from sliceplane.server.io.inprocess import InProcessClient
from sliceplane.server.io.plane import PlaneConfig, ServerPlane
from sliceplane.watch.io.hosting.host import ControllerHost

pytestmark = pytest.mark.looptime


@pytest_asyncio.fixture
async def client() -> AsyncIterator[InProcessClient]:
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0)) as plane:
        client = plane.client("system:admin")
        host = ControllerHost(client, rng=Rng(2), check=True)
        for make in (EndpointSliceController, GarbageCollector, NamespaceController):
            host.add(make)
        host.start()
        yield client
        await host.close()


async def make(
    client: InProcessClient, resource: Resource, name: str, **members: Any
) -> dict[str, Any]:
    namespace = "shop" if resource.namespaced else ""
    metadata = {"name": name, **members.pop("metadata", {})}
    return decode_document(
        await client.create(resource, namespace, encode({"metadata": metadata, **members}))
    )


async def exists(client: InProcessClient, resource: Resource, name: str) -> bool:
    try:
        await client.get(resource, "shop" if resource.namespaced else "", name)
    except StatusError as error:
        if error.code != 404:
            raise
        return False
    return True


async def slices(client: InProcessClient) -> list[EndpointSlice]:
    page = await client.list(Selection(EndpointSlices, "shop"))
    return [decode(body, EndpointSlice) for body in page.items]


async def addresses(client: InProcessClient) -> dict[str, bool | None]:
    found = [endpoint for each in await slices(client) for endpoint in each.endpoints or ()]
    return {endpoint.addresses[0]: endpoint.conditions.ready for endpoint in found}


async def make_ready(client: InProcessClient, name: str, address: str, ready: bool = True) -> None:
    condition = {
        "type": "Ready",
        "status": str(ready),
        "lastTransitionTime": "2026-11-21T10:00:00Z",
    }
    status = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [condition],
    }
    body = encode({"status": status})
    await client.patch(Pods, "shop", name, body, patch_type="merge", subresource="status")


async def test_from_pod_to_slice_to_nothing(client: InProcessClient) -> None:
    await make(client, Namespaces, "shop")
    await make(client, Nodes, "n0", metadata={"labels": {"topology.kubernetes.io/zone": "a"}})
    spec = {
        "selector": {"app": "web"},
        "ports": [{"port": 80}],
        "trafficDistribution": "PreferClose",
    }
    await make(client, Services, "web", spec=spec)
    container = {"name": "main", "image": "x"}
    for number in (1, 2):
        pod_spec = {"nodeName": "n0", "containers": [container]}
        await make(client, Pods, f"p-{number}", metadata={"labels": {"app": "web"}}, spec=pod_spec)
        await make_ready(client, f"p-{number}", f"10.0.0.{number}")

    async def both() -> bool:
        return await addresses(client) == {"10.0.0.1": True, "10.0.0.2": True}

    await eventually(both)
    (found,) = await slices(client)
    assert [
        each.hints.for_zones[0].name
        for each in found.endpoints or ()
        if each.hints and each.hints.for_zones
    ] == [
        "a",
        "a",
    ]

    await make_ready(client, "p-1", "10.0.0.1", ready=False)

    async def one_unready() -> bool:
        return await addresses(client) == {"10.0.0.1": False, "10.0.0.2": True}

    await eventually(one_unready)
    assert [each.metadata.name for each in await slices(client)] == [found.metadata.name]

    await client.delete(Services, "shop", "web")

    async def no_slice() -> bool:
        return await slices(client) == []

    await eventually(no_slice)


async def test_owner_that_never_was_and_foreground_deletion(client: InProcessClient) -> None:
    await make(client, Namespaces, "shop")
    lost = {"apiVersion": "v1", "kind": "ConfigMap", "name": "never", "uid": "never"}
    await make(client, ConfigMaps, "orphan", metadata={"ownerReferences": [lost]})
    owner = await make(client, ConfigMaps, "owner")
    wrong = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "another"}
    await make(client, ConfigMaps, "wrong", metadata={"ownerReferences": [wrong]})
    right = {**wrong, "uid": owner["metadata"]["uid"], "blockOwnerDeletion": True}
    await make(client, ConfigMaps, "child", metadata={"ownerReferences": [right]})
    await make(
        client, ConfigMaps, "two", metadata={"ownerReferences": [right, {**lost, "name": "nobody"}]}
    )

    async def strays_are_gone() -> bool:
        return not (
            await exists(client, ConfigMaps, "orphan") or await exists(client, ConfigMaps, "wrong")
        )

    await eventually(strays_are_gone)
    assert await exists(client, ConfigMaps, "child")
    options = encode(
        {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}
    )
    await client.delete(ConfigMaps, "shop", "owner", options)

    async def family_is_gone() -> bool:
        names = ("owner", "child", "two")
        return not any([await exists(client, ConfigMaps, name) for name in names])

    await eventually(family_is_gone)


async def test_references_are_taken_out_one_by_one(client: InProcessClient) -> None:
    """By the real server's strategic merge: orphans are let go, and what is beside a living owner
    stays.
    """
    await make(client, Namespaces, "shop")
    owners = [await make(client, ConfigMaps, name) for name in ("going", "staying")]
    going, staying = (
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": each["metadata"]["name"],
            "uid": each["metadata"]["uid"],
        }
        for each in owners
    )
    lost = {**going, "name": "never", "uid": "never"}
    await make(client, ConfigMaps, "orphan", metadata={"ownerReferences": [going]})
    await make(client, ConfigMaps, "shared", metadata={"ownerReferences": [lost, going, staying]})
    options = encode({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Orphan"})
    await client.delete(ConfigMaps, "shop", "going", options)

    async def owners_of(name: str) -> list[str]:
        found = decode_document(await client.get(ConfigMaps, "shop", name))["metadata"]
        return [each["name"] for each in found.get("ownerReferences") or ()]

    async def settled() -> bool:
        gone = not await exists(client, ConfigMaps, "going")
        return gone and await owners_of("orphan") == [] and await owners_of("shared") == ["staying"]

    await eventually(settled)


async def test_namespace_goes_with_all_that_is_in_it(client: InProcessClient) -> None:
    await make(client, Namespaces, "shop")
    await make(client, ConfigMaps, "plain")
    await make(client, ConfigMaps, "held", metadata={"finalizers": ["x.io/f"]})
    await make(client, Services, "web", spec={"selector": {"app": "web"}, "ports": [{"port": 80}]})
    await client.delete(Namespaces, "", "shop")

    async def waits() -> bool:
        found = decode_document(await client.get(Namespaces, "", "shop"))
        conditions = {
            each["type"]: each["status"] for each in found["status"].get("conditions", ())
        }
        return conditions.get("NamespaceFinalizersRemaining") == "True"

    await eventually(waits)
    await client.patch(
        ConfigMaps, "shop", "held", encode({"metadata": {"finalizers": None}}), patch_type="merge"
    )

    async def gone() -> bool:
        return not await exists(client, Namespaces, "shop")

    await eventually(gone)
