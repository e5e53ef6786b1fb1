"""Incidents of the simulator, replayed: the same writes; and a planted fault, found at the first
write that differs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from tests.effort import scaled
from tests.figures import tell

from sliceplane.diagnose.timeline.reader import entries
from sliceplane.diagnose.timeline.replay import Replay, ReplayReport
from sliceplane.lab.sim.faults import parse_faults
from sliceplane.lab.sim.recording import LIMIT_BYTES, adopt, lines, make_recorder, makers_of
from sliceplane.lab.sim.report import replay as replay_line
from sliceplane.lab.sim.simulation import Options, Simulation
from sliceplane.server.store.types import Key
from sliceplane.slices.packing.packer import SlicePacker
from sliceplane.slices.service import ServiceState
from sliceplane.watch.recorder.entries import BatchTaken
from sliceplane.watch.recorder.file import Recording, read_lines

#: incidents of the full run (make soak)
INCIDENTS = 1000
STEPS = 25


def record(seed: int, limit_bytes: int = LIMIT_BYTES, steps: int = STEPS) -> Recording:
    recorder = make_recorder(limit_bytes)
    options = Options(
        seed=seed, steps=steps, faults=parse_faults("heavy" if seed % 2 else "normal")
    )
    simulation = Simulation(options, recorder=recorder)
    simulation.run()
    assert not recorder.fault
    return read_lines(list(lines(recorder, options, simulation.setup)))


def replay(recording: Recording) -> ReplayReport:
    report = Replay(makers_of(recording.header.settings)).run(recording)
    assert not report.skipped
    return report


def same(seeds: range, recording: Callable[[int], Recording] = record) -> list[int]:
    reports = {seed: replay(recording(seed)) for seed in seeds}
    assert all(report.jobs > 20 for report in reports.values()), "hardly anything was written"
    return [seed for seed, report in reports.items() if report.same]


#: of the code as it is: for what is the same in several tests
recorded = cache(record)


def test_incidents_replay_with_the_same_writes() -> None:
    seeds = range(1, 1 + scaled(10, least=4))
    assert same(seeds, recorded) == list(seeds)


@pytest.mark.parametrize(
    "seeds", [range(21, 22), pytest.param(range(22, 42), marks=pytest.mark.slow)]
)
def test_large_objects_and_answers_replay_too(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("ANSWER_BYTES_MAX", "ENDPOINTS_WHOLE_MAX"):
        monkeypatch.setattr(f"sliceplane.watch.recorder.lines.{limit}", 0)
    assert same(seeds) == list(seeds)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_thousand_incidents_replay_with_the_same_writes() -> None:
    seeds = range(1, 1 + INCIDENTS)
    found = same(seeds)
    tell(
        f"{len(found)} of {INCIDENTS} incidents of the simulator replay with the same digests of "
        "writes"
    )
    assert found == list(seeds)


def turns(recording: Recording) -> list[BatchTaken]:
    return [entry for entry in entries(recording) if isinstance(entry, BatchTaken) and entry.jobs]


def test_a_planted_regression_is_found_at_its_first_differing_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = recorded(4)
    with monkeypatch.context() as planted:
        # Endpoints never join a slice that has room.
        planted.setattr(SlicePacker, "_fullest_with_space", lambda *_: None)
        faulty = record(4)
        report = replay(sound)
    # Both runs are alike until the fault shows: the first turn in which they are not is where it
    # must be found.
    first = next(
        pair for pair in zip(turns(sound), turns(faulty), strict=False) if pair[0] != pair[1]
    )
    assert [difference.controller for difference in report.differences] == [
        "endpointslice-controller"
    ]
    difference = report.differences[0]
    assert difference.at == first[0].at == first[1].at
    assert difference.key in {job.key for job in first[0].jobs}
    assert "endpointslices" in difference.recorded
    assert "endpointslices" in difference.replayed
    assert difference.recorded != difference.replayed
    assert difference.body
    assert replay(sound).same, "without the fault nothing differs"


def test_a_replay_that_raises_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = record(5, steps=10)

    def fail(*_: object) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(ServiceState, "plan", fail)
    report = replay(sound)
    assert [(found.controller, found.replayed) for found in report.differences] == [
        ("endpointslice-controller", "raised ValueError: planted")
    ]


def test_a_ring_that_forgot_its_beginning_replays_from_a_checkpoint() -> None:
    whole = sum(map(len, record(12, steps=50).segments[0].blocks))
    recording = record(12, limit_bytes=whole * 2 // 3, steps=50)
    assert recording.header.forgotten > 0
    report = replay(recording)
    assert report.checkpoint
    assert report.entries > 50
    differing = {difference.controller for difference in report.differences}
    assert "endpointslice-controller" not in differing, report.differences


def test_a_simulation_goes_on_from_a_recording_under_faults() -> None:
    recording = record(11)
    adoption = adopt(recording, "a.recording")
    before = Simulation(Options(seed=5, steps=0, adoption=adoption))
    held = {(record.key.resource, record.key.path): record.uid for record in adoption.records}
    assert {resource for resource, _ in held} >= {
        "services",
        "pods",
        "endpointslices.discovery.k8s.io",
    }
    for resource, path in held:
        namespace, _, name = path.rpartition("/")
        kept = before.server.store.get(Key(resource, namespace, name))
        assert kept is not None
        assert kept.uid == held[resource, path]
    options = Options(seed=5, steps=25, faults=parse_faults("heavy"), adoption=adoption)
    verdict = Simulation(options).run()
    assert verdict.violation is None, verdict.violation
    assert sum(verdict.faults.values()) > 0
    assert verdict.digest == Simulation(options).run().digest
    assert replay_line(options).endswith("--from a.recording")
