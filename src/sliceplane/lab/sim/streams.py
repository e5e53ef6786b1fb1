"""An informer on virtual time: executes the actions of the production reflector over a network that
fails.

The messages of one watch stay in order, as on a connection; each stream has its own lag, so the
order across watches is arbitrary. A stream that breaks loses its messages in flight; a silent one
stays silent until the reflector's time limit detects it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Final

from sliceplane.api.codec import decode, encode
from sliceplane.api.errors import StatusError, unreachable
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.network import Network
from sliceplane.lab.sim.scheduler import Alarm, Callback
from sliceplane.server.store.watcher import Item, Watcher
from sliceplane.watch.actions import Phase, StartList, StartWatch, StopWatch
from sliceplane.watch.cache import Cache, Change, Mark
from sliceplane.watch.reflector import Reflector
from sliceplane.watch.unconfirmed import part_kept

#: equal to the production informer's
LIST_TIMEOUT_S: Final = 60.0
LAG_MAX_S: Final = 5.0
BURST_MAX_S: Final = 20.0

Deliver = Callable[[tuple[Change[Object], ...]], None]
#: a dozen informers receive the same event; objects are frozen, so they share the decoded one
_decoded = lru_cache(4096)(lambda kind, body: decode(body, kind))


class SimulatedInformer:
    """Owned by one process. *receive* runs a callback of this process, later if it is paused."""

    def __init__(
        self,
        selection: Selection,
        network: Network,
        rng: Rng,
        *,
        receive: Callable[[Callback], None],
        deliver: Deliver,
        on_synced: Callback,
        on_mark: Callable[[Mark], None] | None = None,
    ) -> None:
        resource = selection.resource
        cache: Cache[Object] = Cache(resource, decode=partial(_decoded, resource.projection))
        self.reflector: Reflector[Any] = Reflector(cache, rng)
        self.selection = selection
        self._network = network
        self._scheduler = network.scheduler
        self._server = network.server
        self._faults = network.faults
        self._receive = receive
        self._deliver = deliver
        self._on_synced = on_synced
        self._on_mark = on_mark
        self._synced = False
        self._alarm = Alarm(self._scheduler, self._on_deadline, receive)
        #: number of the newest request; answers to older ones are dropped
        self._request = 0
        #: the last list was shortened
        self._was_short = False
        self._stream: _SimulatedStream | None = None

    def start(self) -> None:
        self.reflector.start(self._scheduler.now)
        self._apply_actions()

    def stop(self) -> None:
        self.reflector.stop()
        self._request += 1
        self._close()

    # Actions of the reflector

    def _apply_actions(self) -> None:
        """Executes the reflector's actions; called after each call of the reflector."""
        for action in self.reflector.take_actions():
            match action:
                case StartList():
                    self._list(action)
                case StartWatch():
                    self._watch(action)
                case StopWatch():
                    self._request += 1
                    self._close()
        changes = self.reflector.take_changes()
        if changes:
            self._deliver(changes)
        mark = self.reflector.take_mark()
        if mark is not None and self._on_mark is not None:
            self._on_mark(mark)
        if self.reflector.synced and not self._synced:
            self._synced = True
            self._on_synced()
        self._alarm.set(self.reflector.next_deadline())

    def _on_deadline(self) -> None:
        if self.reflector.phase is not Phase.STOPPED:
            self.reflector.on_deadline(self._scheduler.now)
            self._apply_actions()

    def _run_if_current(self, request: int, callback: Callback) -> None:
        """Runs *callback* and the resulting actions, unless the request was abandoned."""

        def run() -> None:
            if request == self._request:
                callback()
                self._apply_actions()

        self._receive(run)

    # Lists

    def _list(self, action: StartList) -> None:
        self._request += 1
        request = self._request
        if self._faults.strikes("request-lost") or self._faults.strikes("response-lost"):
            self._scheduler.after(
                LIST_TIMEOUT_S, lambda: self._list_failed(request, unreachable("timeout"))
            )
            return
        self._scheduler.after(self._network.latency(), lambda: self._list_arrives(request, action))

    def _list_arrives(self, request: int, action: StartList) -> None:
        error = self._network.refusal()
        if error is None:
            try:
                page = self._server.page(self.selection, action.limit, action.continue_token)
            except StatusError as refused:
                error = refused
            else:
                items = self._shorten(tuple(record.body for record in page.records))
                version = str(page.resource_version)
                token = page.continue_token

                def deliver() -> None:
                    self.reflector.on_page(items, version, token, self._scheduler.now)

                self._scheduler.after(
                    self._network.latency(), lambda: self._run_if_current(request, deliver)
                )
                return
        failure = error
        self._scheduler.after(self._network.latency(), lambda: self._list_failed(request, failure))

    def _shorten(self, items: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Returns the list unchanged, or shortens it once so much that the reflector must confirm
        it.
        """
        cache = self.reflector.cache
        may_be_short = part_kept(cache, ()) < 1 and not self._was_short
        self._was_short = may_be_short and self._faults.strikes("short-list")
        if not self._was_short:
            return items
        listed = [cache.load(item) for item in items]
        fitting = (
            count for count in range(len(items), -1, -1) if part_kept(cache, listed[:count]) < 0.5
        )
        return items[: next(fitting)]

    def _list_failed(self, request: int, error: StatusError) -> None:
        self._run_if_current(
            request, lambda: self.reflector.on_list_failed(error, self._scheduler.now)
        )

    # Watches

    def _watch(self, action: StartWatch) -> None:
        self._request += 1
        request = self._request
        self._close()
        self._scheduler.after(self._network.latency(), lambda: self._watch_arrives(request, action))

    def _watch_arrives(self, request: int, action: StartWatch) -> None:
        if request != self._request:
            return
        error = self._network.refusal()
        if error is None:
            try:
                watcher = self._server.watch(
                    self.selection, action.resource_version, action.timeout_s
                )
            except StatusError as refused:
                error = refused
            else:
                lag = (
                    self._faults.sample("watch-delay", 0.0, LAG_MAX_S)
                    if self._faults.strikes("watch-delay")
                    else 0.0
                )
                self._run_if_current(
                    request, lambda: self.reflector.on_watch_opened(self._scheduler.now)
                )
                self._stream = _SimulatedStream(self, request, watcher, lag)
                self._stream.pump()
                return
        self._watch_ended(request, error)

    def _watch_ended(self, request: int, error: StatusError | None) -> None:
        def end() -> None:
            self._request += 1  # messages in flight in the stream are lost
            self.reflector.on_watch_ended(self._scheduler.now, error)

        self._run_if_current(request, end)

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.watcher.close(None)
            self._stream = None

    def silence(self) -> None:
        """Makes the connection of the watch half-open from now on."""
        if self._stream is not None:
            self._stream.silent = True

    def relist(self) -> None:
        """Replaces an open watch by a list, as the production informer does."""
        if self._stream is not None:
            self.reflector.list_again(self._scheduler.now)
            self._apply_actions()

    def cut(self) -> None:
        """Breaks the connection of the watch, if there is one."""
        if self._stream is not None:
            self._request += 1
            self._close()
            self._watch_ended(self._request, unreachable("connection reset by peer"))


def informers_of(
    selections: Sequence[Selection],
    network: Network,
    rng: Rng,
    *,
    receive: Callable[[Callback], None],
    deliver: Deliver,
    on_synced: Callback,
    on_mark: Callable[[Mark], None],
) -> list[SimulatedInformer]:
    """Creates an informer for each of *selections*; calls *on_synced* once all of them are synced."""
    unsynced = len(selections)

    def one_synced() -> None:
        nonlocal unsynced
        unsynced -= 1
        if not unsynced:
            on_synced()

    return [
        SimulatedInformer(
            selection,
            network,
            rng.fork(),
            receive=receive,
            deliver=deliver,
            on_synced=one_synced,
            on_mark=on_mark,
        )
        for selection in selections
    ]


class _SimulatedStream:
    """One watch: from the hub's queue to the reflector, in order."""

    def __init__(
        self, owner: SimulatedInformer, request: int, watcher: Watcher, lag_s: float
    ) -> None:
        self.watcher = watcher
        self._owner = owner
        self._request = request
        self._lag_s = lag_s
        #: when the message before this one arrives
        self._last = 0.0
        self.silent = False
        watcher.notify = self.pump

    def pump(self) -> None:
        """Sends the pending events of the hub's watcher."""
        owner = self._owner
        watcher = self.watcher
        if owner._stream is not self:
            return
        while watcher.pending:
            for item in watcher.take():
                if not self._send(item):
                    return
        if watcher.closed:
            self._end()

    def _send(self, item: Item) -> bool:
        """Sends one message; returns False if the stream broke at it."""
        owner = self._owner
        faults = owner._faults
        scheduler = owner._scheduler
        if faults.strikes("watch-cut"):
            scheduler.after(0.0, lambda: owner.cut() if owner._stream is self else None)
            self.silent = True
            return False
        if self.silent or faults.strikes("watch-silence"):
            self.silent = True
            return True
        late = (
            faults.sample("watch-burst", 0.0, BURST_MAX_S) if faults.strikes("watch-burst") else 0.0
        )
        lag = self._lag_s if faults.active else 0.0
        self._last = max(self._last, scheduler.now + owner._network.latency() + lag + late)
        scheduler.at(self._last, lambda: self._message(item.type, item.data))
        return True

    def _message(self, kind: str, data: bytes) -> None:
        owner = self._owner
        request = self._request

        def read() -> None:
            if kind == "ERROR":
                owner._request += 1
            owner.reflector.on_watch_event(kind, data, owner._scheduler.now)

        owner._run_if_current(request, read)

    def _end(self) -> None:
        owner = self._owner
        error = self.watcher.error
        if self.silent:
            return
        after_all = max(self._last, owner._scheduler.now)
        if error is not None:
            body = encode(error.status())
            owner._scheduler.at(after_all, lambda: self._message("ERROR", body))
            return
        owner._scheduler.at(after_all, lambda: owner._watch_ended(self._request, None))
