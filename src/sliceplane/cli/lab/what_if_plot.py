"""The picture of ``sliceplane what-if --plot``: load by zone, where connections go, bytes over
time.

What is now is pale, what would be is full.
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sliceplane.api.findings.wording import count
from sliceplane.consume.balancing.shares import OVERLOAD
from sliceplane.kit.times import format_duration
from sliceplane.lab.whatif.assumptions import zone_name
from sliceplane.lab.wire import human_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sliceplane.lab.whatif.picture import Picture
    from sliceplane.lab.whatif.prediction import Prediction


def save(figure: Figure, path: Path) -> None:
    """Raises ``click.ClickException`` where it cannot.  The same picture is the same file, byte for
    byte.
    """
    import matplotlib as mpl

    stamps = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    metadata = stamps.get(path.suffix.lower().removeprefix("."))
    try:
        with mpl.rc_context({"svg.hashsalt": "sliceplane"}):
            figure.savefig(path, metadata=metadata)
    except OSError as error:
        raise click.ClickException(
            f"cannot draw into {path}: {(error.strerror or str(error)).lower()}"
        ) from error
    except ValueError as error:
        raise click.ClickException(f"cannot draw into {path}: {error}") from error


_PALETTE: Final = (
    "#1f6fb2",
    "#5b8c3a",
    "#c98a1b",
    "#8a4fa3",
    "#2a9d8f",
    "#b3382c",
    "#6c6f7d",
    "#d26a9c",
)
_RED: Final = "#b3382c"
#: zones of which a picture can still be read
ZONES_MAX: Final = 12
_PALE: Final = 0.35


def write_plot(prediction: Prediction, path: Path) -> None:
    """Writes the picture to *path*.  Raises ``click.ClickException`` if it cannot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.8), layout="constrained")
    loads, flows, sent = figure.subplots(1, 3)
    zones = sorted({*prediction.before.zones, *prediction.after.zones})
    if len(zones) > ZONES_MAX:
        zones = sorted(zones, key=lambda zone: (-prediction.after.shares.load(zone), zone))[
            :ZONES_MAX
        ]
    _loads(loads, prediction, zones)
    _flows(flows, prediction, zones)
    if prediction.moments:
        _moments(sent, prediction)
    else:
        _sent(sent, prediction)
    changes = ", ".join(prediction.question.changes.texts) or "nothing changes"
    figure.suptitle(f"Service {prediction.question.service.metadata.key}, what if: {changes}")
    save(figure, path)


def _colors(zones: list[str]) -> dict[str, str]:
    return {zone: _PALETTE[index % len(_PALETTE)] for index, zone in enumerate(zones)}


def _loads(axes: Any, prediction: Prediction, zones: list[str]) -> None:
    """Against an even share; where the rate is known, requests a second, and against what a Pod can
    take.
    """
    colors = _colors(zones)
    in_rates = prediction.question.clients.rate is not None
    capacity = prediction.question.clients.capacity
    limit = float(OVERLOAD) if not in_rates else None if capacity is None else float(capacity)
    values = {
        (shift, index): float(
            picture.loads.rate_in(zone) if in_rates else picture.shares.load(zone)
        )
        for picture, shift in ((prediction.before, -0.2), (prediction.after, 0.2))
        for index, zone in enumerate(zones)
    }
    for (shift, index), value in values.items():
        axes.bar(
            index + shift,
            value,
            0.38,
            color=colors[zones[index]],
            alpha=_PALE if shift < 0 else 1.0,
        )
        text = (f"{value:,.0f}" if in_rates else f"{value:.2f}") if value else "none"
        axes.annotate(
            text,
            (index + shift, value),
            (0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=9,
        )
    if not in_rates:
        axes.axhline(1, color="0.5", linewidth=1, linestyle=":")
    if limit is not None:
        axes.axhline(limit, color=_RED, linewidth=1.2, linestyle="--")
        text = "overload" if not in_rates else f"a Pod can take {limit:,g}"
        axes.annotate(
            text,
            (-0.42, limit),
            (0, 2),
            textcoords="offset points",
            color=_RED,
            fontsize=9,
            va="bottom",
        )
    title = (
        "Requests a second to one endpoint"
        if in_rates
        else "Load of one endpoint (1: an even share)"
    )
    axes.set(title=title, ylim=(0, max(*values.values(), limit or 0.0) * 1.2))
    _name_zones(
        axes,
        zones,
        [f"{prediction.before.ready[zone]}, {prediction.after.ready[zone]}" for zone in zones],
    )
    axes.set_xlabel("zone, and its ready endpoints now, then; pale: now")


def _flows(axes: Any, prediction: Prediction, zones: list[str]) -> None:
    from matplotlib.patches import Patch

    colors = _colors(zones)
    for picture, shift, alpha in ((prediction.before, -0.2, _PALE), (prediction.after, 0.2, 1.0)):
        for index, zone in enumerate(zones):
            bottom = 0.0
            for target in sorted(
                {to for came, to in picture.shares.flows if came == zone},
                key=lambda to: (to != zone, to),
            ):
                share = float(picture.shares.flows[zone, target]) * 100
                axes.bar(
                    index + shift,
                    share,
                    0.38,
                    bottom=bottom,
                    color=colors.get(target, "0.6"),
                    alpha=alpha,
                    edgecolor="white",
                    linewidth=0.6,
                )
                bottom += share
            _lost(axes, picture, zone, index + shift, bottom)
    axes.set(
        title=(
            f"Connections that leave their zone: now {_crossing(prediction.before)}, then "
            f"{_crossing(prediction.after)}"
        )
    )
    _name_zones(axes, zones, [""] * len(zones))
    axes.set_xlabel("zone of the client; pale: now")
    axes.set_ylabel("% of all connections")
    axes.margins(y=0.2)
    handles = [Patch(color=color, label=zone_name(zone)) for zone, color in colors.items()]
    axes.legend(
        handles=handles,
        title="zone of the endpoint",
        fontsize=9,
        title_fontsize=9,
        ncols=3,
        loc="upper right",
    )


def _lost(axes: Any, picture: Picture, zone: str, at: float, bottom: float) -> None:
    """Connections that find no endpoint."""
    missing = float(picture.clients.get(zone, 0)) * 100 - bottom
    if missing > 0.05:
        axes.bar(
            at,
            missing,
            0.38,
            bottom=bottom,
            color="white",
            edgecolor=_RED,
            hatch="///",
            linewidth=0.8,
        )


def _crossing(picture: Picture) -> str:
    return f"{float(picture.shares.leaving):.0%}"


def _name_zones(axes: Any, zones: list[str], below: list[str]) -> None:
    names = [f"{zone_name(zone)}\n{text}".rstrip() for zone, text in zip(zones, below, strict=True)]
    axes.set_xticks(range(len(zones)), names, fontsize=9 if len(zones) < 6 else 7)
    axes.set_axisbelow(True)
    axes.grid(visible=True, axis="y", color="0.92")


def _moments(axes: Any, prediction: Prediction) -> None:
    """Ready endpoints after the loss, and how long connections are sent to what is lost."""
    times = [moment.after_s for moment in prediction.moments]
    ready = [moment.picture.ready.total() for moment in prediction.moments]
    end = times[-1] * 1.2 + 1
    axes.axhline(prediction.before.ready.total(), color="0.5", linewidth=1, linestyle=":")
    axes.step([*times, end], [*ready, ready[-1]], where="post", color=_PALETTE[0], linewidth=2)
    for moment, number in zip(prediction.moments[1:], ready[1:], strict=True):
        axes.annotate(
            f"{number:,} ready after {format_duration(round(moment.after_s))}",
            (moment.after_s, number),
            (4, 4),
            textcoords="offset points",
            fontsize=9,
            ha="left" if moment.after_s < end / 2 else "right",
        )
    first = prediction.moments[0]
    if first.failing:
        axes.axvspan(0, times[1], facecolor="none", edgecolor=_RED, alpha=_PALE, hatch="///")
        axes.annotate(
            f"{float(first.failing):.0%} of connections\nare sent to the lost",
            (times[1], 0),
            (4, 6),
            textcoords="offset points",
            color=_RED,
            fontsize=9,
        )
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set(title="Ready endpoints after the loss", xlim=(0, end), ylim=(0, max(*ready, 1) * 1.25))
    axes.set_xlabel("seconds after the loss, on virtual time")
    axes.set_axisbelow(True)
    axes.grid(visible=True, color="0.92")


def _sent(axes: Any, prediction: Prediction) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.set(
        title=(
            f"Bytes to {prediction.after.watchers:,} watchers: {count(prediction.written.writes, 'write')} "
            "of slices"
        )
    )
    axes.set_xlabel("seconds after the change, on virtual time")
    if not prediction.events:
        axes.text(
            0.5,
            0.5,
            "no slice is written",
            ha="center",
            va="center",
            transform=axes.transAxes,
            color="0.4",
        )
        axes.set(xticks=[], yticks=[])
        return
    times = [0.0, *(event.at - prediction.began for event in prediction.events)]
    end = max(times[-1] * 1.05, 1.0)
    for name, color, sizes in (
        ("JSON", "#c98a1b", [event.json for event in prediction.events]),
        ("protobuf", "#1f6fb2", [event.protobuf for event in prediction.events]),
    ):
        heights = [*accumulate(sizes, initial=0), sum(sizes)]
        axes.step([*times, end], heights, where="post", color=color, linewidth=1.8, label=name)
        axes.text(
            end,
            sum(sizes),
            f"{human_bytes(sum(sizes))} ",
            ha="right",
            va="bottom",
            fontsize=9,
            color=color,
        )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: human_bytes(value)))
    axes.set_axisbelow(True)
    axes.grid(visible=True, color="0.92")
    axes.set(xlim=(0, end), ylim=(0, 1.35 * sum(event.json for event in prediction.events)))
    axes.legend(fontsize=9, loc="upper left")
