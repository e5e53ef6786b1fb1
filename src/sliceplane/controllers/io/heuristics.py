"""Heuristics of other packages: those with an entry point in the group
``sliceplane.slices.heuristics``.

The entry point's name is the heuristic's (``example.com/Nearest``), so a package is imported only
if a Service requests it, and none at the start of the process. The list of packages is read once,
when the first Service names a heuristic that is not ours; a package installed later is found after
a restart.

A package that cannot be imported, or whose entry point is no heuristic, costs its own Services
their hints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from sliceplane.kit.io.log import get_logger
from sliceplane.slices.heuristics.queries import PROBLEM_MAX, problem_of_heuristic
from sliceplane.slices.heuristics.shipped import SHIPPED, not_installed
from sliceplane.slices.heuristics.types import ENTRY_POINT_GROUP, Heuristic

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_log = get_logger("heuristics")


class InstalledHeuristics:
    """The installed heuristics. ``find`` is a ``queries.Find``. A heuristic, or the reason why
    there is none, is kept for the life of the process.
    """

    def __init__(self) -> None:
        self._cached: dict[str, Heuristic | str] = dict(SHIPPED)
        self._points: dict[str, list[EntryPoint]] | None = None

    def find(self, name: str) -> Heuristic | str:
        heuristic = self._cached.get(name)
        if heuristic is not None:
            return heuristic
        points = self._installed().get(name)
        if points is None:
            return not_installed(name)  # not cached: users choose these names
        heuristic = self._cached[name] = _load(name, points)
        if isinstance(heuristic, str):
            _log.error("a heuristic cannot be used", heuristic=name, problem=heuristic)
        else:
            _log.info(
                "heuristic found", heuristic=name, kind=heuristic.kind, package=_package(points[0])
            )
        return heuristic

    def _installed(self) -> dict[str, list[EntryPoint]]:
        if self._points is None:
            from importlib.metadata import entry_points  # takes 30 ms

            self._points = {}
            for point in entry_points(group=ENTRY_POINT_GROUP):
                self._points.setdefault(point.name, []).append(point)
        return self._points


def _load(name: str, points: list[EntryPoint]) -> Heuristic | str:
    packages = sorted({_package(point) for point in points})
    if len(packages) > 1:
        return f"heuristic {name} is in several packages: {', '.join(packages)}"
    try:
        loaded = points[0].load()
        candidate: object = loaded() if isinstance(loaded, type) else loaded
        problem = problem_of_heuristic(candidate, name)
    except Exception as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if problem:
        return f"heuristic {name} of package {packages[0]} cannot be used: {problem}"[:PROBLEM_MAX]
    return cast(Heuristic, candidate)


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
