"""The store by example: what is visible when, what compaction leaves, what misuse is refused."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from tests.effort import scaled

from sliceplane.server.store.mvcc import Compacted, Store
from sliceplane.server.store.types import EventType, Key

A = Key("pods", "ns", "a")
B = Key("pods", "ns", "b")


def test_staged_is_for_writers_only(writer_of):
    store = Store()
    writer = writer_of(store)
    writer.put(A)
    assert (store.revision, store.staged_revision) == (1, 2)
    assert store.latest(A) is not None
    assert store.get(A) is None
    assert store.list("pods").records == ()
    assert store.events_since(1, "pods") == ()
    (event,) = writer.commit()
    assert (event.type, event.revision, event.previous) == (EventType.ADDED, 2, None)
    assert store.get(A) is event.record


def test_abort_keeps_what_is_durable_and_never_reuses_a_revision(writer_of):
    store = Store()
    writer = writer_of(store)
    first = writer.put(A)
    writer.commit()
    writer.put(A)
    store.take_staged()
    writer.delete(A)
    assert [event.revision for event in store.abort_staged()] == [3, 4]
    assert store.latest(A) is first
    assert store.staged_revision == store.revision == 2
    assert writer.put(A).revision == 5
    (event,) = writer.commit()
    assert event.previous is first
    assert store.list("pods", revision=4).records == (first,)
    store.check()


def test_the_worked_example_of_the_shelf(writer_of):
    store = Store()
    writer = writer_of(store)
    v1 = writer.put(A)
    writer.put(Key("nodes", "", "n"))
    writer.put(Key("nodes", "", "n"))
    v2 = writer.put(A)
    writer.delete(A)
    b = writer.put(B)
    v3 = writer.put(A)
    writer.commit()
    store.compact(4)
    shown = {revision: store.list("pods", revision=revision).records for revision in range(4, 9)}
    assert shown == {4: (v1,), 5: (v2,), 6: (), 7: (b,), 8: (v3, b)}
    with pytest.raises(Compacted, match="revision 3 was asked for; the oldest that is kept is 4"):
        store.list("pods", revision=3)
    assert [event.revision for event in store.events_since(4, "pods")] == [5, 6, 7, 8]


def test_churn_leaves_no_memory_behind(writer_of):
    store = Store()
    writer = writer_of(store)

    def churn() -> None:
        for number in range(scaled(2000, least=500)):
            key = Key("pods", f"ns-{number % 7}", f"pod-{number}")
            writer.put(key, owners=(f"owner-{number}",))
            writer.put(key, owners=(f"owner-{number}",))
            writer.delete(key)
        writer.commit()
        store.compact(store.revision)
        store.check()
        gc.collect()

    tracemalloc.start()
    churn()
    churn()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(3):
        churn()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 20_000, "6,000 commits a round, and nothing of them is left"
    assert store.list("pods").records == ()


def test_a_page_at_the_newest_revision_says_how_many_remain(writer_of):
    store = Store()
    writer = writer_of(store)
    for namespace in ("zz", "zz-b", "zz0"):
        for name in ("c1", "c2", "c3"):
            writer.put(Key("pods", namespace, name))
    writer.commit()
    page = store.list("pods", limit=4)
    assert [record.key.path for record in page.records] == [
        "zz-b/c1",
        "zz-b/c2",
        "zz-b/c3",
        "zz/c1",
    ]
    assert (page.more, page.remaining) == (True, 5)
    page = store.list("pods", namespace="zz", after="zz/c1", limit=1)
    assert ([record.key.name for record in page.records], page.remaining) == (["c2"], 1)
    # A token's start may end in NUL, and may lie outside the namespace.
    assert store.list("pods", namespace="zz", after="zz/c1\0", limit=1) == page
    assert len(store.list("pods", namespace="zz", after="a/x").records) == 3
    assert store.list("pods", namespace="zz", after="zz0").records == ()


def test_misuse_is_told_with_both_values(writer_of):
    store = Store()
    writer = writer_of(store)
    with pytest.raises(AssertionError, match="does not exist"):
        store.stage_delete(A, lambda revision: pytest.fail("not called"))
    record = writer.put(A)
    with pytest.raises(AssertionError, match="must be"):
        store.stage_put(B, lambda revision: record)
    with pytest.raises(AssertionError, match="never handed out"):
        store.on_durable(2)
    with pytest.raises(AssertionError, match="revision 9 is after the newest, 1"):
        store.list("pods", revision=9)
    store.check()


def test_staging_while_walking(writer_of):
    """deletecollection walks and deletes."""
    store = Store()
    writer = writer_of(store)
    writer.put(A)
    writer.commit()
    writer.put(B)
    assert [writer.delete(record.key).key.name for record in store.iter_latest("pods", "ns")] == [
        "a",
        "b",
    ]
    assert list(store.iter_latest("pods")) == []
    assert store.get(A) is not None
