"""Upstreams of one zone, and their order for each question.

As in CoreDNS's plugin forward, an upstream counts as dead after ``FAILS_MAX`` consecutive failures.
From the first failure on it is probed with growing intervals until it answers. Dead upstreams are
queried only if all are dead.

If an upstream changes the case of the name, even over TCP, queries to it use lower case from then
on. An attacker has fewer bits to guess then, but the other defences (RFC 5452) remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple

from sliceplane.kit.delays import Backoff

FAILS_MAX: Final = 2
#: upstreams of one zone
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
    """Observed state of one server.  Owned by the forwarder."""

    __slots__ = ("address", "keeps_case", "probe_at", "probes", "unanswered")

    def __init__(self, address: SocketAddress) -> None:
        self.address = address
        self.keeps_case = True
        #: failures since the last answer
        self.unanswered = 0
        self.probes = 0
        #: when the next probe is due; ``None``: it has not failed since its last answer
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
        """Schedules the next probe after one is sent."""
        self.probes += 1
        self.probe_at = now + _PROBE.delay_s(self.probes)


class UpstreamZone:
    """The upstreams for names at and below ``zone``, in wire form and lower case; the root zone is
    for all other names.

    ``looping``: queries to them come back to this server. ``loop_probe_at``: when this may be
    checked again.
    """

    __slots__ = ("loop_probe_at", "looping", "policy", "upstreams", "zone")

    def __init__(self, zone: bytes, upstreams: Iterable[Upstream], policy: Policy) -> None:
        self.zone = zone
        self.upstreams = tuple(upstreams)
        self.policy = policy
        self.looping = False
        self.loop_probe_at = 0.0
        assert 0 < len(self.upstreams) <= UPSTREAMS_MAX, f"{len(self.upstreams)} upstreams"

    def order(self, random_bits: Callable[[], int]) -> list[Upstream]:
        """Returns all upstreams in the order in which one question tries them: dead ones last."""
        ranks = [random_bits() if self.policy == "random" else 0 for _ in self.upstreams]
        indices = sorted(
            range(len(ranks)), key=lambda index: (self.upstreams[index].is_dead, ranks[index])
        )
        return [self.upstreams[index] for index in indices]
