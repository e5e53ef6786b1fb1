"""The health of a process, from the results of its checks.

A check has kubelet's words: so many results of one kind in a row turn it (``rise``, ``fall``), the
first look is ``initial_delay_s`` after its start. Until it has turned once it is *unknown*, and
nothing is ready by what is unknown. All checks of a process must pass; a process without any passes
as long as the agent lives.

Damping: a process that fails for the third time in ``FLAPS_S`` is not believed at once when it
passes again, but after 10 s, 20 s and so on up to ``BACKOFF_MAX_S``, until it was well for
``FLAPS_S``: each turn is a write that all nodes follow.

A result counts for the process that was looked at: ``renew`` forgets what was known, and a result
of a look that began before is passed over.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

Kind = Literal["http", "https", "tcp", "grpc", "exec", "ttl", "process", "notify"]
#: kinds that the shell probes; the status of the others is reported to it
PROBED: Final = ("http", "https", "tcp", "grpc", "exec")

FLAPS: Final = 3
FLAPS_S: Final = 300.0
#: seconds between two probes of a check that has not passed yet, and for how long: a process that
#: was just started is ready soon
FIRST_PERIOD_S: Final = 1.0
FIRST_S: Final = 30.0
BACKOFF_BASE_S: Final = 10.0
BACKOFF_MAX_S: Final = 300.0


class CheckSpec(msgspec.Struct, frozen=True, kw_only=True):
    """``target``: a path, a gRPC service, or a command line. ``port``: where to; 0 for the
    registration's first.

    ``period_s`` of a ``ttl`` check: how long a pass lasts.
    """

    kind: Kind
    target: str = ""
    port: int = 0
    period_s: float = 5.0
    timeout_s: float = 2.0
    initial_delay_s: float = 0.0
    rise: int = 1
    fall: int = 3

    def __post_init__(self) -> None:
        """Raises ``ValueError``."""
        for name in ("period_s", "timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"the {name.removesuffix('_s')} of a check must be positive")
        for name in ("rise", "fall"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of a check must be at least 1")

    def __str__(self) -> str:
        return f"{self.kind} {self.target}".rstrip()


class CheckProbe(NamedTuple):
    """A due probe, of check ``number`` of ``key``. The result has the same ``generation``."""

    key: str
    number: int
    spec: CheckSpec
    generation: int


@dataclass(slots=True)
class _Check:
    spec: CheckSpec
    since: float
    due: float
    has_passed: bool = False
    passing: bool | None = None
    row: int = 0
    last: bool | None = None
    text: str = ""
    under_way: bool = False

    def on_result(self, passed: bool, text: str) -> None:
        self.has_passed |= passed
        self.row = self.row + 1 if passed == self.last else 1
        self.last = passed
        self.text = text
        if passed != self.passing and self.row >= (self.spec.rise if passed else self.spec.fall):
            self.passing = passed


class CheckView(NamedTuple):
    """A check for users: name, state (``None``: unknown), and the text of the last result."""

    name: str
    passing: bool | None
    text: str


class Health:
    """All checks of one registration.  Owned by one agent."""

    def __init__(self, key: str, specs: tuple[CheckSpec, ...], now: float) -> None:
        self._key = key
        self._generation = 0
        self._specs = specs
        self._checks: list[_Check] = []
        self._is_healthy: bool | None = None
        #: times of recent failures
        self._fails: deque[float] = deque()
        self._backoff_until = 0.0
        #: number of consecutive backoffs, with less than ``FLAPS_S`` between them
        self._backoffs = 0
        self.renew(now)

    def renew(self, now: float) -> None:
        """Discards results, because the address changed or the machine was suspended. Results of a
        child process are kept.
        """
        self._generation += 1
        of_child = {
            index: check
            for index, check in enumerate(self._checks)
            if check.spec.kind in ("process", "notify")
        }
        self._checks = [
            of_child.get(index)
            or _Check(
                spec, now, now + (spec.period_s if spec.kind == "ttl" else spec.initial_delay_s)
            )
            for index, spec in enumerate(self._specs)
        ]
        self._is_healthy = None

    def take_over(self) -> None:
        """Continues with another agent of this process: results of probes under way are ignored."""
        self._generation += 1
        for check in self._checks:
            check.under_way = False

    def is_healthy(self, now: float) -> bool | None:
        """Returns True if the process is healthy; ``None``: unknown yet."""
        self._update(now)
        return self._is_healthy

    def take_probes(self, now: float) -> tuple[CheckProbe, ...]:
        """Returns the probes that are due. Each is answered by ``on_result`` and not repeated
        before.
        """
        taken = []
        for index, check in enumerate(self._checks):
            if check.spec.kind in PROBED and check.due <= now and not check.under_way:
                check.under_way = True
                taken.append(CheckProbe(self._key, index, check.spec, self._generation))
        return tuple(taken)

    def on_result(self, probe: CheckProbe, passed: bool, text: str, now: float) -> None:
        if probe.generation != self._generation:
            return
        check = self._checks[probe.number]
        check.under_way = False
        # From now, not from the start of the probe: a probe that takes its whole timeout is not
        # followed by the next immediately.
        check.on_result(passed, text)
        period_s = check.spec.period_s
        starts = check.passing is None or (not check.has_passed and now - check.since < FIRST_S)
        check.due = now + (min(period_s, FIRST_PERIOD_S) if starts else period_s)
        self._update(now)

    def on_status(self, kind: Kind, passed: bool, text: str, now: float) -> bool:
        """Notes a status that a process reported (``ttl``, ``notify``), or that it runs or ended
        (``process``). Returns False if there is no such check.
        """
        checks = [check for check in self._checks if check.spec.kind == kind]
        for check in checks:
            # The process itself reports: once is enough.
            check.passing = check.last = passed
            check.text = text
            check.due = now + check.spec.period_s
        self._update(now)
        return bool(checks)

    def next_deadline(self) -> float | None:
        dues = [check.due for check in self._checks if _waits(check)]
        if self._backoff_until and self._is_healthy is not True:
            dues.append(self._backoff_until)
        return min(dues, default=None)

    def _update(self, now: float) -> None:
        for check in self._checks:
            if check.spec.kind == "ttl" and check.passing is not False and check.due <= now:
                check.passing = check.last = False
                check.text = f"said nothing for {check.spec.period_s:g} s"
        results = [check.passing for check in self._checks]
        if False in results:
            if self._is_healthy:
                self._on_fail(now)
            self._is_healthy = False
        elif None not in results and now >= self._backoff_until:
            self._is_healthy = True

    def _on_fail(self, now: float) -> None:
        self._fails.append(now)
        while self._fails[0] < now - FLAPS_S:
            self._fails.popleft()
        if self._backoffs and now - self._backoff_until < FLAPS_S:
            self._backoffs += 1
        else:
            self._backoffs = int(len(self._fails) >= FLAPS)
        if self._backoffs:
            self._backoff_until = now + min(
                BACKOFF_BASE_S * 2.0 ** min(self._backoffs - 1, 16), BACKOFF_MAX_S
            )

    def get_backoff_s(self, now: float) -> float:
        """Returns the seconds until it may be healthy again, because it changed so often."""
        return max(0.0, self._backoff_until - now)

    def views(self) -> tuple[CheckView, ...]:
        return tuple(
            CheckView(str(check.spec), check.passing, check.text) for check in self._checks
        )

    def check(self) -> None:
        assert len(self._checks) == len(self._specs), "a check without its specification"
        assert all(
            time >= earlier
            for earlier, time in zip(self._fails, list(self._fails)[1:], strict=False)
        )


def _waits(check: _Check) -> bool:
    if check.spec.kind in PROBED:
        return not check.under_way
    return check.spec.kind == "ttl" and check.passing is not False
