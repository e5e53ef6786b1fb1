"""Commands, the client library and the page against an API server that lies
(``tests.fakes.hostile_api``).

Bounds are made small here, so that a server reaches them within a second;
``tests/attack/hostile_server.py`` plays the same against the real ones.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result
from tests.fakes import hostile_api
from tests.fakes.hostile_answers import changed, paths_of, replaced
from tests.fakes.hostile_api import BEHAVIOURS, PAYLOAD, TOKEN, HostileApi
from tests.waiting import eventually

from sliceplane.cli.main import main
from sliceplane.client import EndpointView, HttpClient, StatusError, Unreachable
from sliceplane.diagnose.page.io import live, questions
from sliceplane.diagnose.page.io.server import page
from sliceplane.watch import paging
from sliceplane.watch.io import bounds, kubeconfig
from sliceplane.watch.io.connection import KubeconfigError
from sliceplane.watch.io.http import client as http
from sliceplane.watch.io.http import requests

TIMEOUT_S: Final = 1.0
#: where the answer is not given by time: longer than any of these takes on a busy machine
PATIENCE_S: Final = 300.0
#: the processor's time that a command may take, its imports included; how long it waits is a matter
#: of the machine
CPU_S_MAX: Final = 5.0
COMMANDS: Final = {
    "lint": ("lint",),
    "status": ("status",),
    "explain": ("explain", "service", "cart", "-n", "shop"),
    "trace": ("trace", "--from", "node/node-0", "--to", "cart.shop:80"),
    "drift": ("drift",),
    "timeline": ("timeline", "service", "shop/cart"),
    "endpoints": ("endpoints", "audit", "--second-look", "0s"),
    "guard": ("guard", "status"),
}
#: every behaviour meets lint, and one more command in turn
OTHERS: Final = [name for name in COMMANDS if name != "lint"]
RAW: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
WATCHES: Final = (
    "endless-bookmarks",
    "garbage-events",
    "deep-events",
    "other-kinds",
    "gone-for-ever",
    "hangs-up",
    "moves-and-hangs-up",
    "goes-backwards",
    "huge-versions",
    "long-line",
)


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PAGE_BYTES_MAX", 16 << 20)
    monkeypatch.setattr(bounds, "QUESTION_BYTES_MAX", 32 << 20)


def run(api: HostileApi, folder: Path, command: str, timeout_s: float = TIMEOUT_S) -> Result:
    flags = ("--kubeconfig", api.kubeconfig(folder), "--request-timeout", f"{timeout_s:g}s")
    return CliRunner().invoke(main, [*COMMANDS[command], *flags])


def complaints(result: Result, api: HostileApi) -> list[str]:
    """What a command did that it must never do."""
    said = result.output
    problems = {
        f"a traceback: {result.exception!r}": not isinstance(result.exception, SystemExit | None),
        f"exit code {result.exit_code}": result.exit_code not in (0, 1, 2),
        "no word about why there is no answer": result.exit_code == 2 and not said.strip(),
        f"raw control characters: {said!r:.300}": RAW.search(said) is not None,
        f"a line of the server's own: {said!r:.300}": "\nready https://evil" in said,
        "more text than a person reads": len(said) > 100_000,
        "the token on the terminal": TOKEN in said,
        f"another origin was asked: {api.elsewhere!r:.300}": bool(api.elsewhere),
    }
    return [text for text, is_so in problems.items() if is_so]


@pytest.mark.parametrize("name", sorted(set(BEHAVIOURS) - set(WATCHES)))
def test_a_command_answers_or_says_why_not(name: str, tmp_path: Path) -> None:
    for command in ("lint", OTHERS[sorted(BEHAVIOURS).index(name) % len(OTHERS)]):
        with HostileApi(name) as api:
            began = time.thread_time()
            result = run(api, tmp_path, command, TIMEOUT_S / 2)
            assert complaints(result, api) == [], command
            assert time.thread_time() - began < CPU_S_MAX, command


def test_each_command_answers_an_honest_server(tmp_path: Path) -> None:
    with HostileApi("honest") as api:
        codes = {command: run(api, tmp_path, command, PATIENCE_S).exit_code for command in COMMANDS}
    # the guard's condition is in the cluster, and no node tells anything
    assert codes == dict.fromkeys(COMMANDS, 1) | {
        "timeline": 0,
        "trace": 0,
        "endpoints": codes["endpoints"],
    }
    assert codes["endpoints"] in (0, 1)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("endless-pages", "the answers to this question together have more than 33,554,432 bytes"),
        ("endless-body", "the answers? .*ha(s|ve) more than [0-9,]+ bytes"),
        ("promises-an-exabyte", "the answer has more than 16,777,216 bytes"),
        ("gzip-bomb", "more than [0-9,]+ bytes"),
        ("empty-pages", "17 pages in a row have no object"),
        ("repeats-its-token", "two pages have the same continue token"),
        ("huge-token", "the head of the request would have more than 262,144 bytes"),
        ("endless-news", "more than 16 interim answers"),
        ("endless-trailers", "the trailers of the answer are longer than 65536 bytes"),
        (
            "silent",
            r"no complete answer within 1 s; still unanswered: GET /api/v1/services and \d more",
        ),
        ("drips-its-body", "no complete answer within 1 s; still unanswered: GET "),
        ("redirects-elsewhere", "the server answered 307"),
        ("commands-in-names", "is no name of an object"),
    ],
)
def test_the_sentence_names_the_limit(name: str, sentence: str, tmp_path: Path) -> None:
    with HostileApi(name) as api:
        result = run(api, tmp_path, "lint", TIMEOUT_S if "within 1 s" in sentence else PATIENCE_S)
    assert result.exit_code == 2
    assert re.search(sentence, result.output), result.output
    assert api.sent_bytes < 200 << 20, "the client goes on reading"


def test_wrong_types_anywhere_break_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value of another type at some place of every object; places and values by chance, the same
    each time.
    """
    chance = Random(30)
    documents = [
        hostile_api.honest_document(kind)
        for kind in ("Service", "EndpointSlice", "Pod", "Node", "Lease")
    ]
    values: tuple[Any, ...] = (
        None,
        17,
        -(10**30),
        1.5,
        "",
        PAYLOAD,
        [],
        [None],
        {},
        {"a": []},
        True,
    )
    for number in range(24):
        path = chance.choice(list(paths_of(chance.choice(documents))))
        value = chance.choice(values)
        changed(
            "wrong-type", lambda document, path=path, value=value: replaced(document, path, value)
        )
        command = list(COMMANDS)[number % len(COMMANDS)]
        with HostileApi("wrong-type") as api:
            result = run(api, tmp_path, command, PATIENCE_S)
            assert complaints(result, api) == [], f"{command}: {path} is {value!r}"
    monkeypatch.delitem(BEHAVIOURS, "wrong-type")


# The client library


def client_of(api: HostileApi, folder: Path) -> HttpClient:
    return HttpClient(kubeconfig.load(api.kubeconfig(folder)))


@pytest.mark.parametrize(
    "name", ["endless-body", "gzip-bomb", "promises-an-exabyte", "drips-its-body", "large-head"]
)
async def test_the_client_raises_what_it_documents(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 1.0)
    with HostileApi(name) as api:
        async with client_of(api, tmp_path) as client:
            with pytest.raises((StatusError, Unreachable)):
                await client.list(hostile_api.SERVICES)
            with pytest.raises((StatusError, Unreachable)):
                await client.page("/metrics", bytes_max=1 << 20)


async def test_a_stream_has_a_time_for_its_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.2)
    with HostileApi("silent") as api:
        async with client_of(api, tmp_path) as client, asyncio.timeout(PATIENCE_S):
            with pytest.raises(Unreachable, match="timed out"):
                async with client.watch(hostile_api.SERVICES, resource_version="1"):
                    pass


def test_connections_that_are_accepted_while_the_server_of_tests_ends_are_closed() -> None:
    """On a busy machine clients come back just then; a socket that nobody closes fails whichever
    test runs.
    """
    with ExitStack() as clients, HostileApi("honest") as api:

        def connect() -> None:
            for port in (api.port, api.elsewhere_port) * 3:
                clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            api._loop.call_soon(api._ended.set)  # in the turn in which they are accepted

        api._loop.call_soon_threadsafe(connect)
        api._thread.join()
    gc.collect()


async def test_a_view_keeps_its_endpoints_and_asks_seldom(tmp_path: Path) -> None:
    """Whatever a watch says: its endpoints stay those of the first list, and requests are few."""

    async def follow(name: str) -> tuple[int, int, float]:
        with HostileApi(name) as api:
            async with (
                client_of(api, tmp_path) as client,
                EndpointView(client, "cart", "shop") as view,
            ):
                await view.wait_ready(PATIENCE_S, count=3)
                before = len(api.requests)
                lost = 0
                for _ in range(40):
                    lost += len(view.usable) < 3
                    await asyncio.sleep(0.05)
                return lost, len(api.requests) - before, view.staleness()

    results = dict(zip(WATCHES, await asyncio.gather(*map(follow, WATCHES)), strict=True))
    assert {name: lost for name, (lost, _, _) in results.items() if lost} == {}
    assert {name: requests for name, (_, requests, _) in results.items() if requests > 10} == {}


async def test_a_view_takes_no_more_objects_than_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sliceplane.consume.io.client.informer.CACHE_BYTES_MAX", 4 << 20)
    with HostileApi("endless-objects") as api:
        async with client_of(api, tmp_path) as client, EndpointView(client, "cart", "shop") as view:
            await view.wait_ready(PATIENCE_S, count=3)
            await eventually(lambda: view.last_error)
            assert "more than 4,194,304 bytes" in str(view.last_error)
            assert len(view._informer) * 65536 <= 4 << 20
            assert len(view.usable) == 3


def test_a_cache_is_charged_for_what_it_has() -> None:
    size = paging.CacheSize(3 * (paging.OBJECT_BYTES + 100))
    for key in "abc":
        size.on_event("ADDED", key, 100)
    with pytest.raises(paging.BadList):
        size.on_event("ADDED", "d", 100)
    size.on_event("MODIFIED", "a", 90)
    with pytest.raises(paging.BadList):
        size.on_event("MODIFIED", "a", 101)
    size.on_event("DELETED", "b", 100)
    size.on_event("ADDED", "d", 110)
    size.bounds_of_list()
    size.on_page(["x"], [b"1"])
    size.on_list()
    assert size.total == paging.OBJECT_BYTES + 1


def test_a_list_has_an_end() -> None:
    whole = paging.ListBounds(10 * (paging.OBJECT_BYTES + 1))
    for number in range(10):
        whole.on_page((b"x",), str(number))
    with pytest.raises(paging.BadList, match="more than"):
        whole.on_page((b"x",), "")
    again = paging.ListBounds()
    again.on_page((b"x",), "a")
    with pytest.raises(paging.BadList, match="same continue token"):
        again.on_page((b"x",), "a")


# The page


async def test_the_page_comes_up_and_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "START_S", 0.3)
    monkeypatch.setattr(questions, "TIMEOUT_S", 0.3)

    async def what_if(*_: object) -> Any:
        raise AssertionError("nobody asks")

    with HostileApi("endless-small-pages") as api:
        connection = kubeconfig.load(api.kubeconfig(tmp_path))
        async with asyncio.timeout(PATIENCE_S), page(connection, "", 0, what_if) as made:
            answered = await made.viewer.questions.compute(("lint",))
            assert "no complete answer within 0.3 s" in answered.problem
            began = time.thread_time()
            assert made.viewer.new_heartbeat()
            assert time.thread_time() - began < 1.0


# Kubeconfigs


@pytest.mark.parametrize(
    "server", ["https://[", "https://h:99999", "https://h\x1b[31m", "https://", "http://a b"]
)
def test_a_server_that_is_no_url_is_refused(server: str, tmp_path: Path) -> None:
    with HostileApi("honest") as api, pytest.raises(KubeconfigError):
        kubeconfig.load(api.kubeconfig(tmp_path, server=server))


def test_files_that_a_kubeconfig_names_are_read_with_bounds(tmp_path: Path) -> None:
    """A device without an end, and a pipe without a writer: by the one reader of files."""
    os.mkfifo(tmp_path / "fifo")
    for name, why in (
        ("/dev/zero", "Is a device"),
        (str(tmp_path / "fifo"), "is a pipe that no program writes to"),
    ):
        path = HostileApi("honest").kubeconfig(
            tmp_path, server="https://h", **{"certificate-authority": name}
        )
        with pytest.raises(KubeconfigError, match=why):
            kubeconfig.load(path)
