"""No step on the loop is longer than 50 ms: over the fuzz corpus, and for bodies up to the limit
made to be long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fuzz.application import ADMIN, NOW, Answer, Application, Ask
from tests.fuzz.cases import run_case
from tests.fuzz.heavy_bodies import (
    BODIES,
    CONFIG_MAPS,
    ENDPOINTS,
    MERGE,
    _addresses,
    _object,
    asked,
)
from tests.fuzz.requests import JSON, PROTOBUF, YAML
from tests.fuzz.watchdog import Watchdog, watching

from sliceplane.api.scheme import ConfigMaps
from sliceplane.server.io.offload.pool import Inline
from sliceplane.server.io.offload.service import OffloadService
from sliceplane.server.registry.types import Body, Context, Target, WriteOptions

CASES = 8
TRIES = 3
#: a body of each encoding, verb and outcome; ``make soak`` tries the others, too
_EACH_TIME = (
    "an error at the end",
    "many keys",
    "yaml of aliases",
    "protobuf of keys",
    "a json patch",
    "a merge patch",
    "an apply of json",
    "options of a delete",
    "a question",
)
_OTHERS = tuple(name for name in BODIES if name not in _EACH_TIME)
_MANY = 12_000
_SELECTOR = b"labelSelector=" + b",".join(b"!k%d" % number for number in range(9_000))
_TABLE = f"{JSON};as=Table;v=v1;g=meta.k8s.io"


async def _run(application: Application, ask: Ask, dog: Watchdog) -> Answer:
    """The answer, asked as a task of its own so that the dog sees it."""
    task = asyncio.ensure_future(application.whole(ask))
    beating = asyncio.ensure_future(dog.beat())
    answer = await task
    beating.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await beating
    return answer


@asynccontextmanager
async def workers() -> AsyncIterator[OffloadService]:
    heavy = OffloadService()
    try:
        yield heavy
    finally:
        await heavy.close()


async def test_no_step_is_long_over_the_fuzz_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    """The first round is not measured: modules are loaded and schemas compiled when they are first
    used.
    """
    for number in range(1 + TRIES):
        with watching() as dog:
            for case in range(CASES):
                await run_case(case)
        if number and dog.content:
            break
    with capsys.disabled():
        collected = f"longest collection {dog.collected_s * 1000:.0f} ms"
        print(f"\nlongest of {dog.steps} steps: {dog.longest_s * 1000:.1f} ms; {collected}")
    assert dog.content, dog.longest


async def _work_on(name: str, heavy: OffloadService) -> tuple[Watchdog, int]:
    for _ in range(TRIES):
        async with Application(1, heavy) as application:
            await application.ask(
                asked("POST", CONFIG_MAPS, b'{"metadata":{"name":"small"},"data":{"a":"b"}}')
            )
            await application.ask(asked("POST", ENDPOINTS, b'{"metadata":{"name":"small"}}'))
            with watching() as dog:
                answer = await _run(application, BODIES[name](), dog)
        if dog.content:
            break
    return dog, answer.code


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(_EACH_TIME[::2], id="some"),
        pytest.param(_EACH_TIME[1::2], id="more"),
        pytest.param(_OTHERS, id="others", marks=pytest.mark.slow),
    ],
)
async def test_no_step_is_long_for_a_body_up_to_the_limit(
    names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    async with workers() as heavy:
        for name in names:
            requests = heavy.requests.value
            dog, code = await _work_on(name, heavy)
            longest_ms, waited_ms = dog.longest_s * 1000, dog.waited_s * 1000
            with capsys.disabled():
                print(
                    f"\n{name}: {code}, longest step {longest_ms:.1f} ms, a bystander waited "
                    f"{waited_ms:.0f} ms"
                )
            assert dog.content, f"{name}: {longest_ms:.1f} ms: {dog.longest}"
            assert heavy.requests.value > requests, f"{name} was worked on in the loop"


async def test_no_step_is_long_for_a_small_request_to_a_large_object() -> None:
    """A label, a read and a removal: what is stored is what costs."""
    async with workers() as heavy:
        # An address takes ten times as long in YAML.
        for accept, addresses in ((JSON, 30_000), (YAML, 8_000), (PROTOBUF, 30_000)):
            large = _object("Endpoints", subsets=_addresses(addresses))
            for _ in range(TRIES):
                async with Application(1, heavy) as application:
                    await application.whole(asked("POST", ENDPOINTS, large))
                    with watching() as dog:
                        for ask in (
                            asked(
                                "PATCH",
                                f"{ENDPOINTS}/big",
                                b'{"metadata":{"labels":{"a":"b"}}}',
                                MERGE,
                                accept=accept,
                            ),
                            asked("GET", f"{ENDPOINTS}/big", b"", accept=accept),
                            asked("GET", ENDPOINTS, b"", accept=accept),
                            asked("DELETE", f"{ENDPOINTS}/big", b"", accept=accept),
                        ):
                            assert (await _run(application, ask, dog)).code == 200
                if dog.content:
                    break
            assert dog.content, (accept, dog.longest_s, dog.longest)


async def _create_many(application: Application, count: int, **members: Any) -> None:
    context, target = Context(now=NOW, user=ADMIN), Target(resource=ConfigMaps, namespace="default")
    for number in range(count):
        document = {"metadata": {"name": f"c{number:05}", "labels": {"app": "web"}}, **members}
        application.registry.create(context, target, Body(document=document), WriteOptions())
    await application.committer.durable(application.store.staged_revision)


async def test_no_step_is_long_for_a_collection_of_any_length() -> None:
    """Lists in each form, with a selector of thousands of terms, and the removal of all."""
    async with workers() as heavy, Application(1, heavy) as application:
        await _create_many(application, _MANY, data={"a": "b"})
        for ask in (
            asked("GET", CONFIG_MAPS, b""),
            asked("GET", CONFIG_MAPS, b"", query=_SELECTOR),
            asked("GET", CONFIG_MAPS, b"", accept=_TABLE),
            asked("GET", CONFIG_MAPS, b"", accept=PROTOBUF),
            asked("DELETE", CONFIG_MAPS, b""),
        ):
            for _ in range(TRIES):
                with watching() as dog:
                    answer = await _run(application, ask, dog)
                assert answer.code == 200
                assert ask.method == "DELETE" or answer.body.count(b"c0000") >= 10
                if dog.content:
                    break
                if ask.method == "DELETE":
                    await _create_many(application, _MANY, data={"a": "b"})
            assert dog.content, (
                ask.method,
                ask.query[:20],
                ask.headers,
                dog.longest_s,
                dog.longest,
            )
        assert not application.store.count(ConfigMaps.storage_key)


async def test_a_long_list_is_the_same_as_one_made_at_once() -> None:
    lists = []
    for heavy in (
        OffloadService(Inline(), offload_bytes=1 << 30),
        OffloadService(Inline(), offload_bytes=-1),
    ):
        async with Application(1, heavy) as application:
            await _create_many(application, 1_200, data={"a": "<b>&"})
            pages = {}
            for accept in (JSON, YAML, PROTOBUF, _TABLE, f"{JSON};pretty=1"):
                for query in (
                    b"",
                    b"limit=700",
                    b"labelSelector=!x&limit=3",
                    b"fieldSelector=metadata.name!%3Dc00003",
                ):
                    answer = await application.whole(
                        asked("GET", CONFIG_MAPS, b"", query=query, accept=accept)
                    )
                    pages[accept, query] = (answer.code, answer.body)
            lists.append(pages)
    at_once, in_portions = lists
    for page, answered in at_once.items():
        assert answered == in_portions[page], page
