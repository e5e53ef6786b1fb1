"""The public informer: kinds of objects, indexes, handlers, slow readers."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.conftest import Writer, endpoint
from tests.server.serving import complaints
from tests.waiting import eventually

from sliceplane.api import codec
from sliceplane.client import (
    Change,
    ConfigMaps,
    EndpointSlices,
    HttpClient,
    Informer,
    Object,
    ObjectMeta,
    Projection,
    RawObject,
    StatusError,
    custom_resource,
)
from sliceplane.watch.cache import Coalesced


async def put(client: HttpClient, namespace: str, name: str, **data: str) -> None:
    await client.create(
        ConfigMaps, namespace, codec.encode({"metadata": {"name": name}, "data": data})
    )


class Data(Projection, frozen=True, kw_only=True):
    colour: str = ""


class Settings(Object, frozen=True, kw_only=True):
    """A projection of one's own: of a ConfigMap, one key."""

    data: Data = Data()


async def test_a_projection_of_ones_own_with_indexes(client: HttpClient, writer: Writer) -> None:
    told: list[Change[Settings]] = []
    async with Informer(
        client,
        ConfigMaps,
        kind=Settings,
        namespace=writer.namespace,
        indexes={"colour": lambda each: (each.data.colour,)},
    ) as informer:
        informer.add_handler(told.extend)
        await informer.wait_synced(60)
        await put(client, writer.namespace, "a", colour="red", size="9")
        await put(client, writer.namespace, "b", colour="red")
        await client.patch(
            ConfigMaps, writer.namespace, "b", b'{"data":{"colour":"blue"}}', patch_type="merge"
        )
        await client.delete(ConfigMaps, writer.namespace, "a")
        await eventually(lambda: told, lambda told: told and told[-1].new is None)
        assert [each.metadata.name for each in informer.by_index("colour", "blue")] == ["b"]
        assert informer.by_index("colour", "red") == ()
        assert len(informer) == 1
        assert f"{writer.namespace}/b" in informer
    shape = [
        (change.old is not None, change.object.metadata.name, change.new is not None)
        for change in told
    ]
    assert shape == [(False, "a", True), (False, "b", True), (True, "b", True), (True, "a", False)]


async def test_raw_objects_are_not_decoded(client: HttpClient, writer: Writer) -> None:
    await writer.put("a", endpoint(1))
    async with Informer(
        client, EndpointSlices, kind=RawObject, namespace=writer.namespace
    ) as informer:
        await informer.wait_synced(60)
        (found,) = informer
        assert (found.kind, found.api_version) == ("EndpointSlice", "discovery.k8s.io/v1")
        assert found.document()["endpoints"][0]["addresses"] == ["10.1.0.1"]
        assert found.document()["kind"] == "EndpointSlice"
        assert msgspec.json.decode(found.body)["metadata"]["name"] == "a"
        assert found.metadata.key == f"{writer.namespace}/a"
        assert informer.get(found.metadata.key) == found
        await writer.put("a", endpoint(2))
        await eventually(lambda: informer.get(found.metadata.key), lambda now: now != found)


async def test_a_slow_reader_gets_differences(client: HttpClient, writer: Writer) -> None:
    held: dict[str, ObjectMeta] = {}
    async with Informer(client, ConfigMaps, kind=Object, namespace=writer.namespace) as informer:

        async def follow() -> None:
            async for changes in informer.changes():
                for change in changes:
                    if change.new is None:
                        del held[change.object.metadata.name]
                    else:
                        held[change.object.metadata.name] = change.new.metadata
                await asyncio.sleep(0.05)

        following = asyncio.create_task(follow())
        for number in range(12):
            await put(client, writer.namespace, f"a-{number}")
            if number % 2:
                await client.delete(ConfigMaps, writer.namespace, f"a-{number}")
        await eventually(
            lambda: sorted(held), lambda names: names == sorted(f"a-{n}" for n in range(0, 12, 2))
        )
    await asyncio.wait_for(following, 60)


async def test_a_resource_that_is_not_there_is_told_of(
    client: HttpClient,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What a program of ours that ran in this process before has put there is its own.
    monkeypatch.setattr(logging.getLogger(), "handlers", [caplog.handler])
    crontabs = custom_resource("stable.example.com/v1", "crontabs", "CronTab")
    assert crontabs.path("ns", "a") == "/apis/stable.example.com/v1/namespaces/ns/crontabs/a"
    with caplog.at_level(logging.WARNING, "sliceplane.client"):
        async with Informer(client, crontabs) as informer:
            await eventually(lambda: informer.last_error)
            with pytest.raises(
                TimeoutError,
                match=r"no list of crontabs\.stable\.example\.com within 0.1 s; the last error",
            ):
                await informer.wait_synced(0.1)
            assert isinstance(informer.last_error, StatusError)
            assert informer.last_error.code == 404
    assert "a list failed resource=crontabs.stable.example.com" in caplog.text
    assert complaints(capfd.readouterr().err) == [], "a library does not print"


EVENTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("uvw") | st.none(), st.booleans()),
    max_size=30,
)


@given(EVENTS)
def test_coalesced_changes_lead_to_the_same_state(
    events: list[tuple[str, str | None, bool]],
) -> None:
    held: dict[str, Object] = {}
    seen: dict[str, Object] = {}
    pending: Coalesced[Object] = Coalesced()
    for version, (name, uid, look) in enumerate(events):
        old = held.pop(name, None)
        if old is not None and (uid is None or old.metadata.uid != uid):
            pending.note(Change("things", old, None))
            old = None
        if uid is not None:
            new = held[name] = Object(
                metadata=ObjectMeta(name=name, uid=uid, resource_version=str(version))
            )
            pending.note(Change("things", old, new))
        if not look:
            continue
        for change in pending.take():
            assert change.old == seen.pop(change.object.metadata.name, None)
            if change.new is not None:
                assert change.old is None or change.old.metadata.uid == change.new.metadata.uid
                seen[change.new.metadata.name] = change.new
        assert seen == held
        assert len(pending) == 0
