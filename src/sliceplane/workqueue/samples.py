"""A work queue's figures under the names that client-go's have, so that dashboards made for it work."""

from __future__ import annotations

from typing import Any

from sliceplane.kit.samples import Distribution, Family, Sample
from sliceplane.workqueue.queue import WorkQueue


def queue_families(name: str, queue: WorkQueue[Any], now: float) -> tuple[Family, ...]:
    """Each with the one label ``name``."""

    def one(metric: str, value: float | Distribution) -> Family:
        kind, help_text = _METRICS[metric]
        return Family(f"workqueue_{metric}", kind, help_text, ("name",), (Sample((name,), value),))

    return (
        one("adds_total", queue.adds),
        one("depth", queue.depth),
        one("longest_running_processor_seconds", queue.longest_running_s(now)),
        one("queue_duration_seconds", queue.waited.read()),
        one("retries_total", queue.retries),
        one("unfinished_work_seconds", queue.unfinished_s(now)),
        one("work_duration_seconds", queue.worked.read()),
    )


_METRICS: dict[str, tuple[Any, str]] = {
    "adds_total": ("counter", "Keys added."),
    "depth": ("gauge", "Keys that wait for a worker."),
    "longest_running_processor_seconds": ("gauge", "How long the key that is worked on longest has been."),
    "queue_duration_seconds": ("histogram", "How long keys wait before they are worked on."),
    "retries_total": ("counter", "Keys added again after a failure."),
    "unfinished_work_seconds": ("gauge", "Sum of the times that keys have been worked on, of those not done."),
    "work_duration_seconds": ("histogram", "How long keys are worked on."),
}
