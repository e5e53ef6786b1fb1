"""Digests against sets, and what is handed on with them: how far a cache is."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.growth.measure import GROWTH_MAX, Run, growth

from sliceplane.api.codec import encode
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import ConfigMaps
from sliceplane.kit.rng import Rng
from sliceplane.watch.cache import Cache, Mark
from sliceplane.watch.digest import Digest, digest_of
from sliceplane.watch.reflector import Reflector


def thing(name: str, version: int | str) -> Object:
    return Object(
        metadata=ObjectMeta(namespace="ns", name=name, uid=name, resource_version=str(version))
    )


STEPS = st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=60)


@given(STEPS, STEPS)
def test_digests_are_equal_exactly_where_contents_are(
    first: list[tuple[str, bool]], second: list[tuple[str, bool]]
) -> None:
    contents = []
    for steps in (first, second):
        digest, held = Digest(), dict[str, Object]()
        for number, (name, there) in enumerate(steps, 1):
            new = thing(name, number) if there else None
            if new is None and name not in held:
                continue
            digest.on_change(held.pop(name, None), new)
            held |= {name: new} if new is not None else {}
            digest.check()
        assert digest.text == digest_of(held.values())
        contents.append(
            (
                digest.text,
                {(item.metadata.key, item.metadata.resource_version) for item in held.values()},
            )
        )
    (one, its), (other, others) = contents
    assert (one == other) == (its == others)


def test_the_digest_is_the_same_in_every_process_and_release() -> None:
    """Both ends of a comparison are different programs: change the hash, and every node differs for
    one release.
    """
    assert digest_of([thing("a", 5), thing("b", 812)]) == digest_of(
        [thing("b", 812), thing("a", 5)]
    )
    assert digest_of([thing("a", 5), thing("b", 812)]) == "c8e3b19a66a61862"
    assert digest_of([thing("a", "opaque")]) == "6a85f98c1686e986"


def test_events_that_were_lost_together_do_not_cancel_out() -> None:
    """As they would with a CRC, where only the places of the bits that changed count."""
    names = [f"web-{number:03}" for number in range(400)]
    seen = set()
    for name in names:
        for version in range(100, 110):
            digest = Digest()
            digest.on_change(None, thing(name, version))
            before = digest.value
            digest.on_change(thing(name, version), thing(name, version + 1))
            seen.add(digest.value ^ before)
    assert len(seen) == 4000
    assert not any(
        first ^ second in seen for first in sorted(seen)[:100] for second in sorted(seen)[100:400]
    )


def test_a_change_costs_the_same_beside_many() -> None:
    """`make bench` has the figure."""
    versions = [thing("web-1", number) for number in range(2001)]

    def make(others: int) -> Run:
        digest = Digest()
        for number in range(others):
            digest.on_change(None, thing(f"other-{number}", 1))
        digest.on_change(None, versions[0])

        def run() -> None:
            for old, new in pairwise(versions):
                digest.on_change(old, new)

        return run

    assert growth(lambda: make(1), lambda: make(5_000), too_short_s=0.0) <= GROWTH_MAX


def body(name: str, version: int) -> bytes:
    return encode(
        {
            "metadata": {
                "namespace": "ns",
                "name": name,
                "uid": name,
                "resourceVersion": str(version),
            }
        }
    )


def marks(reflector: Reflector[Object]) -> tuple[int, bool] | None:
    mark = reflector.take_mark()
    return None if mark is None else (mark.revision, mark.listed)


def test_lists_events_and_bookmarks_say_how_far_the_cache_is() -> None:
    reflector: Reflector[Object] = Reflector(Cache(ConfigMaps, Object), Rng(1))
    reflector.start(0.0)
    reflector.on_page([body("a", 3)], "9", "more", 0.0)
    assert marks(reflector) is None, "half a list is none"
    reflector.on_page([body("b", 4)], "9", "", 0.0)
    assert marks(reflector) == (9, True)
    assert marks(reflector) is None, "nothing new"
    reflector.on_watch_opened(1.0)
    reflector.on_watch_event("MODIFIED", body("a", 12), 1.0)
    assert marks(reflector) == (12, False)
    reflector.on_watch_event("BOOKMARK", body("", 40), 1.0)
    assert marks(reflector) == (40, False)
    reflector.on_watch_event("DELETED", body("a", 44), 1.0)
    assert marks(reflector) == (44, False), "a deletion's own version"
    reflector.on_watch_event("MODIFIED", body("a", 2), 2.0)
    assert marks(reflector) is None, "a server that went back says so in a list"
    reflector.on_deadline(100.0)
    reflector.on_page([], "7", "", 100.0)
    assert marks(reflector) == (7, True)
    assert Mark("x", "not a number").revision == 0


def test_an_event_that_the_cache_could_not_take_raises_no_mark() -> None:
    def index(held: Object) -> tuple[str, ...]:
        if held.metadata.name == "bad":
            raise RuntimeError("a fault of ours")
        return ()

    reflector: Reflector[Object] = Reflector(Cache(ConfigMaps, Object, {"by": index}), Rng(1))
    reflector.start(0.0)
    reflector.on_page([], "9", "", 0.0)
    reflector.take_mark()
    reflector.on_watch_opened(1.0)
    try:
        reflector.on_watch_event("ADDED", body("bad", 12), 1.0)
    except RuntimeError:
        assert marks(reflector) is None
    else:
        raise AssertionError("the index function's fault is not told")
