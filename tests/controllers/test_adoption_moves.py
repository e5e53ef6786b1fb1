"""``adopt`` and ``release`` beside controllers that behave as upstream's: nothing is lost at any
time, and a command that was killed after any request is completed by the same command.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.controllers.adoption_merging import MergingReader
from tests.waiting import eventually

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Endpoints, Service
from sliceplane.api.discovery import LABEL_SKIP_MIRROR, MANAGED_BY_CONTROLLER, EndpointSlice
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import (
    EndpointSlices,
    EndpointsObjects,
    Namespaces,
    Nodes,
    Pods,
    Resource,
    Services,
)
from sliceplane.api.selectors.adoption import (
    ANNOTATION_ADOPTION,
    ANNOTATION_SELECTOR,
    MANAGED_BY_ADOPTED,
    AdoptionStage,
    Scope,
    stage_of,
)
from sliceplane.controllers.endpoints import EndpointsConfig, EndpointsController
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.controllers.endpointslice_mirroring import (
    EndpointSliceMirroringController,
    MirroringConfig,
)
from sliceplane.diagnose.adoption import Direction, MoveRefused
from sliceplane.diagnose.io.adopting import Moved, list_adopted, move, read_moving, take_back
from sliceplane.kit.rng import Rng
from sliceplane.server.io.inprocess import InProcessClient
from sliceplane.server.io.plane import PlaneConfig, ServerPlane
from sliceplane.slices.succession import SelectorChanges
from sliceplane.watch.io.hosting.host import ControllerHost

pytestmark = pytest.mark.looptime

PODS = 7
ADDRESSES = {f"10.0.0.{number}" for number in range(1, PODS + 1)}
UPSTREAM = SelectorChanges.UPSTREAM


class Stopped(Exception):
    """The command was killed here."""


class StoppingClient:
    """Passes requests on until *writes* were performed; the next one is the end."""

    def __init__(self, client: InProcessClient, writes: int) -> None:
        self._client = client
        self._left = writes
        self.get = client.get
        self.list = client.list

    async def perform(self, write: Write) -> bytes:
        if not self._left:
            raise Stopped
        self._left -= 1
        return await self._client.perform(write)


class World:
    """A server, upstream's controllers (ours, which behave so), ours for adopted Services, and a
    reader.
    """

    def __init__(self, plane: ServerPlane) -> None:
        self.client = plane.client("system:admin")
        self.upstream = ControllerHost(self.client, rng=Rng(2), check=True)
        self.ours = ControllerHost(self.client, rng=Rng(3), check=True)
        self.reader = MergingReader("shop", "web", ADDRESSES)
        for make in (
            lambda: EndpointSliceController(
                EndpointSliceConfig(selector_changes=UPSTREAM, max_endpoints_per_slice=3)
            ),
            lambda: EndpointsController(EndpointsConfig(selector_changes=UPSTREAM)),
            lambda: EndpointSliceMirroringController(MirroringConfig(selector_changes=UPSTREAM)),
        ):
            self.upstream.add(make)
        for make in (
            lambda: EndpointSliceController(
                EndpointSliceConfig(scope=Scope.ADOPTED, max_endpoints_per_slice=2)
            ),
            lambda: EndpointsController(EndpointsConfig(scope=Scope.ADOPTED)),
        ):
            self.ours.add(make)

    async def fill(self) -> None:
        await self.create(Namespaces, "shop")
        await self.create(Nodes, "n0", metadata={"labels": {"topology.kubernetes.io/zone": "a"}})
        ports = [{"port": 80, "name": "http", "targetPort": 8080}]
        await self.create(
            Services,
            "web",
            metadata={"labels": {"team": "shop"}},
            spec={"selector": {"app": "web", "tier": "front"}, "ports": ports},
        )
        for number in range(1, PODS + 1):
            await self.make_pod(number)

    async def create(self, resource: Resource, name: str, **members: Any) -> None:
        namespace = "shop" if resource.namespaced else ""
        metadata = {"name": name, **members.pop("metadata", {})}
        await self.client.create(resource, namespace, encode({"metadata": metadata, **members}))

    async def make_pod(self, number: int) -> None:
        labels = {"app": "web", "tier": "front"}
        containers = [{"name": "main", "image": "x"}]
        spec = {"nodeName": "n0", "containers": containers}
        await self.create(Pods, f"p-{number}", metadata={"labels": labels}, spec=spec)
        await self.set_ready(number)

    async def set_ready(self, number: int, *, ready: bool = True) -> None:
        condition = {"type": "Ready", "status": str(ready)}
        ip = f"10.0.0.{number}"
        status = {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{**condition, "lastTransitionTime": "2026-11-21T10:00:00Z"}],
        }
        await self.client.patch(
            Pods,
            "shop",
            f"p-{number}",
            encode({"status": status}),
            patch_type="merge",
            subresource="status",
        )

    async def follow(self) -> None:
        while True:  # the server ends each watch after a while
            async with self.client.watch(Selection(EndpointSlices, "shop")) as messages:
                async for message in messages:
                    if message.type != "BOOKMARK":
                        self.reader.on_event(message.type, decode(message.body, EndpointSlice))

    async def service(self) -> Service:
        return decode(await self.client.get(Services, "shop", "web"), Service)

    async def endpoints(self) -> Endpoints:
        return decode(await self.client.get(EndpointsObjects, "shop", "web"), Endpoints)

    async def patch_service(self, change: dict[str, Any]) -> None:
        await self.client.patch(Services, "shop", "web", encode(change), patch_type="merge")

    async def move(self, direction: Direction, client: Any = None, timeout_s: float = 60) -> Moved:
        return await move(
            client or self.client,
            "shop/web",
            direction,
            timeout_s=timeout_s,
            report=lambda _: None,
        )

    async def has_only(self, manager: str) -> None:
        await eventually(lambda: set(self.reader.managers()) == {manager}, within_s=60)


@asynccontextmanager
async def running(*, ours: bool = True) -> AsyncIterator[World]:
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0)) as plane:
        world = World(plane)
        await world.fill()
        following = asyncio.create_task(world.follow())
        world.upstream.start()
        if ours:
            world.ours.start()
        await eventually(lambda: world.reader.complete, within_s=60)
        try:
            yield world
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await world.ours.close()
            await world.upstream.close()


async def test_there_and_back_without_a_lost_endpoint() -> None:
    async with running() as world:
        moved = await world.move("adopt")
        assert moved.effects == (
            "both controllers write slices",
            "Endpoints are excluded from mirroring",
            "the selector is in the annotation",
        )
        await world.has_only(MANAGED_BY_ADOPTED)
        service = await world.service()
        assert service.spec.selector is None
        assert service.metadata.annotations == {ANNOTATION_SELECTOR: "app=web,tier=front"}
        assert (await world.move("adopt")).effects == (), "it is done"
        moved = await world.move("release")
        assert moved.effects == ("both controllers write slices", "our controllers stop")
        await world.has_only(MANAGED_BY_CONTROLLER)
        service = await world.service()
        assert service.spec.selector == {"app": "web", "tier": "front"}
        assert not service.metadata.annotations
        assert (await world.move("release")).effects == ()
        assert world.reader.missed == []
        assert not any("mirroring" in event for event in world.reader.events)


async def test_both_sets_say_the_same_of_each_endpoint() -> None:
    async with running() as world:
        await world.set_ready(3, ready=False)
        world.reader.expected = ADDRESSES - {"10.0.0.3"}
        with suppress(Stopped):
            await world.move("adopt", StoppingClient(world.client, 1))
        await eventually(lambda: len(world.reader.managers()) == 2)
        await asyncio.sleep(5.0)
        said = world.reader.conditions()
        assert {address: len(each) for address, each in said.items()} == dict.fromkeys(ADDRESSES, 1)
        assert world.reader.ready() == ADDRESSES - {"10.0.0.3"}
        assert world.reader.missed == []


@pytest.mark.parametrize("writes", [0, 1, 2, 3])
@pytest.mark.parametrize("direction", ["adopt", "release"])
async def test_a_command_killed_after_any_request_is_completed_by_the_same_command(
    direction: Direction, writes: int
) -> None:
    async with running() as world:
        if direction == "release":
            await world.move("adopt")
            await world.has_only(MANAGED_BY_ADOPTED)
        with suppress(Stopped):
            await world.move(direction, StoppingClient(world.client, writes))
        await asyncio.sleep(70.0)  # whatever would happen without it happens
        assert world.reader.missed == []
        await world.move(direction)
        adopts = direction == "adopt"
        await world.has_only(MANAGED_BY_ADOPTED if adopts else MANAGED_BY_CONTROLLER)
        assert stage_of(await world.service()) is (
            AdoptionStage.ADOPTED if adopts else AdoptionStage.UPSTREAM
        )
        assert world.reader.missed == []


@pytest.mark.parametrize("writes", [0, 1, 2, 3])
async def test_release_undoes_an_adoption_that_was_killed_anywhere(writes: int) -> None:
    async with running() as world:
        with suppress(Stopped):
            await world.move("adopt", StoppingClient(world.client, writes))
        await world.move("release")
        await world.has_only(MANAGED_BY_CONTROLLER)
        assert stage_of(await world.service()) is AdoptionStage.UPSTREAM
        assert world.reader.missed == []


@pytest.mark.parametrize("writes", [0, 1, 2])
async def test_adopt_undoes_a_release_that_was_killed_anywhere(writes: int) -> None:
    async with running() as world:
        await world.move("adopt")
        with suppress(Stopped):
            await world.move("release", StoppingClient(world.client, writes))
        await world.move("adopt")
        await world.has_only(MANAGED_BY_ADOPTED)
        assert world.reader.missed == []


async def test_endpoints_stay_current_and_are_never_mirrored() -> None:
    async with running() as world:
        await world.move("adopt")
        await world.make_pod(9)
        await eventually(lambda: "10.0.0.9" in world.reader.ready())

        async def has_it() -> bool:
            subsets = (await world.endpoints()).subsets or ()
            return "10.0.0.9" in {a.ip for s in subsets for a in s.addresses or ()}

        for _ in range(50):
            if await has_it():
                break
            await asyncio.sleep(0.1)
        assert await has_it()
        assert ((await world.endpoints()).metadata.labels or {})[LABEL_SKIP_MIRROR] == "true"
        assert not any("mirroring" in event for event in world.reader.events)


async def test_endpoints_whose_label_was_removed_meanwhile_are_not_mirrored_for_long() -> None:
    """Upstream's Endpoints controller writes its labels at each change of a Pod."""
    async with running() as world:
        with suppress(Stopped):
            await world.move("adopt", StoppingClient(world.client, 2))
        body = encode({"metadata": {"labels": {LABEL_SKIP_MIRROR: None}}})
        service = await world.service()
        text = (service.metadata.annotations or {})[ANNOTATION_SELECTOR]
        await world.client.patch(EndpointsObjects, "shop", "web", body, patch_type="merge")
        annotations = {ANNOTATION_SELECTOR: text, ANNOTATION_ADOPTION: None}
        change = {"spec": {"selector": None}, "metadata": {"annotations": annotations}}
        await world.patch_service(change)
        await world.has_only(MANAGED_BY_ADOPTED)
        await asyncio.sleep(10.0)
        await world.has_only(MANAGED_BY_ADOPTED)
        assert world.reader.missed == []


async def test_applied_again_from_git_the_service_has_one_set_of_slices() -> None:
    async with running() as world:
        await world.move("adopt")
        await world.has_only(MANAGED_BY_ADOPTED)
        await world.patch_service({"spec": {"selector": {"app": "web", "tier": "front"}}})
        await world.has_only(MANAGED_BY_CONTROLLER)
        assert stage_of(await world.service()) is AdoptionStage.CONFLICT
        assert world.reader.missed == []
        await world.move("adopt")
        await world.has_only(MANAGED_BY_ADOPTED)
        assert world.reader.missed == []


async def test_without_controllers_an_adoption_is_taken_back_and_the_reason_is_told() -> None:
    async with running(ours=False) as world:
        with pytest.raises(MoveRefused) as refused:
            await world.move("adopt", timeout_s=5)
        assert str(refused.value) == (
            "shop/web: the time is over: our controller has written no EndpointSlice; do "
            "controllers run? sliceplane controllers --adopted-only; the annotations are removed "
            "again"
        )
        assert stage_of(await world.service()) is AdoptionStage.UPSTREAM
        assert set(world.reader.managers()) == {MANAGED_BY_CONTROLLER}


async def test_without_controllers_an_adopted_service_keeps_its_slices_and_can_be_released() -> (
    None
):
    async with running() as world:
        await world.move("adopt")
        await world.has_only(MANAGED_BY_ADOPTED)
        await world.ours.close()
        await asyncio.sleep(900.0)  # an hour takes a processor 13 s, and is the same
        assert world.reader.ready() == ADDRESSES
        moved = await world.move("release")
        assert moved.effects[-1] == "our EndpointSlices are deleted"
        await world.has_only(MANAGED_BY_CONTROLLER)
        assert world.reader.missed == []


async def test_an_interrupted_adoption_is_taken_back() -> None:
    async with running() as world:
        with suppress(Stopped):
            await world.move("adopt", StoppingClient(world.client, 1))
        await eventually(lambda: len(world.reader.managers()) == 2)
        assert await take_back(world.client, "shop/web")
        await world.has_only(MANAGED_BY_CONTROLLER)
        await world.move("adopt")
        assert not await take_back(world.client, "shop/web"), "the selector has moved"


async def test_a_selector_that_changes_under_way_is_the_one_that_moves() -> None:
    async with running() as world:
        with suppress(Stopped):
            await world.move("adopt", StoppingClient(world.client, 1))
        await world.patch_service({"spec": {"selector": {"tier": None}}})
        await world.move("adopt")
        service = await world.service()
        assert (service.metadata.annotations or {})[ANNOTATION_SELECTOR] == "app=web"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"spec": {"selector": None}}, "shop/web has no selector: somebody else writes"),
        (
            {"spec": {"type": "ExternalName", "externalName": "a.b", "selector": None}},
            "shop/web is of type ExternalName",
        ),
        (
            {"metadata": {"annotations": {ANNOTATION_SELECTOR: "?"}}, "spec": {"selector": None}},
            "is no selector; to repair it: kubectl -n shop annotate --overwrite service web",
        ),
        (
            {"metadata": {"annotations": {"argo-rollouts.argoproj.io/managed-by-rollouts": "web"}}},
            "Argo Rollouts writes its selector at each rollout",
        ),
    ],
)
async def test_what_cannot_be_adopted_is_refused_before_anything_is_written(
    change: dict[str, Any], text: str
) -> None:
    async with running() as world:
        await world.patch_service(change)
        with pytest.raises(MoveRefused, match=text.replace("?", r"\?")):
            await world.move("adopt", StoppingClient(world.client, 0))


async def test_a_service_that_is_not_there_is_named() -> None:
    async with running() as world:
        with pytest.raises(MoveRefused, match="there is no Service shop/none"):
            await read_moving(world.client, "shop", "none")
        await world.move("adopt")
        assert [s.metadata.key for s in await list_adopted(world.client, "")] == ["shop/web"]
        assert await list_adopted(world.client, "kube-system") == ()


async def test_another_write_of_the_service_costs_another_round() -> None:
    async with running() as world:

        class Racing(StoppingClient):
            races = 2

            async def perform(self, write: Write) -> bytes:
                if write.resource is Services and self.races:
                    self.races -= 1
                    label = {"race": str(self.races)}
                    await world.patch_service({"metadata": {"labels": label}})
                return await super().perform(write)

        moved = await world.move("adopt", Racing(world.client, 9))
        assert len(moved.effects) == 3
        labels = (await world.service()).metadata.labels
        assert labels == {"team": "shop", "race": "0"}
