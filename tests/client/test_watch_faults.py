"""Every scripted failure of a watch: the informer ends with what is true, and handlers saw exactly
the difference.

``python -m benchmarks.informers`` plays the same with other clients.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from benchmarks.tools.scripted_server import Stage, State
from benchmarks.tools.watch_faults import SCENARIOS, BookmarksOnly, Busy, GapCompacted, Scenario
from tests.waiting import eventually

from sliceplane.client import Change, Connection, HttpClient, Informer, Pod, Pods
from sliceplane.watch.io.connection import Fixed

PATIENCE_S = 90.0
#: bookmarks come every second, if the machine is not busy
IDLE_TIMEOUT_S = 6.0


def client_of(stage: Stage) -> HttpClient:
    return HttpClient(
        Connection(
            server=f"http://127.0.0.1:{stage.port}", ssl_context=None, credentials=Fixed("Bearer t")
        )
    )


@dataclass
class Handler:
    """Knows what its changes say and nothing else."""

    held: State = field(default_factory=dict)
    told: list[tuple[str, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __call__(self, changes: tuple[Change[Pod], ...]) -> None:
        for change in changes:
            metadata = change.object.metadata
            if (change.old is None) != (metadata.name not in self.held):
                self.faults.append(
                    f"{metadata.name}: told of {change.old} and held {self.held.get(metadata.name)}"
                )
            if change.new is None:
                self.told.append(("delete", metadata.uid))
                self.held.pop(metadata.name, None)
            else:
                self.told.append(("update" if change.old else "add", metadata.uid))
                self.held[metadata.name] = (
                    metadata.uid,
                    int((metadata.labels or {})["generation"]),
                )


async def play(scenario: type[Scenario], handler: Handler, patience_s: float = PATIENCE_S) -> str:
    """What is wrong with how it ended; "" if nothing is."""
    async with scenario() as stage:
        client = client_of(stage)
        before = {uid for uid, _ in stage.world.state().values()}
        informer = Informer(
            client, Pods, kind=Pod, namespace="default", idle_timeout_s=IDLE_TIMEOUT_S
        )
        informer.add_handler(handler)
        try:
            async with informer:
                problem = ""
                try:
                    await eventually(
                        lambda: (stage.settled.is_set(), handler.held, stage.world.state()),
                        lambda seen: seen[0] and seen[1] == seen[2],
                        within_s=patience_s,
                    )
                except AssertionError as error:
                    problem = f"handlers do not hold what is true: {error}"
                await asyncio.sleep(
                    0.5
                )  # nothing is to come: a fault that takes longer is not seen, none is invented
                cached = {each.metadata.name: each.metadata.uid for each in informer}
        finally:
            await client.close()
        truth = stage.world.state()
        gone = before - {uid for uid, _ in truth.values()}
        deletes = sorted(uid for kind, uid in handler.told if kind == "delete")
        requests = len(stage.lists) + len(stage.watches)
        checks = {
            problem: not problem,
            f"handlers hold {handler.held} half a second later": handler.held == truth,
            f"the cache holds {cached}": cached == {name: uid for name, (uid, _) in truth.items()},
            f"deletes {deletes} of {gone}": set(deletes) == gone and len(deletes) == len(gone),
            f"out of order: {handler.faults}": not handler.faults,
            f"{requests} requests": requests <= 20,
        }
        if isinstance(stage, Busy):
            checks[f"{stage.early} requests while asked to wait"] = stage.early <= 1
        if isinstance(stage, BookmarksOnly):
            checks[f"{len(stage.lists)} lists although bookmarks came"] = len(stage.lists) == 1
        return "; ".join(text for text, fine in checks.items() if not fine)


class Forgetful(Handler):
    """A handler that misses deletes: what the judge must notice."""

    def __call__(self, changes: tuple[Change[Pod], ...]) -> None:
        super().__call__(tuple(change for change in changes if change.new is not None))


async def test_nothing_is_lost() -> None:
    *results, unjust = await asyncio.gather(
        *(play(scenario, Handler()) for scenario in SCENARIOS), play(GapCompacted, Forgetful(), 4.0)
    )
    failed = {
        scenario.name: problem
        for scenario, problem in zip(SCENARIOS, results, strict=True)
        if problem
    }
    assert not failed, failed
    assert "handlers do not hold" in unjust, "the judge notices a delete that is lost"
