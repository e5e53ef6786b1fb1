"""``sliceplane.dev/Measured`` beside unmodified kube-proxy: clients 80/15/5 in three zones with twelve
endpoints each, real packets. No endpoint carries much more than its share once the zones are
measured, and again after each step of demand.

``python -m tests.peers.test_measured_zones PROGRAM MODE RATE`` also plays the other policies, prints
their figures, and writes ``measured-zones-MODE.json`` with the load of each endpoint over time.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from tests.figures import tell
from tests.peers.measured_town import ENDPOINTS, ZONES, Town, town

pytestmark = [pytest.mark.peer, pytest.mark.kernel, pytest.mark.timeout(1800)]

MEASURED: Final = "sliceplane.dev/Measured"
#: parts of the connections by zone: at first, and after each step
STEPS: Final = ((0.80, 0.15, 0.05), (0.05, 0.15, 0.80), (0.10, 0.60, 0.30))
#: seconds from a step of demand until no endpoint carries too much
SETTLED_S: Final = 180.0
#: greatest load in fair shares
LOAD_MAX: Final = 1.25
#: seconds over which the load of an endpoint is counted
WINDOW_S: Final = 20.0
SAMPLE_S: Final = 5.0


class Sample:
    """Connections of one interval by endpoint and zone of the client."""

    def __init__(self, at: float, counts: dict[tuple[str, str], int]) -> None:
        self.at = at
        self.counts = counts


def load_of(zone_by_endpoint: Mapping[str, str], samples: list[Sample]) -> tuple[float, float]:
    """The greatest load of an endpoint in fair shares, and the part that left its zone."""
    by_endpoint: Counter[str] = Counter()
    crossing = total = 0
    for sample in samples:
        for (endpoint, zone), count in sample.counts.items():
            by_endpoint[endpoint] += count
            total += count
            crossing += count * (zone_by_endpoint[endpoint] != zone)
    fair = total / (ENDPOINTS * len(ZONES))
    return max(by_endpoint.values()) / fair, crossing / total


def noise(samples: list[Sample]) -> float:
    """Three standard errors of the greatest allowed load: one of 36 endpoints is that far off."""
    total = sum(sum(sample.counts.values()) for sample in samples)
    return 3 * (LOAD_MAX / (total / (ENDPOINTS * len(ZONES)))) ** 0.5


async def play(
    place: Town, shares: tuple[float, ...], rate: int, duration_s: float, samples: list[Sample]
) -> None:
    """Adds to *samples* while clients connect for *duration_s*."""
    await place.rates({zone: rate * share for zone, share in zip(ZONES, shares, strict=True)})
    await place.counts()
    for _ in range(round(duration_s / SAMPLE_S)):
        await asyncio.sleep(SAMPLE_S)
        samples.append(Sample(time.monotonic(), await place.counts()))


async def settle(
    place: Town, shares: tuple[float, ...], rate: int, samples: list[Sample]
) -> dict[str, Any]:
    """Plays one step of demand; returns when the load stayed below its bound, and the load then."""
    began = time.monotonic()
    own: list[Sample] = []
    settled_s = 0.0
    window = int(WINDOW_S / SAMPLE_S)
    while time.monotonic() - began < SETTLED_S + WINDOW_S:
        await play(place, shares, rate, SAMPLE_S, own)
        if len(own) >= window:
            recent = own[-window:]
            load, _ = load_of(place.zone_by_endpoint, recent)
            if load > LOAD_MAX + noise(recent):
                settled_s = recent[-1].at - began
    samples += own
    load, crossing = load_of(place.zone_by_endpoint, own[-2 * window :])
    return {
        "shares": shares,
        "settled_s": round(settled_s),
        "load": round(load, 2),
        "load_first": round(load_of(place.zone_by_endpoint, own[:window])[0], 2),
        "crossing": round(crossing, 3),
        "crossing_least": round(least_crossing(shares), 3),
        "noise": round(noise(own[-2 * window :]), 2),
    }


def least_crossing(shares: tuple[float, ...], overload: float = 0.2) -> float:
    """The linear programme's optimum: what a zone's own endpoints cannot carry within the bound."""
    return sum(max(0.0, share - (1 + overload) / len(ZONES)) for share in shares)


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
async def test_no_endpoint_burns_within_three_minutes_of_a_step(kube_proxy: str, mode: str) -> None:
    async with town(kube_proxy, mode) as place:
        await place.request(mode=MEASURED)
        for shares in STEPS[:2]:
            told = await settle(place, shares, 250, [])
            tell(f"measured zones beside kube-proxy, {mode}: {told}")
            assert told["settled_s"] <= SETTLED_S, told
            assert told["load"] <= LOAD_MAX + told["noise"], told
            assert told["crossing"] <= told["crossing_least"] + 0.02 + 0.01, told
        failed = await place.rates(dict.fromkeys(ZONES, 0.0))
        assert failed == place.failed_before, "a connection failed"


async def main(program: str, mode: str, rate: int) -> dict[str, list[Any]]:
    """Returns the connections of each endpoint over time, by policy."""
    policies: dict[str, dict[str, str | None]] = {
        "PreferSameZone": {"field": "PreferSameZone"},
        "Auto": {"mode": "Auto"},
        "Balanced": {"mode": "sliceplane.dev/Balanced"},
        "Measured": {"mode": MEASURED},
    }
    timelines: dict[str, list[Any]] = {}
    async with town(program, mode) as place:
        for policy, requested in policies.items():
            await place.request(**requested)
            await asyncio.sleep(10)
            samples: list[Sample] = []
            for shares in STEPS if policy == "Measured" else STEPS[:1]:
                if policy == "Measured":
                    told = await settle(place, shares, rate, samples)
                else:
                    await play(place, shares, rate, 60, samples)
                    load, crossing = load_of(place.zone_by_endpoint, samples[-8:])
                    told = {
                        "shares": shares,
                        "load": round(load, 2),
                        "crossing": round(crossing, 3),
                    }
                print(json.dumps({"mode": mode, "policy": policy, **told}), flush=True)
            timelines[policy] = [
                [sample.at - samples[0].at, _by_endpoint(sample)] for sample in samples
            ]
        failed = await place.rates(dict.fromkeys(ZONES, 0.0))
        print("failed:", failed - place.failed_before)
    return timelines


def _by_endpoint(sample: Sample) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for (endpoint, _), count in sample.counts.items():
        counts[endpoint] += count
    return dict(counts)


if __name__ == "__main__":
    played = asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    Path(f"measured-zones-{sys.argv[2]}.json").write_text(json.dumps(played))
