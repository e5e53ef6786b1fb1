"""Draws which room imports which, as ``docs/images/imports.svg``: rooms in the layers of the first
import contract (``pyproject.toml``), arrows from a room to those that it imports.

``python tools/draw_imports.py`` writes the picture; the same source gives the same bytes. An arrow
that follows from others is left out: what imports ``controllers`` may import what ``controllers``
imports. An import that goes up or sideways is no picture but an error, so the picture cannot have a
circle.

The layout is Sugiyama's: long arrows get a place in every row that they cross (*bends*), rows are
ordered so that few arrows cross, and each place moves towards its neighbours as far as the order
allows.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "sliceplane"
PICTURE = ROOT / "docs" / "images" / "imports.svg"
#: also within functions; a syntax tree of every module takes ten times as long
IMPORT = re.compile(r"^\s*from sliceplane\.([\w.]+) import ", re.MULTILINE)

#: sweeps over all rows, and how much more a straight arrow counts than a box above its neighbours
SWEEPS = 24
STRAIGHT = 4
ROW_PX = 74
BOX_PX = 32
CHARACTER_PX = 7.6
PADDING_PX = 12
GAP_PX = 16
BEND_PX = 14
PORT_PX = 11
MARGIN_PX = 28

Arrow = tuple[str, str]


@cache
def imports() -> frozenset[Arrow]:
    """Returns which room, or module beside the rooms, imports which."""
    arrows: set[Arrow] = set()
    for path in sorted(SOURCE.rglob("*.py")):
        importer = path.relative_to(SOURCE).with_suffix("").parts[0]
        for module in IMPORT.findall(path.read_text(encoding="utf-8")):
            arrows.add((importer, module.split(".")[0]))
    return frozenset(
        arrow for arrow in arrows if arrow[0] != arrow[1] and not arrow[0].startswith("__")
    )


def layers() -> list[list[str]]:
    """Rooms from top to bottom, as the import contracts have them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip() for name in row.split("|")] for row in rows]


def essential(arrows: Collection[Arrow], rows: Sequence[Sequence[str]]) -> list[Arrow]:
    """*arrows* without those that follow from others.  Raises ``ValueError`` for one that does not
    go down.
    """
    height = {name: number for number, row in enumerate(rows) for name in row}
    below: dict[str, set[str]] = defaultdict(set)
    for importer, imported in sorted(arrows):
        if height[importer] >= height[imported]:
            raise ValueError(f"{importer} imports {imported}, which does not stand below it")
        below[importer].add(imported)
    reached: dict[str, set[str]] = {}
    for name in (name for row in reversed(rows) for name in row):
        reached[name] = below[name].union(*(reached[imported] for imported in below[name]))
    return [
        (importer, imported)
        for importer, imported in sorted(arrows)
        if not any(imported in reached[other] for other in below[importer])
    ]


@dataclass(slots=True, eq=False)
class Place:
    """A box, or a bend of an arrow where it crosses a row; *x* is its middle."""

    name: str
    row: int
    wide: float
    x: float = 0.0

    @property
    def is_box(self) -> bool:
        return self.name != ""

    @property
    def y(self) -> float:
        return MARGIN_PX + self.row * ROW_PX + BOX_PX / 2


Trail = list[Place]


def placed(
    rows: Sequence[Sequence[str]], arrows: Sequence[Arrow]
) -> tuple[list[list[Place]], list[Trail]]:
    """The places of each row from left to right, and those that each arrow passes."""
    lines: list[list[Place]] = [[] for _ in rows]
    boxes: dict[str, Place] = {}
    for number, row in enumerate(rows):
        for name in row:
            text = len(name) * CHARACTER_PX + 2 * PADDING_PX
            most = max(sum(arrow[end] == name for arrow in arrows) for end in (0, 1))
            boxes[name] = Place(name, number, max(text, (most + 1) * PORT_PX))
            lines[number].append(boxes[name])
    paths: list[Trail] = []
    for importer, imported in arrows:
        start = boxes[importer]
        end = boxes[imported]
        bends = [Place("", number, BEND_PX) for number in range(start.row + 1, end.row)]
        for bend in bends:
            lines[bend.row].append(bend)
        paths.append([start, *bends, end])
    neighbours: dict[Place, list[Place]] = defaultdict(list)
    for path in paths:
        for upper, lower in pairwise(path):
            neighbours[upper].append(lower)
            neighbours[lower].append(upper)
    trails = [path[1:-1] for path in paths]
    _order(lines, neighbours)
    _spread(lines, neighbours, {bend: trail for trail in trails for bend in trail})
    return lines, paths


def _order(lines: list[list[Place]], neighbours: Mapping[Place, Sequence[Place]]) -> None:
    """Sort each line by the middle of its neighbours, up and down in turn, and keep the order with
    fewest crossings.
    """
    best = [list(line) for line in lines]
    fewest = None
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for line in lines if down else reversed(lines):
            position = {
                place: index / len(other) for other in lines for index, place in enumerate(other, 1)
            }
            middles = {
                place: _mean(
                    [
                        position[other]
                        for other in neighbours[place]
                        if (other.row < place.row) == down
                    ]
                )
                for place in line
            }
            line.sort(key=lambda place: middles.get(place) or position[place])  # used at once
        crossings = _crossings(lines, neighbours)
        if fewest is None or crossings < fewest:
            fewest = crossings
            best = [list(line) for line in lines]
    lines[:] = best


def _crossings(
    lines: Sequence[Sequence[Place]], neighbours: Mapping[Place, Sequence[Place]]
) -> int:
    index = {place: number for line in lines for number, place in enumerate(line)}
    count = 0
    for line in lines:
        ends = [
            (index[place], index[other])
            for place in line
            for other in neighbours[place]
            if other.row == place.row + 1
        ]
        count += sum(a < c and b > d for a, b in ends for c, d in ends)
    return count


def _spread(
    lines: Sequence[Sequence[Place]],
    neighbours: Mapping[Place, Sequence[Place]],
    trails: Mapping[Place, Trail],
) -> None:
    """Move boxes towards their neighbours and straighten arrows, without changing the order or the
    gaps of a line.
    """
    for line in lines:
        _set(line, [0.0] * len(line))
    for sweep in range(4 * SWEEPS):
        for line in lines if sweep % 2 == 0 else reversed(lines):
            wanted = []
            for place in line:
                beside = [other.x for other in neighbours[place]]
                straight = [bend.x for bend in trails.get(place, ())] * STRAIGHT
                mean = _mean(beside + straight)
                wanted.append(place.x if mean is None else mean)
            _set(line, wanted)
    left = min(place.x - place.wide / 2 for line in lines for place in line)
    for line in lines:
        for place in line:
            place.x += MARGIN_PX + GAP_PX - left


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _set(line: Sequence[Place], wanted: Sequence[float]) -> None:
    """The positions nearest to *wanted* that keep order and gaps (isotonic regression, pooling
    adjacent violators).
    """
    offsets = [0.0]
    for place, following in pairwise(line):
        offsets.append(offsets[-1] + (place.wide + following.wide) / 2 + GAP_PX)
    pools: list[tuple[float, int]] = []
    for target, offset in zip(wanted, offsets, strict=True):
        pools.append((target - offset, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (last, count), (before, others) = pools.pop(), pools.pop()
            pools.append(((last * count + before * others) / (count + others), count + others))
    values = [value for value, count in pools for _ in range(count)]
    for place, value, offset in zip(line, values, offsets, strict=True):
        place.x = value + offset


def _ports(paths: Sequence[Trail], end: int) -> dict[int, float]:
    """Where each arrow leaves its box (*end* 0) or comes to it (*end* -1): side by side, in the
    order of the others.
    """
    at: dict[Place, list[int]] = defaultdict(list)
    for number, path in enumerate(paths):
        at[path[end]].append(number)
    ports: dict[int, float] = {}
    for box, numbers in at.items():
        numbers.sort(key=lambda number: paths[number][1 if end == 0 else -2].x)
        for index, number in enumerate(numbers):
            ports[number] = box.x + (index - (len(numbers) - 1) / 2) * PORT_PX
    return ports


def _curves(paths: Sequence[Trail]) -> Iterator[str]:
    starts = _ports(paths, 0)
    ends = _ports(paths, -1)
    for number, path in enumerate(paths):
        x = starts[number]
        y = path[0].y + BOX_PX / 2
        line = [f"M{x:.1f} {y:.1f}"]
        for place in path[1:]:
            to = place.x if place is not path[-1] else ends[number]
            top = place.y - BOX_PX / 2 - (5 if place.is_box else 0)
            middle = (y + top) / 2
            line.append(f"C{x:.1f} {middle:.1f} {to:.1f} {middle:.1f} {to:.1f} {top:.1f}")
            x = to
            y = top
            if not place.is_box:
                y = place.y + BOX_PX / 2
                line.append(f"V{y:.1f}")
        yield f'<path d="{" ".join(line)}" marker-end="url(#head)"/>'


def drawn() -> str:
    """The picture."""
    rows = layers()
    lines, paths = placed(rows, essential(imports(), rows))
    places = [place for line in lines for place in line]
    right = max(place.x + place.wide / 2 for place in places) + MARGIN_PX + GAP_PX
    bottom = MARGIN_PX * 2 + (len(rows) - 1) * ROW_PX + BOX_PX
    head = f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right:.0f} {bottom:.0f}" text-anchor="middle" font-size="13"
  font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif">
<title>Which room of Sliceplane imports which</title>
<style>
  path {{ fill: none; stroke-width: 1.3 }}
  path {{ stroke: #7b8794 }} #head path {{ fill: #7b8794 }}
  rect.room {{ fill: #dbe9f8; stroke: #2f6db3 }}
  text {{ fill: #1c2733 }}
</style>
<rect width="{right:.0f}" height="{bottom:.0f}" fill="#ffffff"/>"""
    parts = [head, _marker("head")]
    parts += _curves(paths)
    for box in (place for place in places if place.is_box):
        parts.append(_rect("room", box.x - box.wide / 2, box.y - BOX_PX / 2, box.wide, BOX_PX))
        parts.append(f'<text x="{box.x:.1f}" y="{box.y + 4.5:.1f}">{box.name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _rect(kind: str, x: float, y: float, wide: float, high: float) -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" '
        'rx="5"/>'
    )


def _marker(kind: str) -> str:
    head = '<path d="M0 0 L8 4 L0 8 z"/>'
    size = 'viewBox="0 0 8 8" refX="2" refY="4" markerWidth="7" markerHeight="7" orient="auto"'
    return f'<marker id="{kind}" {size}>{head}</marker>'


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(drawn(), encoding="utf-8")
