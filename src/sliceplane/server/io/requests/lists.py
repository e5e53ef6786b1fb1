"""Lists and operations on collections, of any length, without blocking the event loop.

Selection and rendering run in slices (``Pace``), all of one revision. Forms that start from the
document (Tables, protobuf, YAML) are rendered by workers (``offload``), a portion at a time, unless
all of it is small.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from msgspec.structs import replace

from sliceplane.api.scheme import Resource
from sliceplane.kit.io.batches import BatchQueue
from sliceplane.server.io.offload.jobs import WriteRequest
from sliceplane.server.io.offload.service import STORED_SHARE, OffloadService
from sliceplane.server.io.requests.render import (
    check_list_form,
    escape,
    list_frame,
    render_bytes,
    render_items,
    render_list,
)
from sliceplane.server.io.requests.response import Representation
from sliceplane.server.io.storage.committing import Durability
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
    """Long work in the loop, a slice at a time: between two slices the loop runs everything else
    that is ready.

    All sliced work shares one queue, of which the loop runs one slice per iteration: four hundred
    long lists take longer, each and together, and an ordinary request waits for one slice and not
    for four hundred.
    """

    def __init__(self) -> None:
        self._batches = BatchQueue(calls=1)

    def slice(self) -> Slice:
        """The first slice of something, which begins at once."""
        return Slice(self)

    async def next_slice(self) -> None:
        """Waits for the next slice."""
        resumed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._batches.add(lambda: None if resumed.done() else resumed.set_result(None))
        await resumed


class Slice:
    """The slices of one piece of work."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._ends = time.perf_counter() + SLICE_S

    async def over(self) -> None:
        """Ask at every good place: if the time is over, the next slice begins when this returns."""
        if time.perf_counter() >= self._ends:
            await self._pace.next_slice()
            self._ends = time.perf_counter() + SLICE_S


class Lists:
    """Owned by the handlers; stateless but for its parts."""

    def __init__(self, registry: Registry, offload: OffloadService, writer: Durability) -> None:
        self._registry = registry
        self._offload = offload
        self._writer = writer
        self._pace = Pace()

    async def find(self, context: Context, target: Target, options: ListOptions) -> ListOutcome:
        """Lists as ``Registry.list`` does, but with bodies as they are stored. Raises
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
        listed: ListOutcome,
        representation: Representation,
        include: IncludeObject,
    ) -> bytes:
        """The answer to a list.  Raises the 406 ``StatusError``, and ``OverCapacity``."""
        resource = target.requested
        check_list_form(resource, representation)
        converted = await self._convert(target, listed)
        if not self._offload.needs_offload(sum(len(record.body) for record in converted.records)):
            return render_list(
                converted, resource, representation, now=context.now, include_object=include
            )
        if not (representation.form == "Table" or representation.is_binary_list):
            return await self._portioned(context, resource, converted, representation, include)
        async with self._offload.slot(context.user):
            return await self._portioned(
                context, resource, converted, representation, include, has_slot=True
            )

    async def _convert(self, target: Target, listed: ListOutcome) -> ListOutcome:
        """Returns the list in the requested version."""
        if not target.converted:
            return listed
        records = []
        slice_ = self._pace.slice()
        for record in listed.records:
            records.append(answers.convert_record(target, record))
            await slice_.over()
        return replace(listed, records=tuple(records))

    async def _portioned(
        self,
        context: Context,
        resource: Resource,
        listed: ListOutcome,
        representation: Representation,
        include: IncludeObject,
        *,
        has_slot: bool = False,
    ) -> bytes:
        """Renders a long list.  *has_slot*: workers render the items from documents, and the request
        has its offload slot.
        """
        plain = representation.media == "json" and not representation.pretty
        binary = representation.is_binary_list
        finish: Callable[[bytes], bytes] = escape if plain else bytes
        parts: list[bytes] = []
        slice_ = self._pace.slice()
        for portion in _portions(listed.records):
            job = partial(
                render_items,
                tuple(record.body for record in portion),
                resource,
                representation,
                now=context.now,
                include_object=include,
            )
            if parts and not binary:
                parts.append(b",")
            parts.append(finish(await self._offload.run(job) if has_slot else job()))
            await slice_.over()
        head, tail = list_frame(listed, resource, representation, sum(map(len, parts)))
        # Joining large parts is done without the interpreter's lock.
        whole = await asyncio.to_thread(
            b"".join, [finish(head), *parts, tail + b"\n" if plain else tail]
        )
        if plain or binary:
            return whole
        job_of_all = partial(render_bytes, whole, representation)
        return await self._offload.render(job_of_all, None if has_slot else context.user)

    async def delete(
        self, context: Context, target: Target, listed: ListOutcome, options: DeleteOptions
    ) -> None:
        """Deletes each of *listed*, some in a commit; a delete that is long by itself is offloaded.

        Raises the first error of a single delete: what was deleted before it stays deleted.
        """
        together: list[Record] = []
        slice_ = self._pace.slice()
        for record in listed.records:
            if self._offload.needs_offload(len(record.body) // STORED_SHARE):
                await self._delete_some(context, target, together, options)
                together = []
                single = replace(target, namespace=record.key.namespace, name=record.key.name)
                async with self._offload.slot(context.user):
                    write = WriteRequest(
                        verb="delete", context=context, target=single, deletion=options
                    )
                    await self._offload.delete(write, self._registry, self._writer)
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
