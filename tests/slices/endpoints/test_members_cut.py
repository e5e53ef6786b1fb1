"""Of more addresses than an object may hold, one that it does not hold costs nothing when it
changes.
"""

from __future__ import annotations

from random import Random

import pytest
from tests.slices.fake_cluster import make_pod, make_service

from sliceplane.slices.endpoints import members
from sliceplane.slices.endpoints.members import EndpointsMembers
from sliceplane.slices.endpoints.shape import endpoints_shape
from sliceplane.slices.endpoints.subsets import ADDRESSES_MAX, Capacity, render
from sliceplane.slices.facts import PodFacts

SHAPE = endpoints_shape(make_service(), skip_mirror=False)


def facts(number: int, *, ready: bool = True) -> PodFacts:
    """Pods have the order of their numbers."""
    return PodFacts(
        make_pod(
            f"p-{number}", ips=(f"10.1.{100 + number // 100}.{100 + number % 100}",), ready=ready
        )
    )


def test_what_is_written_is_what_a_fresh_start_would_write() -> None:
    rng = Random(7)
    known = {number: facts(number) for number in range(ADDRESSES_MAX + 3)}
    kept = EndpointsMembers(SHAPE, known.values(), None)
    sizes = set()
    for _ in range(60):
        number = rng.choice(
            (rng.randrange(ADDRESSES_MAX + 6), ADDRESSES_MAX + rng.randrange(-3, 6))
        )
        if rng.random() < 0.4 and number in known:
            del known[number]
            kept.drop(f"p-{number}")
        else:
            known[number] = facts(number, ready=rng.random() < 0.6)
            kept.set(known[number])
        if rng.random() < 0.7:
            fresh = EndpointsMembers(SHAPE, known.values(), None)
            assert kept.content(Capacity.TRUNCATE) == fresh.content(Capacity.TRUNCATE)
            sizes.add(len(known) > ADDRESSES_MAX)
    assert sizes == {True, False}, "the limit was passed both ways"


def test_an_address_that_is_not_written_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[object] = []
    monkeypatch.setattr(members, "render", lambda *a, **k: rendered.append(a) or render(*a, **k))
    kept = EndpointsMembers(SHAPE, map(facts, range(ADDRESSES_MAX + 5)), None)
    written = kept.content(Capacity.TRUNCATE)
    for ready in (False, True):
        kept.set(facts(ADDRESSES_MAX + 4, ready=ready))
        assert kept.content(Capacity.TRUNCATE) is written
    assert len(rendered) == 1
    kept.set(facts(3, ready=False))
    assert kept.content(Capacity.TRUNCATE) != written
    assert len(rendered) == 2
