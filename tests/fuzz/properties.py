"""What must hold of every answer, and of every object that was accepted.

- No 5xx, but for those that Kubernetes itself gives to a client's mistake: ``QUIRKS``, each named.
- An error is a Status that says what the line says.
- What was accepted reads back in every encoding, says the same in all of them, and writing back
  what was read, in any of them, changes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import yaml
from tests.documents.frames import FrameReader
from tests.fuzz.application import Answer, Application, Ask, OpenWatch
from tests.fuzz.requests import JSON, PROTOBUF, YAML

from sliceplane.api.scheme import by_kind
from sliceplane.server.documents import protobuf

#: parts of messages that Kubernetes gives with a 500, without a reason, to what is a client's
#: mistake (B4, B6, B7)
QUIRKS = (
    "unknown patch type: ",
    "does not contain declared merge key: ",
    " doesn't match $setElementOrder list:",
    "list element types are not identical: ",
    "resourceVersion should not be set on objects to be created",
    "strconv.ParseUint: parsing ",
    "resourceVersion: Invalid value: ",
    "failed to create typed patch object",
    "failed to convert new typed object",
)
#: and one that comes with its reason: whoever deletes every ServiceCIDR has no addresses left (B11)
EXHAUSTED = "range is full"
SLOW_S = 3.0
_TABLE = f"{JSON};as=Table;v=v1;g=meta.k8s.io"
_METADATA = f"{PROTOBUF};as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
_ADMIN_HEADERS = ((b"accept", JSON.encode()),)


class Violation(Exception):
    """A property does not hold; the text says which, and shows what was asked and answered."""

    def __init__(self, what: str, ask: Ask, answer: Answer | None = None) -> None:
        shown = "" if answer is None else f"\n  answered {answer.code} {answer.body[:400]!r}"
        body = (
            ask.body
            if len(ask.body) <= 1200
            else ask.body[:1200] + b"...(%d bytes)" % len(ask.body)
        )
        asked = (
            f"{ask.method} {ask.path[:300]}?{ask.query.decode('latin-1')[:500]} "
            f"{dict(ask.headers)}\n  body {body!r}"
        )
        super().__init__(f"{what}\n  asked {asked}{shown}")
        self.what = what


@asynccontextmanager
async def bounded(ask: Ask) -> AsyncIterator[None]:
    """A request's share of the processor."""
    began = time.process_time()
    yield
    took = time.process_time() - began
    if took > SLOW_S:
        raise Violation(f"took {took:.1f} s", ask)


def check_answer(application: Application, ask: Ask, answer: Answer) -> None:
    if application.faults:
        raise Violation(f"the server blames itself: {application.faults}", ask, answer)
    if not 200 <= answer.code < 600:
        raise Violation("no code of HTTP", ask, answer)
    for name, value in answer.headers.items():
        if any(byte in b"\r\n\0" for byte in name + value):
            raise Violation(f"header {name!r} ends early", ask, answer)
    if answer.code < 400:
        return
    text = answer.content_type.startswith("text/plain")
    if answer.code in (404, 406) and ask.path.startswith("/openapi/") and not answer.body:
        return
    if text and (answer.code in (404, 429) or b"request did not complete" in answer.body):
        return
    try:
        status = decoded(answer)
    except Exception as error:
        raise Violation(f"an error that cannot be read: {error!r}", ask, answer) from error
    good = (
        status.get("kind") == "Status"
        and status.get("code") == answer.code
        and status.get("status") == "Failure"
    )
    if not good or not isinstance(status.get("message"), str) or not status["message"]:
        raise Violation("an error that is no Status", ask, answer)
    if answer.code >= 500:
        too_large = answer.code == 504 and "Too large resource version" in status["message"]
        quirk = (
            answer.code == 500
            and not status.get("reason")
            and any(part in status["message"] for part in QUIRKS)
        )
        exhausted = answer.code == 500 and status["message"].endswith(EXHAUSTED)
        if not (too_large or quirk or exhausted):
            raise Violation("the server takes the blame", ask, answer)


def decoded(answer: Answer) -> Any:
    """The document of an answer, whatever it is encoded in."""
    if answer.content_type.startswith(PROTOBUF):
        return protobuf.decode(answer.body, api_version="v1", kind="Status")
    if answer.content_type.startswith(YAML):
        return yaml.load(answer.body, Loader=yaml.CSafeLoader)
    return json.loads(answer.body)


async def check_accepted(application: Application, ask: Ask, answer: Answer) -> str:
    """What a write left behind.  Returns its name; "" if there is nothing to read back."""
    try:
        document = decoded(answer)
    except Exception as error:
        raise Violation(f"an answer that cannot be read: {error!r}", ask, answer) from error
    metadata = document.get("metadata") if isinstance(document, dict) else None
    resource = (
        by_kind(str(document.get("apiVersion")), str(document.get("kind")))
        if isinstance(document, dict)
        else None
    )
    if (
        resource is None
        or not metadata
        or not metadata.get("resourceVersion")
        or "get" not in resource.verbs
    ):
        return ""
    at = Ask(
        "GET", resource.path(metadata.get("namespace", ""), metadata["name"]), b"", _ADMIN_HEADERS
    )
    stored = await application.ask(at)
    if stored.code == 404 and (
        ask.method == "DELETE" or b"dryRun" in ask.query or metadata.get("deletionTimestamp")
    ):
        return ""
    if stored.code != 200:
        raise Violation(
            f"accepted, and reads back as {stored.code}: {stored.body[:300]!r}", ask, answer
        )
    document = json.loads(stored.body)
    try:
        msgspec.json.decode(stored.body, type=resource.projection)
    except msgspec.ValidationError as error:
        raise Violation(f"accepted, and readers cannot read it: {error}", ask, answer) from error
    for accept in (YAML, JSON, PROTOBUF, _TABLE, _METADATA):
        read = await application.ask(replace(at, headers=((b"accept", accept.encode()),)))
        if read.code != 200:
            raise Violation(
                f"accepted, and reads back as {read.code} in {accept}: {read.body[:300]!r}",
                ask,
                answer,
            )
        again = decoded(read)
        if accept == YAML and again != document:
            raise Violation(f"JSON and YAML differ{difference(document, again)}", ask, answer)
        if accept in (YAML, JSON, PROTOBUF):
            headers = (*at.headers, (b"content-type", accept.encode()))
            await _unchanged(
                application,
                ask,
                answer,
                replace(at, method="PUT", headers=headers, body=read.body),
                document,
            )
    return str(metadata["name"])


async def _unchanged(
    application: Application, ask: Ask, answer: Answer, written: Ask, document: dict[str, Any]
) -> None:
    reply = await application.ask(written)
    form = dict(written.headers)[b"content-type"].decode()
    if reply.code == 400 and b"Timestamp: seconds out of range" in reply.body:
        # Years that protobuf's reader here does not know; JSON may have them.
        return
    if reply.code == 422 and form == PROTOBUF and b"pod updates may not change" in reply.body:
        sent = protobuf.decode(written.body)
        if _without_nothings(sent) == _without_nothings(document):
            # A volume without a name, say, gets an empty one: Go refuses the Pod before it comes to
            # that.
            return
    if reply.code == 422 and document["metadata"].get("deletionTimestamp"):
        return
    if reply.code != 200:
        raise Violation(
            f"writing back in {form} what was read: {reply.code} {reply.body[:400]!r}", ask, answer
        )
    now = json.loads(reply.body)
    if form == PROTOBUF and document["metadata"].get("generation") != now["metadata"].get(
        "generation"
    ):
        # What Go always writes was filled in: who wrote it owns it now, which is all that may
        # differ besides.
        for each in (now, document):
            each["metadata"] = {
                key: member for key, member in each["metadata"].items() if key != "managedFields"
            }
    if _without_nothings(now) != _without_nothings(document):
        raise Violation(f"writing back in {form} changed{difference(document, now)}", ask, answer)


_COUNTERS = ("resourceVersion", "generation")


def _without_nothings(value: Any) -> Any:
    """What JSON can say explicitly and protobuf cannot (an empty text, 0, {}) is left out of the
    comparison.
    """
    if isinstance(value, dict):
        kept = {
            name: _without_nothings(member)
            for name, member in value.items()
            if name not in _COUNTERS
        }
        return {
            name: member for name, member in kept.items() if member not in ("", 0, {}, [], None)
        }
    return [_without_nothings(item) for item in value] if isinstance(value, list) else value


def difference(one: Any, other: Any, path: str = "") -> str:
    """The first places where two documents differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = [
            difference(one.get(key), other.get(key), f"{path}.{key}")
            for key in sorted({*one, *other} - {"resourceVersion"})
            if one.get(key) != other.get(key)
        ]
        return "".join(found[:4])
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return next(
            difference(a, b, f"{path}[{n}]")
            for n, (a, b) in enumerate(zip(one, other, strict=True))
            if a != b
        )
    return f"\n    {path}: {one!r:.300} became {other!r:.300}"


def check_watch(watch: OpenWatch) -> None:
    """Every frame is an event, and none blames the server."""
    if watch.answer.code != 200:
        return
    raw = _unchunked(watch)
    events: list[tuple[str, Any]] = []
    try:
        if watch.answer.content_type.startswith(PROTOBUF):
            reader = FrameReader()
            events.extend(reader.feed(raw))
            if reader.pending_bytes:
                raise Violation("a frame is cut", watch.ask)
        else:
            for line in raw.split(b"\n"):
                if line:
                    event = json.loads(line)
                    events.append((event["type"], event["object"]))
    except Violation:
        raise
    except Exception as error:
        raise Violation(
            f"a watch that cannot be read: {error!r}: {raw[:300]!r}", watch.ask
        ) from error
    for sort, thing in events:
        too_large = thing.get("code") == 504
        if sort not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"):
            raise Violation(f"an event of type {sort!r}", watch.ask)
        if sort == "ERROR" and thing.get("code", 500) >= 500 and not too_large:
            raise Violation(f"a watch ends with {thing}", watch.ask)


def _unchunked(watch: OpenWatch) -> bytes:
    """Frames are written as HTTP chunks."""
    raw, out, position = bytes(watch.wire.written), bytearray(), 0
    while position < len(raw):
        end = raw.index(b"\r\n", position)
        size = int(raw[position:end], 16)
        out += raw[end + 2 : end + 2 + size]
        if raw[end + 2 + size : end + 4 + size] != b"\r\n":
            raise Violation("a chunk of the wrong size", watch.ask)
        position = end + 4 + size
    return bytes(out)
