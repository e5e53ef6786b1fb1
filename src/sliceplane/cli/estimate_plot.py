"""The picture of ``sliceplane estimate --plot``: bytes on the wire against the number of endpoints.

One panel for each scenario, both axes logarithmic, a line for each of the KEP's three designs: solid with our
objects in protobuf, dotted with the KEP's sizes.  The case that was asked for is the vertical line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sliceplane.cli.pictures import save
from sliceplane.documents.wire import human_bytes
from sliceplane.estimate.objects import RealSizes
from sliceplane.estimate.scale import Case, Design, KepSizes, ObjectSizes, Scenario, cost

#: endpoints per decade at which a line is reckoned
_POINTS: Final = (1, 2, 5)
_DECADES: Final = range(1, 6)
_COLORS: Final = {Design.ENDPOINTS: "#b3382c", Design.SLICES: "#1f6fb2", Design.SINGLE: "#5b8c3a"}


def draw(case: Case, path: Path, *, hints: bool = False) -> None:
    """Write the picture; its form follows the name's ending.  Raises ``click.ClickException`` where it cannot."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    counts = sorted({*(point * 10**decade for decade in _DECADES for point in _POINTS), case.pods})
    figure = Figure(figsize=(14, 4.8), layout="constrained")
    panels = figure.subplots(1, len(Scenario), sharey=True)
    for axes, scenario in zip(panels, Scenario, strict=True):
        for design in Design:
            for style, sizes in (("-", RealSizes("protobuf", hints=hints)), (":", KepSizes())):
                values = [_bytes(case, count, scenario, design, sizes) for count in counts]
                label = _label(case, design) if style == "-" else None
                axes.plot(counts, values, style, color=_COLORS[design], label=label, linewidth=1.8)
        axes.axvline(case.pods, color="0.6", linewidth=1, zorder=0)
        axes.set(xscale="log", yscale="log", title=scenario.value, xlabel="endpoints of the Service")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: human_bytes(value)))
        axes.grid(visible=True, which="major", color="0.9")
    panels[0].set_ylabel(f"bytes sent to {case.nodes:,} nodes")
    panels[0].legend(title="solid: our objects, protobuf\ndotted: the KEP's sizes", fontsize=9, title_fontsize=9)
    figure.suptitle(f"Watch traffic of one Service; the grey line is {case.pods:,} endpoints")
    save(figure, path)


def _bytes(case: Case, pods: int, scenario: Scenario, design: Design, sizes: ObjectSizes) -> int:
    return cost(Case(pods=pods, nodes=case.nodes, per_slice=case.per_slice), scenario, design, sizes).total_bytes


def _label(case: Case, design: Design) -> str:
    return f"EndpointSlice of {case.per_slice}" if design is Design.SLICES else design.value
