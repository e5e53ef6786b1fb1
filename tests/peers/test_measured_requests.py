"""``sliceplane.dev/Measured`` through Envoy and grpcio: three zones with 80/15/5 of the requests and
twelve endpoints each, real requests, demand from load reports alone. No endpoint carries much more
than its share within three minutes of a step, for both kinds of clients; ``PreferSameZone`` beside.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from tests.figures import tell
from tests.peers.loopback import RunningPods, fetched, network, pods
from tests.peers.measured_mesh import SERVICES, Mesh, mesh
from tests.peers.measured_town import ZONES, addresses_of
from tests.peers.test_measured_zones import (
    LOAD_MAX,
    SETTLED_S,
    STEPS,
    Sample,
    least_crossing,
    load_of,
    noise,
)

__all__ = ["fetched", "network", "pods"]

pytestmark = [pytest.mark.peer, pytest.mark.kernel, pytest.mark.asyncio, pytest.mark.timeout(1800)]

#: requests a second to the Service with measured zones, by who calls it; to the one beside it, a
#: quarter. A call of gRPC costs Python many times as much.
RATES: Final = {"envoy": 150.0, "grpc": 60.0}
SAMPLE_S: Final = 5.0
#: seconds over which a load is counted: while demand settles, and then
WINDOW_S: Final = 30.0
SETTLED_WINDOW_S: Final = 60.0
ZONE_BY_ENDPOINT: Final = {
    address: zone for number, zone in enumerate(ZONES) for address in addresses_of(number)
}


class Played:
    """Samples of one step by Service, and the times at which the shares of a Service changed."""

    def __init__(self) -> None:
        self.samples: dict[str, list[Sample]] = {}
        self.writes: dict[str, list[float]] = {}


async def play(place: Mesh, shares: Sequence[float], duration_s: float) -> Played:
    rates = {
        name: RATES[kind] * part
        for kind, names in SERVICES.items()
        for name, part in zip(names, (1.0, 0.25), strict=True)
    }
    await place.rates(rates, shares)
    began, played = time.monotonic(), Played()
    before = {name: place.annotations(name) for name in rates}
    for _ in range(round(duration_s / SAMPLE_S)):
        await asyncio.sleep(SAMPLE_S)
        at = time.monotonic() - began
        for name, counts in (await place.counts()).items():
            played.samples.setdefault(name, []).append(Sample(at, counts))
        for name in rates:
            if (now := place.annotations(name)) != before[name]:
                played.writes.setdefault(name, []).append(round(at))
                before[name] = now
    return played


def figures(played: Played, name: str) -> dict[str, Any]:
    """When the load stayed below its bound, and the load and the crossing part after that. A busy
    machine makes fewer calls of the busiest zone, so the least possible is that of the calls made.
    """
    samples, window = played.samples[name], round(WINDOW_S / SAMPLE_S)
    settled_s = 0.0
    for end in range(window, len(samples) + 1):
        recent = samples[end - window : end]
        if load_of(ZONE_BY_ENDPOINT, recent)[0] > LOAD_MAX + noise(recent):
            settled_s = recent[-1].at
    last = samples[-round(SETTLED_WINDOW_S / SAMPLE_S) :]
    load, crossing = load_of(ZONE_BY_ENDPOINT, last)
    made = Counter[str]()
    for sample in last:
        for (_, zone), count in sample.counts.items():
            made[zone] += count
    shares = tuple(made[zone] / made.total() for zone in ZONES)
    return {
        "settled_s": round(settled_s),
        "load_first": round(load_of(ZONE_BY_ENDPOINT, samples[:window])[0], 2),
        "load": round(load, 2),
        "crossing": round(crossing, 3),
        "crossing_least": round(least_crossing(shares), 3),
        "noise": round(noise(last), 2),
        "writes": played.writes.get(name, []),
    }


def timeline(samples: list[Sample]) -> str:
    """For each interval: calls by zone, and the endpoints that they reached."""
    rows = []
    for sample in samples:
        reached = {
            zone: [n for (_, of), n in sample.counts.items() if of == zone] for zone in ZONES
        }
        rows.append(" ".join(f"{sum(found)}/{len(found)}" for found in reached.values()))
    return "; ".join(f"{sample.at:.0f}: {row}" for sample, row in zip(samples, rows, strict=True))


async def test_envoy_and_grpc_split_as_measured_within_three_minutes(
    tmp_path: Path, pods: RunningPods
) -> None:
    async with mesh(tmp_path) as place:
        for shares in STEPS[:2]:
            played = await play(place, shares, SETTLED_S + SETTLED_WINDOW_S)
            for kind, (measured, near) in SERVICES.items():
                told = figures(played, measured)
                beside = figures(played, near)
                tell(f"measured zones by load reports, {kind}, {shares}: {told}")
                tell(f"beside it PreferSameZone, {kind}: {beside}; {place.annotations(measured)}")
                tell(f"timeline {timeline(played.samples[measured])}; failed: {place.failed}")
                assert place.condition(measured) == ("True", "Measured")
                assert told["settled_s"] <= SETTLED_S + WINDOW_S, told
                assert told["load"] <= LOAD_MAX + told["noise"], told
                assert told["crossing"] <= told["crossing_least"] + 0.02 + 0.01, told
                assert beside["load"] > 1.5 * told["load"], "PreferSameZone: its hot zone burns"
                assert beside["crossing"] == 0
        assert place.failed == {}, "a request failed"
