"""Rules for every test: warnings are errors, a time limit each, no asyncio task left behind. And
how long files take.

``tests/workers.py`` begins with the files that take longest: ``pytest --record-longest`` writes
that table anew.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
from collections import defaultdict
from collections.abc import AsyncIterator, Generator
from typing import Final

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings
from hypothesis.internal import charmap
from tests import template_process
from tests.workers import LONGEST_FILES, Cost

from sliceplane.cli.entry import spare_collector

settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile(
    "soak", parent=settings.get_profile("default"), derandomize=False, max_examples=5000
)
settings.register_profile(
    "quick", parent=settings.get_profile("default"), max_examples=15, stateful_step_count=20
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
# As our programs do. What pytest collects stays: nine thousand tests are a heap that is not worth
# looking at.
spare_collector()
# Else pytest-asyncio asks for the loop that it is to put back, which makes one that is closed by
# nothing.
asyncio.set_event_loop(None)
template_process.install()

#: what takes less is not worth a line
_RECORDED_S: Final = 0.25
_SHOWN_FILES: Final = 20
_FILES_OF_A_WHOLE_RUN: Final = 200
_costs: defaultdict[str, Cost] = defaultdict(lambda: Cost(0.0, 0.0))


@pytest.fixture(autouse=True)
def no_task_left_behind(request: pytest.FixtureRequest) -> None:
    """A coroutine test must end every task that it or its code started.  (An event loop costs more
    than most tests.)
    """
    if pytest_asyncio.is_async_test(request.node):
        request.getfixturevalue("tasks_that_end")


@pytest_asyncio.fixture
async def tasks_that_end() -> AsyncIterator[None]:
    yield
    left = [
        task
        for task in asyncio.all_tasks()
        if task is not asyncio.current_task() and not task.done()
    ]
    if left:
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        pytest.fail(
            f"tasks left behind: {[task.get_name() + ' ' + repr(task.get_coro()) for task in left]}"
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-longest",
        action="store_true",
        help=f"write {LONGEST_FILES.name} anew after this run, of no more workers than cores",
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption("workers", 0):
        charmap.intervals_from_codec(
            "utf-8"
        )  # of all text: three seconds that each process would spend
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    template_process.end()


class _Meter:
    """CPU time of this process and of those that it started and that ended."""

    def __init__(self) -> None:
        self._read_s = 0.0

    def lap(self) -> float:
        """Returns the seconds since the last call."""
        used = [
            resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ]
        before_s, self._read_s = self._read_s, sum(each.ru_utime + each.ru_stime for each in used)
        return self._read_s - before_s


_meter: Final = _Meter()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    vars(report)["cpu_s"] = _meter.lap()
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    path = report.nodeid.partition("::")[0]
    seconds, cpu_s = _costs[path]
    _costs[path] = Cost(seconds + report.duration, cpu_s + getattr(report, "cpu_s", 0.0))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if len(_costs) < _FILES_OF_A_WHOLE_RUN:
        return
    longest = sorted(((*cost, path) for path, cost in _costs.items()), reverse=True)
    lines = [f"{seconds:6.1f} {cpu_s:6.1f} {path}" for seconds, cpu_s, path in longest]
    total_s = sum(cost.cpu_s for cost in _costs.values())
    terminalreporter.section(
        f"longest files (seconds, CPU seconds; {total_s:.0f} CPU seconds in all)"
    )
    for line in lines[:_SHOWN_FILES]:
        terminalreporter.write_line(line)
    if config.getoption("record_longest"):
        recorded = [
            line
            for line, (seconds, *_) in zip(lines, longest, strict=True)
            if seconds >= _RECORDED_S
        ]
        LONGEST_FILES.write_text("\n".join(recorded) + "\n", encoding="utf-8")
