"""Views that are open, each made once however many tabs show it.

A *topic* is a view with its parameters.  Four times a second at most the hub looks what of a topic's inputs has changed
(the model, an engine's answer), makes the view and lets its feed find the difference; tabs are woken and send the same
bytes.  A topic without tabs is forgotten.

A view rests the longer the more it costs, and all looks together, with what tabs are sent, stay within a part of a
core: a busy cluster is shown once a second rather than four times.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from sliceplane.kit.delays import TokenBucket
from sliceplane.page.feed import PageView, ViewFeed
from sliceplane.page.model import BUCKET_S
from sliceplane.page.views import Answered, Views
from sliceplane.shell.tools.guarding import held_of
from sliceplane.shell.ui.live import LiveCluster
from sliceplane.shell.ui.questions import Question, Questions

TICK_S: Final = 0.25
#: and no later, as long as it is busy
TICK_MAX_S: Final = 2.0
#: a view rests so many times what it cost
REST: Final = 100.0
#: milliseconds of CPU that the loop's thread takes in a second, in the mean, and what it may have saved up
BUSY_MS: Final = 20.0
SAVED_MS: Final = 300
SINCE: Final = {"10m": 600, "1h": 3600, "6h": 21600}


class Topic:
    """One view with its parameters: a feed, and the tabs that wait for it."""

    def __init__(self, inputs: Callable[[], tuple[Any, ...]], make: Callable[..., PageView]) -> None:
        self.feed = ViewFeed()
        self.tabs = 0
        self._inputs = inputs
        self._make = make
        self._shown: tuple[Any, ...] | None = None
        self._rests_until = 0.0
        self._news = asyncio.Event()

    def look(self, now: float) -> None:
        inputs = self._inputs()
        if self._shown is not None and (time.monotonic() < self._rests_until or _same(inputs, self._shown)):
            return
        began = time.thread_time()
        self._show(inputs, now)
        self._rests_until = time.monotonic() + REST * (time.thread_time() - began)

    def _show(self, inputs: tuple[Any, ...], now: float) -> None:
        self._shown = inputs
        if self.feed.show(self._make(*inputs), now):
            self.wake()

    def wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def changed(self, number: int, within_s: float) -> bool:
        """Whether the feed is past *number*, now or *within_s*."""
        if self.feed.number == number:
            try:
                async with asyncio.timeout(within_s):
                    await self._news.wait()
            except TimeoutError:
                return False
        return True


class ViewHub:
    """Owned by one loop; ``run`` is a task."""

    def __init__(self, live: LiveCluster, questions: Questions) -> None:
        self._live = live
        self._questions = questions
        self._views = Views(live.model, live.namespace)
        self._topics: dict[tuple[str, ...], Topic] = {}

    async def run(self) -> None:
        budget = TokenBucket(rate_per_s=BUSY_MS, burst=SAVED_MS)
        spent = time.thread_time()
        while True:
            self.look()
            before, spent = spent, time.thread_time()
            wait = budget.take(time.monotonic(), (spent - before) * 1000)
            await asyncio.sleep(min(max(TICK_S, wait), TICK_MAX_S))

    def look(self) -> None:
        for topic in list(self._topics.values()):
            topic.look(self._live.current())

    def close(self) -> None:
        """Whoever waits need not wait."""
        for topic in self._topics.values():
            topic.wake()

    def enter(self, query: Mapping[str, str]) -> tuple[tuple[str, ...], Topic]:
        """The topic that *query* names, for one tab more.  Raises ``ValueError`` with a sentence."""
        key, make = self._described(query)
        topic = self._topics.get(key)
        if topic is None:
            topic = self._topics[key] = make()
            topic.look(self._live.current())
        topic.tabs += 1
        return key, topic

    def leave(self, key: tuple[str, ...]) -> None:
        topic = self._topics[key]
        topic.tabs -= 1
        if not topic.tabs:
            del self._topics[key]

    def _described(self, query: Mapping[str, str]) -> tuple[tuple[str, ...], Callable[[], Topic]]:
        model, views, name = self._live.model, self._views, query.get("view", "")
        service = query.get("service", "")
        if service and service.count("/") != 1:
            raise ValueError("service is NAMESPACE/NAME")
        match name:
            case "now":
                return (name,), lambda: Topic(
                    lambda: (self._ask("lint"), self._ask("drift"), self._drains(), model.version),
                    lambda lint, drift, drains, _: views.now(lint, drift, drains, held_of(model.services.values())),
                )
            case "services":
                return (name,), lambda: Topic(
                    lambda: (self._ask("lint"), model.version, int(self._live.now() // BUCKET_S)),
                    lambda lint, *_: views.services(lint, self._live.now()),
                )
            case "service" if service:
                return self._service(service, query.get("client", ""))
            case "zones":
                return (name, service), lambda: Topic(lambda: (model.version,), lambda _: views.zones(service))
            case "nodes":
                return (name,), lambda: Topic(
                    lambda: (self._ask("drift"), model.version), lambda drift, _: views.nodes(drift)
                )
            case "drains":
                return (name,), lambda: Topic(lambda: (self._drains(),), views.drains)
            case "timeline":
                return self._timeline(service, query.get("since", "10m"))
            case "trace":
                return (name,), lambda: Topic(lambda: (model.version,), lambda _: views.trace())
            case "what-if":
                return (name, service), lambda: Topic(lambda: (model.version,), lambda _: views.what_if(service))
        raise ValueError("view is one of now, services, service, zones, nodes, drains, timeline, trace, what-if")

    def _service(self, service: str, client: str) -> tuple[tuple[str, ...], Callable[[], Topic]]:
        model, views = self._live.model, self._views
        namespace, _, name = service.partition("/")

        def inputs() -> tuple[Any, ...]:
            traced = None
            if client:
                spec = model.services.get(service)
                port = f":{spec.spec.ports[0].port}" if spec is not None and spec.spec.ports else ""
                traced = self._ask("trace", client, f"{name}.{namespace}{port}", "", "", namespace)
            return self._ask("explain", namespace, name), self._ask("drift"), traced, model.version

        def make(explained: Answered | None, drift: Answered | None, traced: Answered | None, _: int) -> PageView:
            return views.service(service, explained, drift, traced, client)

        return ("service", service, client), lambda: Topic(inputs, make)

    def _timeline(self, service: str, since: str) -> tuple[tuple[str, ...], Callable[[], Topic]]:
        if since not in SINCE:
            raise ValueError(f"since is one of {', '.join(SINCE)}")
        namespace, _, name = service.partition("/")

        def inputs() -> tuple[Any, ...]:
            answered = self._ask("timeline", namespace, name, str(SINCE[since])) if service else None
            return answered, self._live.model.version

        views = self._views
        return ("timeline", service, since), lambda: Topic(
            inputs, lambda answered, _: views.timeline(service, answered, since)
        )

    def _drains(self) -> Answered | None:
        """Nodes tell without a change of the model: as long as a Pod leaves, the question is asked all the time."""
        known = self._ask("drains")
        going = known is not None and known.document is not None and known.document["going"]
        return self._questions.latest(("drains",), int(self._live.now()) if going else self._live.model.version)

    def _ask(self, *question: str) -> Answered | None:
        made: Question = question
        return self._questions.latest(made, self._live.model.version)


def _same(inputs: tuple[Any, ...], shown: tuple[Any, ...]) -> bool:
    """Answers are the same object until there is another one, and are not compared in depth."""
    return all(new is old or (isinstance(new, int) and new == old) for new, old in zip(inputs, shown, strict=True))
