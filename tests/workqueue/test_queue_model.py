"""The queue against a model that does everything by scanning lists."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sliceplane.kit.delays import Backoff, TokenBucket
from sliceplane.kit.workqueue import WorkQueue

KEYS = st.sampled_from("abcdef")


class QueueAgainstModel(RuleBasedStateMachine):
    """The model: a list of waiting keys, a list of running keys, a list of (when, number, key)."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.queue: WorkQueue[str] = WorkQueue(
            backoff=Backoff(base_s=1.0, cap_s=8.0), bucket=TokenBucket(rate_per_s=0.5, burst=3)
        )
        self.line: list[str] = []
        self.again: list[str] = []
        self.running: list[str] = []
        self.later: list[tuple[float, int, str]] = []
        self.number = 0
        self.failures: dict[str, int] = {}
        self.tokens = 3.0
        self.refilled = self.now

    def model_add(self, key: str) -> None:
        if key in self.running:
            if key not in self.again:
                self.again.append(key)
        elif key not in self.line:
            self.line.append(key)

    def model_add_after(self, key: str, delay: float) -> None:
        if delay <= 0:
            self.model_add(key)
            return
        if any(other == key and when <= self.now + delay for when, _, other in self.later):
            return
        self.later = [entry for entry in self.later if entry[2] != key]
        self.number += 1
        self.later.append((self.now + delay, self.number, key))

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.queue.add(key, self.now)
        self.model_add(key)

    @rule(key=KEYS, delay=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, 2.0, 30.0]))
    def add_after(self, key: str, delay: float) -> None:
        self.queue.add_after(key, delay, self.now)
        self.model_add_after(key, delay)

    @rule(key=KEYS)
    def retry(self, key: str) -> None:
        failures = self.failures.get(key, 0)
        self.failures[key] = failures + 1
        self.tokens = min(self.tokens + (self.now - self.refilled) * 0.5, 3.0) - 1
        self.refilled = self.now
        expected = max(min(2.0**failures, 8.0), -self.tokens / 0.5, 0.0)
        assert self.queue.add_rate_limited(key, self.now) == pytest.approx(expected)
        self.model_add_after(key, expected)

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        self.queue.forget(key)
        self.failures.pop(key, None)

    @rule(key=KEYS)
    def drop(self, key: str) -> None:
        self.queue.drop(key)
        self.failures.pop(key, None)
        self.later = [entry for entry in self.later if entry[2] != key]
        for waiting in (self.line, self.again):
            if key in waiting:
                waiting.remove(key)

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 5.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def get(self) -> None:
        for entry in sorted(entry for entry in self.later if entry[0] <= self.now):
            self.later.remove(entry)
            self.model_add(entry[2])
        expected = self.line.pop(0) if self.line else None
        if expected is not None:
            self.running.append(expected)
        assert self.queue.get(self.now) == expected

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.running))
        self.queue.done(key)
        self.running.remove(key)
        if key in self.again:
            self.again.remove(key)
            self.line.append(key)

    @invariant()
    def agree(self) -> None:
        self.queue.check()
        assert self.queue.next_deadline() == min((when for when, _, _ in self.later), default=None)
        assert self.queue.depth == len(self.line)
        assert self.queue.in_progress == len(self.running)
        assert self.queue.delayed == len(self.later)
        for key in "abcdef":
            assert self.queue.num_requeues(key) == self.failures.get(key, 0)


TestQueueAgainstModel = QueueAgainstModel.TestCase
