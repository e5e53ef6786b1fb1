"""What a client can do with one object, each step to be measured: read it in every format, and
every kind of write.

A step is made for a number of entries and prepared outside of what is measured, with a registry of
its own. Refusals are answers; they must not grow faster than what was asked either, which is why an
answer's size is looked at too.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
from tests.growth import shapes
from tests.growth.measure import Run
from tests.growth.shapes import LongField, Variant
from tests.registry.conftest import Api

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import Namespaces
from sliceplane.kit.rng import Rng
from sliceplane.server.documents import protobuf, strict
from sliceplane.server.documents.protobuf import supports
from sliceplane.server.documents.table import build
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import Body, WriteOptions
from sliceplane.server.store.mvcc import Store

#: an answer may say again what was sent and what is there, in a few ways, and this much of its own
ANSWER_BYTES_MAX: Final = 1 << 20
_SMALL_PATCH: Final = {"metadata": {"annotations": {"touched": "yes"}}}
_INSERTS_MAX: Final = 1000
_OPTIONS: Final = WriteOptions()


class BareApi(Api):
    """A cluster with the namespace that is written to, without the roles that take longer than what
    is measured.
    """

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.store = Store()
        self.registry = Registry(self.store, rng=Rng(1))
        self.commits = True
        self.events = []
        self.create(Namespaces, {"metadata": {"name": "default"}})


class Step(NamedTuple):
    name: str
    make: Callable[[int], Run]


class Session:
    """One registry and one object of *count* entries in it, if it was accepted; else the object
    without them.
    """

    def __init__(self, long: LongField, variant: Variant, count: int) -> None:
        self.long, self.variant, self.count = long, variant, count
        self.resource = long.resource
        self.document = shapes.document(long, variant, count)
        self.name = self.document["metadata"]["name"]
        self.namespace = self.document["metadata"].get("namespace") or "default"
        self.status = long.path[0].name == "status" and self.resource.has_status
        self.answered_bytes = 0

    def stored(self) -> Session:
        """With the object created, outside of what is measured."""
        self.api = BareApi()
        for document in (self.document, shapes.base(self.resource)):
            if self.call("create", document) == 201:
                break
        if self.status:
            self.call("update", self.name, self.document, subresource="status")
        return self

    def call(self, verb: str, *arguments: Any, **options: Any) -> int:
        try:
            outcome = getattr(self.api, verb)(self.resource, *arguments, **options)
        except StatusError as error:
            self._look(msgspec.json.encode(error.status()))
            return error.code
        return int(getattr(outcome, "code", 200))

    def _look(self, answer: bytes) -> None:
        self.answered_bytes = len(answer)
        sent = len(msgspec.json.encode(self.document))
        assert len(answer) <= ANSWER_BYTES_MAX + 4 * sent, (
            f"{len(answer)} bytes of answer for {sent} bytes"
        )


def _json(long: LongField, variant: Variant) -> Callable[[int], Run]:
    def make(count: int) -> Run:
        raw = json.dumps(shapes.document(long, variant, count)).encode()
        return lambda: _quiet(lambda: strict.read_body(long.resource, raw, validation="Strict"))

    return make


def _json_twice(long: LongField, variant: Variant) -> Callable[[int], Run]:
    """A repeated member sends the reader the long way."""

    def make(count: int) -> Run:
        raw = json.dumps(shapes.document(long, variant, count)).encode()
        raw = b'{"kind":"' + long.resource.kind.encode() + b'",' + raw[1:]
        return lambda: (
            _quiet(lambda: strict.read_body(long.resource, raw)),
            _quiet(lambda: strict.decode_json(raw)),
        )

    return make


def _yaml(long: LongField, variant: Variant) -> Callable[[int], Run]:
    def make(count: int) -> Run:
        raw = json.dumps(shapes.document(long, variant, count)).encode()
        return lambda: _quiet(lambda: strict.read_body(long.resource, raw, body_format="yaml"))

    return make


def _protobuf(long: LongField, variant: Variant) -> Callable[[int], Run]:
    """There and back, and what the registry makes of it."""

    def make(count: int) -> Run:
        document = shapes.document(long, variant, count)
        api = BareApi()
        resource = long.resource

        def run() -> None:
            read = protobuf.decode(
                protobuf.encode(document), api_version=resource.api_version, kind=resource.kind
            )
            api.registry.create(api.ctx, api.target(resource), Body(document=read), _OPTIONS)

        return lambda: _quiet(run)

    return make


def _table(session: Session) -> None:
    build(
        session.resource,
        kind_of(session.resource).columns,
        [session.document],
        session.api.now,
        include_object="Object",
    )


def _quiet(run: Callable[[], object]) -> None:
    with contextlib.suppress(StatusError, strict.MalformedBody):
        run()


def _on(name: str, write: Callable[[Session, Any], object]) -> Callable[[LongField, Variant], Step]:
    """A step on a stored object; *write* gets the session and the field's content in reverse
    order.
    """

    def step(long: LongField, variant: Variant) -> Step:
        def make(count: int) -> Run:
            session = Session(long, variant, count).stored()
            other = shapes.content(long.field, variant, count, reverse=True)
            return lambda: write(session, other)

        return Step(name, make)

    return step


def _put(session: Session, other: Any) -> None:
    document = shapes.document(session.long, session.variant, session.count, reverse=True)
    session.call("update", session.name, document)


def _put_status(session: Session, other: Any) -> None:
    document = shapes.document(session.long, session.variant, session.count, reverse=True)
    session.call("update", session.name, document, subresource="status")


def _partial(session: Session, other: Any, kind: Any) -> None:
    session.call("patch", session.name, shapes.patch(session.long, other), kind, **_where(session))


def _where(session: Session) -> dict[str, str]:
    return {"subresource": "status"} if session.status else {}


def _strategic_order(session: Session, other: Any) -> None:
    """Everything is deleted by its key, in an order that is told too."""
    field = session.long.field
    if isinstance(other, dict):
        wanted: Any = dict.fromkeys(other)
    elif other and isinstance(other[0], dict):
        wanted = [{**each, "$patch": "delete"} for each in other]
    else:
        wanted = other
    patch = shapes.patch(session.long, wanted)
    place = patch
    for each in session.long.path[:-1]:
        place = place[each.name]
        place = (
            place[0]
            if isinstance(place, list)
            else next(iter(place.values()))
            if each.type.kind == "map"
            else place
        )
    if isinstance(other, list):
        place[f"$setElementOrder/{field.name}"] = other
    session.call("patch", session.name, patch, "strategic", **_where(session))
    if isinstance(other, list) and other and not isinstance(other[0], dict):
        del place[field.name]
        place[f"$deleteFromPrimitiveList/{field.name}"] = other
        session.call("patch", session.name, patch, "strategic", **_where(session))


def _json_patch(session: Session, other: Any) -> None:
    path = shapes.pointer(session.long)
    session.call(
        "patch",
        session.name,
        [{"op": "add", "path": path, "value": other}],
        "json",
        **_where(session),
    )


def _json_inserts(session: Session, other: Any) -> None:
    path = shapes.pointer(session.long)
    if isinstance(other, dict):
        inserts = [
            {"op": "add", "path": f"{path}/z{at}", "value": each}
            for at, each in enumerate(other.values())
        ]
    else:
        inserts = [{"op": "add", "path": f"{path}/0", "value": each} for each in other]
    session.call("patch", session.name, inserts[:_INSERTS_MAX], "json", **_where(session))


def _apply(session: Session, other: Any) -> None:
    """One manager takes everything, a second meets conflicts, takes it by force, and leaves it
    again.
    """
    head = {"apiVersion": session.resource.api_version, "kind": session.resource.kind}
    config = {**head, **shapes.patch(session.long, other)}
    config["metadata"] = {"name": session.name, **config.get("metadata", {})}
    first = dict(session.document)
    for manager, content, force in (
        ("one", first, True),
        ("two", config, False),
        ("two", config, True),
        ("two", {**head, "metadata": {"name": session.name}}, False),
    ):
        where = _where(session)
        session.call(
            "patch", session.name, content, "apply", field_manager=manager, force=force, **where
        )


def _small(session: Session, other: Any) -> None:
    session.call("patch", session.name, _SMALL_PATCH, "merge")


def _leave(session: Session, other: Any) -> None:
    """Deletion that is held back, other finalizers, and one more write."""
    held = {"metadata": {"finalizers": ["example.com/hold"]}}
    session.call("patch", session.name, held, "strategic")
    session.call("delete", session.name)
    _put(session, other)
    _small(session, other)


_WRITES: Final = (
    _on("create", lambda session, other: session.call("create", session.document)),
    _on("put", _put),
    _on("put status", _put_status),
    _on("merge patch", lambda session, other: _partial(session, other, "merge")),
    _on("strategic patch", lambda session, other: _partial(session, other, "strategic")),
    _on("strategic order", _strategic_order),
    _on("json patch", _json_patch),
    _on("json inserts", _json_inserts),
    _on("apply", _apply),
    _on("small patch", _small),
    _on("leave", _leave),
    _on("table", lambda session, other: _table(session)),
)


def steps(long: LongField, variant: Variant) -> Iterator[Step]:
    yield Step("json", _json(long, variant))
    yield Step("json twice", _json_twice(long, variant))
    yield Step("yaml", _yaml(long, variant))
    if supports(long.resource.api_version, long.resource.kind):
        yield Step("protobuf", _protobuf(long, variant))
    for write in _WRITES:
        step = write(long, variant)
        if step.name == "put status" and not long.resource.has_status:
            continue
        yield step
