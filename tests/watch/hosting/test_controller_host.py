"""The host with a real core, a fake server and virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from sliceplane.api.errors import StatusError, internal
from sliceplane.api.scheme import ConfigMaps, EventsV1
from sliceplane.kit.rng import Rng
from sliceplane.watch.controller.base import Work
from sliceplane.watch.io.hosting.host import ControllerHost

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


@pytest_asyncio.fixture
async def host(client: Any) -> AsyncIterator[ControllerHost]:
    hosted = ControllerHost(client, rng=Rng(1), clock=client.clock, instance="test", check=True)
    yield hosted
    await hosted.close()


def copies(api: Any) -> dict[str, str]:
    """Name of the source -> version that its copy is of."""
    found = {}
    for _, body in sorted(api._objects.items()):
        metadata = body["metadata"]
        if body["kind"] == "ConfigMap" and metadata["name"].startswith("copy-"):
            found[metadata["name"].removeprefix("copy-")] = metadata["annotations"]["of"]
    return found


def sources(api: Any) -> dict[str, str]:
    return {
        body["metadata"]["name"]: body["metadata"]["resourceVersion"]
        for _, body in sorted(api._objects.items())
        if body["kind"] == "ConfigMap" and not body["metadata"]["name"].startswith("copy-")
    }


async def test_a_controller_converges_and_follows(
    host: ControllerHost, api: Any, client: Any, copier: Any, source: Callable[..., None]
) -> None:
    for number in range(20):
        source(api, f"s{number:02}")
    host.add(copier, max_in_flight=3)
    host.start()
    await asyncio.sleep(1)
    assert copies(api) == sources(api)
    assert client.most_in_flight <= 4  # three jobs and the recorder
    source(api, "s03", x="1")
    api.remove(ConfigMaps, "ns", "s07")
    await asyncio.sleep(1)
    assert copies(api) == sources(api)
    status = host.status()
    assert status.synced
    assert status.staleness_s <= 1.0
    assert [(informer.synced, informer.objects) for informer in status.informers] == [
        (True, 19),
        (True, 19),
    ]
    (controller,) = status.controllers
    assert (controller.name, controller.alive, controller.in_flight, controller.backlog) == (
        "copier",
        True,
        0,
        0,
    )
    assert controller.tally.failed_jobs == 0


async def test_controllers_share_informers(
    host: ControllerHost, api: Any, client: Any, copier: Any
) -> None:
    host.add(copier)
    host.add(copier)
    host.start()
    await asyncio.sleep(1)
    assert [verb for verb, _, _ in api.requests].count("watch") == 2
    assert len(host.status().informers) == 2


async def test_errors_reach_the_core_and_tolerated_ones_do_not(
    host: ControllerHost, api: Any, client: Any, copier: Any, source: Callable[..., None]
) -> None:
    core = copier(quiet=True)
    host.add(lambda: core)
    source(api, "a")
    api.fail(internal("boom"), "create", times=1)
    host.start()
    await asyncio.sleep(0.5)
    assert [done.error for done in core.done] == [StatusError(500, "InternalError", "boom")]
    await asyncio.sleep(2)
    assert copies(api) == sources(api)
    # Somebody else deletes the copy while our delete is on its way.
    client.write_s = 0.5
    api.remove(ConfigMaps, "ns", "a")
    await asyncio.sleep(0.2)
    api.remove(ConfigMaps, "ns", "copy-a")
    await asyncio.sleep(1)
    assert core.done[-1].error is None
    assert core.done[-1].results == (b"",)


async def test_an_unknown_outcome_is_told_as_unreachable(
    host: ControllerHost, api: Any, client: Any, copier: Any, source: Callable[..., None]
) -> None:
    core = copier(quiet=True)
    host.add(lambda: core)
    host.start()
    await asyncio.sleep(1)
    client.lose_answers = 1
    source(api, "a")
    await asyncio.sleep(5)
    assert copies(api) == sources(api)
    errors = [done.error for done in core.done]
    assert errors[0] is not None
    assert (errors[0].reason, errors[0].code) == ("Unreachable", 503)


async def test_a_client_that_breaks_does_not_stop_the_controller(
    host: ControllerHost,
    api: Any,
    client: Any,
    copier: Any,
    source: Callable[..., None],
    monkeypatch: Any,
) -> None:
    working = client.perform

    async def broken(*_args: Any, **_kwargs: Any) -> bytes:
        raise RuntimeError("a bug in the client")

    monkeypatch.setattr(client, "perform", broken)
    core = copier()
    host.add(lambda: core)
    source(api, "a")
    host.start()
    await asyncio.sleep(0.5)
    assert core.done[0].error == internal("RuntimeError: a bug in the client")
    monkeypatch.setattr(client, "perform", working)
    await asyncio.sleep(5)
    assert copies(api) == sources(api)


async def test_a_controller_that_raises_starts_again_from_scratch(
    host: ControllerHost,
    api: Any,
    client: Any,
    copier: Any,
    source: Callable[..., None],
    capsys: Any,
) -> None:
    lives: list[Any] = []

    def factory() -> Any:
        core = copier(raise_on="poison" if len(lives) < 3 else None)
        lives.append(core)
        return core

    host.add(factory)
    host.add(copier)  # a bystander
    source(api, "a")
    host.start()
    await asyncio.sleep(1)
    assert copies(api) == sources(api)
    source(api, "poison")
    await asyncio.sleep(0.5)
    assert [status.alive for status in host.status().controllers] == [False, True]
    assert "cannot stand poison" in host.status().controllers[0].fault
    source(api, "b")
    await asyncio.sleep(20)
    status = host.status().controllers[0]
    assert (status.alive, status.tally.restarts, len(lives)) == (True, 3, 4)
    # The last life was told everything, from the caches.
    assert {"a", "b", "poison"} <= set(lives[-1].events)
    # Dead lives are told nothing any more: one handler for each controller that lives.
    assert [len(informer._handlers) for informer in host._informers._informers.values()] == [2, 2]
    assert copies(api) == sources(api)
    said = capsys.readouterr().err
    assert said.count("a controller failed and starts again from scratch") == 3
    assert "Traceback" in said


async def test_a_dying_life_finishes_its_jobs_before_the_next_begins(
    host: ControllerHost,
    api: Any,
    client: Any,
    copier: Any,
    source: Callable[..., None],
    capsys: Any,
) -> None:
    client.write_s = 2.0
    lives: list[Any] = []

    def factory() -> Any:
        lives.append(copier(raise_on=None if lives else "poison"))
        return lives[-1]

    host.add(factory)
    source(api, "a")
    host.start()
    await asyncio.sleep(1)
    source(api, "poison")
    await asyncio.sleep(0.5)
    assert (len(lives), client.in_flight) == (1, 2)
    await asyncio.sleep(10)
    assert copies(api) == sources(api)
    assert [path for _, verb, path in client.log if verb == "create"].count(
        "configmaps/copy-a"
    ) == 1
    capsys.readouterr()


async def test_two_unfinished_jobs_of_one_key_are_a_fault(
    host: ControllerHost,
    api: Any,
    client: Any,
    copier: Any,
    source: Callable[..., None],
    capsys: Any,
) -> None:
    class Careless(copier):  # type: ignore[misc]  # a class that a fixture hands out
        def take_work(self, now: float, max_jobs: int) -> Any:
            jobs = super().take_work(now, max_jobs).jobs
            return Work(jobs=(*jobs, *jobs))

    host.add(Careless)
    source(api, "a")
    host.start()
    await asyncio.sleep(0.5)
    assert "two unfinished jobs with key" in host.status().controllers[0].fault
    capsys.readouterr()


async def test_closing_waits_for_writes_in_flight(
    api: Any, client: Any, copier: Any, source: Callable[..., None]
) -> None:
    host = ControllerHost(client, rng=Rng(1), clock=client.clock)
    host.add(copier)
    source(api, "a")
    client.write_s = 2.0
    host.start()
    await asyncio.sleep(0.5)
    assert client.in_flight == 2
    await host.close()
    assert client.in_flight == 0
    assert copies(api) == sources(api)
    await host.close()


async def test_closing_gives_up_on_writes_that_hang(
    api: Any, client: Any, copier: Any, source: Callable[..., None], looptime: int
) -> None:
    host = ControllerHost(client, rng=Rng(1), clock=client.clock)
    host.add(copier)
    source(api, "a")
    client.write_s = 3600.0
    host.start()
    await asyncio.sleep(0.5)
    before = asyncio.get_running_loop().time()
    await host.close()
    assert asyncio.get_running_loop().time() - before < 10
    assert client.in_flight == 0
    assert copies(api) == {}


async def test_a_write_without_an_answer_is_given_up(
    host: ControllerHost, api: Any, client: Any, copier: Any, source: Callable[..., None]
) -> None:
    core = copier()
    host.add(lambda: core)
    source(api, "a")
    client.write_s = 3600.0
    host.start()
    await asyncio.sleep(45)
    assert [done.error.reason for done in core.done] == ["Unreachable"]
    client.write_s = 0.01
    await asyncio.sleep(45)
    assert copies(api) == sources(api)


async def test_an_outage_is_survived_and_seen(
    host: ControllerHost,
    api: Any,
    client: Any,
    copier: Any,
    source: Callable[..., None],
    capsys: Any,
) -> None:
    source(api, "a")
    source(api, "b")
    host.add(copier)
    host.start()
    await asyncio.sleep(1)
    down = StatusError(503, "ServiceUnavailable", "down")
    api.fail(down, times=14)
    api.restart(internal("reset"))
    api.remove(ConfigMaps, "ns", "a")
    api.compact()
    await asyncio.sleep(4)
    assert host.status().staleness_s > 3
    assert host.status().informers[0].error is not None
    await asyncio.sleep(300)
    assert host.status().staleness_s < 61
    assert copies(api) == sources(api)
    capsys.readouterr()


async def test_notes_become_events(
    host: ControllerHost, api: Any, client: Any, copier: Any, source: Callable[..., None]
) -> None:
    source(api, "a")
    host.add(copier)
    host.start()
    await asyncio.sleep(1)
    source(api, "a", x="1")
    await asyncio.sleep(1)
    (body,) = [
        document for _, document in sorted(api._objects.items()) if document["kind"] == "Event"
    ]
    assert api.objects(EventsV1).keys() == {f"ns/{body['metadata']['name']}"}
    assert (body["note"], body["reason"], body["type"]) == ("copying a", "Copying", "Normal")
    assert body["series"]["count"] == 2
    assert body["regarding"]["name"] == "a"
    assert body["regarding"]["kind"] == "ConfigMap"
    assert (body["reportingController"], body["reportingInstance"]) == ("copier", "copier-test")
