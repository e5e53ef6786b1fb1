"""The limits that a client keeps to, what it sends again, and through which proxy."""

from __future__ import annotations

import asyncio
import time

import pytest
from msgspec.structs import replace
from tests.watch.transport.test_http_faults import reply, serving

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import ConfigMaps
from sliceplane.kit.delays import TokenBucket
from sliceplane.kit.metrics import Distribution
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.http.replies import NO_RETRIES, RETRY_S, Retries

ONCE_MORE = Retries(1)


def again(client: HttpClient, **options: object) -> HttpClient:
    """The same connection with other manners."""
    return HttpClient(client._connection, **options)  # type: ignore[arg-type]


async def answers(
    *codes: tuple[int, str], body: bytes = b"{}", method: str = "GET"
) -> tuple[list[bytes], object]:
    """One request to a server that gives these codes and Retry-After values in turn: what it saw,
    what came of it.
    """
    heads: list[bytes] = []
    waiting = list(codes)

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        code, after = waiting.pop(0) if waiting else (200, "")
        writer.write(
            reply(code, body, *([f"Retry-After: {after}"] if after else [])) if code else b""
        )

    async with serving(answer) as plain:
        client = again(plain, retries=Retries(2))
        try:
            call = (
                client.get(ConfigMaps, "ns", "a")
                if method == "GET"
                else client.create(ConfigMaps, "ns", b"{}")
            )
            return heads, await call
        except (StatusError, Unreachable) as error:
            return heads, error
        finally:
            await client.close()


@pytest.mark.parametrize(
    ("method", "code", "after", "requests"),
    [
        ("GET", 429, "0", 2),
        ("POST", 429, "0", 2),
        ("GET", 503, "0", 2),
        # the server says that it has not begun
        ("POST", 503, "0", 2),
        # who knows: it may be a gateway that has passed it on
        ("POST", 503, "", 1),
        ("POST", 500, "0", 1),
        ("GET", 504, "0", 1),
        # longer than is waited here
        ("GET", 429, "3600", 1),
        ("GET", 429, "Wed, 21 Oct 2026 07:28:00 GMT", 1),
    ],
)
async def test_what_is_sent_again(method: str, code: int, after: str, requests: int) -> None:
    heads, came = await answers((code, after), method=method)
    assert len(heads) == requests
    assert isinstance(came, StatusError) is (requests == 1)


async def test_a_write_without_an_answer_is_never_sent_again() -> None:
    """It may have happened; who wrote reads the object and finds out."""
    heads, came = await answers((0, ""), method="POST")
    assert len(heads) == 1
    assert isinstance(came, Unreachable)


async def test_retries_end() -> None:
    heads, came = await answers(*[(429, "0")] * 9)
    assert len(heads) == 3
    assert isinstance(came, StatusError)
    assert came.code == 429


def test_waits_are_what_the_server_asks_for_and_a_little_more() -> None:
    waits = [Retries(9).wait_s("GET", 429, "3", 0) or 0.0 for _ in range(50)]
    assert all(3.0 <= each <= 3.6 for each in waits)
    assert len(set(waits)) > 40
    growing = [Retries(9).wait_s("GET", 429, "", attempt) or 0.0 for attempt in range(4)]
    assert all(RETRY_S * 2**n <= each <= RETRY_S * 2**n * 1.3 for n, each in enumerate(growing))
    assert NO_RETRIES.wait_s("GET", 429, "0", 0) is None


async def test_requests_keep_to_the_limit_and_say_how_long_they_waited() -> None:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(200, b"{}"))

    async with serving(answer) as plain:
        client = again(plain, limit=TokenBucket(rate_per_s=50.0, burst=5))
        began = time.monotonic()
        await asyncio.gather(*(client.get(ConfigMaps, "ns", "a") for _ in range(15)))
        assert time.monotonic() - began >= 0.19, "5 at once and 10 at 50 a second"
        families = {family.name: family.samples for family in client.metrics.families()}
        ((sample,), (waited,)) = (
            families["rest_client_requests_total"],
            families["rest_client_rate_limiter_duration_seconds"],
        )
        assert (sample.labels[:2], sample.value) == (("200", "GET"), 15)
        assert isinstance(waited.value, Distribution)
        assert sum(waited.value.counts) == 15
        await client.close()


async def test_a_proxy_gets_the_request() -> None:
    heads: list[bytes] = []

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        writer.write(reply(200, b"{}"))

    async with serving(answer) as proxy:
        connection = replace(proxy._connection, server="http://api.invalid", proxy=proxy.server)
        client = HttpClient(connection)
        await client.get(ConfigMaps, "ns", "a")
        await client.close()
    assert heads[0].startswith(b"GET http://api.invalid/api/v1/namespaces/ns/configmaps/a HTTP/1.1")


async def test_a_read_only_client_sends_nothing_else() -> None:
    heads: list[bytes] = []

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        writer.write(reply(200, b"{}"))

    async with serving(answer) as plain:
        client = again(plain, read_only=True)
        with pytest.raises(StatusError, match="only reads"):
            await client.create(ConfigMaps, "ns", b"{}")
        await client.get(ConfigMaps, "ns", "a")
        await client.close()
    assert [head.split()[0] for head in heads] == [b"GET"]
