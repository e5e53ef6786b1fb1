"""The informers of a node proxy, and a check that their caches are current.

Most informers run from start to end. Selections of EndpointSlices for the node's zone and region
(``consume.selections``) change with the node's labels: the new ones are listed completely before the
old ones are dropped, so that no endpoint is missing in between.

**Are the caches current?**  A watch without events may mean a quiet cluster or a server that hangs:
the kernel acknowledges packets for a stopped process, and bookmarks arrive once a minute. Only an
answer is proof. So a query of our health causes a request to the server, unless a watch has just
received an event: at most every ``PROBE_VALID_S``, with a time-out of ``PROBE_TIMEOUT_S``. Our answer
is at most a second old. Nodes whose health is not queried cost the server nothing, and nodes of a
busy cluster nearly nothing. A watch that failed and is not open again is a reason by itself. (If the
connection of one watch died while the server answers on others, TCP's keep-alive detects it:
``watch.io.http.client``.)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

from sliceplane.api.core import Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices, Nodes, Services
from sliceplane.consume.packed import EndpointPacker
from sliceplane.consume.selections import (
    list_selections_of_service,
    list_selections_of_slice,
    name_selection,
)
from sliceplane.kit.metrics import Metrics
from sliceplane.kit.rng import Rng
from sliceplane.node.io.options import ProxyTiming
from sliceplane.watch.cache import Cache, Change, Mark
from sliceplane.watch.controller.base import Selection
from sliceplane.watch.io.base import Client, Unreachable
from sliceplane.watch.io.reflect import RunningInformer
from sliceplane.watch.reflector import ReflectorConfig

#: name of the selection that every node reads
COMMON = ""

Changes = tuple[Change[Object], ...]


class SharedConsumer(Protocol):
    """A second consumer in the process (a name server), which reads all Services and EndpointSlices
    and this node's Node.  They are read once; the proxy receives only those that it needs.
    """

    @property
    def metrics(self) -> Metrics: ...

    def on_attached(self, staleness: Callable[[], float]) -> None:
        """Notes that events follow; *staleness* returns seconds, infinite before all were listed."""

    def on_changes(self, changes: Changes) -> None: ...

    def on_list(self) -> None:
        """Notes that a first list was delivered."""


_SHARED = (Services, EndpointSlices, Nodes)


class _Selection:
    def __init__(self, informer: RunningInformer[Object], task: asyncio.Task[None]) -> None:
        self.informer = informer
        self.task = task


class InputHandlers(NamedTuple):
    """Callbacks of ``Inputs``: changes with their selection; the mark up to which a resource and
    selection was read (``None``: its informer starts); the first list of a resource; a selection that
    is no longer read.
    """

    on_changes: Callable[[str, Changes], None]
    on_mark: Callable[[str, str, Mark | None], None]
    on_synced: Callable[[str], None]
    on_dropped: Callable[[str], None]


class Inputs:
    """The informers of one node proxy."""

    def __init__(
        self,
        client: Client,
        watched: tuple[Selection, ...],
        handlers: InputHandlers,
        *,
        clock: Callable[[], float],
        rng: Rng,
        timing: ProxyTiming = ProxyTiming(),  # noqa: B008  # it is frozen
        consumer: SharedConsumer | None = None,
    ) -> None:
        self._timing = timing
        self._client = client
        self._clock = clock
        self._rng = rng
        self._on_changes, self._on_mark, self._on_synced, self._on_dropped = handlers
        self._consumer = consumer
        # A second consumer reads endpoints one by one, and keeps those that did not change.
        self._decode_slice = EndpointPacker().decode if consumer is None else None
        self._subset = next(
            (name_selection(of.label_selector) for of in watched if of.resource is EndpointSlices),
            "",
        )
        whole = (Services, EndpointSlices) if consumer is not None else ()
        self._informers = tuple(
            self._informer(Selection(watch.resource) if watch.resource in whole else watch)
            for watch in watched
        )
        if consumer is not None:
            consumer.on_attached(self._shared_staleness_s)
        self._node_name = next(
            (watch.field_selector for watch in watched if watch.resource is Nodes), ""
        )
        self._selections: dict[str, _Selection] = {}
        self._desired: tuple[str, ...] = ()
        self._complete = asyncio.Event()
        self._complete.set()
        self._group: asyncio.TaskGroup | None = None
        self._probe: asyncio.Task[str] | None = None
        self._probed_at = 0.0

    async def run(self) -> None:
        """Runs the informers until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._group:
                for informer in self._informers:
                    key = informer.resource.key
                    if self._consumer is not None and informer.resource in _SHARED:
                        informer.add_handler(self._consumer.on_changes, self._consumer.on_list)
                    handler = (
                        partial(self._on_changes, COMMON)
                        if self._consumer is None
                        else self._on_all_changes
                    )
                    on_synced = partial(self._on_synced, key)
                    informer.add_handler(handler, on_synced, partial(self._on_mark, key, COMMON))
                    self._group.create_task(informer.run(), name=f"informer {key}")
                for selector in self._desired:
                    self._start(selector)
        finally:
            if self._probe is not None:
                self._probe.cancel()
                await asyncio.gather(self._probe, return_exceptions=True)

    def _on_all_changes(self, changes: Changes) -> None:
        """Delivers the changes of objects that the proxy would read without the other consumer."""
        self._on_changes(COMMON, tuple(self._own(changes)))

    def _own(self, changes: Changes) -> Iterator[Change[Object]]:
        for change in changes:
            old = change.old if change.old is not None and self._is_own(change.old) else None
            new = change.new if change.new is not None and self._is_own(change.new) else None
            if old is not None or new is not None:
                yield Change(change.resource, old, new)

    def _is_own(self, subject: Object) -> bool:
        match subject:
            case Service():
                return bool(list_selections_of_service(subject))
            case EndpointSlice():
                return self._subset in list_selections_of_slice(subject)
        return True

    def _shared_staleness_s(self) -> float:
        shared = [informer for informer in self._informers if informer.resource in _SHARED]
        return max(
            (informer.staleness() for informer in shared if not informer.absent), default=math.inf
        )

    def set_selectors(self, selectors: tuple[str, ...]) -> None:
        """Sets the selections of EndpointSlices to read besides the common one."""
        self._desired = selectors
        for selector in selectors:
            if selector not in self._selections and self._group is not None:
                self._start(selector)
        self._drop_obsolete()

    def add(self, watched: Selection, selection: str, on_synced: Callable[[], None]) -> None:
        """Adds an informer until the end; *on_synced* is called when it was listed. Its changes have
        the name *selection*.

        Our health does not depend on it.
        """
        assert self._group is not None, "nothing runs yet"
        informer = self._informer(watched)
        informer.add_handler(partial(self._on_changes, selection), on_synced)
        self._group.create_task(informer.run(), name=f"informer {watched.resource.key} {selection}")

    async def complete(self) -> None:
        """Waits until every desired selection was listed."""
        await self._complete.wait()

    async def followed(self) -> None:
        """Waits until the server has accepted the watches that all nodes have."""
        for informer in self._informers:
            await informer.wait_followed()

    def service(self, key: str) -> Object | None:
        """Returns the last observed state of the Service ``namespace/name``."""
        services = [
            informer.cache.get(key) for informer in self._informers if informer.resource is Services
        ]
        return services[0] if services else None

    def versions(self, key: str) -> dict[str, dict[str, str]]:
        """Returns the cached versions by object key, for each selection of the resource *key*."""
        informers = [(COMMON, informer) for informer in self._informers]
        informers += [
            (selector, selection.informer) for selector, selection in self._selections.items()
        ]
        return {
            selector: {
                item.metadata.key: item.metadata.resource_version
                for item in informer.cache
                if self._consumer is None or selector != COMMON or self._is_own(item)
            }
            for selector, informer in informers
            if informer.resource.key == key
        }

    def staleness_s(self) -> float | None:
        """Returns the age of the oldest cache, in seconds since it was last known to be current;
        ``None``: there is no informer.
        """
        selected = [selection.informer for selection in self._selections.values()]
        return max(
            (informer.staleness() for informer in (*self._informers, *selected)), default=None
        )

    def _lost(self) -> str:
        """Returns the watches that are disconnected although the server answers others."""
        return "; ".join(
            f"{informer.resource.plural} are not watched: {informer.lost}"
            for informer in self._disconnected()
        )

    def _disconnected(self) -> list[RunningInformer[Object]]:
        selected = [selection.informer for selection in self._selections.values()]
        return [informer for informer in (*self._informers, *selected) if informer.lost]

    def refused(self) -> str:
        """Returns the reason of ``unanswered`` if the server refuses all disconnected watches; ""
        otherwise.
        """
        return self._lost() if all(informer.refused for informer in self._disconnected()) else ""

    def _last_event_age_s(self) -> float:
        """Returns the seconds since the last event of any watch."""
        selected = [selection.informer for selection in self._selections.values()]
        watching = [informer for informer in (*self._informers, *selected) if not informer.absent]
        return min((informer.staleness() for informer in watching), default=math.inf)

    async def unanswered(self) -> str:
        """Returns why the caches may be out of date; "" if the server answers."""
        valid_s = self._timing.probe_valid_s
        if not self._timing.probe_timeout_s or (
            self._last_event_age_s() <= valid_s and not self._lost()
        ):
            return ""
        if self._probe is None or (
            self._probe.done() and self._clock() - self._probed_at > valid_s
        ):
            self._probed_at = self._clock()
            self._probe = asyncio.create_task(self._probe_server(), name="node-proxy-probe")
        return await asyncio.shield(self._probe) or self._lost()

    async def _probe_server(self) -> str:
        timeout_s = self._timing.probe_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.list(
                    Selection(Nodes, field_selector=self._node_name), resource_version="0", limit=1
                )
        except TimeoutError:
            return f"the API server did not answer within {timeout_s:g} s"
        except Unreachable as error:
            return f"the API server cannot be reached: {error}"
        except StatusError as error:
            return f"the API server answers {error.code}: {error}" if error.code >= 500 else ""
        return ""

    def _informer(self, watched: Selection) -> RunningInformer[Object]:
        decode_slice = self._decode_slice if watched.resource is EndpointSlices else None
        return RunningInformer(
            self._client,
            watched,
            clock=self._clock,
            rng=self._rng.fork(),
            cache=Cache(watched.resource, decode=decode_slice),
            config=ReflectorConfig(
                absent_period_s=self._timing.absent_kind_period_s,
                only_reads=watched.resource is EndpointSlices,
            ),
        )

    def _start(self, selector: str) -> None:
        assert self._group is not None, "nothing runs yet"
        informer = self._informer(Selection(EndpointSlices, label_selector=selector))
        self._on_mark(EndpointSlices.key, selector, None)
        on_mark = partial(self._on_mark, EndpointSlices.key, selector)
        informer.add_handler(partial(self._on_changes, selector), self._drop_obsolete, on_mark)
        task = self._group.create_task(
            informer.run(), name=f"informer {EndpointSlices.key} {selector}"
        )
        self._selections[selector] = _Selection(informer, task)

    def _drop_obsolete(self) -> None:
        """Drops obsolete selections once all desired ones were listed."""
        if not all(
            name in self._selections and self._selections[name].informer.synced
            for name in self._desired
        ):
            self._complete.clear()
            return
        self._complete.set()
        for selector in [name for name in self._selections if name not in self._desired]:
            self._selections.pop(selector).task.cancel()
            self._on_dropped(selector)
