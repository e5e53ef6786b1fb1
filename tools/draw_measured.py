"""Draws the load of each endpoint over time for four policies, as ``docs/images/measured-zones.webp``, from
the file that ``python -m tests.peers.test_measured_zones`` writes.

``python tools/draw_measured.py measured-zones-nftables.json``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "measured-zones.webp"
#: samples of five seconds whose mean is drawn
SAMPLES = 4
#: by the third octet of an endpoint's address
ZONES = {"1": ("zone-a", "#0072b2"), "2": ("zone-b", "#e69f00"), "3": ("zone-c", "#009e73")}


def loads(timeline: list[Any]) -> dict[str, list[tuple[float, float]]]:
    """Returns time and load in fair shares, by endpoint."""
    endpoints = sorted({name for _, counts in timeline for name in counts})
    drawn: dict[str, list[tuple[float, float]]] = {name: [] for name in endpoints}
    for end in range(SAMPLES, len(timeline) + 1):
        part = timeline[end - SAMPLES : end]
        total = sum(sum(counts.values()) for _, counts in part)
        for name in endpoints:
            own = sum(counts.get(name, 0) for _, counts in part)
            drawn[name].append((part[-1][0], own * len(endpoints) / max(1, total)))
    return drawn


def draw(policies: dict[str, list[Any]]) -> None:
    widths = [max(1.0, timeline[-1][0] / 60) ** 0.5 for timeline in policies.values()]
    figure, panels = pyplot.subplots(
        1, len(policies), sharey=True, figsize=(10, 3.2), width_ratios=widths
    )
    for panel, (policy, timeline) in zip(panels, policies.items(), strict=True):
        for name, points in loads(timeline).items():
            _, color = ZONES[name.split(".")[2]]
            panel.plot(*zip(*points, strict=True), color=color, linewidth=0.6, alpha=0.7)
        panel.axhline(1.25, color="black", linewidth=0.6, linestyle="--")
        panel.set_title(policy, fontsize=9)
        panel.set_xlabel("s", fontsize=8)
        panel.tick_params(labelsize=8)
    panels[0].set_ylabel("load in fair shares", fontsize=8)
    for label, color in ZONES.values():
        panels[-1].plot([], [], color=color, label=f"endpoints in {label}")
    panels[-1].legend(fontsize=7, loc="upper right")
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()))
