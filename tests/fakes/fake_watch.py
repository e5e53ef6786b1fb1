"""One watch stream of a ``FakeApi``: pulled by the test, never pushing, with faults on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from sliceplane.api import codec
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource

BOOKMARK_PERIOD_S: Final = 60.0
#: the last bookmark comes this long before the stream's time is over
BOOKMARK_BEFORE_END_S: Final = 2.0

Message = tuple[str, bytes]
Predicate = Callable[[Document], bool]


@dataclass(frozen=True, slots=True)
class Happened:
    """One commit of a ``FakeApi``."""

    revision: int
    resource: str
    kind: str
    document: Document
    previous: Document | None


class Source(Protocol):
    """What a stream reads from."""

    @property
    def revision(self) -> int: ...

    def since(self, resource: Resource, revision: int) -> tuple[Happened, ...]: ...


class FakeWatch:
    """Made by ``FakeApi.watch``.  A test pulls; ``ended`` and ``error`` tell how it ended."""

    def __init__(
        self,
        resource: Resource,
        matches: Predicate,
        since: int,
        source: Source,
        *,
        now: float,
        ends_at: float,
    ) -> None:
        #: events reach the client so long after the first pull that could have had them
        self.lag_s = 0.0
        self.ended = False
        #: what the transport says about the end; ``None``: a clean end
        self.error: StatusError | None = None
        self._resource = resource
        self._matches = matches
        self._source = source
        self._ends_at = ends_at
        self._silent = False
        self._bookmark_at = self._next_bookmark(now)
        #: revisions: read from the source up to here, handed out up to there
        self._noticed = since
        self._handed_out = since
        self._held: deque[tuple[float, Happened]] = deque()
        self._ready: list[Message] = []
        self._last: Message | None = None

    # Faults

    def cut(self, error: StatusError | None = None) -> None:
        """The stream ends now: cleanly, or with what the transport says.  What was not pulled is
        lost.
        """
        self.ended = True
        self.error = error
        self._ready.clear()
        self._held.clear()

    def go_silent(self) -> None:
        """Half-open: the stream neither gives anything nor ends, ever."""
        self._silent = True

    def repeat(self) -> None:
        """The last message is sent once more."""
        if self._last is not None and not self.ended:
            self._ready.append(self._last)

    def refuse(self, error: StatusError) -> None:
        """Answer with an ERROR event and end."""
        self._ready.append(("ERROR", codec.encode(error.status())))
        self._ends_at = float("-inf")
        self._noticed = self._handed_out = 1 << 62

    # Reading

    def pull(self, now: float) -> tuple[Message, ...]:
        """What has arrived; ``ended`` is up to date afterwards."""
        if self._silent or self.ended:
            return ()
        for event in self._source.since(self._resource, self._noticed):
            self._noticed = event.revision
            self._held.append((now + self.lag_s, event))
        messages, self._ready = self._ready, []
        while self._held and self._held[0][0] <= now:
            _, event = self._held.popleft()
            self._handed_out = event.revision
            message = self._seen(event)
            if message is not None:
                messages.append(message)
        if now >= self._bookmark_at:
            self._bookmark_at = self._next_bookmark(now)
            if not self._held and self._handed_out <= self._source.revision:
                messages.append(("BOOKMARK", self._bookmark()))
        if messages:
            self._last = messages[-1]
        if now >= self._ends_at:
            self.ended = True
        return tuple(messages)

    def _next_bookmark(self, now: float) -> float:
        last = self._ends_at - BOOKMARK_BEFORE_END_S
        return min(now + BOOKMARK_PERIOD_S, last) if now < last else now + BOOKMARK_PERIOD_S

    def next_at(self) -> float:
        """When ``pull`` has something without anything else happening; ``math.inf`` for a silent
        stream, ``-math.inf`` for one that has ended.
        """
        if self.ended:
            return float("-inf")
        if self._silent:
            return float("inf")
        held = self._held[0][0] if self._held else float("inf")
        return min(held, self._bookmark_at, self._ends_at)

    def _seen(self, event: Happened) -> Message | None:
        """What a watcher with this selector is told of *event*."""
        before = event.previous is not None and self._matches(event.previous)
        after = event.kind != "DELETED" and self._matches(event.document)
        if after:
            return ("MODIFIED" if before else "ADDED", codec.encode(event.document))
        if not before:
            return None
        assert event.previous is not None, "an object that matched before was there before"
        last = event.document if event.kind == "DELETED" else event.previous
        metadata = {**last["metadata"], "resourceVersion": str(event.revision)}
        return ("DELETED", codec.encode({**last, "metadata": metadata}))

    def _bookmark(self) -> bytes:
        metadata = {"resourceVersion": str(self._source.revision), "creationTimestamp": None}
        return codec.encode(
            {
                "kind": self._resource.kind,
                "apiVersion": self._resource.api_version,
                "metadata": metadata,
            }
        )
