"""No step on the loop is longer than 50 ms: over the fuzz corpus, and for bodies up to the limit made to be long."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.fuzz.application import ADMIN, NOW, Application, Ask
from tests.fuzz.cases import run_case
from tests.fuzz.heavy_bodies import BODIES, CONFIG_MAPS, ENDPOINTS, MERGE, _addresses, _object, asked
from tests.fuzz.requests import JSON, PROTOBUF, YAML
from tests.fuzz.watchdog import STEP_SECONDS_MAX, Watchdog, watching

from sliceplane.api.scheme import ConfigMaps
from sliceplane.registry.types import Body, Context, Target, WriteOptions
from sliceplane.shell.server.heavy.pool import Inline
from sliceplane.shell.server.heavy.service import Heavy

CASES = 16
TRIES = 3


async def _run(application: Application, ask: Ask, dog: Watchdog) -> int:
    """The code of the answer, asked as a task of its own so that the dog sees it."""
    task = asyncio.ensure_future(application.whole(ask))
    beating = asyncio.ensure_future(dog.beat())
    answer = await task
    beating.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await beating
    return answer.code


async def test_no_step_is_long_over_the_fuzz_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    """The first round is not measured: modules are loaded and schemas compiled when they are first used."""
    rounds = []
    for number in range(1 + TRIES):
        with watching() as dog:
            for case in range(CASES):
                await run_case(case)
        if number:
            rounds.append(dog)
        if rounds and dog.longest_s <= STEP_SECONDS_MAX:
            break
    best = min(rounds, key=lambda dog: dog.longest_s)
    with capsys.disabled():
        collected = f"longest collection {best.collected_s * 1000:.0f} ms"
        print(f"\nlongest of {best.steps} steps: {best.longest_s * 1000:.1f} ms; {collected}")
    assert best.longest_s <= STEP_SECONDS_MAX, best.longest


@pytest.mark.parametrize("name", BODIES)
async def test_no_step_is_long_for_a_body_up_to_the_limit(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    best, waited, code, longest = 1e9, 0.0, 0, ""
    for _ in range(TRIES):
        heavy = Heavy()
        try:
            async with Application(1, heavy) as application:
                await application.ask(asked("POST", CONFIG_MAPS, b'{"metadata":{"name":"small"},"data":{"a":"b"}}'))
                await application.ask(asked("POST", ENDPOINTS, b'{"metadata":{"name":"small"}}'))
                with watching() as dog:
                    code = await _run(application, BODIES[name](), dog)
        finally:
            await heavy.close()
        if dog.longest_s < best:
            best, waited, longest = dog.longest_s, dog.waited_s, dog.longest
        if best <= STEP_SECONDS_MAX:
            break
    with capsys.disabled():
        print(f"\n{name}: {code}, longest step {best * 1000:.1f} ms, a bystander waited {waited * 1000:.0f} ms")
    assert best <= STEP_SECONDS_MAX, longest
    assert heavy.requests.value, "it was worked on in the loop"


@pytest.mark.parametrize("accept", ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"])
async def test_no_step_is_long_for_a_small_request_to_a_large_object(accept: str) -> None:
    """A label, a read and a removal: what is stored is what costs."""
    heavy = Heavy()
    try:
        async with Application(1, heavy) as application:
            await application.whole(asked("POST", ENDPOINTS, _object("Endpoints", subsets=_addresses(30_000))))
            with watching() as dog:
                for ask in (
                    asked("PATCH", f"{ENDPOINTS}/big", b'{"metadata":{"labels":{"a":"b"}}}', MERGE, accept=accept),
                    asked("GET", f"{ENDPOINTS}/big", b"", accept=accept),
                    asked("GET", ENDPOINTS, b"", accept=accept),
                    asked("DELETE", f"{ENDPOINTS}/big", b"", accept=accept),
                ):
                    assert await _run(application, ask, dog) == 200
            assert dog.longest_s <= STEP_SECONDS_MAX, dog.longest
    finally:
        await heavy.close()


async def test_no_step_is_long_for_a_collection_of_any_length() -> None:
    """Lists in each form, with a selector of thousands of terms, and the removal of all."""
    heavy, count, table = Heavy(), 12_000, f"{JSON};as=Table;v=v1;g=meta.k8s.io"
    selector = b"labelSelector=" + b",".join(b"!k%d" % number for number in range(9_000))
    try:
        async with Application(1, heavy) as application:
            context, target = Context(now=NOW, user=ADMIN), Target(resource=ConfigMaps, namespace="default")
            for number in range(count):
                document = {"metadata": {"name": f"c{number:05}", "labels": {"app": "web"}}, "data": {"a": "b"}}
                application.registry.create(context, target, Body(document=document), WriteOptions())
            await application.committer.durable(application.store.staged_revision)
            for ask in (
                asked("GET", CONFIG_MAPS, b""),
                asked("GET", CONFIG_MAPS, b"", query=selector),
                asked("GET", CONFIG_MAPS, b"", accept=table),
                asked("GET", CONFIG_MAPS, b"", accept=PROTOBUF),
                asked("DELETE", CONFIG_MAPS, b""),
            ):
                plain = await application.whole(ask) if ask.method == "GET" else None
                with watching() as dog:
                    assert await _run(application, ask, dog) == 200
                assert dog.longest_s <= STEP_SECONDS_MAX, (ask.method, ask.query[:20], ask.headers, dog.longest)
                assert plain is None or plain.body.count(b"c0000") >= 10
            assert not application.store.count(ConfigMaps.storage_key)
    finally:
        await heavy.close()


@pytest.mark.parametrize("accept", [JSON, YAML, PROTOBUF, f"{JSON};as=Table;v=v1;g=meta.k8s.io", f"{JSON};pretty=1"])
async def test_a_long_list_is_the_same_as_one_made_at_once(accept: str) -> None:
    lists = []
    for heavy in (Heavy(Inline(), heavy_bytes=1 << 30), Heavy(Inline(), heavy_bytes=-1)):
        async with Application(1, heavy) as application:
            context, target = Context(now=NOW, user=ADMIN), Target(resource=ConfigMaps, namespace="default")
            for number in range(1_200):
                document = {"metadata": {"name": f"c{number:05}"}, "data": {"a": "<b>&"}}
                application.registry.create(context, target, Body(document=document), WriteOptions())
            await application.committer.durable(application.store.staged_revision)
            pages = []
            for query in (b"", b"limit=700", b"labelSelector=!x&limit=3", b"fieldSelector=metadata.name!%3Dc00003"):
                answer = await application.whole(asked("GET", CONFIG_MAPS, b"", query=query, accept=accept))
                pages.append((answer.code, answer.body))
            lists.append(pages)
    assert lists[0] == lists[1]
