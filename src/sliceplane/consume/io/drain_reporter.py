"""Progress of a drain, for users who wait for it."""

from __future__ import annotations

from typing import Any, Protocol

from sliceplane.consume.drain.answer import DrainPlan
from sliceplane.kit.io.log import get_logger


class DrainReporter(Protocol):
    """Receives the progress of a drain."""

    def on_plan(self, plan: DrainPlan) -> None:
        """Called before the first mark."""

    def on_progress(self, activity: str) -> None: ...

    def on_aborted(self, taken_back: tuple[str, ...], marked: tuple[str, ...]) -> None:
        """An error or a cancellation ended the drain; Pods without their marks again, and those
        that keep them.
        """


class SilentReporter:
    """A ``DrainReporter`` for callers that want only the answer."""

    def on_plan(self, plan: DrainPlan) -> None: ...
    def on_progress(self, activity: str) -> None: ...
    def on_aborted(self, taken_back: tuple[str, ...], marked: tuple[str, ...]) -> None: ...


class InformerProgress:
    """A ``watch.io.reflect.Log``: an unreachable server is progress, not a line of a log."""

    def __init__(self, reporter: DrainReporter) -> None:
        self._reporter = reporter

    def info(self, event: str, **values: Any) -> None: ...

    def warning(self, event: str, **values: Any) -> None:
        self._reporter.on_progress(f"{event}: {values.get('error', '')}")

    def error(self, event: str, **values: Any) -> None:
        get_logger("informer").error(event, **values)
