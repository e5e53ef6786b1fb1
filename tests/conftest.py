"""Rules for every test: warnings are errors, a time limit each, no asyncio task left behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("soak", parent=settings.get_profile("default"), derandomize=False, max_examples=5000)
settings.register_profile("quick", parent=settings.get_profile("default"), max_examples=15, stateful_step_count=20)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest_asyncio.fixture(autouse=True)
async def no_task_left_behind(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """A coroutine test must end every task that it or its code started."""
    yield
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()]
    if left:
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        pytest.fail(f"tasks left behind: {[task.get_name() + ' ' + repr(task.get_coro()) for task in left]}")
