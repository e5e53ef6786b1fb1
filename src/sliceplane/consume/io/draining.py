"""The drain barrier over any API server: observes the slices of some Pods, marks the Pods, and
waits for the nodes.

The order matters: everything is read first, so that the removal of the Pod is observed, and the
plan is reported: the effect on Services, and what could not be read. A plan that removes the last
ready endpoint of a Service's port is refused unless it is forced. Then marks are set
(``drain_marks``), and the timeout starts. A Pod that terminates needs no mark. A drain that is
aborted, for any reason, takes its marks back.

Nodes are queried through the server's memory (``consume.drain.reports``). Nodes that do not report
soon, or all if the server has no such memory, are requested to write their Leases, by an annotation
on slices of the Services concerned, once for each revision; if that is forbidden they report at
their own interval.

Watches slices, Services, Leases of node proxies, Nodes and the Pods. The answer lists what may not
be read.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from sliceplane.api.core import Pod
from sliceplane.api.errors import StatusError
from sliceplane.api.findings.wording import count, some
from sliceplane.api.meta import Object
from sliceplane.api.requests import Write
from sliceplane.api.scheme import Leases, Nodes, Pods, Services
from sliceplane.consume.drain.answer import (
    DrainAnswer,
    DrainedPod,
    DrainPlan,
    DrainVerdict,
    Missing,
    Outcome,
    open_text,
)
from sliceplane.consume.drain.barrier import (
    ASK_PERIOD_S,
    FORGET_S,
    ConsumerState,
    UnknownPolicy,
)
from sliceplane.consume.drain.cluster import DrainCluster
from sliceplane.consume.drain.departure import DrainSubject, subject_of
from sliceplane.consume.drain.idle import IdleWait
from sliceplane.consume.drain.impact import ServiceImpacts, emptied
from sliceplane.consume.drain.reports import LARGE_CLUSTER_PAUSE_S, MEMORY_S, pause_s, question
from sliceplane.consume.drain.text import emptied_text
from sliceplane.consume.io.drain_marks import DrainMarks, gate_of
from sliceplane.consume.io.drain_reporter import DrainReporter, InformerProgress, SilentReporter
from sliceplane.consume.io.drain_selections import readable_selections
from sliceplane.consume.io.eviction import evict
from sliceplane.consume.progress import SMALL_CLUSTER_NODES, Scope
from sliceplane.kit.rng import Rng
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.controller.base import deletion
from sliceplane.watch.io.base import Client, Unreachable, send
from sliceplane.watch.io.reflect import RunningInformer
from sliceplane.watch.paging import CACHE_BYTES_MAX
from sliceplane.watch.reflector import ReflectorConfig

_SYNC_TIMEOUT_S: Final = 30.0
#: "": the Pod stays; ``evict``: through the Eviction API, which honours PodDisruptionBudgets
Removal = Literal["", "delete", "evict"]
#: a controller that honours the mark changes its slices within this many seconds
HONOURED_S: Final = 15.0


class DrainOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``removal``: how a Pod ends once it is drained. ``dry_run``: only the plan. ``force``: start
    also if the last ready endpoint of a port goes, or a node is unknown. ``take_back``: marks go
    when the drain gives up. ``digests``: look for caches that lost an event, which takes the slices
    of all namespaces. ``ignores_marks``: an earlier drain saw that the controller does.
    ``until_idle``: wait until established connections have ended, too.
    """

    timeout_s: float = 60.0
    unknown: UnknownPolicy = UnknownPolicy()  # it is frozen
    removal: Removal = ""
    dry_run: bool = False
    mark: bool = True
    force: bool = False
    take_back: bool = True
    forget_s: float = FORGET_S
    digests: bool = True
    ignores_marks: bool = False
    until_idle: bool = False


@dataclass(slots=True)
class _Waiting:
    """A Pod that is being drained."""

    pod: Pod
    started: float = 0.0
    done: DrainedPod | None = None
    gone: bool = False
    #: the revisions for which reports were requested, and when
    requested_revisions: frozenset[int] = frozenset()
    requested_at: float = -math.inf


class Drainer:
    """Follows one cluster for some Pods.  Use in ``async with``; then ``drain`` once."""

    def __init__(
        self,
        client: Client,
        pods: Sequence[Pod],
        *,
        options: DrainOptions,
        clock: Callable[[], float],
        rng: Rng,
        reporter: DrainReporter | None = None,
    ) -> None:
        """*clock*: seconds since the epoch that do not jump."""
        self._client = client
        self._reporter: DrainReporter = reporter or SilentReporter()
        self._marks = DrainMarks(client, clock)
        self._options = options
        self._clock = clock
        self._rng = rng
        self._waiting = {pod.metadata.key: _Waiting(pod) for pod in pods}
        spaces = {pod.metadata.namespace for pod in pods}
        self._space = next(iter(spaces)) if len(spaces) == 1 else ""
        self._news = asyncio.Event()
        self._cluster = DrainCluster()
        self._impacts = ServiceImpacts()
        self._idle = IdleWait()
        self._may_request_counts = True
        self._unread: list[str] = []
        #: a mark had no effect on slices
        self._ignores_marks = options.ignores_marks
        #: the revisions that nodes are waited for, all goals together, and since when; a server
        #: without a memory is not queried again
        self._goal: dict[Scope, int] = {}
        self._waits_since = math.inf
        self._has_memory = True
        self._nodes_awaited = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._informers: list[RunningInformer[Object]] = []

    async def __aenter__(self) -> Drainer:
        """Raises ``StatusError`` and ``Unreachable`` where slices or Pods cannot be read."""
        self._reporter.on_progress("reading the cluster")
        names = [waiting.pod.metadata.name for waiting in self._waiting.values()]
        followed, unread = await readable_selections(
            self._client,
            self._space,
            names,
            digests=self._options.digests and not self._options.dry_run,
        )
        self._unread += unread
        readable = {selection.resource for selection in followed}
        self._cluster = DrainCluster(
            reads_services=Services in readable,
            reads_leases=Leases in readable,
            until_idle=self._options.until_idle,
            reads_nodes=Nodes in readable,
        )
        for waiting in self._waiting.values():
            self._cluster.draining_pods.add(subject_of(waiting.pod))
        synced = []
        for selection in followed:
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
            synced.append(informer.wait_synced())
        try:
            async with asyncio.timeout(_SYNC_TIMEOUT_S):
                await asyncio.gather(*synced)
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

    # Events

    def _on_changes(self, changes: tuple[Change[Object], ...]) -> None:
        now = self._clock()
        for change in changes:
            if change.resource == Pods.key:
                self._on_pod(*change.typed(Pod))
                continue
            self._cluster.on_change(change, now)
            self._impacts.on_change(change)
        self._news.set()

    def _on_mark(self, mark: Mark) -> None:
        self._cluster.on_mark(mark, self._clock())
        self._news.set()

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        subject = new or old
        assert subject is not None, "a change has an old or a new object"
        waiting = self._waiting.get(subject.metadata.key)
        if waiting is None or subject.metadata.uid != waiting.pod.metadata.uid:
            return
        if new is None:
            waiting.gone = True
        else:
            waiting.pod = new
            self._cluster.draining_pods.add(subject_of(new))

    # The barrier

    async def drain(self, what: str) -> DrainAnswer:
        """Marks, waits, and deletes if that is requested.  Raises ``StatusError`` and
        ``Unreachable``.
        """
        options = self._options
        impacts = self._impacts.of(self._subjects())
        unknown = self._cluster.unknown(
            self._cluster.facts(), self._clock(), forget_s=options.forget_s
        )
        answer = DrainAnswer(what, (), 0, unreadable=tuple(self._unread), services=impacts)
        if options.mark:
            self._reporter.on_plan(
                DrainPlan(what, tuple(self._waiting), impacts, unknown, answer.unreadable)
            )
            if emptied(impacts) and not options.force:
                why = f"it takes the last ready endpoint away from {emptied_text(emptied(impacts))}"
                return replace(
                    answer, refused=f"{why}. Nothing was marked; --force does it all the same"
                )
            ends = options.unknown.kind == "after" or (
                options.unknown.kind == "wait" and options.force
            )
            if unknown and not ends:
                # To wait would take the Pods out of their Services for nothing.
                verdict = DrainVerdict("unknown", unknown=unknown)
                return replace(
                    answer,
                    pods=tuple(
                        DrainedPod(key, "cannot know", verdict, 0.0) for key in self._waiting
                    ),
                )
            if options.dry_run:
                return replace(answer, is_dry_run=True)
            if not options.force:
                self._impacts.protect(self._subjects())
        try:
            refused = await self._set_marks()
            answer = replace(answer, refused=refused or await self._wait())
            if options.removal and not answer.refused:
                answer = replace(answer, refused=await self._remove_drained())
            return await self._ended(answer)
        except BaseException:
            await self._abort()
            raise

    def _subjects(self) -> list[DrainSubject]:
        return [subject_of(waiting.pod) for waiting in self._waiting.values()]

    async def _set_marks(self) -> str:
        """Returns why the drain is aborted, or ""."""
        for number, waiting in enumerate(self._waiting.values(), 1):
            waiting.started = self._clock()
            if waiting.gone or waiting.pod.metadata.deletion_timestamp is not None:
                continue
            if self._options.mark and self._options.ignores_marks and gate_of(waiting.pod) is None:
                refusal = await self._remove(waiting)
                if refusal:
                    return refusal
            elif self._options.mark:
                self._reporter.on_progress(f"marking Pod {number} of {len(self._waiting)}")
                await self._marks.set(waiting.pod)
        return ""

    async def _wait(self) -> str:
        """Waits until every Pod has its outcome.  Returns why that is aborted, or ""."""
        while True:
            if len(self._cluster.nodes) > SMALL_CLUSTER_NODES:
                await asyncio.sleep(
                    LARGE_CLUSTER_PAUSE_S
                )  # they answer one after the other, and a check of all takes a while
            self._news.clear()
            deadline = await self._judge_pods()
            lost = self._impacts.emptied(self._subjects())
            if lost:
                return f"meanwhile no other endpoint is ready of {emptied_text(lost)}"
            ignored = self._ignored()
            refusal = await self._remove_first(ignored) if ignored else ""
            if refusal:
                return refusal
            if all(waiting.done is not None for waiting in self._waiting.values()):
                return ""
            try:
                async with asyncio.timeout(max(deadline - self._clock(), 0.0)):
                    await self._news.wait()
            except TimeoutError:
                pass

    def _ignored(self) -> list[_Waiting]:
        """Returns the Pods that slices still call ready ``HONOURED_S`` after their mark. A Pod with
        the readiness gate, or that terminates, needs no controller that knows the mark. A forced
        drain without a removal waits all the same, as a program that drains itself must.
        """
        if self._options.force and not self._options.removal:
            return []
        now = self._clock()
        return [
            waiting
            for key, waiting in self._waiting.items()
            if waiting.done is None
            and key in self._marks.marked
            and now - waiting.started >= HONOURED_S
            and waiting.pod.metadata.deletion_timestamp is None
            and gate_of(waiting.pod) is None
            and any(use.why == "ready" for use in self._cluster.draining_pods.uses(key))
        ]

    async def _remove_first(self, ignored: Sequence[_Waiting]) -> str:
        """Removes Pods whose mark is ignored: slices follow a Pod that terminates, and its preStop
        hook keeps it serving until the barrier is proven. Returns why that is given up, or "".
        """
        keys = some([waiting.pod.metadata.key for waiting in ignored])
        if not self._options.removal:
            return (
                f"slices still call {keys} ready: their controller ignores the mark, or a Service "
                "has publishNotReadyAddresses. Use --evict or --delete"
            )
        self._ignores_marks = True
        self._reporter.on_progress(
            f"the mark of {keys} is ignored: {self._options.removal} it first"
        )
        for waiting in ignored:
            refusal = await self._remove(waiting)
            if refusal:
                return refusal
        return ""

    async def _remove_drained(self) -> str:
        """Returns why a removal is given up, or ""."""
        for waiting in self._waiting.values():
            is_drained = waiting.done is not None and waiting.done.outcome == "drained"
            if is_drained and waiting.pod.metadata.deletion_timestamp is None:
                refusal = await self._remove(waiting)
                if refusal:
                    return refusal
        return ""

    async def _remove(self, waiting: _Waiting) -> str:
        """Deletes or evicts the Pod. Returns why an eviction is given up, or ""."""
        meta = waiting.pod.metadata
        if self._options.removal == "evict":
            refusal = await evict(
                self._client, waiting.pod, self._clock, self._options.timeout_s, self._reporter
            )
            if refusal:
                return f"no eviction of {meta.key} within the time: {refusal}"
        else:
            await self._execute(deletion(Pods, meta))
        self._marks.forget(meta.key)
        if waiting.done is not None:
            waiting.done = waiting.done._replace(gone=True)
        return ""

    async def _ended(self, answer: DrainAnswer) -> DrainAnswer:
        done = tuple(waiting.done for waiting in self._waiting.values() if waiting.done is not None)
        answer = replace(
            answer,
            pods=done,
            nodes=max((pod.verdict.required for pod in done), default=0),
            not_covered=tuple(
                f"clients of the headless Service {name}, who ask DNS"
                for name in self._impacts.headless(self._subjects())
            ),
            unreadable=tuple(self._unread),
            ignores_marks=self._ignores_marks,
        )
        if answer.outcome == "drained" or not self._options.take_back:
            return answer
        before = self._marks.marked
        still_marked = await self._take_back()
        return replace(
            answer,
            taken_back=tuple(key for key in before if key not in still_marked),
            marked=still_marked,
        )

    async def _take_back(self) -> tuple[str, ...]:
        self._reporter.on_progress(
            f"taking the marks of {count(len(self._marks.marked), 'Pod')} back"
        )
        return await self._marks.take_back()

    async def _abort(self) -> None:
        before = self._marks.marked
        if not before or not self._options.take_back:
            return
        try:
            await self._take_back()
        finally:
            still_marked = self._marks.marked
            self._reporter.on_aborted(
                tuple(key for key in before if key not in still_marked), still_marked
            )

    async def _judge_pods(self) -> float:
        """Judges the waiting Pods. Returns when to judge again if nothing happens."""
        now = self._clock()
        options = self._options
        self._cluster.lost = next(
            (informer.lost for informer in self._informers if informer.lost), ""
        )
        facts = self._cluster.facts()
        deadline = math.inf
        for key, waiting in self._waiting.items():
            if waiting.done is not None:
                continue
            waited_s = now - waiting.started
            verdict = self._cluster.verdict(
                key,
                facts,
                now,
                policy=options.unknown,
                waited_s=waited_s,
                forget_s=options.forget_s,
            )
            if options.until_idle and not waiting.gone:
                verdict = self._judge_connections(key, verdict, facts, now)
            outcome: Outcome | None = None
            if verdict.state == "proven":
                outcome = "drained"
            elif waited_s >= options.timeout_s:
                outcomes: dict[str, Outcome] = {"unknown": "cannot know", "open": "not idle"}
                outcome = outcomes.get(verdict.state, "time over")
            elif verdict.state == "unknown" and (
                not self._may_request_counts
                or (options.unknown.kind == "fail" and not self._cluster.lost)
            ):
                outcome = "cannot know"
            if verdict.state == "waiting":
                self._await_nodes(self._cluster.draining_pods.goal(key), now)
            if outcome is not None:
                waiting.done = DrainedPod(key, outcome, verdict, waited_s, waiting.gone)
                continue
            memory_until = self._waits_since + MEMORY_S
            if verdict.state == "waiting" and (now >= memory_until or not self._has_memory):
                await self._ask(key, waiting, len(facts))
            ends = [waiting.started + options.timeout_s]
            if waited_s < HONOURED_S:
                ends.append(waiting.started + HONOURED_S)
            if self._cluster.lost:
                ends.append(now + ASK_PERIOD_S)  # no change says that a watch is open again
            if options.unknown.kind == "after" and waited_s < options.unknown.after_s:
                ends.append(waiting.started + options.unknown.after_s)
            if verdict.state == "open":
                ends.append(now + ASK_PERIOD_S)
            elif verdict.waiting:
                ends.append(
                    memory_until if now < memory_until and self._has_memory else now + ASK_PERIOD_S
                )
            deadline = min(deadline, *ends)
            self._report(key, verdict)
        if options.until_idle:
            await self._request_counts(len(facts))
        return deadline

    def _judge_connections(
        self, key: str, verdict: DrainVerdict, facts: Sequence[ConsumerState], now: float
    ) -> DrainVerdict:
        if verdict.state != "proven":
            self._idle.forget(key)
            return verdict
        draining = self._cluster.draining_pods
        self._idle.begin(key, draining.goal(key), draining.targets(key))
        verdict = self._idle.judge(key, verdict, facts, now, forget_s=self._options.forget_s)
        if verdict.state == "open" and not self._may_request_counts:
            why = "no right to patch endpointslices, which requests counts of connections"
            return replace(verdict, state="unknown", unknown=(Missing("every node", why),))
        return verdict

    async def _request_counts(self, nodes: int) -> None:
        waiting = [key for key, waiting in self._waiting.items() if waiting.done is None]
        word = self._idle.take_request(f"{self._rng.bits64():016x}", waiting, self._clock())
        if word:
            writes = self._cluster.request_counts(word, nodes)
            self._may_request_counts = await self._request(writes)

    def _report(self, key: str, verdict: DrainVerdict) -> None:
        done = sum(waiting.done is not None for waiting in self._waiting.values())
        nodes = [missing.node for missing in (*verdict.waiting, *verdict.unknown)]
        awaited = open_text(verdict) if verdict.state == "open" else some(nodes)
        why = "; ".join(use.text for use in verdict.uses) or f"waits for {awaited}"
        self._reporter.on_progress(
            f"{done} of {count(len(self._waiting), 'Pod')} done; {key} {why}"
        )

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

    # Writes

    async def _execute(self, write: Write) -> None:
        try:
            await self._client.perform(write)
        except StatusError as error:
            if error.reason not in write.tolerate:
                raise

    async def _ask(self, key: str, waiting: _Waiting, nodes: int) -> None:
        """Requests a report from every node that reads the slices concerned; once for each goal."""
        goal = frozenset(self._cluster.draining_pods.goal(key).values())
        now = self._clock()
        if goal == waiting.requested_revisions or now - waiting.requested_at < ASK_PERIOD_S:
            return
        waiting.requested_revisions, waiting.requested_at = goal, now
        word = f"{self._rng.bits64():016x}"
        if not await self._request(self._cluster.request_reports(key, word, nodes)):
            phrase = "reports on demand: nodes report every 10 s (no right to patch endpointslices)"
            if phrase not in self._unread:
                self._unread.append(phrase)

    async def _request(self, writes: Sequence[Write]) -> bool:
        """Returns False if the right is missing."""
        for write in writes:
            try:
                await self._execute(write)
            except Unreachable:
                return True  # nodes report at their own interval, too; counts are requested again
            except StatusError as error:
                if error.code != 403:
                    raise
                return False
        return True


async def drain_pods(
    client: Client,
    pods: Sequence[Pod],
    what: str,
    options: DrainOptions,
    *,
    clock: Callable[[], float],
    rng: Rng,
    reporter: DrainReporter | None = None,
) -> DrainAnswer:
    """Raises ``StatusError`` and ``Unreachable``."""
    if not pods:
        return DrainAnswer(what, (), 0)
    async with Drainer(
        client, pods, options=options, clock=clock, rng=rng, reporter=reporter
    ) as drainer:
        return await drainer.drain(what)
