"""The watch on our prefix: one stream, resumed wherever it ends, in a thread of its own.

A transaction is one revision of etcd, and its events come together: in one response or, as we ask
for fragments, in several that say that more follow. So whatever ends a stream, the next one starts
one revision after the last *event* that was handed on (never after a header's revision: an answer
that says "created" may tell of a revision whose events have not come). Nothing comes twice and
nothing is passed over; where etcd has dropped what lies between, the owner is told (``on_gap``) and
the feed rests until ``resume``.

A silent stream is not told from an idle one here. The committer, which knows that the head moved
on, calls ``restart``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc

from sliceplane.server.io.storage.etcd import wire
from sliceplane.server.io.storage.etcd.client import EtcdClient, NoAnswer, error_of

_RETRY_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8)


class Feed:
    """Made, started and closed by the owner; *on_events* and *on_gap* are called in the feed's
    thread.
    """

    def __init__(
        self,
        client: EtcdClient,
        prefix: bytes,
        *,
        on_events: Callable[[list[Any]], None],
        on_gap: Callable[[str], None],
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._on_events = on_events
        self._on_gap = on_gap
        self._next = 0
        self._call: Any = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._resting = False
        #: streams of an older one have nothing to say
        self._generation = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="etcd feed", daemon=True)
        # Counters, for metrics.
        self.streams = 0

    def start(self, after: int) -> None:
        """Events after etcd's revision *after*."""
        self._next = after + 1
        self._thread.start()

    def resume(self, after: int) -> None:
        """Go on from another revision, whatever the stream was about to tell."""
        with self._lock:
            self._generation += 1
            self._next = after + 1
            self._resting = False
        self.restart()

    def restart(self) -> None:
        """End the stream, which seems to be stuck; it begins anew at the next member."""
        with self._lock:
            call = self._call
        if call is not None:
            call.cancel()
        self._wake.set()

    def close(self) -> None:
        self._closed = True
        self.restart()
        if self._thread.ident is not None:
            self._thread.join(5)

    def _run(self) -> None:
        failures = 0
        while not self._closed:
            before = self._next
            self._stream()
            failures = 0 if self._next > before else min(failures + 1, len(_RETRY_S))
            self._wake.clear()
            while self._resting and not self._closed:
                self._wake.wait(1.0)
                self._wake.clear()
            if failures and not self._closed:
                self._wake.wait(_RETRY_S[failures - 1])

    def _stream(self) -> None:
        """One stream, until it ends."""
        with self._lock:
            generation = self._generation
            start = self._next
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        create = wire.WatchCreateRequest(
            key=self._prefix,
            range_end=wire.end_of(self._prefix),
            start_revision=start,
            progress_notify=True,
            fragment=True,
        )
        requests.put(wire.WatchRequest(create_request=create))
        call, member = self._client.watch(iter(requests.get, None))
        with self._lock:
            self._call = call
        self.streams += 1
        try:
            if not self._closed:
                self._read(call, generation)
            self._client.leave(member)
        except grpc.RpcError:
            if isinstance(error_of(call, ""), NoAnswer):
                self._client.leave(member)
        finally:
            with self._lock:
                self._call = None
            requests.put(None)
            call.cancel()

    def _read(self, call: Iterator[Any], generation: int) -> None:
        pending: list[Any] = []
        for response in call:
            if response.canceled:
                if response.compact_revision and self._advance(generation, resting=True):
                    self._on_gap(
                        f"etcd has dropped what was before its revision {response.compact_revision}"
                    )
                return
            pending.extend(response.events)
            if response.fragment or not pending:
                continue
            events, pending = pending, []
            if not self._advance(generation, events[-1].kv.mod_revision + 1):
                return
            self._on_events(events)

    def _advance(self, generation: int, start: int = 0, *, resting: bool = False) -> bool:
        """Note where the next stream begins; ``False`` if the owner has said otherwise
        meanwhile.
        """
        with self._lock:
            if generation != self._generation:
                return False
            self._next = start or self._next
            self._resting = resting
            return True
