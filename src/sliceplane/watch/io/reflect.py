"""One informer in motion: performs what a reflector asks for over a client and hands its changes
on.

The loop decides nothing. Each request and each wait for a message is bounded by a time limit, so
that neither a server nor a proxy that keeps quiet can hold it for ever; every failure goes back
into the reflector, which knows when to try again. What the loop cannot foresee (a fault in a
client, say) is logged with its traceback and counts as a failure too: an informer never dies
silently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from sliceplane.api.errors import StatusError, internal
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import NOT_TO_BE_HAD
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.rng import Rng
from sliceplane.watch.actions import Phase, StartList, StartWatch
from sliceplane.watch.cache import Cache, Change, Mark
from sliceplane.watch.io.base import Reader, Unreachable, no_answer
from sliceplane.watch.reflector import DEFAULTS, Reflector, ReflectorConfig

T = TypeVar("T", bound=Object)

#: one page of 500 objects of a megabyte each takes this long at 10 MB/s
LIST_TIMEOUT_S = 60.0
#: after so many messages that were there without waiting, other tasks get their turn
MESSAGES_PER_BATCH = 256
#: the timer of a stream is moved only when it would move by this much: it is moved for every
#: message otherwise
IDLE_GRAIN_S = 0.25

Handler = Callable[[tuple[Change[T], ...]], None]

_log = get_logger("informer")


class Log(Protocol):
    """Where an informer tells of failures; ours, or that of a program which we are a library in."""

    def info(self, event: str, **values: Any) -> None: ...
    def warning(self, event: str, **values: Any) -> None: ...
    def error(self, event: str, **values: Any) -> None: ...


def loop_clock(wall: float) -> Callable[[], float]:
    """Seconds since the epoch that never jump: *wall* now, and from then on as the running loop's
    clock goes.
    """
    loop = asyncio.get_running_loop()
    offset = wall - loop.time()
    return lambda: offset + loop.time()


class RunningInformer(Generic[T]):
    """A cache, its reflector and its handlers. ``run`` is one task; the rest is called in the same
    loop.

    *clock* gives seconds since the epoch and should not jump (``loop_clock``). Handlers are called
    synchronously in the order in which they were added; they must be quick (put changes into a
    queue) and see every change exactly once.
    """

    def __init__(
        self,
        client: Reader,
        selection: Selection,
        *,
        clock: Callable[[], float],
        rng: Rng,
        cache: Cache[T] | None = None,
        config: ReflectorConfig = DEFAULTS,
        log: Log = _log,
    ) -> None:
        self.resource = resource = selection.resource
        self._selection = selection
        self._log = log
        self.cache: Cache[T] = Cache(resource) if cache is None else cache
        self.reflector: Reflector[T] = Reflector(self.cache, rng, config)
        self._client = client
        self._clock = clock
        self._handlers: list[Handler[T]] = []
        self._on_marks: list[Callable[[Mark], None]] = []
        self._synced = asyncio.Event()
        self._on_synced: list[Callable[[], None]] = []
        self._lost = ""
        #: a watch is open, or the cluster lacks this kind and the reader does without
        self._followed = asyncio.Event()
        #: the time limit of the stream that is open, and why it is to be left
        self._limit: asyncio.Timeout | None = None
        self._relist_reason = ""
        self._is_relist_logged = True
        scope = {
            name: getattr(selection, name)
            for name in ("namespace", "label_selector", "field_selector")
        }
        self._named = {
            "resource": resource.key,
            **{name: text for name, text in scope.items() if text},
        }

    # For owners

    @property
    def synced(self) -> bool:
        """The first list was delivered to every handler."""
        return self._synced.is_set()

    def staleness(self) -> float:
        """Seconds since the cache was last known to be current; ``math.inf`` before the first
        list.
        """
        return self.reflector.staleness(self._clock())

    @property
    def lost(self) -> str:
        """Why no changes come at the moment: a list or watch failed and no watch was opened since;
        "" if one is open or being opened for the first time.
        """
        return self._lost

    @property
    def absent(self) -> bool:
        """The cluster lacks this kind or keeps it from us, and we do without."""
        return self.reflector.absent is not None

    @property
    def refused(self) -> bool:
        """Returns True if the server itself refused the kind (403, 404), which no restart of ours
        changes.
        """
        error = self.reflector.last_error
        return bool(self._lost) and error is not None and error[0].code in NOT_TO_BE_HAD

    def relist(self, why: str, *, is_logged: bool = True) -> None:
        """Lists again because the cache is wrong, and ends the watch if one is open.  *is_logged*:
        with a log line.
        """
        if self._limit is not None:
            self._relist_reason = why
            self._is_relist_logged = is_logged
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def wait_synced(self) -> None:
        await self._synced.wait()

    async def wait_followed(self) -> None:
        """Returns once the server has accepted a watch: a right to list alone brings no changes."""
        await self._followed.wait()

    def add_handler(
        self,
        handler: Handler[T],
        on_synced: Callable[[], None],
        on_mark: Callable[[Mark], None] | None = None,
    ) -> None:
        """Tell *handler* of every change from here on, beginning with what the cache holds now.

        *on_synced* is called once: now, if the first list was delivered, else when it is. *on_mark*
        is told, after the changes, how far they lead; bookmarks and lists without a change count,
        too.
        """
        present = self.cache.snapshot()
        if present:
            handler(present)
        self._handlers.append(handler)
        if on_mark is not None:
            self._on_marks.append(on_mark)
            if self.synced:
                on_mark(Mark(self.resource.key, self.reflector.reached, listed=True))
        if self.synced:
            on_synced()
        else:
            self._on_synced.append(on_synced)

    def remove_handler(
        self, handler: Handler[T], on_mark: Callable[[Mark], None] | None = None
    ) -> None:
        self._handlers = [other for other in self._handlers if other != handler]
        self._on_marks = [other for other in self._on_marks if other != on_mark]

    # The loop

    async def run(self) -> None:
        """Until cancelled.  Never returns and never raises otherwise."""
        self.reflector.start(self._clock())
        while True:
            actions = self.reflector.take_actions()
            try:
                for action in actions:
                    match action:
                        case StartList():
                            await self._list(action)
                        case StartWatch():
                            await self._watch(action)
                    # StopWatch needs no deed: leaving the loop over a stream has closed it.
                if not actions:
                    await self._wait()
            except Exception as error:
                # Not a failure of the server, which comes as a StatusError: a fault of ours or of a
                # handler. What the cache missed by it is in the next list.
                self._log.error(
                    "an informer met a fault and lists again", **self._named, exc_info=error
                )
                self._lost = f"{type(error).__name__}: {error}"
                self.reflector.on_fault(internal(self._lost), self._clock())
            self._deliver()

    async def _wait(self) -> None:
        due = self.reflector.next_deadline()
        assert due is not None, f"nothing to do and nothing to wait for in {self.reflector.phase}"
        await asyncio.sleep(max(due - self._clock(), 0.0))
        self.reflector.on_deadline(self._clock())

    async def _list(self, action: StartList) -> None:
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                page = await self._client.list(
                    self._selection,
                    resource_version=action.resource_version,
                    limit=action.limit or None,
                    continue_token=action.continue_token,
                )
        except (StatusError, Unreachable, TimeoutError) as error:
            self._failed("a list failed", error)
            return
        unconfirmed = self.reflector.unconfirmed
        before = (unconfirmed.suspected, unconfirmed.refuted)
        self.reflector.on_page(
            page.items, page.resource_version, page.continue_token, self._clock()
        )
        if unconfirmed.suspected != before[0]:
            self._log.warning(
                "a list lacks most of what was there, and is asked for again", **self._named
            )
        if unconfirmed.refuted != before[1]:
            self._log.warning("a second list has what the first lacked", **self._named)

    async def _watch(self, action: StartWatch) -> None:
        """Feed one stream until it ends, or the reflector wants something else."""
        reflector = self.reflector
        loop = asyncio.get_running_loop()
        self._relist_reason = ""
        try:
            async with asyncio.timeout(None) as limit:
                self._rearm(limit, loop)
                async with self._client.watch(
                    self._selection,
                    resource_version=action.resource_version,
                    timeout_s=action.timeout_s,
                ) as messages:
                    reflector.on_watch_opened(self._clock())
                    self._lost = ""
                    self._followed.set()
                    self._rearm(limit, loop)
                    self._limit = limit
                    taken = 0
                    async for message in messages:
                        reflector.on_watch_event(message.type, message.body, self._clock())
                        self._deliver()
                        if reflector.phase is not Phase.WATCHING:
                            self._report_lost_watch()
                            return
                        self._rearm(limit, loop)
                        taken += 1
                        if taken % MESSAGES_PER_BATCH == 0:
                            await asyncio.sleep(0)
        except (StatusError, Unreachable) as error:
            self._failed("a watch failed", error)
        except TimeoutError:
            if self._relist_reason:
                if self._is_relist_logged:
                    self._log.warning(
                        "a watch is left for a list", **self._named, why=self._relist_reason
                    )
                reflector.list_again(self._clock())
            else:
                reflector.on_deadline(self._clock())
                self._report_lost_watch()
        else:
            reflector.on_watch_ended(self._clock())
            if reflector.phase is not Phase.WATCHING:
                self._report_lost_watch()
        finally:
            self._limit = None

    def _rearm(self, limit: asyncio.Timeout, loop: asyncio.AbstractEventLoop) -> None:
        if self._relist_reason:
            return
        due = self.reflector.next_deadline()
        assert due is not None, "a watch has an idle time limit"
        # A little late rather than early: an early one would find that nothing is due.
        latest = loop.time() + max(due - self._clock(), 0.0) + IDLE_GRAIN_S
        armed = limit.when()
        if armed is None or latest - armed >= IDLE_GRAIN_S:
            limit.reschedule(latest)

    def _failed(self, event: str, error: StatusError | Unreachable | TimeoutError) -> None:
        status = error if isinstance(error, StatusError) else no_answer(error)
        self._lost = str(status)
        was_absent = self.absent
        if self.reflector.phase is Phase.LISTING:
            self.reflector.on_list_failed(status, self._clock())
        elif self.reflector.phase is Phase.WATCHING:
            self.reflector.on_watch_ended(self._clock(), status)
        self._followed.clear()
        if self.absent:
            self._followed.set()
            self._lost = ""
            if not was_absent:  # once, not at every retry
                self._log.info(
                    "this cluster has none of these for us, we do without",
                    **self._named,
                    error=str(status),
                )
            return
        due = self.reflector.next_deadline() or self._clock()
        wait = round(due - self._clock(), 1)
        self._log.warning(
            event, **self._named, error=str(status), reason=status.reason, retry_in_s=wait
        )

    def _report_lost_watch(self) -> None:
        """Reports a watch that the reflector ended by itself, with its reason."""
        if self.reflector.last_error is not None:
            self._lost = str(self.reflector.last_error[0])
            self._log.warning(
                "a watch was given up", **self._named, error=str(self.reflector.last_error[0])
            )

    # Delivery

    def _deliver(self) -> None:
        """In one go, so that a handler that is added meanwhile sees either the snapshot or the
        change, never both.
        """
        changes = self.reflector.take_changes()
        for handler in self._handlers if changes else ():
            try:
                handler(changes)
            except Exception as error:  # one handler's fault must not cost the others their changes
                self._log.error(
                    "a handler failed", **self._named, changes=len(changes), exc_info=error
                )
        mark = self.reflector.take_mark() if self._on_marks else None
        if mark is not None:
            for on_mark in self._on_marks:
                on_mark(mark)
        if self.reflector.synced and not self._synced.is_set():
            self._synced.set()
            waiting, self._on_synced = self._on_synced, []
            for on_synced in waiting:
                on_synced()
