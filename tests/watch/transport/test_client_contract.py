"""What every client promises; each test runs in process and over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sliceplane.api import codec
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import ConfigMaps, Deployments, Services
from sliceplane.watch.io.base import Client, WatchMessage


def config_map(name: str, **data: str) -> bytes:
    return codec.encode({"metadata": {"name": name, "labels": {"name": name}}, "data": data})


def read(body: bytes) -> Any:
    return json.loads(body)


async def test_create_get_update_patch_delete(client: Client, namespace: str) -> None:
    made = read(await client.create(ConfigMaps, namespace, config_map("a", x="1")))
    assert (made["kind"], made["metadata"]["namespace"], made["data"]) == (
        "ConfigMap",
        namespace,
        {"x": "1"},
    )
    assert read(await client.get(ConfigMaps, namespace, "a")) == made
    made["data"]["x"] = "2"
    updated = read(await client.update(ConfigMaps, namespace, "a", codec.encode(made)))
    assert int(updated["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    patched = read(
        await client.patch(
            ConfigMaps, namespace, "a", b'{"data":{"x":null,"y":"3"}}', patch_type="merge"
        )
    )
    assert patched["data"] == {"y": "3"}
    patch = b'[{"op":"add","path":"/data/z","value":"4"}]'
    patched = read(await client.patch(ConfigMaps, namespace, "a", patch, patch_type="json"))
    assert patched["data"] == {"y": "3", "z": "4"}
    deleted = read(await client.delete(ConfigMaps, namespace, "a"))
    assert (deleted["kind"], deleted["status"]) == ("Status", "Success")
    with pytest.raises(StatusError) as missing:
        await client.get(ConfigMaps, namespace, "a")
    assert (missing.value.code, missing.value.reason) == (404, "NotFound")
    assert missing.value.message == 'configmaps "a" not found'


async def test_a_write_is_seen_by_the_next_read(client: Client, namespace: str) -> None:
    for number in range(20):
        await client.create(ConfigMaps, namespace, config_map(f"c{number:02}"))
        assert len((await client.list(Selection(ConfigMaps, namespace))).items) == number + 1


async def test_errors_are_status_errors_with_details(client: Client, namespace: str) -> None:
    body = await client.create(ConfigMaps, namespace, config_map("a"))
    with pytest.raises(StatusError) as exists:
        await client.create(ConfigMaps, namespace, config_map("a"))
    assert (exists.value.code, exists.value.reason) == (409, "AlreadyExists")
    assert exists.value.details == {"name": "a", "kind": "configmaps"}
    await client.patch(ConfigMaps, namespace, "a", b'{"data":{"x":"1"}}', patch_type="merge")
    with pytest.raises(StatusError) as conflict:
        await client.update(ConfigMaps, namespace, "a", body)
    assert (conflict.value.code, conflict.value.reason) == (409, "Conflict")
    with pytest.raises(StatusError) as invalid:
        await client.create(ConfigMaps, namespace, config_map("Not_A_Name"))
    assert (invalid.value.code, invalid.value.reason) == (422, "Invalid")
    assert invalid.value.details is not None
    assert invalid.value.details["causes"][0]["field"] == "metadata.name"
    with pytest.raises(StatusError) as garbage:
        await client.create(ConfigMaps, namespace, b"{")
    assert (garbage.value.code, garbage.value.reason) == (400, "BadRequest")
    with pytest.raises(StatusError) as absent:
        await client.delete(ConfigMaps, namespace, "nobody", b'{"propagationPolicy":"Background"}')
    assert absent.value.code == 404


async def test_delete_preconditions(client: Client, namespace: str) -> None:
    await client.create(ConfigMaps, namespace, config_map("a"))
    with pytest.raises(StatusError) as other:
        await client.delete(ConfigMaps, namespace, "a", b'{"preconditions":{"uid":"another"}}')
    assert other.value.code == 409


async def test_lists_come_in_pages_of_one_version(client: Client, namespace: str) -> None:
    for name in "abcde":
        await client.create(ConfigMaps, namespace, config_map(name))
    first = await client.list(Selection(ConfigMaps, namespace), limit=2)
    assert (len(first.items), first.remaining) == (2, 3)
    await client.delete(ConfigMaps, namespace, "e")
    rest = await client.list(
        Selection(ConfigMaps, namespace), limit=10, continue_token=first.continue_token
    )
    names = [read(item)["metadata"]["name"] for item in (*first.items, *rest.items)]
    assert names == ["a", "b", "c", "d", "e"]
    assert (rest.continue_token, rest.resource_version) == ("", first.resource_version)


async def test_selectors(client: Client, namespace: str) -> None:
    for name in "abc":
        await client.create(ConfigMaps, namespace, config_map(name))
    by_label = await client.list(Selection(ConfigMaps, namespace, "name in (a,c)"))
    assert [read(item)["metadata"]["name"] for item in by_label.items] == ["a", "c"]
    by_field = await client.list(Selection(ConfigMaps, namespace, field_selector="metadata.name=b"))
    assert [read(item)["metadata"]["name"] for item in by_field.items] == ["b"]
    with pytest.raises(StatusError) as bad:
        await client.list(Selection(ConfigMaps, namespace, "a b"))
    assert bad.value.code == 400


async def test_a_watch_goes_on_after_its_version(client: Client, namespace: str) -> None:
    await client.create(ConfigMaps, namespace, config_map("before"))
    page = await client.list(Selection(ConfigMaps, namespace))
    async with (
        asyncio.timeout(60),
        client.watch(
            Selection(ConfigMaps, namespace), resource_version=page.resource_version
        ) as stream,
    ):
        await client.create(ConfigMaps, namespace, config_map("a", x="ä\n<>"))
        await client.patch(ConfigMaps, namespace, "a", b'{"data":{"x":"2"}}', patch_type="merge")
        await client.delete(ConfigMaps, namespace, "a")
        seen: list[WatchMessage] = [await anext(stream) for _ in range(3)]
    assert [message.type for message in seen] == ["ADDED", "MODIFIED", "DELETED"]
    assert read(seen[0].body)["data"] == {"x": "ä\n<>"}
    versions = [int(read(message.body)["metadata"]["resourceVersion"]) for message in seen]
    assert versions == sorted(set(versions))
    assert versions[0] > int(page.resource_version)


async def test_a_watch_with_selector_sees_transitions(client: Client, namespace: str) -> None:
    page = await client.list(Selection(ConfigMaps, namespace))
    async with (
        asyncio.timeout(60),
        client.watch(
            Selection(ConfigMaps, namespace, "name=a"), resource_version=page.resource_version
        ) as stream,
    ):
        await client.create(ConfigMaps, namespace, config_map("b"))
        await client.create(ConfigMaps, namespace, config_map("a"))
        await client.patch(
            ConfigMaps, namespace, "a", b'{"metadata":{"labels":null}}', patch_type="merge"
        )
        seen = [await anext(stream) for _ in range(2)]
    assert [message.type for message in seen] == ["ADDED", "DELETED"]


async def test_a_watch_ends_cleanly_at_its_time_limit_with_a_bookmark(
    client: Client, namespace: str
) -> None:
    page = await client.list(Selection(ConfigMaps, namespace))
    async with (
        asyncio.timeout(60),
        client.watch(
            Selection(ConfigMaps, namespace), resource_version=page.resource_version, timeout_s=3
        ) as stream,
    ):
        seen = [message async for message in stream]
    assert [message.type for message in seen] == ["BOOKMARK"]
    assert int(read(seen[0].body)["metadata"]["resourceVersion"]) >= int(page.resource_version)


async def test_two_watches_of_one_resource_see_the_same(client: Client, namespace: str) -> None:
    page = await client.list(Selection(ConfigMaps, namespace))
    version = page.resource_version
    async with (
        asyncio.timeout(60),
        client.watch(Selection(ConfigMaps, namespace), resource_version=version) as one,
        client.watch(Selection(ConfigMaps, namespace), resource_version=version) as other,
    ):
        for number in range(20):
            await client.create(ConfigMaps, namespace, config_map(f"c{number}"))
        seen = [[(await anext(stream)).body for _ in range(20)] for stream in (one, other)]
    assert seen[0] == seen[1]


async def test_leaving_a_watch_while_it_waits(client: Client, namespace: str) -> None:
    page = await client.list(Selection(ConfigMaps, namespace))

    async def wait_for_nothing() -> None:
        version = page.resource_version
        async with client.watch(
            Selection(ConfigMaps, namespace), resource_version=version
        ) as stream:
            await anext(stream)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wait_for_nothing(), 0.1)
    assert (await client.list(Selection(ConfigMaps, namespace))).items == ()


async def test_errors_in_the_body_of_a_watch_pass_through(client: Client, namespace: str) -> None:
    with pytest.raises(StatusError) as missing:
        async with client.watch(Selection(ConfigMaps, namespace), resource_version="1"):
            await client.get(ConfigMaps, namespace, "nobody")
    assert missing.value.code == 404


async def test_subresources(client: Client, namespace: str) -> None:
    labels = {"app": "a"}
    deployment = {
        "metadata": {"name": "d"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    }
    await client.create(Deployments, namespace, codec.encode(deployment))
    status = b'{"status":{"replicas":3},"spec":{"replicas":7}}'
    patched = read(
        await client.patch(
            Deployments, namespace, "d", status, patch_type="merge", subresource="status"
        )
    )
    assert (patched["status"]["replicas"], patched["spec"]["replicas"]) == (3, 1)


async def test_defaults_and_admission_apply(client: Client, namespace: str) -> None:
    service = {
        "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "a"}},
    }
    made = read(await client.create(Services, namespace, codec.encode(service)))
    assert made["spec"]["clusterIP"]
    assert made["spec"]["ports"][0]["protocol"] == "TCP"
