"""Health and metrics ports under abuse: each connection costs little, and who asks at once is
answered.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import uvloop
from aiohttp import web
from tests.ports import free_port
from tests.waiting import eventually

from sliceplane.consume.model import ServiceKey
from sliceplane.kit.io import door
from sliceplane.kit.io.door import Door, GuardedPort
from sliceplane.kit.io.interfaces import addresses_of
from sliceplane.kit.io.pages import Page, serve_pages
from sliceplane.kit.io.process import descriptors
from sliceplane.node.io.kernel.backend import KernelError
from sliceplane.node.io.kernel.conntrack import Conntrack, ConntrackError
from sliceplane.node.io.kernel.netns import within
from sliceplane.node.io.kernel.program import KernelProgram
from sliceplane.node.io.side_effects import ServiceHealth
from sliceplane.node.post_sync import HealthCheck

Open = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest_asyncio.fixture
async def served(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Door, int]]:
    """Parametrised with the bounds of the door."""
    guard = Door(**getattr(request, "param", {}))

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(body=b"x" * int(request.query.get("bytes", "2")))

    port = GuardedPort(answer, guard)
    yield guard, await port.listen_at("127.0.0.1", 0)
    await port.close()
    await eventually(lambda: len(guard), lambda held: held == 0)
    guard.check()
    assert len(guard) == 0


async def asked(port: int) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/") as response,
    ):
        return response.status


async def closed_within(connection: Open, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            while await connection[0].read(65536):
                pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    finally:
        connection[1].transport.abort()
    return True


@pytest.mark.parametrize("served", [{"head_s": 0.2}], indirect=True)
async def test_silent_connections_are_closed(served: tuple[Door, int]) -> None:
    guard, port = served
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
    assert all(await asyncio.gather(*(closed_within(each, 60) for each in held)))
    assert list(guard.cut.read()) == [(("head",), 5)]


@pytest.mark.parametrize("served", [{"head_s": 0.5}], indirect=True)
async def test_a_head_drop_by_drop_does_not_move_its_end(served: tuple[Door, int]) -> None:
    _, port = served
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\n")

    async def drip() -> None:
        while True:
            writer.write(b"a: b\r\n")
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    assert await closed_within((reader, writer), 60)
    dripping.cancel()


@pytest.mark.parametrize("served", [{"lifetime_s": 0.5}], indirect=True)
async def test_who_never_reads_its_answer_is_cut_off(served: tuple[Door, int]) -> None:
    guard, port = served
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(b"GET /?bytes=50000000 HTTP/1.1\r\nHost: x\r\n\r\n")
    await eventually(lambda: guard.cut.of("life").value)
    writer.transport.abort()


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"",
    ],
)
async def test_nobody_sends_without_end(served: tuple[Door, int], head: bytes) -> None:
    _, port = served
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    flood = (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 100 if not head else b"a: " + b"b" * 1000 + b"\r\n"
    )

    async def send() -> None:
        for _ in range(50 * door.BYTES_MAX // len(flood)):
            writer.write(flood)
            await writer.drain()
            await asyncio.sleep(0)

    with pytest.raises(ConnectionError):
        await send()
    assert await closed_within((reader, writer), 60)


async def test_a_connection_is_one_question(served: tuple[Door, int]) -> None:
    _, port = served
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
    async with asyncio.timeout(60):
        said = await reader.read(-1)
    assert said.count(b"HTTP/1.1 200") == 1
    assert b"Connection: close" in said
    writer.transport.abort()


async def test_a_probe_is_answered_however_many_are_silent(
    served: tuple[Door, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, port = served
    monkeypatch.setattr(door, "CONNECTIONS_MAX", 20)
    held = []
    for _ in range(60):
        held.append(await asyncio.open_connection("127.0.0.1", port))
        if len(held) % 10 == 0:
            assert await asked(port) == 200
    assert len(guard) <= 20
    assert guard.cut.of("connections").value >= 40
    for _, writer in held:
        writer.transport.abort()
    families = {family.name: family for family in guard.metrics.families()}
    assert (
        families["sliceplane_pages_cut_connections_total"].samples[0].value
        == guard.cut.of("connections").value
    )


async def test_few_descriptors_mean_few_connections(
    served: tuple[Door, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, port = served
    monkeypatch.setattr(descriptors, "limit", lambda: 128)
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
    assert await asked(port) == 200
    assert len(guard) <= 16
    for _, writer in held:
        writer.transport.abort()


@pytest.mark.looptime  # a question on a busy machine is not taken for silence
async def test_service_health_ports_are_guarded_too() -> None:
    health, port = ServiceHealth("IPv4", lambda: True, port_door=Door(head_s=0.2)), free_port()
    await health.update({ServiceKey("ns", "svc"): HealthCheck(port, 1)}, ("127.0.0.1",))
    assert await closed_within(await asyncio.open_connection("127.0.0.1", port), 60)
    assert await asked(port) == 200
    await health.close()


async def test_services_cannot_take_all_descriptors_for_their_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(descriptors, "limit", lambda: 16)
    told: list[tuple[ServiceKey, str]] = []
    health = ServiceHealth("IPv4", lambda: True, lambda key, why: told.append((key, why)))
    checks = {ServiceKey("ns", f"s{number}"): HealthCheck(free_port(), 1) for number in range(6)}
    await health.update(checks, ("127.0.0.1",))
    answers = [await asked(check.port) for check in list(checks.values())[:4]]
    assert answers == [200] * 4
    assert [(key.name, "Too many open files" in why) for key, why in told] == [
        ("s4", True),
        ("s5", True),
    ]
    await health.update(
        {key: check for key, check in checks.items() if key.name in ("s4", "s5")}, ("127.0.0.1",)
    )
    assert [await asked(check.port) for check in list(checks.values())[4:]] == [200, 200], (
        "there is room now"
    )
    await health.close()


def test_pages_of_a_plane_are_guarded_on_its_loop_too() -> None:
    pages = {"/healthz": lambda: Page(b"{}", content_type="application/json")}

    async def main() -> list[Any]:
        async with (
            asyncio.timeout(60),
            serve_pages(pages, "::1", 0, Door(head_s=1.0)) as port,
        ):
            silent = await closed_within(await asyncio.open_connection("::1", port), 60)
            async with aiohttp.ClientSession() as session:
                found = []
                for method, path in (
                    ("GET", "/healthz"),
                    ("HEAD", "/healthz"),
                    ("POST", "/healthz"),
                    ("GET", "/x"),
                ):
                    async with session.request(method, f"http://[::1]:{port}{path}") as response:
                        found.append(response.status)
                async with session.get(f"http://[::1]:{port}/healthz") as response:
                    return [silent, *found, json.loads(await response.read())]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == [True, 200, 200, 405, 404, {}]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC])
async def test_a_program_that_cannot_be_started_is_a_sentence(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise OSError(code, os.strerror(code))

    programs = KernelProgram(netns="", timeout_s=5, package="p", rules="r")
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", refuse)
        with pytest.raises(KernelError, match=os.strerror(code)) as caught:
            await programs.run("true")
        assert caught.value.reason == "resources"
    with monkeypatch.context() as patch:
        patch.setattr("subprocess.Popen.__init__", refuse)
        patch.setattr("subprocess.Popen.__del__", lambda _: None)
        with pytest.raises(KernelError, match=os.strerror(code)):
            await programs.run("true")
        with pytest.raises(ConntrackError, match=os.strerror(code)):
            async with Conntrack(program="true")._running():
                pass
    assert await programs.run("true") == "", "it works again"


async def test_no_more_threads_is_an_error_that_callers_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            await within("x", lambda: 1)


def test_exhaustion_is_told_once_a_minute_with_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    reporter = descriptors._ExhaustionReporter()
    for _ in range(50):
        assert reporter.report(OSError(errno.EMFILE, "x"), "accept")
    assert not reporter.report(OSError(errno.ECONNRESET, "x"), "accept")
    assert not reporter.report(ValueError(), "accept")
    now += 61
    assert reporter.report(OSError(errno.EMFILE, "x"), "accept")
    said = capsys.readouterr().err
    assert said.count("out of file descriptors") == 2
    assert "LimitNOFILE" in said


@pytest.mark.parametrize("netns", ["", "x"])
async def test_addresses_that_cannot_be_asked_for_are_not_none_at_all(
    netns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules of node ports must not go because there was no descriptor to ask with."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("sliceplane.kit.io.interfaces.socket.socket", refuse)
    monkeypatch.setattr("sliceplane.kit.io.interfaces.asyncio.create_subprocess_exec", refuse)
    assert await addresses_of(netns) is None
