"""The cache alone: indexes, unreadable objects, decoding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.api import codec
from sliceplane.api.core import Pod
from sliceplane.api.scheme import Pods
from sliceplane.watch.cache import Cache, Change, Undecodable, Unreadable


def pod_body(
    name: str, *, uid: str = "u", version: int = 1, node: str = "", **extra: object
) -> bytes:
    metadata = {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version)}
    return codec.encode({"metadata": metadata, "spec": {"nodeName": node}, **extra})


def loaded(cache: Cache[Pod], body: bytes) -> Pod:
    found = cache.load(body)
    assert isinstance(found, Pod)
    return found


def by_node(pod: Pod) -> tuple[str, ...]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()


@pytest.fixture
def cache() -> Cache[Pod]:
    return Cache(Pods, Pod, {"node": by_node})


def test_items_without_kind_equal_events_with_kind(cache: Cache[Pod]) -> None:
    cache.replace([loaded(cache, pod_body("a"))])
    assert cache.put(loaded(cache, pod_body("a", kind="Pod", apiVersion="v1"))) == ()
    held = cache.get("ns/a")
    assert held is not None
    assert (held.kind, held.api_version) == ("Pod", "v1")


def test_the_same_version_with_other_content_is_a_change(cache: Cache[Pod]) -> None:
    """Versions are used twice after a backup was restored."""
    cache.replace([loaded(cache, pod_body("a", node="one"))])
    (change,) = cache.replace([loaded(cache, pod_body("a", node="two"))])
    assert (change.old is not None, change.new is not None) == (True, True)
    assert [pod.metadata.name for pod in cache.by_index("node", "two")] == ["a"]
    assert cache.by_index("node", "one") == ()
    cache.check()


def test_events_from_the_past_are_ignored_but_lists_are_believed(cache: Cache[Pod]) -> None:
    cache.replace([loaded(cache, pod_body("a", version=10))])
    assert cache.put(loaded(cache, pod_body("a", version=9, node="old"))) == ()
    assert cache.remove("ns/a", "9") == ()
    (change,) = cache.replace([loaded(cache, pod_body("a", version=9, node="old"))])
    assert change.new is not None
    assert change.new.metadata.resource_version == "9"


def test_a_relist_deletes_before_it_adds(cache: Cache[Pod]) -> None:
    cache.replace([loaded(cache, pod_body(name)) for name in ("b", "c", "d")])
    changes = cache.replace(
        [
            loaded(cache, pod_body("a")),
            loaded(cache, pod_body("c", uid="v")),
            loaded(cache, pod_body("d", version=2)),
        ]
    )
    told = [
        (change.object.metadata.name, change.old is not None, change.new is not None)
        for change in changes
    ]
    assert told == [
        ("b", True, False),
        ("c", True, False),
        ("a", False, True),
        ("c", False, True),
        ("d", True, True),
    ]


def test_an_unreadable_object_keeps_the_version_that_was_read(cache: Cache[Pod]) -> None:
    cache.replace([loaded(cache, pod_body("a"))])
    broken = cache.load(pod_body("a", version=2, status={"phase": 7}))
    assert isinstance(broken, Unreadable)
    assert cache.put(broken) == ()
    assert "ns/a" in cache
    assert "status.phase" in cache.unreadable["ns/a"]
    assert cache.replace([broken]) == ()
    recovered = cache.put(loaded(cache, pod_body("a", version=3)))
    assert len(recovered) == 1
    assert cache.unreadable == {}


def test_an_unreadable_successor_ends_the_predecessor(cache: Cache[Pod]) -> None:
    cache.replace([loaded(cache, pod_body("a"))])
    broken = cache.load(pod_body("a", uid="other", version=2, status={"phase": 7}))
    (change,) = cache.put(broken)
    assert (change.old is not None, change.new) == (True, None)
    assert cache.remove("ns/a", "3") == ()
    assert cache.unreadable == {}


def test_unreadable_objects_that_are_gone_are_forgotten(cache: Cache[Pod]) -> None:
    broken = cache.load(pod_body("a", status={"phase": 7}))
    assert cache.replace([broken]) == ()
    assert list(cache.unreadable) == ["ns/a"]
    cache.replace([])
    assert cache.unreadable == {}


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"metadata":{}}', b'{"metadata":7}', b"\xff\xfe"]
)
def test_what_is_no_object_is_refused(cache: Cache[Pod], body: bytes) -> None:
    with pytest.raises(Undecodable):
        cache.load(body)


def test_an_index_function_that_raises_changes_nothing() -> None:
    def broken(pod: Pod) -> tuple[str, ...]:
        raise RuntimeError("no")

    cache: Cache[Pod] = Cache(Pods, Pod, {"broken": broken})
    with pytest.raises(RuntimeError):
        cache.put(loaded(cache, pod_body("a")))
    assert len(cache) == 0


def test_churn_leaves_nothing_behind(cache: Cache[Pod]) -> None:
    """kubernetes#128928: a cache that only grows."""
    for number in range(2000):
        name = f"p{number}"
        cache.put(loaded(cache, pod_body(name, version=2 * number + 1, node=f"n{number % 7}")))
        cache.remove(f"ns/{name}", str(2 * number + 2))
    assert len(cache) == 0
    assert not cache._indexes["node"]
    assert cache._indexes == {"node": {}}


entries = st.dictionaries(
    st.sampled_from("abcdef"),
    st.tuples(st.sampled_from(["u", "v"]), st.integers(1, 4), st.sampled_from(["", "one", "two"])),
)


@given(st.lists(entries, min_size=1, max_size=6))
def test_any_sequence_of_lists_is_told_as_differences(
    lists: list[dict[str, tuple[str, int, str]]],
) -> None:
    cache: Cache[Pod] = Cache(Pods, Pod, {"node": by_node})
    view: dict[str, Pod] = {}
    for wanted in lists:
        bodies = [
            pod_body(name, uid=uid, version=version, node=node)
            for name, (uid, version, node) in wanted.items()
        ]
        changes: tuple[Change[Pod], ...] = cache.replace([loaded(cache, body) for body in bodies])
        for change in changes:
            key = change.object.metadata.key
            assert view.get(key) == change.old
            if change.new is None:
                del view[key]
            else:
                view[key] = change.new
        assert list(cache) == [view[key] for key in sorted(view)]
        assert {pod.metadata.name: pod.spec.node_name for pod in cache} == {
            name: node for name, (_, _, node) in wanted.items()
        }
        cache.check()


def test_an_event_of_a_successor_whose_predecessors_delete_was_never_told(
    cache: Cache[Pod],
) -> None:
    cache.replace([loaded(cache, pod_body("a", uid="u", node="one"))])
    delete, add = cache.put(loaded(cache, pod_body("a", uid="v", version=5, node="two")))
    assert (delete.old is not None, delete.new) == (True, None)
    assert (add.old, add.new is not None) == (None, True)
    assert list(cache._indexes["node"]) == ["two"]
    cache.check()


def test_pods_of_one_template_share_what_they_have_in_common(cache: Cache[Pod]) -> None:
    def body(name: str, version: int, node: str, image: str = "nginx") -> bytes:
        document = codec.decode_document(pod_body(name, uid=name, version=version, node=node))
        document["metadata"]["labels"] = {"app": "web"}
        document["spec"]["containers"] = [{"name": "c", "image": image}]
        return codec.encode(document)

    bodies = [
        body("a", 1, "one"),
        body("b", 2, "two"),
        body("a", 3, "two"),
        body("c", 4, "two", "other"),
    ]
    for version in bodies:
        cache.put(loaded(cache, version))
    a, b, c = cache
    assert a.spec.containers is b.spec.containers
    assert a.metadata.labels is b.metadata.labels is c.metadata.labels
    assert [pod.spec.containers[0].image for pod in cache if pod.spec.containers] == [
        "nginx",
        "nginx",
        "other",
    ]
    assert [a, b, c] == [
        loaded(cache, bodies[2]),
        loaded(cache, bodies[1]),
        loaded(cache, bodies[3]),
    ]
    cache.check()
