"""Examples that tell what the queue promises, and the bounds that a model does not see."""

from __future__ import annotations

import pytest

from sliceplane.kit.delays import TokenBucket
from sliceplane.kit.workqueue import WorkQueue

NOW = 1000.0


def test_a_key_added_while_processed_is_processed_again_but_never_at_the_same_time() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a", NOW)
    queue.add("a", NOW)
    assert queue.get(NOW) == "a"
    queue.add("a", NOW)
    assert queue.get(NOW) is None
    queue.done("a")
    assert queue.get(NOW) == "a"
    queue.done("a")
    assert (queue.depth, queue.in_progress, queue.delayed) == (0, 0, 0)


def test_the_earliest_of_several_times_wins() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 10, NOW)
    queue.add_after("a", 5, NOW)
    queue.add_after("a", 7, NOW)
    assert queue.next_deadline() == NOW + 5
    assert queue.get(NOW + 4.9) is None
    assert queue.get(NOW + 5) == "a"
    queue.done("a")
    assert queue.next_deadline() is None
    assert queue.get(NOW + 10) is None


def test_retries_back_off_per_key_and_share_a_bucket() -> None:
    queue: WorkQueue[int] = WorkQueue()
    assert [queue.add_rate_limited(1, NOW) for _ in range(4)] == [1.0, 2.0, 4.0, 8.0]
    assert queue.num_requeues(1) == 4
    queue.forget(1)
    assert queue.add_rate_limited(1, NOW) == 1.0
    # 5 tokens of 100 are gone; after 95 more, others wait for new ones, ten a second.
    delays = [queue.add_rate_limited(key, NOW) for key in range(2, 117)]
    assert delays[:105] == [1.0] * 105
    assert delays[105:] == pytest.approx([1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0])
    assert queue.retries == 120


def test_the_back_off_is_capped_however_long_a_key_fails() -> None:
    queue: WorkQueue[str] = WorkQueue(bucket=TokenBucket(rate_per_s=1e9, burst=1))
    for _ in range(5000):
        delay = queue.add_rate_limited("a", NOW)
    assert delay == 1000.0


def test_moving_a_time_forward_again_and_again_keeps_the_heap_small() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for step in range(10_000):
        queue.add_after("a", 100_000 - step, NOW)
    assert len(queue._heap) <= 64
    assert queue.next_deadline() == NOW + 90_001


def test_metrics_tell_how_long_keys_wait_and_run() -> None:
    queue: WorkQueue[str] = WorkQueue()
    assert queue.longest_running_s(NOW) == 0.0
    queue.add("a", NOW)
    queue.add("b", NOW + 1)
    assert queue.get(NOW + 3) == "a"
    assert queue.get(NOW + 4) == "b"
    assert queue.longest_running_s(NOW + 5) == 2.0
    queue.done("a")
    assert queue.longest_running_s(NOW + 5) == 1.0
    assert (queue.adds, queue.gets, queue.depth, queue.in_progress) == (2, 2, 0, 1)


def test_done_without_get_is_a_programmers_error() -> None:
    queue: WorkQueue[str] = WorkQueue()
    with pytest.raises(AssertionError, match="'a' is done but was not handed out"):
        queue.done("a")


def test_a_bucket_survives_a_clock_that_goes_back() -> None:
    bucket = TokenBucket(rate_per_s=1, burst=2)
    assert [bucket.try_take(NOW) for _ in range(3)] == [True, True, False]
    assert not bucket.try_take(NOW - 100)
    assert not bucket.try_take(NOW + 0.5)
    assert bucket.try_take(NOW + 1)
    assert bucket.take(NOW + 1) == 1.0
    assert bucket.take(NOW + 1) == 2.0


def test_a_taker_of_many_tokens_waits_for_all_of_them() -> None:
    bucket = TokenBucket(rate_per_s=10, burst=20)
    assert bucket.take(NOW, 15) == 0.0
    assert bucket.take(NOW, 25) == 2.0
    assert bucket.take(NOW + 1, 0) == 1.0, "to ask takes none"
    assert bucket.take(NOW + 2, 0) == 0.0
