"""``EndpointView`` and its synchronous face against a live plane, over TLS."""

from __future__ import annotations

import asyncio
import logging
import re
import threading

import pytest
from tests.client.conftest import Writer, endpoint
from tests.server.serving import Server
from tests.waiting import eventually, until

from sliceplane.api.codec import decode
from sliceplane.api.core import Lease
from sliceplane.client import (
    Endpoint,
    EndpointView,
    HttpClient,
    Leases,
    NoEndpoint,
    NotReady,
    StatusError,
    SyncEndpointView,
    ViewChange,
)
from sliceplane.consume.progress import Progress

#: reports without a pause of seconds
PROMPT = {
    **(Progress.__init__.__kwdefaults__ or {}),
    "changed_period_s": 0.1,
    "idle_period_s": 0.3,
}


def names(endpoints: tuple[Endpoint, ...]) -> list[str]:
    return [each.pod for each in endpoints]


async def test_a_zone_that_no_endpoint_is_in_is_told_of(
    client: HttpClient, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    await writer.put("a", endpoint(1, zone="east"), endpoint(2, zone="west"))
    with caplog.at_level(logging.WARNING, "sliceplane.client"):
        async with EndpointView(
            client, "web", writer.namespace, port="http", zone="zone-typo"
        ) as view:
            await view.wait_ready(60)
        async with EndpointView(client, "web", writer.namespace, port="http", zone="east") as view:
            await view.wait_ready(60)
    (told,) = [record.getMessage() for record in caplog.records]
    assert "zone=zone-typo zones=east, west" in told


async def shows(view: EndpointView, *pods: str) -> None:
    async with asyncio.timeout(60):
        async for _ in view:
            if names(view.endpoints) == list(pods):
                return


async def test_a_view_in_a_zone_that_tells_reports_its_requests(
    client: HttpClient, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Progress.__init__, "__kwdefaults__", PROMPT)
    writer.owner = "3f9a12c0-5d5d-4b0a-9b5c-0d8f6a2f4a11"
    await writer.put("a", endpoint(1, zone="east"), endpoint(2, zone="west"))

    async def reported(name: str) -> str | None:
        try:
            body = await client.get(Leases, writer.namespace, f"sliceplane-view-web-{name}")
        except StatusError as error:
            return f"no Lease yet: {error}"
        return (decode(body, Lease).metadata.annotations or {}).get("sliceplane.dev/demand")

    async with (
        EndpointView(client, "web", writer.namespace, zone="east", tells="v-1") as view,
        EndpointView(client, "web", writer.namespace, tells="v-2") as nowhere,
    ):
        await view.wait_ready(60)
        await nowhere.wait_ready(60)
        picker, other = view.random(), view.least_outstanding()
        for _ in range(30):
            picker.pick()
            with other.lease():
                pass
        with pytest.raises(NoEndpoint):
            picker.pick(exclude=view.endpoints)
        nowhere.random().pick()
        await eventually(lambda: reported("v-1"), lambda text: text == "east/3f9a12c0:60")
        picker.pick()
        await eventually(lambda: reported("v-1"), lambda text: text == "east/3f9a12c0:61")
        await eventually(lambda: reported("v-2"), lambda text: text is None)


async def test_all_slices_are_one_view(client: HttpClient, writer: Writer) -> None:
    await writer.put("a", endpoint(1), endpoint(2))
    await writer.put("b", endpoint(3), endpoint(4, ready=False))
    async with EndpointView(client, "web", writer.namespace, port="http") as view:
        await view.wait_ready(60, count=3)
        assert names(view.endpoints) == ["web-1", "web-2", "web-3", "web-4"]
        assert names(view.usable) == ["web-1", "web-2", "web-3"]
        assert view.endpoints[0].authority == "10.1.0.1:8080"
        assert view.endpoints[0].node == "node-1"
        assert view.staleness() < 5
        # One on its way between slices is seen once all the time.
        await writer.put("b", endpoint(3), endpoint(4), endpoint(1))
        await shows(view, "web-1", "web-2", "web-3", "web-4")
        await writer.put("a", endpoint(2))
        await writer.delete("b")
        await shows(view, "web-2")
    assert names(view.endpoints) == ["web-2"], "what was known stays readable"


async def test_changes_lead_from_one_whole_state_to_the_next(
    client: HttpClient, writer: Writer
) -> None:
    held: dict[str, Endpoint] = {}

    def apply(change: ViewChange) -> None:
        for gone in change.removed:
            assert held.pop(gone.id) == gone
        for old, new in change.updated:
            assert held[old.id] == old
            held[new.id] = new
        for added in change.added:
            assert added.id not in held
            held[added.id] = added

    async with EndpointView(client, "web", writer.namespace) as view:

        async def follow() -> None:
            async for change in view:
                apply(change)
                assert tuple(held[identity] for identity in sorted(held)) == view.endpoints
                await asyncio.sleep(0.02)  # slower than the writer: states are skipped, never torn

        following = asyncio.create_task(follow())
        for turn in range(15):
            numbers = [number for number in range(10) if (number + turn) % 3]
            await writer.put(
                "a", *(endpoint(number, ready=bool((number + turn) % 4)) for number in numbers)
            )
        await shows(view, *sorted(f"web-{number}" for number in numbers))
        await writer.delete("a")
        await eventually(lambda: (held, view.endpoints), lambda left: not any(left))
    await asyncio.wait_for(following, 60)  # the loop ends with the view


async def test_hints_for_a_zone_and_back_to_all(client: HttpClient, writer: Writer) -> None:
    await writer.put("a", endpoint(1, zone="east"), endpoint(2, zone="west"))
    async with (
        EndpointView(client, "web", writer.namespace, zone="east") as here,
        EndpointView(client, "web", writer.namespace, zone="east", honour_hints=False) as anywhere,
    ):
        await here.wait_ready(60)
        await anywhere.wait_ready(60)
        assert (here.scope, names(here.usable)) == ("zone", ["web-1"])
        assert (anywhere.scope, names(anywhere.usable)) == ("all", ["web-1", "web-2"])
        await writer.put("a", endpoint(1, zone="east"), endpoint(2))
        await eventually(lambda: here.scope, lambda scope: scope == "all")
        assert names(here.usable) == ["web-1", "web-2"], "all or nothing, as the node proxy"


async def test_a_pick_is_never_what_was_told_to_be_gone(client: HttpClient, writer: Writer) -> None:
    await writer.put("a", *(endpoint(number) for number in range(8)))
    async with EndpointView(client, "web", writer.namespace) as view:
        await view.wait_ready(60)
        pickers = [
            view.random(),
            view.round_robin(),
            view.least_outstanding(),
            view.consistent_hash(),
            view.zone_first(),
        ]
        gone: set[str] = set()

        async def follow() -> None:
            async for change in view:
                gone.update(each.id for each in change.removed)

        following = asyncio.create_task(follow())
        for turn in range(10):
            await writer.put("a", *(endpoint(number) for number in range(turn, turn + 8)))
            for number in range(40):
                for picker in pickers:
                    with picker.lease(f"key {number}") as found:
                        assert found.id not in gone
        pickers.pop().close()
        await shows(view, *sorted(f"web-{number}" for number in range(9, 17)))
    await asyncio.wait_for(following, 60)
    assert gone == {f"uid-{number}" for number in range(9)}


async def test_waiting_in_vain_says_why(client: HttpClient, writer: Writer) -> None:
    async with EndpointView(client, "web", writer.namespace, port="grpc") as view:
        with pytest.raises(
            NotReady,
            match=(
                f"after 0.1 s: {writer.namespace}/web has no EndpointSlices: is that the "
                "Service's name"
            ),
        ):
            await wait_after_sync(view)
        await writer.put("a", endpoint(1))
        await eventually(
            lambda: why(view), lambda said: "no TCP port 'grpc'; ports offered: 'http'" in said
        )
    async with EndpointView(client, "web", writer.namespace) as view:
        await view.wait_ready(60)
        await writer.put("a", endpoint(1, ready=False))
        await eventually(
            lambda: why(view), lambda said: "has 1 endpoints, none of which is ready" in said
        )
    with pytest.raises(NotReady, match="closed"):
        await view.wait_ready()


async def wait_after_sync(view: EndpointView) -> None:
    await view.wait_synced(60)
    await view.wait_ready(0.1)


def why(view: EndpointView) -> str:
    try:
        view.random().pick()
    except NoEndpoint as error:
        return str(error)
    return ""


async def test_a_server_that_is_not_there(writer: Writer) -> None:
    from sliceplane.client import Connection
    from sliceplane.watch.io.connection import Fixed

    nobody = HttpClient(
        Connection(server="http://127.0.0.1:1", ssl_context=None, credentials=Fixed())
    )
    async with EndpointView(nobody, "web", writer.namespace) as view:

        async def problem() -> str:
            with pytest.raises(NotReady) as not_ready:
                await view.wait_ready(0.05)
            return str(not_ready.value)

        await eventually(
            problem,
            lambda said: re.search(r"not known yet; the last error: .*127\.0\.0\.1:1", said),
        )
        assert view.staleness() == float("inf")
    await nobody.close()


async def test_the_synchronous_face(live: Server, writer: Writer) -> None:
    await writer.put("a", endpoint(1), endpoint(2))
    told: list[ViewChange] = []

    def work() -> None:
        with SyncEndpointView(
            "web", writer.namespace, path=live.plane.kubeconfig, port="http"
        ) as view:
            view.wait_ready(60)
            ready.set()
            picker = view.least_outstanding()
            with picker.lease() as one, picker.lease() as other:
                assert one.id != other.id
            for change in view.changes():
                told.append(change)
                if names(view.endpoints) == ["web-2"]:
                    break
            assert view.staleness() < 5
            waiting = threading.Thread(target=lambda: last.extend(view.changes()))
            waiting.start()
            until(lambda: last)
            view.close()
            waiting.join(60)
            assert not waiting.is_alive(), "who waits for changes comes to an end"
            assert view.usable[0].pod == "web-2"

    ready, last = threading.Event(), list[ViewChange]()
    working = asyncio.create_task(asyncio.to_thread(work))
    assert await asyncio.to_thread(ready.wait, 10)
    await writer.put("a", endpoint(2))
    await asyncio.wait_for(working, 120)
    assert [each.pod for change in told for each in change.added][:2] in (
        ["web-1", "web-2"],
        ["web-2"],
    )


async def test_the_synchronous_face_says_what_is_wrong(live: Server, writer: Writer) -> None:
    def work() -> None:
        with (
            SyncEndpointView("web", writer.namespace, path=live.plane.kubeconfig) as view,
            pytest.raises(NotReady),
        ):
            view.wait_ready(0.2)

    await asyncio.to_thread(work)
