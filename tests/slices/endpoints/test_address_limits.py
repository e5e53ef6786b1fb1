"""The 1,001st address and the 1,000,001st: what is left out, what is said of it, and the way back
down.

A million addresses are no object that a server takes (some 60 MB; a request may have three), and a
million Pods are more than a test should make: limits of Endpoints are arithmetic over sizes
(``subsets.shares``), and so is the test. Mirroring takes the object itself, a million addresses and
one.
"""

from __future__ import annotations

import pytest

from sliceplane.api.core import CoreEndpointPort, EndpointAddress, Endpoints, EndpointSubset
from sliceplane.api.meta import ObjectMeta
from sliceplane.slices.endpoints.mirroring.engine import MirrorEngine
from sliceplane.slices.endpoints.mirroring.service import MirrorLimits
from sliceplane.slices.endpoints.mirroring.writes import Notice
from sliceplane.slices.endpoints.subsets import shares

MILLION = 1_000_000
PORTS = (CoreEndpointPort(port=80),)


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [
        ([(1000, 0)], [(1000, 0)]),
        ([(1001, 0)], [(1000, 0)]),
        ([(999, 2)], [(999, 1)]),
        ([(MILLION + 1, 0)], [(1000, 0)]),
        ([(MILLION, 1)], [(1000, 0)]),
        ([(0, MILLION + 1)], [(0, 1000)]),
        ([(999, MILLION)], [(999, 1)]),
        ([(500_001, 0), (500_000, 0)], [(501, 0), (499, 0)]),
        ([(MILLION, 0), (1, 0)], [(1000, 0), (0, 0)]),
        ([(1, 0), (MILLION, 0)], [(1, 0), (999, 0)]),
    ],
)
def test_endpoints_keep_a_thousand_in_proportion_and_ready_ones_first(
    sizes: list[tuple[int, int]], kept: list[tuple[int, int]]
) -> None:
    assert shares(sizes) == kept


def address(number: int) -> EndpointAddress:
    return EndpointAddress(ip=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")


def mirrored(count: int, *, waiting: int = 0) -> tuple[list[int], tuple[Notice, ...]]:
    """Sizes of the slices that an object of *count* addresses wants, and what people are told."""
    engine = MirrorEngine(MirrorLimits())
    engine._selecting["shop/web"] = False
    both = [address(number) for number in range(count)]
    subset = EndpointSubset(
        addresses=tuple(both[waiting:]) or None,
        not_ready_addresses=tuple(both[:waiting]) or None,
        ports=PORTS,
    )
    meta = ObjectMeta(name="web", namespace="shop", uid="u", resource_version=str(count))
    engine.on_endpoints(Endpoints(metadata=meta, subsets=(subset,)), "shop/web")
    plan = engine.plan("shop/web", 0.0)
    return [write.body.count(b'"addresses"') for write in plan.writes], plan.notices


def too_many(skipped: int) -> tuple[Notice, ...]:
    message = (
        "A max of 1000 addresses can be mirrored to EndpointSlices per Endpoints subset. "
        f"{skipped} addresses were skipped"
    )
    return (Notice(True, "TooManyAddressesToMirror", message),)


def test_the_1001st_address_is_not_mirrored_and_said_to_be_skipped() -> None:
    assert mirrored(1000) == ([1000], ())
    assert mirrored(1001) == ([1000], too_many(1))
    assert mirrored(1001, waiting=500) == ([1000], too_many(1))
    assert mirrored(1000, waiting=1000) == ([1000], ())


@pytest.mark.slow
def test_the_1000001st_address_is_not_mirrored_and_said_to_be_skipped() -> None:
    assert mirrored(MILLION + 1) == ([1000], too_many(MILLION - 999))
