"""Plays cases on a real API server in memory, and receives the beliefs of a consumer.

Each run of a case has its own namespace, so runs do not affect each other. The stage applies a step
and continues immediately; only a checkpoint waits. A checkpoint has three stages. The belief
becomes correct before the consumer's patience ends. It then stays correct for a moment. Finally,
every belief since the previous checkpoint must contain the endpoints that were correct all that
time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec.structs import replace

from sliceplane.api.errors import StatusError
from sliceplane.lab.conformance.consumers.consumer import (
    FollowedService,
    FollowingConsumer,
    JudgedConsumer,
)
from sliceplane.lab.conformance.model import Belief, State
from sliceplane.lab.conformance.objects import pod, service, slice_
from sliceplane.lab.conformance.steps import (
    CHECK,
    NODE,
    NODE_ADDRESS,
    SERVICE,
    ZONE,
    Away,
    Back,
    Bookmark,
    Case,
    Check,
    Cut,
    Delete,
    Document,
    Expire,
    Put,
    Refuse,
    Silence,
    Step,
)
from sliceplane.lab.conformance.verdict import (
    CaseVerdict,
    difference,
    history,
    missing_temporarily,
    strip_particulars,
)
from sliceplane.lab.testing.faults import Fault
from sliceplane.lab.testing.plane import Plane

POLL_S: Final = 0.02
#: the Node from which consumers may read their zone and address
_NODE: Final = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": NODE, "labels": {"topology.kubernetes.io/zone": ZONE}},
    "status": {"addresses": [{"type": "InternalIP", "address": NODE_ADDRESS}]},
}
#: seconds for which a correct belief must stay correct
STAYS_S: Final = 0.2
#: maximum runs to shorten a failed history, and the fraction of the patience in each of them
SHRINK_RUNS: Final = 24
SHRINK_PATIENCE: Final = 0.25
#: a case that any consumer can pass, for consumers that reported nothing
_PLAIN: Final = Case(
    "plain", "Two ready endpoints", (), setup=(slice_("a", pod(1), pod(2)),), steps=(CHECK,)
)


class SilentConsumer(Exception):
    """The consumer reported no belief of a Service with two ready endpoints, so the kit cannot
    judge it. The text describes what it did instead.
    """


class _Run(msgspec.Struct, frozen=True):
    """One run of a case: the consumer's error, "" if none, and the number of steps until then."""

    fault: str
    played: int
    #: whether any belief was reported, and the last other line
    reported: bool
    other_line: str
    #: requests to the API server
    requests: int


class Stage:
    """One server and one consumer; cases are played one after another."""

    def __init__(self, plane: Plane, consumer: JudgedConsumer) -> None:
        self._plane = plane
        self._consumer = consumer
        self._runs = 0
        self._outage: Fault | None = None
        self._cluster_ip = ""
        self._has_reported = False

    async def judge(self, case: Case, *, shrink: bool = True) -> CaseVerdict:
        """Runs *case* and returns its verdict. A failing history is shortened step by step as long
        as it fails.

        Raises ``SilentConsumer`` if the consumer never reported a belief, neither for this case nor
        for a plain one.
        """
        unable = sorted(case.needs - self._consumer.ables - self._consumer.claims)
        if unable:
            return CaseVerdict(
                case, "not asked", f"{self._consumer.name} is not asked about: {', '.join(unable)}"
            )
        began = time.monotonic()
        run = await self._run(case)
        seconds = time.monotonic() - began
        if not self._has_reported and not run.reported:
            plain = await self._run(_PLAIN)
            if not plain.reported:
                raise SilentConsumer(_silence(plain))
        self._has_reported = True
        if not run.fault:
            return CaseVerdict(case, "passed", seconds=seconds)
        whole = replace(case, steps=case.steps[: run.played])
        short = await self._shortened(whole, run.fault) if shrink else whole
        if short is not whole:
            rerun = await self._run(short)
            if rerun.fault:
                run = rerun
            else:  # correct after all, with the full patience
                short = whole
        return CaseVerdict(
            case, "failed", run.fault, history((*short.setup, *short.steps)), seconds
        )

    async def _shortened(self, case: Case, fault: str) -> Case:
        """Removes half of the steps, a quarter, ... a single one, as long as the rest fails in the
        same way.
        """
        runs = 0
        sort = strip_particulars(fault)
        size = max(1, len(case.steps) // 2)
        while size:
            at = 0
            before = case
            while at < len(case.steps) - 1 and runs < SHRINK_RUNS:
                end = min(at + size, len(case.steps) - 1)  # the last checkpoint is kept
                shorter = replace(case, steps=case.steps[:at] + case.steps[end:])
                if not _legal(shorter):
                    at += size
                    continue
                runs += 1
                rerun = await self._run(shorter, self._consumer.patience_s * SHRINK_PATIENCE)
                if strip_particulars(rerun.fault) == sort:
                    case = replace(shorter, steps=shorter.steps[: rerun.played])
                else:
                    at += size
            if size > 1 or case is before:
                size //= 2
        return case

    async def _run(self, case: Case, patience_s: float | None = None) -> _Run:
        self._runs += 1
        namespace = f"case-{self._runs}"
        self._plane.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        )
        if self._consumer.has_cluster_ip:
            self._cluster_ip = _cluster_ip(self._runs, case.query.family)
        state = State()
        requests = self._plane.faults.delay(0.0)  # a delay of 0 counts the requests
        for step in (service(), *case.setup):
            self._execute(step, namespace)
            state = state.after(step)
        followed = FollowedService(
            self._plane.kubeconfig, namespace, SERVICE, case.query, self._cluster_ip
        )
        try:
            async with self._consumer.follow(followed) as follower:
                if patience_s is not None:  # the patience starts with the consumer
                    await _wait_for_first_belief(follower, self._consumer.patience_s)
                patience_s = patience_s or self._consumer.patience_s
                fault, played = await self._play(case, namespace, state, follower, patience_s)
                return _Run(
                    fault, played, bool(follower.beliefs), follower.other_line, requests.hits
                )
        finally:
            self._execute(Back(), namespace)
            self._plane.faults.clear()
            for kind in ("EndpointSlice", "Service"):
                for document in self._plane.list(kind, namespace=namespace):
                    self._plane.delete(kind, document["metadata"]["name"], namespace=namespace)

    async def _play(
        self,
        case: Case,
        namespace: str,
        state: State,
        follower: FollowingConsumer,
        patience_s: float,
    ) -> tuple[str, int]:
        right = state.believed(case.query, self._consumer.claims)
        always: Belief = frozenset()  # before the first checkpoint no belief is required
        judged = 0
        for played, step in enumerate(case.steps, 1):
            if not isinstance(step, Check):
                self._execute(step, namespace)
                state = state.after(step)
                right = state.believed(case.query, self._consumer.claims)
                always &= right if _keeps_service(step) else frozenset()
                await asyncio.sleep(0)
                continue
            if fault := await _wait_until_right(follower, right, patience_s):
                return fault, played
            beliefs = follower.beliefs[judged:]
            lost = frozenset().union(*(always - belief for belief in beliefs))
            if lost:
                return missing_temporarily(lost), played
            judged = len(follower.beliefs)
            always = right
        return "", len(case.steps)

    def _addressed(self, document: Document) -> Document:
        """Returns the Service with a cluster IP, if the consumer needs one."""
        if (
            not self._cluster_ip
            or document["kind"] != "Service"
            or document["metadata"]["name"] != SERVICE
        ):
            return document
        family = "IPv6" if ":" in self._cluster_ip else "IPv4"
        spec = {**document["spec"], "clusterIP": self._cluster_ip, "ipFamilies": [family]}
        return {**document, "spec": spec}

    def _execute(self, step: Step, namespace: str) -> None:
        faults = self._plane.faults
        match step:
            case Put(document):
                self._plane.apply(self._addressed(document), namespace=namespace)
            case Delete(kind, name):
                with suppress(StatusError):  # a shortened history may not have created it
                    self._plane.delete(kind, name, namespace=namespace)
            case Cut():
                faults.cut_watches()
            case Away():
                self._outage = self._outage or faults.outage()
            case Back():
                if self._outage is not None:
                    self._outage.end()
                    self._outage = None
            case Expire():
                faults.expire()
            case Bookmark():
                faults.bookmark()
            case Silence():
                faults.silence_watches()
            case Refuse(code, times, watches):
                faults.refuse(code, times=times, where="watch=" if watches else "/endpointslices")
            case Check():
                raise AssertionError("a checkpoint is waited for, not performed")


def _silence(run: _Run) -> str:
    printed = (
        f"the last line it printed: {run.other_line}"
        if run.other_line
        else "it printed no other line"
    )
    requests = f"requests it sent to the API server: {run.requests}"
    return "; ".join((f"{run.fault}, though two endpoints are ready", requests, printed))


async def _wait_for_first_belief(follower: FollowingConsumer, patience_s: float) -> None:
    """Waits for the first belief."""
    ends = time.monotonic() + patience_s
    while not follower.beliefs and not follower.ended and time.monotonic() < ends:
        await follower.poll()
        await asyncio.sleep(POLL_S)


async def _wait_until_right(follower: FollowingConsumer, right: Belief, patience_s: float) -> str:
    """Waits until the belief is *right* and stays so; returns the error, or ""."""
    ends = time.monotonic() + patience_s
    stays = 0.0
    while True:
        await follower.poll()
        now = time.monotonic()
        believed = follower.beliefs[-1] if follower.beliefs else None
        if believed == right:
            stays = stays or now
            if now - stays >= STAYS_S:
                return ""
        else:
            stays = 0.0
            if now > ends:
                return f"after {patience_s:g} s {difference(believed, right)}"
        if follower.ended:
            return f"it ended: {follower.ended}"
        await asyncio.sleep(POLL_S)


def _keeps_service(step: Step) -> bool:
    """Returns False if the step deletes the Service: a consumer may then forget the slices for a
    moment.
    """
    return not (isinstance(step, Delete) and step.kind == "Service")


def _cluster_ip(run: int, family: str) -> str:
    """Returns an address of the plane's default ranges; their first addresses are the API server's
    and others'.
    """
    number = 0x1000 + run
    return f"fd00:10:96::{number:x}" if family == "IPv6" else f"10.96.{number >> 8}.{number & 255}"


def _legal(case: Case) -> bool:
    """Returns True if the history ends with a reachable server."""
    away = False
    for step in case.steps:
        away = isinstance(step, Away) or (away and not isinstance(step, Back))
        if away and isinstance(step, Check):
            return False
    return True


async def run(
    consumer: JudgedConsumer,
    cases: Sequence[Case],
    report: Callable[[CaseVerdict], None],
    *,
    shrink: bool,
) -> None:
    """Judges *consumer* by *cases* on its own server, and reports each verdict as it comes. Raises
    ``OSError`` and ``TimeoutError`` for a consumer that does not start, ``SilentConsumer`` for one
    that reports nothing.
    """
    async with Plane(controllers=False) as plane:
        plane.apply(_NODE)
        stage = Stage(plane, consumer)
        for case in cases:
            report(await stage.judge(case, shrink=shrink))
