"""The informers of a node proxy, and whether they can be believed.

Most of them run from start to end. Selections of EndpointSlices for the node's zone and region
(``consume.selections``) come and go with the node's labels: the new ones are listed whole before
the old ones are let go, so that no endpoint is missing in between.

**Is what we know still true?**  A watch that is silent may be a quiet cluster or a server that
hangs: its kernel acknowledges for a process that stands still, and bookmarks come once a minute.
Only an answer tells. So who asks after our health makes us ask the server, unless a watch has just
brought something: at most every ``PROBE_VALID_S``, and for no longer than ``PROBE_TIMEOUT_S``. What
we say is at most a second old, nodes that are not asked cost the server nothing, and nodes of a
busy cluster hardly anything. A watch that failed and was not opened again since is a reason by
itself. (That the connection of one watch died, while the server answers on others, is for TCP's
keep-alive to find: ``watch.io.http.client``.)
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
from sliceplane.consume.selections import reading_of, readings_of_service, readings_of_slice
from sliceplane.kit.metrics import Metrics
from sliceplane.kit.rng import Rng
from sliceplane.node.io.options import ProxyTiming
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.controller.base import Selection
from sliceplane.watch.io.base import Client, Unreachable
from sliceplane.watch.io.reflect import RunningInformer
from sliceplane.watch.reflector import ReflectorConfig

#: of the selection that every node reads
COMMON = ""

Changes = tuple[Change[Object], ...]


class SharedConsumer(Protocol):
    """A second consumer in the process, a name server, of all Services and EndpointSlices and of
    this node's Node.  They are read once, and the proxy gets only its own.
    """

    @property
    def metrics(self) -> Metrics: ...

    def on_attached(self, staleness: Callable[[], float]) -> None:
        """From now on; *staleness* in seconds, infinite before all was told."""

    def on_changes(self, changes: Changes) -> None: ...

    def on_list(self) -> None:
        """A first list was told."""


_SHARED = (Services, EndpointSlices, Nodes)


class _Selection:
    def __init__(self, informer: RunningInformer[Object], task: asyncio.Task[None]) -> None:
        self.informer = informer
        self.task = task


class InputHandlers(NamedTuple):
    """Callbacks of ``Inputs``: changes with the selection that they belong to; how far a resource
    and selection was read (``None``: its informer starts); the first list of a resource; a
    selection that is no longer read.
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
        self._subset = next(
            (reading_of(of.label_selector) for of in watched if of.resource is EndpointSlices), ""
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
        """Until cancelled."""
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
        """The proxy is told of what it would read by itself."""
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
                return bool(readings_of_service(subject))
            case EndpointSlice():
                return self._subset in readings_of_slice(subject)
        return True

    def _shared_staleness_s(self) -> float:
        shared = [informer for informer in self._informers if informer.resource in _SHARED]
        return max(
            (informer.staleness() for informer in shared if not informer.absent), default=math.inf
        )

    def set_selectors(self, selectors: tuple[str, ...]) -> None:
        """Read these selections of EndpointSlices besides the common one, and no others."""
        self._desired = selectors
        for selector in selectors:
            if selector not in self._selections and self._group is not None:
                self._start(selector)
        self._drop_obsolete()

    def add(self, watched: Selection, selection: str, on_synced: Callable[[], None]) -> None:
        """Read this, too, from now on to the end; *on_synced* when it was listed. Its changes come
        as of *selection*.

        What is said of our health does not depend on it.
        """
        assert self._group is not None, "nothing runs yet"
        informer = self._informer(watched)
        informer.add_handler(partial(self._on_changes, selection), on_synced)
        self._group.create_task(informer.run(), name=f"informer {watched.resource.key} {selection}")

    async def complete(self) -> None:
        """Returns when every selection that is wanted was listed."""
        await self._complete.wait()

    async def followed(self) -> None:
        """Returns when the server has accepted a watch of everything that is read by all nodes."""
        for informer in self._informers:
            await informer.wait_followed()

    def service(self, key: str) -> Object | None:
        """The Service ``namespace/name`` as it was last seen."""
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
        """How long ago the oldest of the caches was last known to be current; ``None``: nothing is
        followed.
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
        """``unanswered``, if it is the server that refuses all that is lost; "" otherwise."""
        return self._lost() if all(informer.refused for informer in self._disconnected()) else ""

    def _last_event_age_s(self) -> float:
        """How long ago any watch brought something."""
        selected = [selection.informer for selection in self._selections.values()]
        watching = [informer for informer in (*self._informers, *selected) if not informer.absent]
        return min((informer.staleness() for informer in watching), default=math.inf)

    async def unanswered(self) -> str:
        """Why the server cannot be believed to have told us everything; "" if it answers."""
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
        return RunningInformer(
            self._client,
            watched,
            clock=self._clock,
            rng=self._rng.fork(),
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
        """Lets go what is not wanted any more, once all that is wanted is there."""
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
