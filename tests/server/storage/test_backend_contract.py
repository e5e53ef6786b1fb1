"""The contract of ``server.store.backend`` for every back end that there is."""

from __future__ import annotations

from sliceplane.kit.rng import Rng
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key

KEYS = [Key("pods", namespace, name) for namespace in ("a", "b") for name in ("x", "yy")] + [
    Key("nodes", "", "n")
]


def commit(store: Store, backend) -> None:
    batch = store.take_staged()
    backend.append(batch)
    store.on_durable(batch[-1].revision)


def test_a_new_one_is_empty(medium, kit):
    backend = medium.open()
    loaded = backend.load()
    assert (list(loaded.history), loaded.revision, loaded.compacted) == ([], 1, 1)
    backend.close()
    backend.close()


def test_state_and_history_survive(medium, kit):
    backend = medium.open()
    store = kit.restore(backend)
    for key in KEYS:
        kit.put(store, key, "é" * 5000, owners=("u1", "u2"))
        commit(store, backend)
    kit.put(store, KEYS[0])
    kit.delete(store, KEYS[1])
    kit.put(store, KEYS[1])
    commit(store, backend)
    backend.close()
    backend = medium.open()
    again = kit.restore(backend)
    assert kit.same(again, store)
    assert [event.type.value for event in again.events_since(6, "pods")] == [
        "MODIFIED",
        "DELETED",
        "ADDED",
    ]
    assert again.owned_by("u2") == store.owned_by("u2")
    backend.close()


def test_any_history_with_compactions_and_restarts(medium, kit):
    """Random writes, given-up revisions, compactions and restarts; after each, memory and storage
    agree.
    """
    rng = Rng(7)
    backend = medium.open()
    store = kit.restore(backend)
    for step in range(150):
        for _ in range(1 + rng.below(5)):
            key = KEYS[rng.below(len(KEYS))]
            if store.latest(key) is not None and rng.below(3) == 0:
                kit.delete(store, key)
            else:
                kit.put(store, key, "x" * rng.below(9000))
        if rng.below(6) == 0:
            store.abort_staged()
            continue
        commit(store, backend)
        if rng.below(4) == 0:
            revision = store.compacted + rng.below(store.revision - store.compacted + 1)
            store.compact(revision)
            backend.compact(revision)
        if step % 10 == 0:
            backend.close()
            backend = medium.open()
            assert kit.same(kit.restore(backend), store)
    store.compact(store.revision)
    backend.compact(store.revision)
    assert kit.same(kit.restore(backend), store)
    backend.close()


def test_the_revision_survives_even_if_only_deletions_were_last(medium, kit):
    backend = medium.open()
    store = kit.restore(backend)
    kit.put(store, KEYS[0])
    kit.delete(store, KEYS[0])
    commit(store, backend)
    store.compact(3)
    backend.compact(3)
    backend.close()
    backend = medium.open()
    again = kit.restore(backend)
    assert (again.revision, again.compacted, again.count("pods")) == (3, 3, 0)
    assert backend.reconcile() == 3
    backend.close()
