"""One person's view of a cluster, read with that person's permissions: a model, its views, the
engines.

``open`` begins the stream of a tab: lines of JSON, ``hello``, then ``view`` and ``delta``
(``diagnose.page.feed``), and every second a ``beat`` with the time until which the content is known
to be current. A tab that missed more messages than are kept is notified and closed; it reloads the
view.

Tabs may be served by a loop in another thread. All of them are woken together in *rounds*, and take
messages that were encoded once for each view: one thread wakes the other once a round, not once a
tab.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from sliceplane.diagnose.page.feed import line
from sliceplane.diagnose.page.io.hub import TICK_S, Topic, ViewHub
from sliceplane.diagnose.page.io.live import LiveCluster
from sliceplane.diagnose.page.io.questions import WHAT_IFS_MAX, Questions, WhatIf
from sliceplane.diagnose.page.io.static_files import PageAnswer, json_answer, text
from sliceplane.watch.io.http.client import HttpClient

TABS_MAX: Final = 64
HEARTBEAT_S: Final = 1.0
#: seconds after which a tab that accepts no message is closed
SLOW_S: Final = 10.0
PARAMETER_MAX: Final = 600
#: milliseconds of CPU for a message to a tab in a server's loop
SENDING_MS: Final = 0.1
#: seconds in which watch events are read together
WATCH_REST_S: Final = 0.2


class Rounds:
    """Owned by the loop that serves tabs; ``wake`` may be called from another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.number = 0
        self._loop = loop
        self._next = asyncio.Event()

    def wake(self) -> None:
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self.number += 1
        begun, self._next = self._next, asyncio.Event()
        begun.set()

    async def after(self, number: int) -> int:
        """Waits for another round than *number*, and returns its number."""
        if self.number == number:
            await self._next.wait()
        return self.number


class Viewer:
    """Owned by one loop, from ``start`` to ``stop``. *connect* creates a read-only client, in the
    loop that calls it; *hello* is sent to every tab; *namespace* and *fallback*: as in
    ``LiveCluster``. *served_by*: the loop of the tabs, if it is another one.
    """

    def __init__(
        self,
        connect: Callable[[], HttpClient],
        what_if: WhatIf,
        hello: Mapping[str, Any],
        *,
        namespace: str,
        fallback: str,
        served_by: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._connect = connect
        self._what_if = what_if
        self._hello = hello
        self._namespace = namespace
        self._fallback = fallback
        self._served_by = served_by
        self._refreshing: asyncio.Task[None] | None = None
        self._client: HttpClient | None = None
        self.live: LiveCluster
        self.questions: Questions
        self.hub: ViewHub
        self.rounds: Rounds
        #: the heartbeat of the last round
        self.heartbeat = b""
        self.tabs = 0
        #: the last message of every stream
        self.over = b""

    async def start(self) -> None:
        """Returns when the first lists arrived, or were refused.  Raises ``StatusError`` and
        ``Unreachable``.
        """
        self._client = self._connect()
        self.live = LiveCluster(self._client, self._namespace, self._fallback)
        await self.live.start()
        self.questions = Questions(self._connect, self.live.now, self.live.namespace, self._what_if)
        self.questions.start()
        self.hub = ViewHub(
            self.live, self.questions, SENDING_MS if self._served_by is not None else 0.0
        )
        self.rounds = Rounds(self._served_by or asyncio.get_running_loop())
        self._refreshing = asyncio.create_task(self._refresh())

    async def stop(self, last: Mapping[str, Any] | None = None) -> None:
        """Stops the viewer, even after a failed start. *last* is sent to every tab."""
        if self._client is None:
            return
        self.over = line(last or {"type": "anew"})
        if self._refreshing is not None:
            self.rounds.wake()
            self._refreshing.cancel()
            await self.questions.stop()
        await self.live.stop()
        await self._client.close()

    async def answer(self, path: str, query: Mapping[str, str]) -> PageAnswer:
        """Answers a query that has one answer."""
        match path:
            case "v1/trace":
                return await self._trace(query)
            case "v1/what-if":
                return await self._predict(query)
        return text(404, "there is no such page")

    def open(self, query: Mapping[str, str]) -> Tab | PageAnswer:
        if self.tabs >= TABS_MAX:
            return text(503, f"{TABS_MAX} tabs are open, and that is the most")
        try:
            key, topic = self.hub.enter(query)
        except ValueError as error:
            return text(400, str(error))
        self.tabs += 1
        return Tab(self, key, topic)

    def close_tab(self, key: tuple[str, ...]) -> None:
        self.tabs -= 1
        self.hub.exit(key)

    def hello(self) -> bytes:
        return line({"type": "hello", **self._hello, "namespace": self.live.namespace})

    async def _refresh(self) -> None:
        refresh_at = heartbeat_at = 0.0
        while True:
            notified = 0
            if time.monotonic() >= refresh_at:
                notified = self.hub.refresh()
                refresh_at = time.monotonic() + self.hub.rest_s(notified)
            if notified or time.monotonic() >= heartbeat_at:
                self.heartbeat = self.new_heartbeat()
                self.rounds.wake()
                heartbeat_at = time.monotonic() + HEARTBEAT_S
            await asyncio.sleep(min(refresh_at, heartbeat_at) - time.monotonic())

    def new_heartbeat(self) -> bytes:
        live = self.live
        return line(
            {"type": "beat", "at": live.current(), "sent": live.now(), "troubles": live.troubles()}
        )

    async def _trace(self, query: Mapping[str, str]) -> PageAnswer:
        question = ("trace", *(query.get(name, "") for name in ("from", "to", "protocol", "node")))
        if question[3] not in ("", "tcp", "udp", "sctp"):
            return text(400, "protocol is one of tcp, udp, sctp")
        answered = await self.questions.compute(
            (*question, query.get("namespace") or self.live.namespace or "default")
        )
        return json_answer(line(answered.part()))

    async def _predict(self, query: Mapping[str, str]) -> PageAnswer:
        namespace, _, name = query.get("service", "").partition("/")
        settings = query.get("set", "").split()
        if not namespace or not name or "/" in name:
            return text(400, "service is NAMESPACE/NAME")
        answered = await self.questions.compute_what_if(("what-if", namespace, name, *settings))
        if answered is None:
            return text(
                503,
                f"{WHAT_IFS_MAX} questions of this kind are being worked out: ask again in a while",
            )
        return json_answer(line(answered.part()))


class Tab:
    """The stream of one tab. Create and close it in the viewer's thread; call ``next`` in the loop
    that serves it.
    """

    def __init__(self, viewer: Viewer, key: tuple[str, ...], topic: Topic) -> None:
        self._viewer = viewer
        self._key = key
        self._topic = topic
        self._number = topic.feed.number
        self._first = b"".join((viewer.hello(), topic.feed.whole(), viewer.new_heartbeat()))
        self._round = 0
        self._heartbeat_at = 0.0
        self._ended = False

    async def next(self) -> bytes:
        """Returns the messages that the tab has not received, and the heartbeat; b"" at the end."""
        if self._ended:
            return b""
        message, self._first = self._first, b""
        while not message and not self._viewer.over:
            self._round = await self._viewer.rounds.after(self._round)
            message = self._missed()
        if self._viewer.over:
            self._ended = True
            return self._viewer.over
        return message

    def _missed(self) -> bytes:
        messages = self._topic.feed.messages
        deltas = messages.after(self._number)
        if deltas is None:
            self._ended = True
            return line({"type": "anew"})
        now = time.monotonic()
        if not deltas and now < self._heartbeat_at:
            return b""
        self._number = messages.number
        self._heartbeat_at = now + HEARTBEAT_S - TICK_S
        return b"".join((*deltas, self._viewer.heartbeat))

    def close(self) -> None:
        """Closes the tab; must be called once."""
        self._viewer.close_tab(self._key)


def refused_query(query: Mapping[str, str]) -> PageAnswer | None:
    if any(len(value) > PARAMETER_MAX for value in query.values()):
        return text(400, f"a parameter is longer than {PARAMETER_MAX} characters")
    return None
