"""Upstreams of one zone, and which of them is asked next.

As CoreDNS's plugin forward: two failures in a row (``FAILS_MAX``) and an upstream is taken for
dead; from the first one on it is probed, ever less often, until it answers something. Dead ones are
asked only where all are dead.

An upstream that answers in another case than it was asked in, and does so over TCP too, is asked in
lower case from then on: fewer bits for a forger to guess, and the rest of the defences (RFC 5452)
stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple

from sliceplane.kit.delays import Backoff

FAILS_MAX: Final = 2
#: of one zone
UPSTREAMS_MAX: Final = 15
_PROBE: Final = Backoff(base_s=1.0, cap_s=10.0)

Policy = Literal["sequential", "random"]


class SocketAddress(NamedTuple):
    """An address and a port; an IPv6 address may end in a zone (``%eth0``)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Upstream:
    """What is known of one server.  Owned by the forwarder."""

    __slots__ = ("address", "keeps_case", "probe_at", "probes", "unanswered")

    def __init__(self, address: SocketAddress) -> None:
        self.address = address
        self.keeps_case = True
        #: failures since the last answer
        self.unanswered = 0
        self.probes = 0
        #: when the next probe is due; ``None``: it is well
        self.probe_at: float | None = None

    @property
    def is_dead(self) -> bool:
        return self.unanswered >= FAILS_MAX

    def on_answer(self) -> None:
        self.unanswered = 0
        self.probes = 0
        self.probe_at = None

    def on_failure(self, now: float) -> None:
        self.unanswered += 1
        if self.probe_at is None:
            self.probe_at = now + _PROBE.delay_s(0)

    def on_probe(self, now: float) -> None:
        """One is sent."""
        self.probes += 1
        self.probe_at = now + _PROBE.delay_s(self.probes)


class UpstreamZone:
    """The upstreams for names at and below ``zone``, in wire form and lower case; the root has
    those for all others.

    ``looping``: what they are asked comes back to us. ``loop_probe_at``: when this may be looked at
    again.
    """

    __slots__ = ("loop_probe_at", "looping", "policy", "upstreams", "zone")

    def __init__(self, zone: bytes, upstreams: Iterable[Upstream], policy: Policy) -> None:
        self.zone = zone
        self.upstreams = tuple(upstreams)
        self.policy = policy
        self.looping = False
        self.loop_probe_at = 0.0
        assert 0 < len(self.upstreams) <= UPSTREAMS_MAX, f"{len(self.upstreams)} upstreams"

    def order(self, draw: Callable[[], int]) -> list[Upstream]:
        """All of them, in the order in which one question tries them: the living first."""
        turn = [draw() if self.policy == "random" else 0 for _ in self.upstreams]
        places = sorted(
            range(len(turn)), key=lambda place: (self.upstreams[place].is_dead, turn[place])
        )
        return [self.upstreams[place] for place in places]
