"""A drain over any API server: marks Pods, waits until no node sends to them, and removes them.

The order matters: first everything is read (``drain_barrier``), and the plan is reported: the
effect on Services, and what could not be read. A plan that removes the last ready endpoint of a
Service's port is refused unless it is forced. Then marks are set (``drain_marks``), and the timeout
starts. A Pod that terminates needs no mark. A drain that is aborted, for any reason, takes its
marks back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from sliceplane.api.core import Pod
from sliceplane.api.errors import StatusError
from sliceplane.api.findings.wording import count, some
from sliceplane.api.scheme import Pods
from sliceplane.consume.drain.answer import DrainAnswer, DrainedPod, DrainPlan, DrainVerdict
from sliceplane.consume.drain.impact import emptied
from sliceplane.consume.drain.options import DrainOptions
from sliceplane.consume.drain.text import emptied_text
from sliceplane.consume.io.drain_barrier import DrainBarrier, DrainingPod
from sliceplane.consume.io.drain_marks import DrainMarks, gate_of
from sliceplane.consume.io.drain_reporter import DrainReporter, SilentReporter
from sliceplane.consume.io.eviction import evict
from sliceplane.kit.rng import Rng
from sliceplane.watch.controller.base import deletion
from sliceplane.watch.io.base import Client

#: a controller that honours the mark changes its slices within this many seconds
HONOURED_S: Final = 15.0


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
    """Drains *pods*, which *what* names for users. *clock*: seconds since the epoch that do not
    jump. Raises ``StatusError`` and ``Unreachable``.
    """
    if not pods:
        return DrainAnswer(what, (), 0)
    reporter = reporter or SilentReporter()
    async with DrainBarrier(
        client, pods, options=options, clock=clock, rng=rng, reporter=reporter
    ) as barrier:
        drainer = Drainer(client, barrier, options=options, clock=clock, reporter=reporter)
        return await drainer.drain(what)


class Drainer:
    """Drains the Pods of *barrier*.  Call ``drain`` once."""

    def __init__(
        self,
        client: Client,
        barrier: DrainBarrier,
        *,
        options: DrainOptions,
        clock: Callable[[], float],
        reporter: DrainReporter,
    ) -> None:
        self._client = client
        self._barrier = barrier
        self._options = options
        self._clock = clock
        self._reporter = reporter
        self._marks = DrainMarks(client, clock)
        #: a mark had no effect on slices
        self._ignores_marks = options.ignores_marks

    async def drain(self, what: str) -> DrainAnswer:
        """Marks, waits, and deletes if that is requested.  Raises ``StatusError`` and
        ``Unreachable``.
        """
        barrier = self._barrier
        impacts = barrier.impacts.of(barrier.subjects())
        answer = DrainAnswer(what, (), 0, unreadable=tuple(barrier.unread), services=impacts)
        if self._options.mark:
            final = self._plan(answer)
            if final is not None:
                return final
        try:
            refused = await self._set_marks()
            answer = replace(answer, refused=refused or await self._wait())
            if self._options.removal and not answer.refused:
                answer = replace(answer, refused=await self._remove_drained())
            return await self._ended(answer)
        except BaseException:
            await self._abort()
            raise

    # Before the marks

    def _plan(self, answer: DrainAnswer) -> DrainAnswer | None:
        """Reports the plan. Returns the final answer if the drain ends here."""
        options, barrier, impacts = self._options, self._barrier, answer.services
        unknown = barrier.unknown()
        self._reporter.on_plan(
            DrainPlan(answer.what, tuple(barrier.pods), impacts, unknown, answer.unreadable)
        )
        if emptied(impacts) and not options.force:
            why = f"it takes the last ready endpoint away from {emptied_text(emptied(impacts))}"
            return replace(
                answer, refused=f"{why}. Nothing was marked; --force does it all the same"
            )
        ends = options.unknown.kind == "after" or (options.unknown.kind == "wait" and options.force)
        if unknown and not ends:
            # To wait would take the Pods out of their Services for nothing.
            verdict = DrainVerdict("unknown", unknown=unknown)
            return replace(
                answer,
                pods=tuple(DrainedPod(key, "cannot know", verdict, 0.0) for key in barrier.pods),
            )
        if options.dry_run:
            return replace(answer, is_dry_run=True)
        if not options.force:
            barrier.impacts.protect(barrier.subjects())
        return None

    # Marks

    async def _set_marks(self) -> str:
        """Returns why the drain is aborted, or ""."""
        for number, draining in enumerate(self._barrier.pods.values(), 1):
            draining.started = self._clock()
            if draining.gone or draining.is_terminating or not self._options.mark:
                continue
            if self._options.ignores_marks and gate_of(draining.pod) is None:
                refusal = await self._remove(draining)
                if refusal:
                    return refusal
            else:
                self._reporter.on_progress(f"marking Pod {number} of {len(self._barrier.pods)}")
                await self._marks.set(draining.pod)
        return ""

    async def _wait(self) -> str:
        """Waits until every Pod has its outcome.  Returns why that is aborted, or ""."""
        barrier = self._barrier
        while True:
            deadline = await barrier.judge()
            lost = barrier.impacts.emptied(barrier.subjects())
            if lost:
                return f"meanwhile no other endpoint is ready of {emptied_text(lost)}"
            now = self._clock()
            ignored = self._ignored(now)
            refusal = await self._remove_first(ignored) if ignored else ""
            if refusal:
                return refusal
            waiting = barrier.waiting()
            if not waiting:
                return ""
            marks_end = (draining.started + HONOURED_S for draining in waiting)
            await barrier.wait_for_news(min([deadline, *(end for end in marks_end if end > now)]))

    def _ignored(self, now: float) -> list[DrainingPod]:
        """Returns the Pods that slices still call ready ``HONOURED_S`` after their mark. A Pod with
        the readiness gate, or that terminates, needs no controller that knows the mark. A forced
        drain without a removal waits all the same, as a program that drains itself must.
        """
        if self._options.force and not self._options.removal:
            return []
        return [
            draining
            for draining in self._barrier.waiting()
            if draining.key in self._marks.marked
            and now - draining.started >= HONOURED_S
            and not draining.is_terminating
            and gate_of(draining.pod) is None
            and self._barrier.is_called_ready(draining.key)
        ]

    # Removals

    async def _remove_first(self, ignored: Sequence[DrainingPod]) -> str:
        """Removes Pods whose mark is ignored: slices follow a Pod that terminates, and its preStop
        hook keeps it serving until the barrier is proven. Returns why that is given up, or "".
        """
        keys = some([draining.key for draining in ignored])
        if not self._options.removal:
            return (
                f"slices still call {keys} ready: their controller ignores the mark, or a Service "
                "has publishNotReadyAddresses. Use --evict or --delete"
            )
        self._ignores_marks = True
        self._reporter.on_progress(
            f"the mark of {keys} is ignored: {self._options.removal} it first"
        )
        return await self._remove_all(ignored)

    async def _remove_drained(self) -> str:
        """Returns why a removal is given up, or ""."""
        return await self._remove_all(
            [
                draining
                for draining in self._barrier.pods.values()
                if draining.done is not None and draining.done.outcome == "drained"
            ]
        )

    async def _remove_all(self, pods: Sequence[DrainingPod]) -> str:
        """Returns why a removal is given up, or ""."""
        for draining in pods:
            refusal = "" if draining.is_terminating else await self._remove(draining)
            if refusal:
                return refusal
        return ""

    async def _remove(self, draining: DrainingPod) -> str:
        """Deletes or evicts the Pod. Returns why an eviction is given up, or ""."""
        pod = draining.pod
        if self._options.removal == "evict":
            refusal = await evict(
                self._client, pod, self._clock, self._options.timeout_s, self._reporter
            )
            if refusal:
                return f"no eviction of {draining.key} within the time: {refusal}"
        else:
            await self._delete(pod)
        self._marks.forget(draining.key)
        if draining.done is not None:
            draining.done = draining.done._replace(gone=True)
        return ""

    async def _delete(self, pod: Pod) -> None:
        write = deletion(Pods, pod.metadata)
        try:
            await self._client.perform(write)
        except StatusError as error:
            if error.reason not in write.tolerate:
                raise

    # The end

    async def _ended(self, answer: DrainAnswer) -> DrainAnswer:
        barrier = self._barrier
        done = tuple(pod.done for pod in barrier.pods.values() if pod.done is not None)
        answer = replace(
            answer,
            pods=done,
            nodes=max((pod.verdict.required for pod in done), default=0),
            not_covered=tuple(
                f"clients of the headless Service {name}, who ask DNS"
                for name in barrier.impacts.headless(barrier.subjects())
            ),
            unreadable=tuple(barrier.unread),
            ignores_marks=self._ignores_marks,
        )
        if answer.outcome == "drained" or not self._options.take_back:
            return answer
        taken_back, still_marked = await self._take_back()
        return replace(answer, taken_back=taken_back, marked=still_marked)

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

    async def _take_back(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the Pods without their marks again, and those that may still have one."""
        before = self._marks.marked
        self._reporter.on_progress(f"taking the marks of {count(len(before), 'Pod')} back")
        still_marked = await self._marks.take_back()
        return tuple(key for key in before if key not in still_marked), still_marked
