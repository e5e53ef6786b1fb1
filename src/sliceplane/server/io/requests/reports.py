"""Long polls of ``consume.drain.reports``: answered when there is something to report, or when
their time is over.

They have no seat while they wait, as watches have none. A user who may patch the consumer's Lease
may report; a user who may watch Leases in its namespace may query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.errors import bad_request, too_large_body, unavailable
from sliceplane.api.requests import PROGRESS_PATH
from sliceplane.api.scheme import Leases
from sliceplane.consume.drain.reports import (
    BODY_BYTES_MAX,
    SCOPES_MAX,
    WAIT_S_MAX,
    BarrierQuestion,
    ConsumerAnswer,
    Reports,
    posts,
    questions,
)
from sliceplane.consume.progress import LEASE_NAMESPACE, ProgressReport
from sliceplane.kit.metrics import Metrics
from sliceplane.server.registry.types import Attributes


class ReportService:
    """Owned by the plane.  Lives in one loop."""

    def __init__(
        self,
        clock: Callable[[], float],
        on_report: Callable[[str, ProgressReport], None] = lambda *_: None,
    ) -> None:
        """*on_report*: called with the key of the Lease and the report of each consumer."""
        self._on_report = on_report
        self._reports = Reports(int(clock() * 1000))
        self._closed = False
        #: those who wait, each with its own event
        self._consumers: set[tuple[str, asyncio.Event]] = set()
        self._barriers: set[asyncio.Event] = set()
        self.metrics = Metrics()
        self.metrics.computed(
            "gauge",
            "sliceplane_progress_reports",
            "Consumers whose reports are remembered.",
            lambda: len(self._reports),
        )
        self.metrics.computed(
            "gauge",
            "sliceplane_progress_requests",
            "Requests for reports that are held.",
            lambda: [(("consumer",), len(self._consumers)), (("barrier",), len(self._barriers))],
            "of",
        )

    def close(self) -> None:
        """Answers all waiting requests."""
        self._closed = True
        for event in (*self._barriers, *(event for _, event in self._consumers)):
            event.set()

    async def answer(self, path: str, body: bytes) -> bytes:
        """Raises ``StatusError``."""
        if self._closed:
            raise unavailable("the server is shutting down")
        if len(body) > BODY_BYTES_MAX:
            raise too_large_body(BODY_BYTES_MAX)
        name = name_of(path)
        try:
            return await (self._answer_consumer(name, body) if name else self._answer_barrier(body))
        except msgspec.DecodeError as error:
            raise bad_request(f"{path}: {error}") from error

    async def _answer_consumer(self, name: str, body: bytes) -> bytes:
        post = posts.decode(body)
        self._reports.on_report(name, post.report, len(body))
        self._on_report(name, post.report)
        for barrier in self._barriers:
            barrier.set()
        news = asyncio.Event()
        self._consumers.add((name, news))
        now = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(min(post.wait_seconds, WAIT_S_MAX)):
                while not self._closed:
                    wanted = self._reports.answer_consumer(name, now())
                    if wanted is not None:
                        return encode(wanted)
                    news.clear()
                    await news.wait()
        except TimeoutError:
            pass
        finally:
            self._consumers.discard((name, news))
        return encode(ConsumerAnswer())

    def require(self, question: BarrierQuestion) -> None:
        """Has consumers report what *question* requires."""
        now = asyncio.get_running_loop().time()
        self._reports.on_question(question, now)
        for name, consumer in self._consumers:
            if self._reports.answer_consumer(name, now) is not None:
                consumer.set()

    async def _answer_barrier(self, body: bytes) -> bytes:
        question = questions.decode(body)
        if len(question.versions.revisions_by_scope()) > SCOPES_MAX:
            raise bad_request(f"{PROGRESS_PATH}: more than {SCOPES_MAX} versions")
        self.require(question)
        news = asyncio.Event()
        self._barriers.add(news)
        try:
            async with asyncio.timeout(min(question.wait_seconds, WAIT_S_MAX)):
                while not self._closed and not self._reports.since(question.after).reports:
                    news.clear()
                    await news.wait()
        except TimeoutError:
            pass
        finally:
            self._barriers.discard(news)
        return encode(self._reports.since(question.after))


def name_of(path: str) -> str:
    """Returns the key of the reporting consumer's Lease; "" for a barrier's query."""
    return path.removeprefix(PROGRESS_PATH).removeprefix("/")


def rights(method: str, path: str) -> Attributes | None:
    """Returns the right that a request needs; ``None``: it is not of these paths."""
    if method != "POST" or not (path == PROGRESS_PATH or path.startswith(f"{PROGRESS_PATH}/")):
        return None
    namespace, slash, name = name_of(path).partition("/")
    if path != PROGRESS_PATH and not (namespace and name and "/" not in name):
        return None
    verb, where = ("patch", namespace) if slash else ("watch", LEASE_NAMESPACE)
    return Attributes(
        verb=verb, group=Leases.group, resource=Leases.plural, namespace=where, name=name, path=path
    )
