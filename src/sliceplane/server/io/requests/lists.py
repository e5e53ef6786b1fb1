"""Lists and what is done to collections, of any length, without holding the loop.

What is found is looked for in slices (``Pace``), all of one revision, and made into the answer in
slices as well. Forms that start from the document (Tables, protobuf, YAML) are made by workers
(``heavy``), a portion at a time, unless all of it is small.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from msgspec.structs import replace

from sliceplane.api.codec import encode
from sliceplane.api.scheme import Resource
from sliceplane.server.io.heavy.jobs import HeavyWrite
from sliceplane.server.io.heavy.service import STORED_SHARE, Heavy
from sliceplane.server.io.requests.render import (
    escape,
    list_metadata_of,
    partial_metadata,
    render_bytes,
    render_document,
    render_items,
    render_list,
)
from sliceplane.server.io.requests.response import Representation
from sliceplane.server.io.storage.committing import Durability
from sliceplane.server.registry.documents import item_bytes
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import (
    Context,
    DeleteOptions,
    ListOptions,
    ListOutcome,
    Target,
)
from sliceplane.server.registry.verbs import answers
from sliceplane.server.store.types import Record

if TYPE_CHECKING:
    from sliceplane.server.documents.table import IncludeObject


#: a slice ends at the first good place after this
SLICE_S: Final = 0.005
#: of bodies, to a worker at a time
_PORTION_BYTES: Final = 256 * 1024
_PORTION_RECORDS: Final = 1000
#: deleted in one commit of a collection
_DELETED_TOGETHER: Final = 50


class Pace:
    """Long work in the loop, a slice at a time: between two slices everything else that is ready
    has its turn.

    One for all that is cut into slices, which come in order, one in each turn of the loop, whosever
    it is: four hundred long lists take longer, each and together, and an ordinary request waits for
    one slice and not for four hundred.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    def slice(self) -> Slice:
        """The first slice of something, which begins at once."""
        return Slice(self)

    async def turn(self) -> None:
        """Wait for the next slice."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._schedule()
        await turn

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._scheduled = False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        if self._waiting:
            self._schedule()


class Slice:
    """The slices of one piece of work."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._ends = time.perf_counter() + SLICE_S

    async def over(self) -> None:
        """Ask at every good place: if the time is over, the next slice begins when this returns."""
        if time.perf_counter() >= self._ends:
            await self._pace.turn()
            self._ends = time.perf_counter() + SLICE_S


class Lists:
    """Owned by the handlers; stateless but for its parts."""

    def __init__(self, registry: Registry, heavy: Heavy, writer: Durability) -> None:
        self._registry = registry
        self._heavy = heavy
        self._writer = writer
        self._pace = Pace()

    async def find(self, context: Context, target: Target, options: ListOptions) -> ListOutcome:
        """As ``Registry.list``, but that the bodies are the stored ones.  Raises
        ``StatusError``.
        """
        steps = self._registry.list_steps(context, target, options)
        slice_ = self._pace.slice()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast(ListOutcome, end.value)
            await slice_.over()

    async def render(
        self,
        context: Context,
        target: Target,
        found: ListOutcome,
        representation: Representation,
        include: IncludeObject,
    ) -> bytes:
        """The answer to a list.  Raises the 406 ``StatusError``, and ``TooMany``."""
        resource = target.spoken
        shown = await self._shown(target, found)
        if not self._heavy.is_heavy(sum(len(record.body) for record in shown.records)) or (
            representation.form == "PartialObjectMetadata"  # refused whatever there is
        ):
            return render_list(
                shown, resource, representation, now=context.now, include_object=include
            )
        if representation.form == "Table" and representation.media == "protobuf":
            return render_document({"kind": "Table"}, representation)
        if representation.form == "Table" or (
            representation.media == "protobuf" and not representation.form
        ):
            async with self._heavy.turn(context.user):
                return await self._by_workers(context, resource, shown, representation, include)
        plain = representation.media == "json" and not representation.pretty
        text = await self._text(resource, shown, representation, escaped=plain)
        if plain:
            return text
        return await self._heavy.render(partial(render_bytes, text, representation), context.user)

    async def _shown(self, target: Target, found: ListOutcome) -> ListOutcome:
        """In the version that was asked for."""
        if not target.converted:
            return found
        records = []
        slice_ = self._pace.slice()
        for record in found.records:
            records.append(answers.shown_record(target, record))
            await slice_.over()
        return replace(found, records=tuple(records))

    async def _text(
        self,
        resource: Resource,
        found: ListOutcome,
        representation: Representation,
        *,
        escaped: bool,
    ) -> bytes:
        """A list in JSON, of stored items or of their metadata alone."""
        if representation.form:
            version = representation.form_version
            kind = {"kind": "PartialObjectMetadataList", "apiVersion": f"meta.k8s.io/{version}"}

            def item(record: Record) -> bytes:
                return partial_metadata(record.body, version)

        else:
            kind = {"kind": resource.list_kind, "apiVersion": resource.api_version}

            def item(record: Record) -> bytes:
                return item_bytes(resource, record.body)

        head = encode({**kind, "metadata": list_metadata_of(found)})[:-1] + b',"items":['
        return await self._joined(
            head, found.records, item, escape if escaped else bytes, b"]}\n" if escaped else b"]}"
        )

    async def _joined(
        self,
        head: bytes,
        records: tuple[Record, ...],
        item: Callable[[Record], bytes],
        finish: Callable[[bytes], bytes],
        tail: bytes,
    ) -> bytes:
        parts = [finish(head)]
        slice_ = self._pace.slice()
        for portion in _portions(records):
            if len(parts) > 1:
                parts.append(b",")
            parts.append(finish(b",".join(map(item, portion))))
            await slice_.over()
        parts.append(tail)
        # Joining large parts is done without the interpreter's lock.
        return await asyncio.to_thread(b"".join, parts)

    async def _by_workers(
        self,
        context: Context,
        resource: Resource,
        found: ListOutcome,
        representation: Representation,
        include: IncludeObject,
    ) -> bytes:
        """A list whose items are made from documents."""
        parts: list[bytes] = []
        slice_ = self._pace.slice()
        for portion in _portions(found.records):
            job = partial(
                render_items,
                tuple(record.body for record in portion),
                resource,
                representation,
                now=context.now,
                include_object=include,
            )
            parts.append(await self._heavy.run(job))
            await slice_.over()
        metadata = list_metadata_of(found)
        if representation.form != "Table":
            from sliceplane.server.documents.protobuf import list_frame

            size = sum(map(len, parts))
            head, tail = list_frame(resource.api_version, resource.list_kind, metadata, size)
            return await asyncio.to_thread(b"".join, [head, *parts, tail])
        from sliceplane.server.documents.table import build
        from sliceplane.server.registry.kinds import kind_of

        version = representation.form_version
        columns = kind_of(resource).columns
        made = build(
            resource,
            columns,
            (),
            context.now,
            include_object=include,
            list_meta=metadata,
            version=version,
        )
        empty = encode(made)
        head = empty[: -len(b"]}")]
        plain = representation.media == "json" and not representation.pretty
        if plain:
            head = escape(head)
            parts = [escape(part) for part in parts]
        separated = [piece for part in parts for piece in (b",", part)][1:]
        text = await asyncio.to_thread(b"".join, [head, *separated, b"]}\n" if plain else b"]}"])
        if plain:
            return text
        return await self._heavy.run(partial(render_bytes, text, representation))

    async def delete(
        self, context: Context, target: Target, found: ListOutcome, options: DeleteOptions
    ) -> None:
        """Delete each of *found*, some in a commit; what takes long by itself is worked out
        elsewhere.

        Raises the first error of a single delete: what was deleted before it stays deleted.
        """
        together: list[Record] = []
        slice_ = self._pace.slice()
        for record in found.records:
            if self._heavy.is_heavy(len(record.body) // STORED_SHARE):
                await self._delete_some(context, target, together, options)
                together = []
                single = replace(target, namespace=record.key.namespace, name=record.key.name)
                async with self._heavy.turn(context.user):
                    write = HeavyWrite(
                        verb="delete", context=context, target=single, deletion=options
                    )
                    await self._heavy.delete(write, self._registry, self._writer)
                continue
            together.append(record)
            if len(together) >= _DELETED_TOGETHER:
                await self._delete_some(context, target, together, options)
                together = []
                await slice_.over()
        await self._delete_some(context, target, together, options)

    async def _delete_some(
        self, context: Context, target: Target, records: list[Record], options: DeleteOptions
    ) -> None:
        if records:
            await self._writer.write(
                lambda: self._registry.delete_some(context, target, records, options),
                lambda revision: revision,
            )


def _portions(records: tuple[Record, ...]) -> Iterator[list[Record]]:
    portion: list[Record] = []
    size = 0
    for record in records:
        portion.append(record)
        size += len(record.body)
        if size >= _PORTION_BYTES or len(portion) >= _PORTION_RECORDS:
            yield portion
            portion = []
            size = 0
    if portion:
        yield portion
