"""Faults on request are what a real server's clients see, and end when the test says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from sliceplane.client import EndpointView, Namespaces, Pods, StatusError, Unreachable
from sliceplane.testing import Plane

SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n"


@pytest.fixture(scope="module")
def shared() -> Iterator[Plane]:
    with Plane() as plane:
        yield plane


@pytest.fixture
def plane(shared: Plane) -> Iterator[Plane]:
    shared.apply(SERVICE)
    shared.set_endpoints("web", ["10.0.0.1:80"])
    yield shared
    shared.faults.clear()


async def test_a_refusal_is_counted_and_ends(plane: Plane) -> None:
    async with plane.client() as client:
        with plane.faults.refuse(503, times=2, where="/namespaces") as fault:
            await client.list(Pods)
            for _ in range(2):
                with pytest.raises(StatusError) as refused:
                    await client.get(Namespaces, "", "default")
                assert (refused.value.code, refused.value.reason) == (503, "ServiceUnavailable")
            await client.get(Namespaces, "", "default")
        assert (fault.hits, fault.over) == (2, True)
        with plane.faults.refuse(429, where="/namespaces"):
            with pytest.raises(StatusError) as busy:
                await client.get(Namespaces, "", "default")
            assert (busy.value.code, busy.value.retry_after_s) == (429, 1)
        await client.get(Namespaces, "", "default")


async def test_a_delay(plane: Plane) -> None:
    async with plane.client() as client:
        await client.list(Pods)
        with plane.faults.delay(0.3, times=1):
            began = time.monotonic()
            await client.list(Pods)
            assert time.monotonic() - began >= 0.3


async def test_a_plane_ends_at_once_although_a_request_is_delayed() -> None:
    async with Plane(controllers=False) as plane, plane.client() as client:
        fault = plane.faults.delay(60, times=1)
        asked = asyncio.create_task(client.list(Pods))
        await plane.until(lambda: fault.hits)
        await asyncio.to_thread(plane.stop)
        await asked  # it was let go: a stop cuts what it has waited for in vain


async def test_an_outage_cuts_what_is_asked_and_ends(plane: Plane) -> None:
    async with plane.client() as client:
        with plane.faults.outage(), pytest.raises(Unreachable):
            await client.list(Pods)
        await client.list(Pods)


async def test_a_view_outlives_watches_that_are_cut(plane: Plane) -> None:
    async with plane.client() as client, EndpointView(client, "web") as view:
        await view.wait_ready(60)
        await plane.until(lambda: plane.faults.watches)
        assert plane.faults.cut_watches(where="/endpointslices") == 1
        plane.set_endpoints("web", ["10.0.0.2:80"])
        await plane.until(
            lambda: [each.authority for each in view.endpoints] == ["10.0.0.2:80"], timeout=60
        )


async def test_expired_means_410_for_every_version_that_a_client_can_know(plane: Plane) -> None:
    async with plane.client() as client:
        newest = (await client.list(Pods)).resource_version
        assert plane.faults.expire() == 0
        async with client.watch(Pods, resource_version=newest) as stream:
            async for message in stream:
                assert message.type == "ERROR"
                assert b'"code":410' in message.body
                assert b"Expired" in message.body
                break
            else:
                pytest.fail("the watch ended without a word")
        fresh = (await client.list(Pods)).resource_version
        async with client.watch(Pods, resource_version=fresh, timeout_s=1) as stream:
            assert [message.type async for message in stream if message.type != "BOOKMARK"] == []


async def test_bookmarks_come_when_they_are_asked_for_and_tell_nothing_else(plane: Plane) -> None:
    async with plane.client() as client:
        newest = (await client.list(Pods)).resource_version
        async with client.watch(Pods, resource_version=newest) as stream:
            await plane.until(lambda: plane.faults.watches)
            await plane.until(plane.faults.bookmark)
            async for message in stream:
                assert message.type == "BOOKMARK"
                break


async def test_a_silent_watch_is_noticed_by_who_listens_for_silence(plane: Plane) -> None:
    async with (
        plane.client() as client,
        EndpointView(client, "web", idle_timeout_s=1.0) as patient,
        EndpointView(client, "web", idle_timeout_s=60.0) as trusting,
    ):
        await patient.wait_ready(60)
        await trusting.wait_ready(60)
        # The patient one may be between two watches just now.
        await plane.until(lambda: plane.faults.silence_watches() == 2)
        plane.set_endpoints("web", ["10.0.0.3:80"])
        await plane.until(
            lambda: [each.authority for each in patient.endpoints] == ["10.0.0.3:80"], timeout=60
        )
        assert [each.authority for each in trusting.endpoints] == ["10.0.0.1:80"]
        assert trusting.last_error is None, "it does not know that anything is wrong"


async def test_controllers_go_on_while_clients_suffer() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-1", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "web", "image": "web"}]},
    }
    async with Plane(nodes=1) as plane:
        with plane.faults.outage():
            plane.apply(SERVICE.replace("spec: {", "spec: {selector: {app: web}, "))
            plane.apply(pod)
            await plane.until(lambda: [each.ready for each in plane.endpoints("web")] == [True])


def test_faults_of_one_plane_are_not_anothers(plane: Plane) -> None:
    async def story() -> None:
        async with Plane(controllers=False) as other:
            with plane.faults.refuse(500):
                async with other.client() as client:
                    await client.list(Pods)

    asyncio.run(story())
