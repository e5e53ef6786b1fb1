"""What ``HostileApi`` answers: one behaviour a function, registered under its name in
``BEHAVIOURS``.

Behaviours of lists are honest to all else, and those of watches to all but these.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.fakes.hostile_api import (
    BEHAVIOURS,
    PAYLOAD,
    WATCH_HEAD,
    Behaviour,
    Exchange,
    behaviour,
    honest,
)

CHUNK_BYTES: Final = 256 * 1024
#: pause between two bytes, lines or events of a slow answer
DRIP_S: Final = 0.02


# Where the client is led


@behaviour
async def redirects_elsewhere(exchange: Exchange) -> None:
    await exchange.reply(
        307, b"", f"Location: http://127.0.0.1:{exchange.api.elsewhere_port}{exchange.target}"
    )


@behaviour
async def redirects_to_a_file(exchange: Exchange) -> None:
    await exchange.reply(302, b"", "Location: file:///etc/passwd")


# How much there is


def only_lists(answer: Behaviour) -> Behaviour:
    """A behaviour of lists alone; everything else is honest."""

    async def chosen(exchange: Exchange) -> None:
        await (answer if exchange.is_list else honest)(exchange)

    chosen.__name__ = answer.__name__
    return chosen


@behaviour
@only_lists
async def endless_pages(exchange: Exchange) -> None:
    """Objects of 64 KiB, with names that no page had before."""
    number = int(exchange.query.get("continue", "0")) + 1
    items = [
        {
            "metadata": {
                "name": f"n{number}-{at}",
                "namespace": "shop",
                "annotations": {"a": "x" * 65536},
            }
        }
        for at in range(100)
    ]
    await exchange.list_of(items, **{"continue": str(number)})


@behaviour
@only_lists
async def endless_small_pages(exchange: Exchange) -> None:
    number = int(exchange.query.get("continue", "0")) + 1
    items = [{"metadata": {"name": f"n{number}-{at}"}} for at in range(20000)]
    await exchange.list_of(items, **{"continue": str(number)})


@behaviour
@only_lists
async def empty_pages(exchange: Exchange) -> None:
    await exchange.list_of([], **{"continue": str(int(exchange.query.get("continue", "0")) + 1)})


@behaviour
@only_lists
async def repeats_its_token(exchange: Exchange) -> None:
    await exchange.list_of(exchange.documents(), **{"continue": "again"})


@behaviour
@only_lists
async def huge_token(exchange: Exchange) -> None:
    await exchange.list_of(exchange.documents(), **{"continue": "x" * (1 << 20)})


@behaviour
async def endless_body(exchange: Exchange) -> None:
    await exchange.send(WATCH_HEAD)
    await exchange.chunk(b'{"metadata":{"resourceVersion":"1"},"items":[')
    item = b'{"metadata":{"name":"a","annotations":{"a":"' + b"x" * CHUNK_BYTES + b'"}}},'
    while True:
        await exchange.chunk(item)


@behaviour
async def promises_an_exabyte(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1152921504606846976\r\n\r\n")
    while True:
        await exchange.send(b" " * CHUNK_BYTES)


@behaviour
async def tiny_chunks(exchange: Exchange) -> None:
    await exchange.send(WATCH_HEAD)
    while True:
        await exchange.send(b"1\r\n \r\n" * 40000)


@behaviour
async def gzip_bomb(exchange: Exchange) -> None:
    await exchange.reply(200, _bomb(), "Content-Encoding: gzip")


_bombs: list[bytes] = []


def _bomb() -> bytes:
    """8 GiB of blanks in 8 MiB.  After a full flush equal input makes equal output, so one block is
    compressed.
    """
    if not _bombs:
        zipper = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        first, block = (
            zipper.compress(b" " * (1 << 20)) + zipper.flush(zlib.Z_FULL_FLUSH) for _ in range(2)
        )
        _bombs.append(first + block * (8 << 10))
    return _bombs[0]


@behaviour
@only_lists
async def crowded_lists(exchange: Exchange) -> None:
    """Of one object there are hundreds of thousands."""
    items = b",".join([b"{}"] * 500_000)
    await exchange.reply(200, b'{"metadata":{"resourceVersion":"1000"},"items":[' + items + b"]}")


# What cannot be read


def bodies(name: str, body: bytes) -> None:
    """A behaviour that answers every request with *body*, a watch with *body* as its one line."""

    async def answer(exchange: Exchange) -> None:
        if exchange.is_watch:
            await exchange.send(WATCH_HEAD)
            await exchange.chunk(b'{"type":"ADDED","object":' + body.replace(b"\n", b" ") + b"}\n")
            await asyncio.sleep(3600)
        await exchange.reply(200, body)

    BEHAVIOURS[name] = answer


_PREFIX = b'{"metadata":{"resourceVersion":"1000"},"items":[{"metadata":{"name":"cart","namespace":"shop"},"spec":'
bodies("deep-objects", _PREFIX + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}]}")
bodies("deep-enough", _PREFIX + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}]}")
bodies("deep-lists", b"[" * 100_000 + b"]" * 100_000)
bodies("huge-integers", _PREFIX + b'{"ports":[{"port":' + b"9" * 6000 + b"}]}}]}")
bodies("not-a-number", _PREFIX + b'{"ports":[{"port":NaN}]}}]}')
bodies("duplicate-keys", _PREFIX + b'{"clusterIP":"1","clusterIP":{}}}],"items":null}')
bodies("invalid-utf-8", _PREFIX + b'{"type":"\xff\xfe","clusterIP":"\xed\xa0\x80"}}]}')
bodies("lone-surrogates", _PREFIX + b'{"type":"\\ud800"}}]}')
bodies("null-items", b'{"metadata":{"resourceVersion":"1000"},"items":null}')
bodies("items-of-nulls", b'{"metadata":{"resourceVersion":"1000"},"items":[null,null]}')
bodies(
    "no-metadata",
    b'{"metadata":{"resourceVersion":"1000"},"items":[{},{"metadata":null},{"metadata":{"name":null}}]}',
)
bodies("no-version", b'{"items":[]}')
bodies("no-json", b"<html>welcome</html>")
bodies("nothing", b"")
bodies("a-number", b"17")


def changed(name: str, change: Callable[[Any], Any]) -> None:
    """A behaviour in which *change* is made to every honest document."""

    async def answer(exchange: Exchange) -> None:
        if exchange.resource is None or exchange.method != "GET":
            await honest(exchange)
        elif exchange.is_watch:
            await exchange.send(WATCH_HEAD)
            for document in exchange.documents():
                await exchange.event("ADDED", change(document))
            await asyncio.sleep(3600)
        else:
            items = [change(document) for document in exchange.documents()]
            if exchange.name:
                await exchange.reply(200, (items or [{}])[0])
            await exchange.list_of(items)

    BEHAVIOURS[name] = answer


def with_leaves(value: Any, change: Callable[[str, str], Any], inside: str = "") -> Any:
    """*value* with every string replaced; *change* is given the name of its member, too."""
    if isinstance(value, dict):
        return {key: with_leaves(member, change, key) for key, member in value.items()}
    if isinstance(value, list):
        return [with_leaves(member, change, inside) for member in value]
    return change(value, inside) if isinstance(value, str) else value


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every member of a document, the inner ones, too."""
    if path:
        yield path
    members = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, member in members:
        yield from paths_of(member, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    """A copy of *value* with *by* at *path*, where *value* has that."""
    if not path:
        return by
    step, *rest = path
    if isinstance(value, dict) and step in value:
        return {**value, step: replaced(value[step], tuple(rest), by)}
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return [*value[:step], replaced(value[step], tuple(rest), by), *value[step + 1 :]]
    return value


changed("escapes", lambda document: with_leaves(document, lambda text, _: text + PAYLOAD))
#: members that readers show and do not interpret
_SHOWN: Final = frozenset(
    (
        "message",
        "reason",
        "nodeName",
        "zone",
        "image",
        "manager",
        "holderIdentity",
        "renewTime",
        "key",
        "since",
    )
)
changed(
    "escapes-where-it-is-shown",
    lambda document: with_leaves(
        document, lambda text, inside: text + PAYLOAD if inside in _SHOWN else text
    ),
)
changed(
    "escapes-in-names", lambda document: replaced(document, ("metadata", "name"), f"cart{PAYLOAD}")
)
changed(
    "commands-in-names",
    lambda document: replaced(document, ("metadata", "name"), "cart; touch /tmp/x #"),
)
changed(
    "garbage-strings", lambda document: with_leaves(document, lambda text, _: "\u00b2-?" + text)
)
changed("empty-strings", lambda document: with_leaves(document, lambda text, _: ""))
changed(
    "huge-version", lambda document: replaced(document, ("metadata", "resourceVersion"), "9" * 6000)
)
changed(
    "no-number-version",
    lambda document: replaced(document, ("metadata", "resourceVersion"), "../../?a=b&c"),
)
changed(
    "annotations-of-lists",
    lambda document: {**document, "metadata": {**document["metadata"], "annotations": []}},
)
changed(
    "labels-of-numbers",
    lambda document: {**document, "metadata": {**document["metadata"], "labels": {"a": 1}}},
)
for _number, _text in enumerate(
    ("yesterday", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "2026-01-01T00:00:00")
):
    changed(
        f"times-{_number}",
        lambda document, text=_text: with_leaves(
            document, lambda leaf, _: text if leaf[4:5] == "-" else leaf
        ),
    )


def _with_ports(document: Any) -> Any:
    ports = [{"name": f"p{number}", "port": 80} for number in range(30_000)]
    return replaced(document, ("spec", "ports"), ports)


changed("many-ports", _with_ports)


def writes(name: str, body: bytes) -> None:
    """A behaviour that is honest to reads, and answers every write with *body*."""

    async def answer(exchange: Exchange) -> None:
        if exchange.method in ("POST", "PUT", "PATCH", "DELETE"):
            await exchange.reply(200, body)
        else:
            await honest(exchange)

    BEHAVIOURS[name] = answer


writes(
    "answers-with-another-object",
    b'{"metadata":{"name":"agent-vm-2","namespace":"shop","resourceVersion":"7"}}',
)
writes("answers-writes-with-garbage", b"[1]")


@behaviour
async def says_it_in_a_status(exchange: Exchange) -> None:
    await exchange.status(500, PAYLOAD * 3, reason=PAYLOAD)


@behaviour
async def lies_in_a_status(exchange: Exchange) -> None:
    body = b'{"kind":"Status","status":{"a":1},"code":1e300,"details":{"retryAfterSeconds":-1000000000},"message":["m"]}'  # noqa: E501
    await exchange.reply(500, body)


@behaviour
async def endless_status(exchange: Exchange) -> None:
    await exchange.status(500, "x" * (12 << 20))


@behaviour
async def lies_about_its_version(exchange: Exchange) -> None:
    if exchange.target.startswith("/version"):
        await exchange.reply(200, {"major": 10**9, "minor": PAYLOAD, "gitVersion": ["v", 10**30]})
    elif exchange.target.startswith(("/readyz", "/metrics")):
        await exchange.reply(
            200, (PAYLOAD + ' 1e999\nup{a="' + "9" * 6000 + "\n").encode("utf-8", "replace")
        )
    else:
        await honest(exchange)


# How slow it is


@behaviour
async def silent(exchange: Exchange) -> None:
    await asyncio.sleep(3600)


@behaviour
async def drips_its_body(exchange: Exchange) -> None:
    await exchange.send(WATCH_HEAD)
    while True:
        await exchange.chunk(b" ")
        await asyncio.sleep(DRIP_S)


@behaviour
async def drips_its_head(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while True:
        await exchange.send(b"x")
        await asyncio.sleep(DRIP_S)


@behaviour
async def large_head(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        await exchange.send(b"X-Field: " + b"x" * 4096 + b"\r\n")


@behaviour
async def endless_news(exchange: Exchange) -> None:
    while True:
        await exchange.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 100)


@behaviour
async def endless_trailers(exchange: Exchange) -> None:
    await exchange.send(WATCH_HEAD)
    await exchange.chunk(b"{}")
    await exchange.send(b"0\r\n")
    while True:
        await exchange.send(b"X-Trailer: 1\r\n" * 1000)


def throttled(name: str, retry_after: str) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.status(
            429, "come back", f"Retry-After: {retry_after}", details={"retryAfterSeconds": 10**18}
        )

    BEHAVIOURS[name] = answer


throttled("come-back-in-an-age", "1000000000")
throttled("come-back-yesterday", "-5")
throttled("come-back-in-digits", "9" * 5000)


# What a watch says


def watches(answer: Behaviour) -> Behaviour:
    """A behaviour of watches alone; everything else is honest."""

    async def chosen(exchange: Exchange) -> None:
        if exchange.is_watch:
            await exchange.send(WATCH_HEAD)
            await answer(exchange)
        else:
            await honest(exchange)

    chosen.__name__ = answer.__name__
    return behaviour(chosen)


@watches
async def endless_bookmarks(exchange: Exchange) -> None:
    for number in range(2000, 10**9):
        await exchange.bookmark(str(number))


@watches
async def endless_objects(exchange: Exchange) -> None:
    """New names for ever, of 64 KiB each."""
    for number in range(2000, 10**9):
        metadata = {
            "name": f"n{number}",
            "namespace": "shop",
            "resourceVersion": str(number),
            "uid": f"u{number}",
        }
        await exchange.event("ADDED", {"metadata": {**metadata, "annotations": {"a": "x" * 65536}}})


@watches
async def tiny_events(exchange: Exchange) -> None:
    while True:
        await exchange.chunk(b'{"type":"A"}\n' * 20_000)


@watches
async def garbage_events(exchange: Exchange) -> None:
    await exchange.chunk(b'{"type":"EXPLODED","object":{"metadata":{}}}\n')
    await exchange.chunk(b'{"type":["ADDED"],"object":17}\n')


@watches
async def deep_events(exchange: Exchange) -> None:
    await exchange.chunk(
        b'{"type":"ADDED","object":{"metadata":{"name":"a"},"spec":'
        + b"[" * 50000
        + b"]" * 50000
        + b"}}\n"
    )


@watches
async def long_line(exchange: Exchange) -> None:
    await exchange.chunk(b'{"type":"ADDED","object":{"a":"')
    while True:
        await exchange.chunk(b"x" * CHUNK_BYTES)


@watches
async def other_kinds(exchange: Exchange) -> None:
    metadata = {"name": "victim", "namespace": "elsewhere", "resourceVersion": "2000", "uid": "u"}
    await exchange.event(
        "ADDED", {"kind": "Secret", "apiVersion": "v1", "metadata": metadata, "endpoints": "none"}
    )
    await asyncio.sleep(3600)


@watches
async def gone_for_ever(exchange: Exchange) -> None:
    await exchange.event(
        "ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "old"}
    )


@watches
async def hangs_up(exchange: Exchange) -> None:
    await exchange.send(b"0\r\n\r\n")


@watches
async def moves_and_hangs_up(exchange: Exchange) -> None:
    exchange.api.revision += 1
    await exchange.bookmark(str(exchange.api.revision))
    await exchange.send(b"0\r\n\r\n")


@watches
async def goes_backwards(exchange: Exchange) -> None:
    await exchange.bookmark("5")


@watches
async def huge_versions(exchange: Exchange) -> None:
    await exchange.bookmark("9" * 100_000)
    await exchange.send(b"0\r\n\r\n")
