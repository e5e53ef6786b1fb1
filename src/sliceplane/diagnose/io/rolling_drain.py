"""A Deployment drained Pod by Pod: each is drained and removed, and the next waits for its
replacement.

One Pod at a time never takes more away than ``maxUnavailable`` allows, whose least is one. Before a
Pod, every PodDisruptionBudget that selects it must allow a disruption, also for ``--delete``, which
the server would not stop. What does not come true within the time-out ends the drain; the Pods that
remain keep serving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec.structs import replace

from sliceplane.api.apps import Deployment, PodDisruptionBudget
from sliceplane.api.codec import decode
from sliceplane.api.core import Pod
from sliceplane.api.errors import StatusError
from sliceplane.api.findings.wording import count, part
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import Deployments, PodDisruptionBudgets, Pods
from sliceplane.api.selectors.labels import from_label_selector
from sliceplane.consume.drain.answer import DrainAnswer
from sliceplane.consume.drain.options import DrainOptions
from sliceplane.consume.io.drain_reporter import DrainReporter
from sliceplane.diagnose.io.lists import list_objects
from sliceplane.watch.io.base import Client

#: seconds between two reads of the Deployment and the budgets
PERIOD_S: Final = 0.5
#: drains one Pod
DrainOne = Callable[[Pod, DrainOptions], Awaitable[DrainAnswer]]


class RollingDrain:
    """One drain of the Deployment *key*, ``namespace/name``."""

    def __init__(
        self,
        client: Client,
        key: str,
        *,
        clock: Callable[[], float],
        reporter: DrainReporter,
    ) -> None:
        """*clock*: seconds since the epoch that do not jump."""
        self._client = client
        self._namespace, _, self._name = key.rpartition("/")
        self._clock = clock
        self._reporter = reporter
        self._unread: tuple[str, ...] = ()

    async def run(
        self, pods: Sequence[Pod], options: DrainOptions, drain_one: DrainOne
    ) -> DrainAnswer:
        """Raises ``StatusError`` and ``Unreachable``."""
        answer = DrainAnswer(f"deployment {self._name}", (), 0)
        for number, pod in enumerate(pods):
            why = await self._wait(pod, 0.0 if options.dry_run else options.timeout_s)
            if why:
                remaining = count(len(pods) - number, "Pod", "remains")
                return replace(answer, refused=f"{why}; {remaining}")
            result = await drain_one(pod, options)
            answer = _joined(answer, result, self._unread)
            if result.outcome != "drained":
                return answer
            options = replace(options, ignores_marks=result.ignores_marks)
        return answer

    async def _wait(self, pod: Pod, timeout_s: float) -> str:
        """Waits until *pod* may go. Returns why it may not after *timeout_s* seconds, or ""."""
        until = self._clock() + timeout_s
        while True:
            why = await self._obstacle(pod)
            if not why or self._clock() + PERIOD_S > until:
                return why
            self._reporter.on_progress(f"{pod.metadata.key} waits: {why}")
            await asyncio.sleep(PERIOD_S)

    async def _obstacle(self, pod: Pod) -> str:
        """Reads one object while the Deployment is incomplete, and lists only then."""
        body = await self._client.get(Deployments, self._namespace, self._name)
        deployment = decode(body, Deployment)
        why = incomplete(deployment, deployment.status.available_replicas)
        if why:
            return why
        # The status may not have the last removal yet, so the Pods are counted, too.
        selector = str(from_label_selector(deployment.spec.selector))
        pods = await list_objects(self._client, Selection(Pods, self._namespace, selector), Pod)
        ready = sum(each.is_ready and not each.metadata.is_deleting for each in pods)
        return incomplete(deployment, ready) or refusing(await self._budgets(), pod)

    async def _budgets(self) -> Sequence[PodDisruptionBudget]:
        """Without the right to list budgets only the server honours them, for evictions."""
        try:
            return await list_objects(
                self._client,
                Selection(PodDisruptionBudgets, self._namespace),
                PodDisruptionBudget,
            )
        except StatusError as error:
            if error.code not in (403, 404):
                raise
            right = "list poddisruptionbudgets.policy"
            self._unread = (
                f"PodDisruptionBudgets: honoured by evictions alone (no right to {right})",
            )
            return ()


def _joined(answer: DrainAnswer, result: DrainAnswer, unread: tuple[str, ...]) -> DrainAnswer:
    """Joins the answer of the Pods so far, that of the next, and phrases of what is unread."""
    return replace(
        result,
        what=answer.what,
        pods=(*answer.pods, *result.pods),
        nodes=max(answer.nodes, result.nodes),
        services=answer.services or result.services,
        not_covered=tuple(dict.fromkeys((*answer.not_covered, *result.not_covered))),
        unreadable=tuple(dict.fromkeys((*answer.unreadable, *result.unreadable, *unread))),
    )


def incomplete(deployment: Deployment, available: int) -> str:
    """Returns why the next Pod must wait for the Deployment, or ""."""
    desired = deployment.spec.desired_replicas
    return "" if available >= desired else f"{part(available, desired, 'Pod', 'is')} available"


def refusing(budgets: Sequence[PodDisruptionBudget], pod: Pod) -> str:
    """Returns the first budget that allows no disruption of *pod*, as a clause, or ""."""
    for budget in budgets:
        if budget.spec.selector is None or budget.status.disruptions_allowed > 0:
            continue
        if from_label_selector(budget.spec.selector).matches(pod.metadata.labels or {}):
            return f"PodDisruptionBudget {budget.metadata.name} allows no disruption"
    return ""
