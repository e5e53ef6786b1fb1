"""The barrier of a drain over any API server: follows the slices of some Pods, and judges each Pod
by the revisions that the nodes have applied.

Everything is read before the first mark, so that the removal of the Pods from the slices is
observed. It watches slices, Services, Leases of node proxies, Nodes and the Pods; ``unread`` lists
what may not be read.

Nodes are queried through the server's memory (``consume.drain.reports``). Nodes that do not report
soon, or all if the server has no such memory, are requested to write their Leases, by an annotation
on slices of the Services concerned, once for each revision; if that is forbidden they report at
their own interval. The same annotation requests counts of established connections
(``until_idle``).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from sliceplane.api.core import Pod
from sliceplane.api.errors import StatusError
from sliceplane.api.findings.wording import count, some
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import Leases, Nodes, Pods, Services
from sliceplane.consume.drain.answer import DrainedPod, DrainVerdict, Missing, Outcome, open_text
from sliceplane.consume.drain.barrier import ASK_PERIOD_S, ConsumerState
from sliceplane.consume.drain.cluster import DrainCluster
from sliceplane.consume.drain.departure import DrainSubject, subject_of
from sliceplane.consume.drain.idle import IdleWait
from sliceplane.consume.drain.impact import ServiceImpacts
from sliceplane.consume.drain.options import DrainOptions
from sliceplane.consume.drain.reports import LARGE_CLUSTER_PAUSE_S, MEMORY_S, pause_s, question
from sliceplane.consume.io.drain_reporter import DrainReporter, InformerProgress
from sliceplane.consume.io.drain_selections import readable_selections
from sliceplane.consume.progress import SMALL_CLUSTER_NODES, Scope
from sliceplane.kit.rng import Rng
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.io.base import Client, Unreachable, send
from sliceplane.watch.io.reflect import RunningInformer
from sliceplane.watch.paging import CACHE_BYTES_MAX
from sliceplane.watch.reflector import ReflectorConfig

_SYNC_TIMEOUT_S: Final = 30.0


@dataclass(slots=True)
class DrainingPod:
    """A Pod of the drain; ``pod`` is the version that was read last."""

    pod: Pod
    started: float = 0.0
    done: DrainedPod | None = None
    gone: bool = False
    #: the revisions for which reports were requested, and when
    requested_revisions: frozenset[int] = frozenset()
    requested_at: float = -math.inf

    @property
    def key(self) -> str:
        return self.pod.metadata.key

    @property
    def is_terminating(self) -> bool:
        return self.pod.metadata.deletion_timestamp is not None


class DrainBarrier:
    """Follows one cluster for some Pods.  Use in ``async with``."""

    def __init__(
        self,
        client: Client,
        pods: Sequence[Pod],
        *,
        options: DrainOptions,
        clock: Callable[[], float],
        rng: Rng,
        reporter: DrainReporter,
    ) -> None:
        """*clock*: seconds since the epoch that do not jump."""
        self._client = client
        self._options = options
        self._clock = clock
        self._rng = rng
        self._reporter = reporter
        self.pods = {pod.metadata.key: DrainingPod(pod) for pod in pods}
        self.impacts = ServiceImpacts()
        self.unread: list[str] = []
        self._cluster = DrainCluster()
        self._idle = IdleWait()
        self._may_request_counts = True
        self._news = asyncio.Event()
        #: the revisions that nodes are waited for, all goals together, and since when; a server
        #: without a memory is not queried again
        self._goal: dict[Scope, int] = {}
        self._waits_since = math.inf
        self._has_memory = True
        self._nodes_awaited = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._informers: list[RunningInformer[Object]] = []

    async def __aenter__(self) -> DrainBarrier:
        """Raises ``StatusError`` and ``Unreachable`` where slices or Pods cannot be read."""
        self._reporter.on_progress("reading the cluster")
        selections = await self._readable_selections()
        readable = {selection.resource for selection in selections}
        self._cluster = DrainCluster(
            reads_services=Services in readable,
            reads_leases=Leases in readable,
            until_idle=self._options.until_idle,
            reads_nodes=Nodes in readable,
        )
        for subject in self.subjects():
            self._cluster.draining_pods.add(subject)
        for selection in selections:
            self._follow(selection)
        try:
            async with asyncio.timeout(_SYNC_TIMEOUT_S):
                await asyncio.gather(*(informer.wait_synced() for informer in self._informers))
        except TimeoutError as error:
            await self.__aexit__()
            raise Unreachable(
                f"no list of the cluster's objects within {_SYNC_TIMEOUT_S:g} s"
            ) from error
        self._cluster.draining_pods.update()
        self._tasks.append(asyncio.create_task(self._query_memory(), name="drain reports"))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    # The cluster

    async def _readable_selections(self) -> Sequence[Selection]:
        spaces = {draining.pod.metadata.namespace for draining in self.pods.values()}
        selections, unread = await readable_selections(
            self._client,
            next(iter(spaces)) if len(spaces) == 1 else "",
            [draining.pod.metadata.name for draining in self.pods.values()],
            digests=self._options.digests and not self._options.dry_run,
        )
        self.unread += unread
        return selections

    def _follow(self, selection: Selection) -> None:
        informer = RunningInformer[Object](
            self._client,
            selection,
            clock=self._clock,
            rng=self._rng.fork(),
            config=ReflectorConfig(cache_bytes_max=CACHE_BYTES_MAX),
            log=InformerProgress(self._reporter),
        )
        informer.add_handler(self._on_changes, lambda: None, self._on_mark)
        self._informers.append(informer)
        self._tasks.append(
            asyncio.create_task(informer.run(), name=f"drain {selection.resource.plural}")
        )

    def _on_changes(self, changes: tuple[Change[Object], ...]) -> None:
        now = self._clock()
        for change in changes:
            if change.resource == Pods.key:
                self._on_pod(*change.typed(Pod))
                continue
            self._cluster.on_change(change, now)
            self.impacts.on_change(change)
        self._news.set()

    def _on_mark(self, mark: Mark) -> None:
        self._cluster.on_mark(mark, self._clock())
        self._news.set()

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        subject = new or old
        assert subject is not None, "a change has an old or a new object"
        draining = self.pods.get(subject.metadata.key)
        if draining is None or subject.metadata.uid != draining.pod.metadata.uid:
            return
        if new is None:
            draining.gone = True
        else:
            draining.pod = new
            self._cluster.draining_pods.add(subject_of(new))

    def subjects(self) -> list[DrainSubject]:
        return [subject_of(draining.pod) for draining in self.pods.values()]

    def waiting(self) -> list[DrainingPod]:
        """Returns the Pods without an outcome."""
        return [draining for draining in self.pods.values() if draining.done is None]

    def unknown(self) -> tuple[Missing, ...]:
        """Returns the nodes that are unknown for every Pod."""
        facts, forget_s = self._cluster.facts(), self._options.forget_s
        return self._cluster.unknown(facts, self._clock(), forget_s=forget_s)

    def is_called_ready(self, key: str) -> bool:
        """Returns True if a slice has the Pod *key* as a ready endpoint."""
        return any(use.why == "ready" for use in self._cluster.draining_pods.uses(key))

    # Verdicts

    async def judge(self) -> float:
        """Gives Pods their outcome. Returns when to judge again if nothing happens."""
        if len(self._cluster.nodes) > SMALL_CLUSTER_NODES:
            # they answer one after the other, and a check of all takes a while
            await asyncio.sleep(LARGE_CLUSTER_PAUSE_S)
        self._news.clear()
        now = self._clock()
        self._cluster.lost = next(
            (informer.lost for informer in self._informers if informer.lost), ""
        )
        facts = self._cluster.facts()
        deadline = math.inf
        for draining in self.waiting():
            deadline = min(deadline, await self._judge(draining, facts, now))
        if self._options.until_idle:
            await self._request_counts(len(facts))
        return deadline

    async def wait_for_news(self, deadline: float) -> None:
        """Waits for a change since ``judge``, at most until *deadline*."""
        try:
            async with asyncio.timeout(max(deadline - self._clock(), 0.0)):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _judge(
        self, draining: DrainingPod, facts: Sequence[ConsumerState], now: float
    ) -> float:
        """Judges one Pod. Returns when to judge it again."""
        waited_s = now - draining.started
        verdict = self._cluster.verdict(
            draining.key,
            facts,
            now,
            policy=self._options.unknown,
            waited_s=waited_s,
            forget_s=self._options.forget_s,
        )
        if self._options.until_idle and not draining.gone:
            verdict = self._judge_connections(draining.key, verdict, facts, now)
        if verdict.state == "waiting":
            self._await_nodes(self._cluster.draining_pods.goal(draining.key), now)
        outcome = self._outcome(verdict, waited_s)
        if outcome is not None:
            draining.done = DrainedPod(draining.key, outcome, verdict, waited_s, draining.gone)
            return math.inf
        if verdict.state == "waiting" and not self._may_have_memory(now):
            await self._request_reports(draining, len(facts))
        self._report(draining.key, verdict)
        return min(self._next_times(draining, verdict, now))

    def _judge_connections(
        self, key: str, verdict: DrainVerdict, facts: Sequence[ConsumerState], now: float
    ) -> DrainVerdict:
        if verdict.state != "proven":
            self._idle.forget(key)
            return verdict
        draining_pods = self._cluster.draining_pods
        self._idle.begin(key, draining_pods.goal(key), draining_pods.targets(key))
        verdict = self._idle.judge(key, verdict, facts, now, forget_s=self._options.forget_s)
        if verdict.state == "open" and not self._may_request_counts:
            why = "no right to patch endpointslices, which requests counts of connections"
            return replace(verdict, state="unknown", unknown=(Missing("every node", why),))
        return verdict

    def _outcome(self, verdict: DrainVerdict, waited_s: float) -> Outcome | None:
        """Returns ``None`` while the Pod is waited for."""
        if verdict.state == "proven":
            return "drained"
        if waited_s >= self._options.timeout_s:
            outcomes: dict[str, Outcome] = {"unknown": "cannot know", "open": "not idle"}
            return outcomes.get(verdict.state, "time over")
        fails = self._options.unknown.kind == "fail" and not self._cluster.lost
        if verdict.state == "unknown" and (fails or not self._may_request_counts):
            return "cannot know"
        return None

    def _next_times(
        self, draining: DrainingPod, verdict: DrainVerdict, now: float
    ) -> Iterator[float]:
        """Yields the times at which the verdict may be another one although nothing happens."""
        yield draining.started + self._options.timeout_s
        unknown = self._options.unknown
        if unknown.kind == "after" and now - draining.started < unknown.after_s:
            yield draining.started + unknown.after_s
        if self._cluster.lost:
            yield now + ASK_PERIOD_S  # no change says that a watch is open again
        if verdict.state == "open":
            yield now + ASK_PERIOD_S
        elif verdict.waiting:
            is_early = self._may_have_memory(now)
            yield self._waits_since + MEMORY_S if is_early else now + ASK_PERIOD_S

    def _may_have_memory(self, now: float) -> bool:
        """Returns True while the server's memory may give the reports that are missing."""
        return self._has_memory and now < self._waits_since + MEMORY_S

    def _report(self, key: str, verdict: DrainVerdict) -> None:
        done = len(self.pods) - len(self.waiting())
        nodes = [missing.node for missing in (*verdict.waiting, *verdict.unknown)]
        awaited = open_text(verdict) if verdict.state == "open" else some(nodes)
        why = "; ".join(use.text for use in verdict.uses) or f"waits for {awaited}"
        self._reporter.on_progress(f"{done} of {count(len(self.pods), 'Pod')} done; {key} {why}")

    # Reports of nodes

    def _await_nodes(self, goal: Mapping[Scope, int], now: float) -> None:
        self._waits_since = min(self._waits_since, now)
        for scope, revision in goal.items():
            self._goal[scope] = max(revision, self._goal.get(scope, 0))
        self._nodes_awaited.set()

    async def _query_memory(self) -> None:
        """Queries nodes through the server's memory, if it has one, while one is waited for."""
        while self._has_memory:
            await self._nodes_awaited.wait()
            self._nodes_awaited.clear()
            write = question(self._goal, self._cluster.answer_number)
            try:
                self._cluster.on_answer(await send(self._client, write), self._clock())
            except StatusError as error:
                self._has_memory = error.reason not in write.tolerate
            except Unreachable:
                await asyncio.sleep(ASK_PERIOD_S)
            self._news.set()
            await asyncio.sleep(pause_s(len(self._cluster.nodes)))

    async def _request_reports(self, draining: DrainingPod, nodes: int) -> None:
        """Requests a report from every node that reads the slices concerned; once for each goal."""
        goal = frozenset(self._cluster.draining_pods.goal(draining.key).values())
        now = self._clock()
        if goal == draining.requested_revisions or now - draining.requested_at < ASK_PERIOD_S:
            return
        draining.requested_revisions, draining.requested_at = goal, now
        writes = self._cluster.request_reports(draining.key, self._nonce(), nodes)
        if not await self._annotate(writes):
            phrase = "reports on demand: nodes report every 10 s (no right to patch endpointslices)"
            if phrase not in self.unread:
                self.unread.append(phrase)

    async def _request_counts(self, nodes: int) -> None:
        waiting = [draining.key for draining in self.waiting()]
        word = self._idle.take_request(self._nonce(), waiting, self._clock())
        if word:
            writes = self._cluster.request_counts(word, nodes)
            self._may_request_counts = await self._annotate(writes)

    def _nonce(self) -> str:
        return f"{self._rng.bits64():016x}"

    async def _annotate(self, writes: Sequence[Write]) -> bool:
        """Returns False if the right is missing."""
        for write in writes:
            try:
                await self._client.perform(write)
            except Unreachable:
                return True  # nodes report at their own interval, too; counts are requested again
            except StatusError as error:
                if error.code == 403:
                    return False
                if error.reason not in write.tolerate:
                    raise
        return True
