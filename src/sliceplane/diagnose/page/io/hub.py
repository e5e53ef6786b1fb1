"""The open views, each built once for all tabs that show it.

A *topic* is a view with its parameters. At most four times a second the hub checks if a topic's
inputs have changed (the model, an engine's answer), builds the view and lets its feed compute the
difference; all tabs send the same bytes. A topic without tabs is dropped.

A view pauses in proportion to its cost, and all refreshes together, with the messages to tabs, stay
within a fraction of a core: a busy cluster is shown once a second rather than four times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from sliceplane.diagnose.io.guarding import find_retained
from sliceplane.diagnose.page.feed import PageView, ViewFeed
from sliceplane.diagnose.page.io.live import LiveCluster
from sliceplane.diagnose.page.io.questions import Question, Questions
from sliceplane.diagnose.page.model import BUCKET_S
from sliceplane.diagnose.page.views import Answered, Views
from sliceplane.kit.delays import TokenBucket

TICK_S: Final = 0.25
#: seconds between refreshes while the thread is busy, at most
TICK_MAX_S: Final = 2.0
#: pause of a view as a multiple of its cost
REST: Final = 100.0
#: milliseconds of CPU a second of the loop's thread on average, and the burst
BUSY_MS: Final = 16.0
SAVED_MS: Final = 300
SINCE: Final = {"10m": 600, "1h": 3600, "6h": 21600}


class Topic:
    """One view with its parameters: a feed, and the tabs that wait for it."""

    def __init__(
        self, inputs: Callable[[], tuple[Any, ...]], make: Callable[..., PageView]
    ) -> None:
        self.feed = ViewFeed()
        self.tabs = 0
        self._inputs = inputs
        self._make = make
        self._last_inputs: tuple[Any, ...] | None = None
        self._rests_until = 0.0

    def refresh(self, now: float) -> bool:
        """Returns True if there is a new message."""
        inputs = self._inputs()
        if self._last_inputs is not None and (
            time.monotonic() < self._rests_until or _same(inputs, self._last_inputs)
        ):
            return False
        began = time.thread_time()
        self._last_inputs = inputs
        news = self.feed.show(self._make(*inputs), now)
        self._rests_until = time.monotonic() + REST * (time.thread_time() - began)
        return news


class ViewHub:
    """The open topics. Created in the thread of the loop that owns it. *sending_ms*: the cost of a
    message to a tab in another thread.
    """

    def __init__(self, live: LiveCluster, questions: Questions, sending_ms: float = 0.0) -> None:
        self._live = live
        self._questions = questions
        self._views = Views(live.model, live.namespace)
        self._topics: dict[tuple[str, ...], Topic] = {}
        self._budget = TokenBucket(rate_per_s=BUSY_MS, burst=SAVED_MS)
        self._spent = time.thread_time()
        self._sending_ms = sending_ms

    def refresh(self) -> int:
        """Refreshes all topics, and returns the number of tabs with new messages."""
        now = self._live.current()
        return sum(topic.tabs for topic in list(self._topics.values()) if topic.refresh(now))

    def rest_s(self, notified: int) -> float:
        """Returns the seconds until the next refresh, after one with *notified* tabs."""
        before, self._spent = self._spent, time.thread_time()
        cost_ms = (self._spent - before) * 1000 + notified * self._sending_ms
        return min(max(TICK_S, self._budget.take(time.monotonic(), cost_ms)), TICK_MAX_S)

    def enter(self, query: Mapping[str, str]) -> tuple[tuple[str, ...], Topic]:
        """Returns the topic that *query* names, for one more tab. Raises ``ValueError`` with a
        sentence.
        """
        key, make = self._described(query)
        topic = self._topics.get(key)
        if topic is None:
            topic = self._topics[key] = make()
            topic.refresh(self._live.current())
        topic.tabs += 1
        return key, topic

    def exit(self, key: tuple[str, ...]) -> None:
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
                    lambda: (
                        self._latest("lint"),
                        self._latest("drift"),
                        self._drains(),
                        model.version,
                    ),
                    lambda lint, drift, drains, _: views.now(
                        lint, drift, drains, find_retained(model.services.values())
                    ),
                )
            case "services":
                return (name,), lambda: Topic(
                    lambda: (
                        self._latest("lint"),
                        model.version,
                        int(self._live.now() // BUCKET_S),
                    ),
                    lambda lint, *_: views.services(lint, self._live.now()),
                )
            case "service" if service:
                return self._service(service, query.get("client", ""))
            case "zones":
                return (name, service), lambda: Topic(
                    lambda: (model.version,), lambda _: views.zones(service)
                )
            case "nodes":
                return (name,), lambda: Topic(
                    lambda: (self._latest("drift"), model.version),
                    lambda drift, _: views.nodes(drift),
                )
            case "drains":
                return (name,), lambda: Topic(lambda: (self._drains(),), views.drains)
            case "timeline":
                return self._timeline(service, query.get("since", "10m"))
            case "trace":
                return (name,), lambda: Topic(lambda: (model.version,), lambda _: views.trace())
            case "what-if":
                return (name, service), lambda: Topic(
                    lambda: (model.version,), lambda _: views.what_if(service)
                )
        raise ValueError(
            "view is one of now, services, service, zones, nodes, drains, timeline, trace, what-if"
        )

    def _service(self, service: str, client: str) -> tuple[tuple[str, ...], Callable[[], Topic]]:
        model, views = self._live.model, self._views
        namespace, _, name = service.partition("/")

        def inputs() -> tuple[Any, ...]:
            traced = None
            if client:
                spec = model.services.get(service)
                port = f":{spec.spec.ports[0].port}" if spec is not None and spec.spec.ports else ""
                traced = self._latest(
                    "trace", client, f"{name}.{namespace}{port}", "", "", namespace
                )
            return (
                self._latest("explain", namespace, name),
                self._latest("drift"),
                traced,
                model.version,
            )

        def make(
            explained: Answered | None, drift: Answered | None, traced: Answered | None, _: int
        ) -> PageView:
            return views.service(service, explained, drift, traced, client)

        return ("service", service, client), lambda: Topic(inputs, make)

    def _timeline(self, service: str, since: str) -> tuple[tuple[str, ...], Callable[[], Topic]]:
        if since not in SINCE:
            raise ValueError(f"since is one of {', '.join(SINCE)}")
        namespace, _, name = service.partition("/")

        def inputs() -> tuple[Any, ...]:
            answered = (
                self._latest("timeline", namespace, name, str(SINCE[since])) if service else None
            )
            return answered, self._live.model.version

        views = self._views
        return ("timeline", service, since), lambda: Topic(
            inputs, lambda answered, _: views.timeline(service, answered, since)
        )

    def _drains(self) -> Answered | None:
        """Returns the drains. Nodes report without a change of the model, so they are queried
        continuously while a Pod is drained.
        """
        answered = self._latest("drains")
        has_draining = (
            answered is not None and answered.document is not None and answered.document["going"]
        )
        return self._questions.latest(
            ("drains",), int(self._live.now()) if has_draining else self._live.model.version
        )

    def _latest(self, *question: str) -> Answered | None:
        key: Question = question
        return self._questions.latest(key, self._live.model.version)


def _same(inputs: tuple[Any, ...], last: tuple[Any, ...]) -> bool:
    """Returns True if all inputs are the same. An answer is the same object until there is a newer
    one, so answers are not compared in depth.
    """
    return all(
        new is old or (isinstance(new, int) and new == old)
        for new, old in zip(inputs, last, strict=True)
    )
