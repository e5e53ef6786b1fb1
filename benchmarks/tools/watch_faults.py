"""What goes wrong on watches, each as a scenario for ``scripted_server``: a failure of a public
report, played once.

In each of them a watcher is up to date, then it misses something by no fault of its own, and the
world ends in a state that every client could learn from a new list. The question is who does.
Sources are public reports, named by repository and number.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from benchmarks.tools.scripted_server import (
    Refused,
    Request,
    Stage,
    Stream,
    expired,
    line,
    status,
    too_large,
)

#: how long a first watch is healthy before its trouble begins
CALM_S = 0.4


class Scenario(Stage):
    """A stage with a name, and where the story is from."""

    name: ClassVar[str]
    source: ClassVar[str]

    def meanwhile(self) -> None:
        """What happens between two watches: ``b`` goes, ``d`` comes."""
        self.world.delete("b")
        self.world.put("d")

    async def calm(self, request: Request, stream: Stream) -> None:
        await self.begin(request, stream)
        await asyncio.sleep(CALM_S)


class Gap(Scenario):
    name = "delete while reconnecting"
    source = "production-stack#1091"

    async def first_watch(self, request: Request, stream: Stream) -> None:
        await self.calm(request, stream)
        self.meanwhile()
        self.settled.set()
        stream.abort()


class GapCompacted(Gap):
    name = "the same, history compacted (410 as an event)"
    source = "airflow#12229, k/k#115658"

    def meanwhile(self) -> None:
        super().meanwhile()
        self.world.compact()


class GoneAtConnect(GapCompacted):
    name = "the same, 410 as the answer"
    source = "lightkube#153"

    def refuse(self, request: Request) -> None:
        if (
            request.is_watch
            and request.version is not None
            and request.version < self.world.compacted
        ):
            raise Refused(expired())


class GoneMidStream(Scenario):
    name = "410 in the middle of a stream"
    source = "kubernetes_asyncio#327"

    async def first_watch(self, request: Request, stream: Stream) -> None:
        await self.calm(request, stream)
        self.meanwhile()
        self.world.compact()
        self.settled.set()
        await stream.event("ERROR", expired())
        await stream.end()


class TooLarge(Scenario):
    name = "restored server: 504, version too large"
    source = "production-stack#999"

    async def first_watch(self, request: Request, stream: Stream) -> None:
        await self.calm(request, stream)
        self.world.restore(60)
        self.meanwhile()
        self.settled.set()
        stream.abort()


class Backwards(Scenario):
    name = "restored server: versions go backwards"
    source = "etcd restore"

    async def first_watch(self, request: Request, stream: Stream) -> None:
        await self.calm(request, stream)
        self.world.restore(60)
        self.meanwhile()
        stream.abort()

    async def later_watch(self, request: Request, stream: Stream) -> None:
        # A server that does not compare: it takes the version and sends what happens from here on.
        if request.version is None or request.version <= self.world.version:
            await self.follow(request, stream)
            return
        await stream.begin()
        await asyncio.sleep(CALM_S)
        self.world.put("c")
        await stream.event("MODIFIED", self.world.pods["c"])
        self.settled.set()
        await asyncio.sleep(3600)


class HalfOpen(Scenario):
    name = "half-open connection"
    source = "kopf#585, python#2145"

    async def first_watch(self, request: Request, stream: Stream) -> None:
        await self.calm(request, stream)
        self.meanwhile()
        self.settled.set()
        await asyncio.sleep(3600)


class OldEvents(Scenario):
    name = "an event twice, and one from the past"
    source = "duplicates; not what a healthy server does"

    async def first_watch(self, request: Request, stream: Stream) -> None:
        await self.calm(request, stream)
        old = self.world.pods["b"]
        self.meanwhile()
        for _, kind, what in self.world.events[-2:]:
            await stream.event(kind, what)
            await stream.event(kind, what)
        await stream.event("MODIFIED", old)
        self.settled.set()
        await asyncio.sleep(CALM_S)
        await self.follow(request, stream)

    async def begin(self, request: Request, stream: Stream) -> None:
        if self.settled.is_set() and len(self.watches) == 1:
            return
        await super().begin(request, stream)


class TruncatedLine(Scenario):
    name = "a stream that ends within a line"
    source = "python#728"

    async def first_watch(self, request: Request, stream: Stream) -> None:
        await self.calm(request, stream)
        self.meanwhile()
        self.settled.set()
        _, kind, what = self.world.events[-2]
        await stream.raw(line(kind, what)[:90])
        await stream.end()


class SilentRefusal(GapCompacted):
    name = "compacted, but the server just hangs up"
    source = "fabric8#7896"

    async def later_watch(self, request: Request, stream: Stream) -> None:
        if request.version is not None and request.version < self.world.compacted:
            await stream.begin()
            await stream.end()
            return
        await self.follow(request, stream)


class Busy(GoneAtConnect):
    name = "429 with Retry-After: 3"
    source = "API priority and fairness"
    free_at = 0.0
    early = 0

    def meanwhile(self) -> None:
        super().meanwhile()
        self.free_at = asyncio.get_running_loop().time() + 3.0

    def refuse(self, request: Request) -> None:
        super().refuse(request)
        if asyncio.get_running_loop().time() < self.free_at:
            self.early += 1
            raise Refused(
                status(429, "TooManyRequests", "too many requests", {"retryAfterSeconds": 3}), 3
            )


class BookmarksOnly(Scenario):
    name = "nothing but bookmarks, then compaction"
    source = "python#1796"

    async def first_watch(self, request: Request, stream: Stream) -> None:
        await self.begin(request, stream)
        for _ in range(4):
            self.world.version += 10
            if request.wants_bookmarks:
                await stream.bookmark(self.world.version)
            await asyncio.sleep(0.1)
        self.world.compact()
        self.meanwhile()
        self.settled.set()
        await stream.end()


class Recreated(GapCompacted):
    name = "deleted and made anew under the same name"
    source = "k/k#109414"

    def meanwhile(self) -> None:
        self.world.delete("b")
        self.world.put("b")
        self.world.compact()


class Slow(Scenario):
    name = "events in drops of seven bytes"
    source = "slow proxies"

    async def first_watch(self, request: Request, stream: Stream) -> None:
        await self.calm(request, stream)
        self.meanwhile()
        self.settled.set()
        for _, kind, what in self.world.events[-2:]:
            data = line(kind, what)
            for start in range(0, len(data), 7):
                await stream.raw(data[start : start + 7])
                await asyncio.sleep(0.005)
        await asyncio.sleep(3600)


class Away(GapCompacted):
    name = "server away for two seconds, no event afterwards"
    source = "cilium#48050"
    back_at = 0.0

    def meanwhile(self) -> None:
        super().meanwhile()
        self.back_at = asyncio.get_running_loop().time() + 2.0

    def refuse(self, request: Request) -> None:
        if asyncio.get_running_loop().time() < self.back_at:
            raise ConnectionResetError


class TooLargeInStream(TooLarge):
    name = "restored server: 504 as an event"
    source = "production-stack#999"

    async def later_watch(self, request: Request, stream: Stream) -> None:
        if request.version is not None and request.version > self.world.version:
            await stream.begin()
            await stream.event("ERROR", too_large(request.version, self.world.version))
            await stream.end()
            return
        await self.follow(request, stream)


SCENARIOS: tuple[type[Scenario], ...] = (
    Gap,
    GapCompacted,
    GoneAtConnect,
    GoneMidStream,
    Recreated,
    Away,
    SilentRefusal,
    TruncatedLine,
    HalfOpen,
    TooLarge,
    TooLargeInStream,
    Backwards,
    OldEvents,
    BookmarksOnly,
    Busy,
    Slow,
)
