"""One run: a seed, a workload, a plan of faults, and the verdict.

::

    step step step ... quiet point | step step step ... quiet point | ...

A step is one action of the workload, perhaps some faults, and a little time. At a quiet point
faults stop, paused processes resume, and time passes until there was no commit for ``QUIET_S``; if
that takes longer than ``CONVERGE_MAX_S``, the controllers do not converge. Then every invariant is
checked.

Every part that draws random numbers has its own generator, forked from the seed in a fixed order.
The history of the first k steps is the same however many follow, which shrinking relies on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from sliceplane.api.scheme import Leases
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.candidates import Candidates
from sliceplane.lab.sim.checks.drains import DrainWatch
from sliceplane.lab.sim.checks.invariants import INVARIANTS
from sliceplane.lab.sim.checks.removals import RETAINED_MAX_S, Removals
from sliceplane.lab.sim.checks.steady import Broken, Steady
from sliceplane.lab.sim.checks.view import View, service_of
from sliceplane.lab.sim.checks.world import World
from sliceplane.lab.sim.faults import KINDS, LEVELS, FaultPlan
from sliceplane.lab.sim.network import Network
from sliceplane.lab.sim.process import ControllerFault, Process
from sliceplane.lab.sim.proxies import Proxies
from sliceplane.lab.sim.roster import ROSTER, WORKLOADS, Setup, random_setup
from sliceplane.lab.sim.scheduler import Scheduler, Trace
from sliceplane.lab.sim.server import Server
from sliceplane.lab.sim.users import actions
from sliceplane.lab.sim.users.workload import SimulatedWorkload
from sliceplane.server.store.types import Record, StoreEvent
from sliceplane.watch.recorder.recorder import Recorder

START: Final = 1_800_000_000.0
STEPS_DEFAULT: Final = 100
#: steps between quiet points
ROUND_STEPS: Final = 25
#: longer than any back-off, time limit or bookmark period that could still bring a write
QUIET_S: Final = 400.0
CONVERGE_MAX_S: Final = 1500.0
#: seconds for which crashes, pauses and lost requests may delay a controller's write
REMOVAL_MAX_S: Final = 600.0
_POLL_S: Final = 10.0
_GAP_MAX_S: Final = 2.0
_LONG_GAP_MAX_S: Final = 45.0
_PAUSE_MAX_S: Final = 30.0
_OVERLAP_MAX_S: Final = 30.0
_SKEW_MAX_S: Final = 900.0


def normal_faults() -> dict[str, float]:
    return {name: kind.weight * LEVELS["normal"] for name, kind in KINDS.items()}


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """The initial state of a simulation that does not start empty. ``pods``: keys of Pods whose
    Nodes are not simulated.
    """

    setup: Setup
    records: tuple[Record, ...]
    pods: frozenset[str]
    #: file name of the recording
    file: str = ""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run. ``duration_s``: virtual time after which no further step begins
    (``None``: only *steps* counts).

    ``workload``: one of ``WORKLOADS``; ``classic`` is the workload of older recorded seeds.
    """

    seed: int
    steps: int = STEPS_DEFAULT
    duration_s: float | None = None
    faults: Mapping[str, float] = msgspec.field(default_factory=normal_faults)
    controllers: tuple[str, ...] = tuple(ROSTER)
    workload: str = WORKLOADS[0]
    #: the initial state; ``None``: empty
    adoption: Adoption | None = None
    #: True if a drain barrier is simulated (``drained-is-drained``); it draws random numbers, so
    #: histories differ then
    drains: bool = False


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    invariant: str
    message: str
    #: the newest lines of the trace about the violation
    lines: tuple[str, ...]
    cause: BaseException | None = None


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of a run. ``checked``: number of quiet points at which each invariant held."""

    options: Options
    setup: Setup
    violation: Violation | None
    steps: int
    virtual_s: float
    callbacks: int
    writes: int
    commits: int
    faults: Mapping[str, int]
    checked: Mapping[str, int]
    slowest_rest_s: float
    digest: str
    lines: int
    #: number of terms of instances of an elected controller
    terms: int = 0


class _Counts(NamedTuple):
    """Numbers of steps and faults, and of controllers' writes, since the beginning."""

    inputs: int = 0
    writes: int = 0


class Simulation:
    """One run. Created for one ``run``; a test may call ``begin`` and then play its own scenario
    with the parts.
    """

    def __init__(
        self,
        options: Options,
        sink: Callable[[str], object] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        adoption = options.adoption
        rng = Rng(options.seed)
        self.options = options
        self.recorder = recorder
        self.setup = (
            random_setup(options.workload, options.seed) if adoption is None else adoption.setup
        )
        self.scheduler = Scheduler(START)
        self.trace = Trace(START, sink)
        self.faults = FaultPlan(options.faults, rng.fork())
        self.server = Server(
            self.scheduler, rng.fork(), records=() if adoption is None else adoption.records
        )
        self.network = Network(self.scheduler, self.server, self.faults, self.trace, rng.fork())
        self._gaps = rng.fork()
        self._rng = rng.fork()
        self.workload = SimulatedWorkload(
            self.scheduler,
            self.server,
            self.trace,
            rng.fork(),
            deployments="kubelet" in options.controllers,
            more=actions.FULL_ACTIONS if options.workload == "full" else (),
            adopted=frozenset() if adoption is None else adoption.pods,
        )
        self.steady = Steady(self.server)
        self.server.listeners.append(self.steady.on_commit)
        self.removals = Removals(
            self.server,
            self.scheduler,
            reported_s=REMOVAL_MAX_S,
            inferred_s=RETAINED_MAX_S + REMOVAL_MAX_S,
        )
        self.server.listeners.append(self.removals.on_commit)
        self.server.listeners.append(self._watch_writes)
        self.processes: dict[str, Process | Candidates] = {}
        self.proxies = Proxies(self.network, rng.fork()) if options.workload == "full" else None
        self.drains = (
            DrainWatch(self.network, self.proxies, rng.fork())
            if options.drains and self.proxies
            else None
        )
        self._overlapping: list[Process] = []
        self._instances = 0
        self._last_commit = START
        self._round = _Counts()
        self._commits = 0
        self._slowest = 0.0
        self._checked: dict[str, int] = dict.fromkeys(INVARIANTS, 0)

    def _watch_writes(self, event: StoreEvent) -> None:
        if event.record.key.resource == Leases.storage_key:
            return  # a leader renews forever
        self._last_commit = self.scheduler.now
        self._commits += 1

    # Processes

    def start(self, name: str) -> None:
        """Starts a new instance in place of the one with this name; all instances, if they elect a
        leader.
        """
        part: Process | Candidates
        if ROSTER[name].elected and self.setup.instances > 1:
            part = Candidates(
                name,
                self.setup.instances,
                self.network,
                self._rng.fork(),
                spawn=lambda actor: self._process(name, actor),
            )
        else:
            part = self._process(name, name)
        self.processes[name] = part
        part.start()

    def _process(self, name: str, actor: str) -> Process:
        self._instances += 1
        make = ROSTER[name].make
        numbered = f"{actor}#{self._instances}"
        return Process(
            numbered, lambda: make(self.setup), self.network, self._rng.fork(), self.recorder
        )

    def crash(self, name: str) -> None:
        part = self.processes[name]
        if isinstance(part, Candidates):
            part.crash()
        else:
            part.kill()
            self.start(name)

    def overlap(self, name: str, seconds: float) -> None:
        """Starts a new instance while the old one continues for a while; a hand-over, if they elect
        a leader.
        """
        old = self.processes[name]
        if isinstance(old, Candidates):
            old.hand_over()
            return
        self._overlapping.append(old)
        self.start(name)
        self.scheduler.after(seconds, lambda: self._end_overlap(old))

    def _end_overlap(self, old: Process) -> None:
        if old.alive:
            old.kill()
            self._overlapping.remove(old)

    # Steps

    def begin(self) -> None:
        for name in self.options.controllers:
            self.start(name)
        self.workload.begin()
        if self.proxies is not None:
            actions.begin(self.workload)
            self.proxies.start()
        if self.drains is not None:
            self.drains.start()

    def step(self) -> None:
        self._strike()
        if self.proxies is not None:
            self.proxies.step()
        if self.drains is not None:
            self.drains.step()
        self.workload.step()
        gap = self._gaps.uniform(0.0, _LONG_GAP_MAX_S if self._gaps.below(16) == 0 else _GAP_MAX_S)
        self.scheduler.run_until(self.scheduler.now + (gap if self._gaps.below(4) else 0.0))

    def _strike(self) -> None:
        """Applies the faults whose opportunity is a step."""
        faults = self.faults
        names = self.options.controllers
        servers = [name for name in names if not ROSTER[name].agent]
        agents = [name for name in names if ROSTER[name].agent]
        if faults.strikes("compaction"):
            self._note_fault("compaction")
            self.server.forget_history()
            for name in names:
                self.processes[name].cut_watches()
        if faults.strikes("crash"):
            self.crash(names[faults.choose("crash", len(names))])
        if servers and faults.strikes("overlap"):
            chosen = servers[faults.choose("overlap", len(servers))]
            self.overlap(chosen, faults.sample("overlap", 1.0, _OVERLAP_MAX_S))
        for kind, group in (("pause", servers), ("slow-node", agents)):
            if group and faults.strikes(kind):
                process = self.processes[group[faults.choose(kind, len(group))]]
                self._note_fault(kind, process.actor)
                process.pause(faults.sample(kind, 1.0, _PAUSE_MAX_S))
        if faults.strikes("clock-skew"):
            self.server.ahead_s = faults.sample("clock-skew", -_SKEW_MAX_S, _SKEW_MAX_S)
            self._note_fault("clock-skew", f"{self.server.ahead_s:.3f}")
        if faults.strikes("foreign-edit"):
            self.foreign_edit(faults.choose("foreign-edit", 1 << 16))

    def foreign_edit(self, which: int) -> None:
        for slices in View(self.server).slices.values():
            for endpoint_slice in slices:
                self.steady.disturb(service_of(endpoint_slice))
        self.workload.foreign_edit(which)

    def _note_fault(self, kind: str, what: str = "-") -> None:
        self.trace.note(self.scheduler.now, "fault", kind, what)

    # Quiet points

    def converge(self) -> float:
        """Stops the faults and lets time pass until no process writes. Returns the seconds until
        the last write.

        Raises ``Broken`` if writes do not end.
        """
        self.faults.active = False
        for old in tuple(self._overlapping):
            self._end_overlap(old)
        for process in self.processes.values():
            process.wake()
        if self.proxies is not None:
            self.proxies.wake()
        if self.drains is not None:
            self.drains.wake()
        began = self.scheduler.now
        self._last_commit = began
        while self.scheduler.now < self._last_commit + QUIET_S:
            if self.scheduler.now > began + CONVERGE_MAX_S:
                raise Broken(
                    "quiescence", "", f"still writing {CONVERGE_MAX_S:g} s after the last change"
                )
            self.scheduler.run_until(self.scheduler.now + _POLL_S)
        rest = self._last_commit - began
        self._slowest = max(self._slowest, rest)
        return rest

    def check(self) -> None:
        """Checks every invariant at a quiet point. Raises ``Broken``."""
        view = View(self.server)
        before = self._round
        now = self._round = _Counts(
            self.workload.steps + sum(self.faults.struck.values()), self.network.writes
        )
        world = World(
            view,
            self.setup,
            self.options.controllers,
            tuple(self.processes.values()),
            now.inputs - before.inputs,
            now.writes - before.writes,
            self.proxies,
        )
        for name, invariant in INVARIANTS.items():
            invariant.check(name, world)
            self._checked[name] += 1
        self.steady.begin(view)
        self.faults.active = True

    def quiet_point(self) -> None:
        self.removals.check()
        rest = self.converge()
        self.check()
        self.trace.note(
            self.scheduler.now,
            "sim",
            "quiet",
            f"{rest:.6f}",
            "ok",
            revision=self.server.store.revision,
        )

    # The whole

    def run(self) -> RunVerdict:
        violation = None
        try:
            self._run()
        except Broken as broken:
            violation = self._violation(broken.invariant, broken.message, broken.subject, broken)
        except ControllerFault as fault:
            cause = fault.__cause__
            violation = self._violation("no-part-fails", f"{fault}: {cause!r}", fault.actor, cause)
        except Exception as error:
            violation = self._violation(
                "no-part-fails", f"{type(error).__name__}: {error}", "", error
            )
        return RunVerdict(
            options=self.options,
            setup=self.setup,
            violation=violation,
            steps=self.workload.steps,
            virtual_s=self.scheduler.now - START,
            callbacks=self.scheduler.executed,
            writes=self.network.writes,
            commits=self._commits,
            faults={name: count for name, count in self.faults.struck.items() if count},
            checked=dict(self._checked),
            slowest_rest_s=self._slowest,
            digest=self.trace.digest,
            lines=self.trace.lines,
            terms=sum(
                part.terms for part in self.processes.values() if isinstance(part, Candidates)
            ),
        )

    def _violation(
        self, invariant: str, message: str, subject: str, cause: BaseException | None
    ) -> Violation:
        lines = self.trace.about(subject.rpartition("/")[2])
        return Violation(invariant=invariant, message=message, lines=lines, cause=cause)

    def _run(self) -> None:
        options = self.options
        self.begin()
        for number in range(1, options.steps + 1):
            self.step()
            over = (
                options.duration_s is not None and self.scheduler.now >= START + options.duration_s
            )
            if number % ROUND_STEPS == 0 and number < options.steps and not over:
                self.quiet_point()
            if over:
                break
        self.quiet_point()
