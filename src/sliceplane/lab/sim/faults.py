"""The kinds of faults, and their probabilities.

A plan gives each kind of fault a *weight*: the probability that it strikes at one opportunity (a
request, a message of a watch, a step of the workload). Each kind draws from its own generator, so
leaving out one kind changes the others as little as possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from sliceplane.kit.rng import Rng


class FaultKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of fault. ``weight`` is that of the level ``normal``; ``per`` names the
    opportunity.
    """

    weight: float
    per: str
    what: str


KINDS: Final[Mapping[str, FaultKind]] = {
    "watch-delay": FaultKind(
        weight=0.3,
        per="watch",
        what="a stream lags by up to 5 s, so that order across watches differs",
    ),
    "watch-burst": FaultKind(
        weight=0.01, per="message", what="a stream stalls for up to 20 s, then all comes at once"
    ),
    "watch-cut": FaultKind(
        weight=0.01, per="message", what="a stream breaks; what was under way in it is lost"
    ),
    "watch-silence": FaultKind(
        weight=0.0005, per="message", what="a stream is half open: nothing comes, not even its end"
    ),
    "compaction": FaultKind(
        weight=0.03,
        per="step",
        what="the server forgets its history: 410 for a client that resumes",
    ),
    "request-lost": FaultKind(
        weight=0.02, per="request", what="a request never arrives; the sender times out"
    ),
    "response-lost": FaultKind(
        weight=0.02, per="request", what="a write is applied, and its sender sees a timeout"
    ),
    "request-twice": FaultKind(
        weight=0.02, per="request", what="a write is applied twice; the second answer counts"
    ),
    "request-late": FaultKind(
        weight=0.005, per="request", what="a write is applied a minute after its sender gave up"
    ),
    "server-error": FaultKind(
        weight=0.03, per="request", what="500 InternalError, nothing applied"
    ),
    "throttled": FaultKind(
        weight=0.03, per="request", what="429 with Retry-After, nothing applied"
    ),
    "foreign-edit": FaultKind(
        weight=0.03, per="step", what="another writer edits, relabels or deletes a slice of ours"
    ),
    "crash": FaultKind(
        weight=0.02, per="step", what="a controller dies with all it knew and starts again"
    ),
    "overlap": FaultKind(
        weight=0.01, per="step", what="a second instance starts before the first has stopped"
    ),
    "pause": FaultKind(
        weight=0.02, per="step", what="a process stands still for up to 30 s; its caches grow stale"
    ),
    "slow-node": FaultKind(
        weight=0.02, per="step", what="a node's agent stands still for up to 30 s"
    ),
    "clock-skew": FaultKind(
        weight=0.01, per="step", what="the server's clock is set, by up to 15 minutes either way"
    ),
    "short-list": FaultKind(
        weight=0.2, per="list", what="a list lacks over half of what its reader holds, once"
    ),
}

LEVELS: Final[Mapping[str, float]] = {"none": 0.0, "light": 0.3, "normal": 1.0, "heavy": 3.0}


def parse_faults(text: str) -> dict[str, float]:
    """Parses ``LEVEL`` or ``NAME=WEIGHT,...`` (alone, or after a level: ``light,crash=0.2``).

    Raises ``ValueError`` with a sentence.
    """
    weights: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    for index, part in enumerate(text.split(",")):
        name, equals, weight = part.strip().partition("=")
        if not equals:
            if name not in LEVELS or index:
                raise ValueError(
                    f"{part.strip()!r} is neither a level ({', '.join(LEVELS)}) nor NAME=WEIGHT"
                )
            weights = {fault: min(kind.weight * LEVELS[name], 0.9) for fault, kind in KINDS.items()}
            continue
        if name not in KINDS:
            raise ValueError(f"{name!r} is no fault; there are {', '.join(KINDS)}")
        try:
            weights[name] = float(weight)
        except ValueError as error:
            raise ValueError(f"{weight!r} is no probability") from error
        if not 0 <= weights[name] <= 1:
            raise ValueError(f"{name}={weight}: a weight is a probability, between 0 and 1")
    return weights


class FaultPlan:
    """A plan during a run. ``active`` is False at quiet points, when nothing strikes."""

    def __init__(self, weights: Mapping[str, float], rng: Rng) -> None:
        assert weights.keys() <= KINDS.keys(), f"unknown faults among {sorted(weights)}"
        self.active = True
        #: number of strikes by kind
        self.struck: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._weights = {name: weights.get(name, 0.0) for name in KINDS}
        self._rngs = {name: rng.fork() for name in KINDS}

    def strikes(self, name: str) -> bool:
        """Returns True if the fault strikes at this opportunity."""
        weight = self._weights[name]
        if not self.active or weight <= 0.0 or self._rngs[name].uniform(0.0, 1.0) >= weight:
            return False
        self.struck[name] += 1
        return True

    def sample(self, name: str, low: float, high: float) -> float:
        """Draws the size of a fault of the kind *name*."""
        return self._rngs[name].uniform(low, high)

    def choose(self, name: str, count: int) -> int:
        """Draws which of *count* candidates a fault of the kind *name* strikes."""
        return self._rngs[name].below(count)
