"""``simulate --scale``: the same seed is the same run, what is counted is what is run, and what
breaks is named.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from sliceplane.api.scheme import EndpointSlices, Pods
from sliceplane.cli.main import main
from sliceplane.kit.io.batches import CALLS_PER_BATCH
from sliceplane.lab.sim.scale import front
from sliceplane.lab.sim.scale.measures import ScaleMeasures
from sliceplane.lab.sim.scale.plan import MEASURED, Budgets, Costs, ScalePlan
from sliceplane.lab.sim.scale.run import PART_MAX_S, ScaleOutcome, ScaleRun
from sliceplane.lab.sim.scale.text import as_text
from sliceplane.server.io.requests import watch as production
from sliceplane.server.store.types import EventType, Key, Record, StoreEvent
from sliceplane.server.store.watcher import Item

SMALL = ScalePlan(
    nodes=12, pods=48, services=6, rolling=1, ready_s=1.0, termination_s=2.0, node_grace_s=2.0
)


def run(**changes: object) -> ScaleOutcome:
    return ScaleRun(replace(SMALL, **changes)).run()  # type: ignore[arg-type]  # members of the plan


def test_the_same_seed_is_the_same_run_and_everything_is_right_at_its_end() -> None:
    first = run()
    assert first.wrong == first.broken == ()
    assert (first.replaced, first.marked) == (8, 16), (
        "Pods of a Service, and those of a third of the nodes"
    )
    assert as_text(first, 80) == as_text(run(), 80)


def test_every_node_that_reads_is_sent_every_write_of_a_slice() -> None:
    """Rows of streams are what their nodes are: bookmarks come on top, and the sampled nodes, which
    are not counted.
    """
    _, rolled, lost = run(servers=2).parts
    assert rolled.slice_writes * SMALL.nodes <= rolled.leaves.events
    readers = SMALL.nodes - SMALL.nodes // SMALL.zones
    assert lost.slice_writes * readers <= lost.leaves.events < lost.slice_writes * SMALL.nodes
    assert len(rolled.ages.reported) <= rolled.slice_writes
    assert all(
        stored <= told
        for stored, told in zip(
            sorted(rolled.ages.committed), sorted(rolled.ages.reported), strict=False
        )
    )  # the last may be under way


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"budgets": Budgets(link_bytes_s=20_000.0)}, "the link of a server is full"),
        ({"budgets": Budgets(freshness_s=0.001)}, "nodes are told after 0.001 s"),
        ({"costs": Costs(event_s=0.5), "budgets": Budgets(drain_s=5.0)}, "queues are not empty"),
    ],
)
def test_what_breaks_first_is_named(changes: dict[str, object], what: str) -> None:
    outcome = run(**changes)
    assert what in [name for _, name in outcome.broken]
    assert all(part.roots.busy_s < 1.1 * part.duration_s for part in outcome.parts), (
        "a processor does no more than it can"
    )


def test_a_rollout_may_take_longer_than_queues_may() -> None:
    """It was given up after an hour, and called a queue that never gets empty; the lost zone's Pods
    were gone then.
    """
    outcome = run(ready_s=PART_MAX_S / 2)
    assert outcome.wrong == outcome.broken == ()
    assert outcome.replaced == 8


def test_a_queue_that_is_full_costs_a_list() -> None:
    """The production hub gives the watch up; nodes list, and are right in the end."""
    made = ScaleRun(replace(SMALL, costs=Costs(event_s=0.05)))
    made._begin()
    made._scheduler.run_until(made._scheduler.now + 5.0)
    made._join()
    for row in made._rows:
        assert row.watcher is not None
        row.watcher.bound = 2_000
    lost = made._part("a zone is lost", made._lose_zone)
    assert lost.roots.lost_watches > 0
    assert lost.roots.listed_bytes > 0
    assert not made._wrong()


def test_a_slice_is_as_old_as_the_oldest_change_that_it_carries() -> None:
    measures = ScaleMeasures()
    measures.readers = 100

    def commit(resource: str, revision: int, labels: dict[str, str], now: float) -> None:
        record = Record(
            key=Key(resource, "a", "x"),
            revision=revision,
            created=1,
            uid="u",
            body=b"",
            labels=labels,
            fields={},
        )
        measures.on_commit(StoreEvent(revision, EventType.MODIFIED, record, record), now)

    of_service = {"kubernetes.io/service-name": "web"}
    commit(Pods.storage_key, 2, {"app": "web"}, 1.0)
    commit(Pods.storage_key, 3, {"app": "web"}, 2.0)
    measures.on_plan("a/web", 2.5)
    commit(Pods.storage_key, 4, {"app": "web"}, 3.0)
    commit(EndpointSlices.storage_key, 5, of_service, 4.0)
    measures.on_plan("a/web", 4.5)
    commit(EndpointSlices.storage_key, 6, of_service, 5.0)
    assert measures.ages.committed == [3.0, 2.0], "the change of 3.0 came after the plan"
    items = [Item("MODIFIED", 5, b""), Item("MODIFIED", 6, b"")]
    measures.arrived(items, 98, 6.0)
    assert measures.ages.reported == []
    measures.arrived(items, 1, 7.0)
    assert measures.ages.reported == [6.0, 4.0], "99 of 100 have them"


def test_streams_write_as_the_production_server_does() -> None:
    played = (front.SEND_BYTES, front.BATCH_BYTES, front.STREAMS_PER_BATCH)
    assert played == (production.SEND_BYTES, production.BATCH_BYTES, CALLS_PER_BATCH)


def test_each_cost_names_the_benchmark_that_measures_it() -> None:
    benchmarks = {path.stem for path in (Path(__file__).parents[3] / "benchmarks").glob("*.py")} | {
        "assumed"
    }
    assert {name for *_, where in MEASURED.values() for name in where.split(", ")} <= benchmarks
    assert set(MEASURED) == set(Costs.__struct_fields__)


def test_the_command_grows_until_something_breaks() -> None:
    sizes = [
        "--nodes",
        "12",
        "--pods",
        "24",
        "--services",
        "6",
        "--rolling",
        "1",
        "--cost",
        "event_s=0.0005",
    ]
    done = CliRunner().invoke(main, ["simulate", "--scale", "--grow", "--link", "0.004", *sizes])
    assert done.exit_code == 0, done.output
    assert "the link of a server is full" in done.output
    assert done.output.startswith("NODES"), done.output


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--zones", "5", "--nodes", "4"], "4 nodes cannot be in 5 zones"),
        (["--cost", "luck=1"], "'luck' is none of"),
        (["--cost", "event_s=soon"], "'soon' is no number of seconds"),
    ],
)
def test_what_cannot_be_is_refused(flags: list[str], complaint: str) -> None:
    done = CliRunner().invoke(main, ["simulate", "--scale", *flags])
    assert done.exit_code == 64
    assert complaint in done.output
