"""Four times the entries in any list or map of any kind take at most five times as long, whatever a
client does.

The fields come from the schema, so that one that is added is looked at without anybody's doing. In
every run each list and map of each definition meets a few of the ways to fill it and of the things
to do with it, in turns, so that all ways and all things occur; ``make soak`` tries all of them on
all places, and the largest bodies that are taken.
"""

from __future__ import annotations

import json
from itertools import product
from typing import Final

import pytest
from tests.effort import scaled
from tests.growth import driver, shapes
from tests.growth.driver import Step
from tests.growth.measure import assert_linear
from tests.growth.shapes import VARIANTS, WRITTEN, LongField, Variant

from sliceplane.api.scheme import Resource
from sliceplane.server.io.requests.request import BODY_BYTES_MAX

_SIZE: Final = 1200
_SOAK_SIZE: Final = 4000
#: of a body of the largest size that is taken
_FULL: Final = BODY_BYTES_MAX * 9 // 10
_DEFINITIONS: Final = shapes.each_definition_once()
#: so many tests, each with every so-manyth definition
_SHARES: Final = 16


def _variants(long: LongField) -> tuple[Variant, ...]:
    """``long`` needs something above that has a name."""
    named = any(field.type.kind in ("list", "map") for field in long.path[:-1])
    return VARIANTS if named else tuple(variant for variant in VARIANTS if variant != "long")


def _ways(long: LongField) -> list[tuple[Variant, Step]]:
    return [(variant, step) for variant in _variants(long) for step in driver.steps(long, variant)]


def _check(long: LongField, variant: Variant, step: Step, size: int) -> None:
    # Names as long as all entries together make an object of the square of their number in bytes
    # per level.
    size = size // 2 if variant == "long" else size
    try:
        assert_linear(step.make, size)
    except AssertionError as error:
        raise AssertionError(f"{long}, {variant}, {step.name}: {error}") from error


@pytest.mark.parametrize("share", range(_SHARES))
@pytest.mark.timeout(300)
def test_any_list_or_map_of_any_kind_costs_what_it_is_long(share: int) -> None:
    for index in range(share, len(_DEFINITIONS), _SHARES):
        long = _DEFINITIONS[index]
        ways = _ways(long)
        for turn in range(scaled(3, least=1)):
            variant, step = ways[(7 * index + 11 * turn) % len(ways)]
            _check(long, variant, step, _SIZE)


@pytest.mark.slow
@pytest.mark.parametrize("resource", WRITTEN, ids=lambda resource: resource.schema_key)
@pytest.mark.timeout(7200)
def test_every_way_to_write_every_list_costs_what_it_is_long(resource: Resource) -> None:
    known = {str(long) for long in _DEFINITIONS}
    for long, position in zip(shapes.fields_of(resource), range(1000), strict=False):
        ways = _ways(long)
        # Templates of Pods have the fields of Pods, of which each way was tried there.
        for variant, step in ways if str(long) in known else ways[position % 7 :: 7]:
            _check(long, variant, step, _SOAK_SIZE)


@pytest.mark.slow
@pytest.mark.parametrize("resource", WRITTEN, ids=lambda resource: resource.schema_key)
@pytest.mark.timeout(7200)
def test_the_largest_bodies_cost_what_they_are_long(resource: Resource) -> None:
    for long in (each for each in _DEFINITIONS if each.resource is resource):
        for variant, name in product(
            ("distinct", "alike", "invalid"), ("create", "put", "strategic patch", "apply")
        ):
            step = next(each for each in driver.steps(long, variant) if each.name == name)
            _check(long, variant, step, _largest(long, variant))


def _largest(long: LongField, variant: Variant) -> int:
    """Entries that fill a body."""
    few = 1000
    return few * _FULL // len(json.dumps(shapes.document(long, variant, few)))


def test_the_walk_finds_what_attackers_used() -> None:
    found = {str(each) for each in shapes.every_field()}
    assert {
        "services:spec.ipFamilies",
        "configmaps:metadata.finalizers",
        "pods:spec.tolerations",
        "roles.rbac.authorization.k8s.io:rules",
        "deployments.apps:spec.template.spec.containers.ports",
        "endpointslices.discovery.k8s.io:endpoints.addresses",
    } <= found
    assert len(_DEFINITIONS) > 150


def test_all_ways_occur() -> None:
    met = set()
    for index, long in enumerate(_DEFINITIONS):
        ways = _ways(long)
        variant, step = ways[7 * index % len(ways)]
        met.add((variant, step.name))
    names = {step.name for step in driver.steps(_DEFINITIONS[-1], "distinct")}
    assert {variant for variant, _ in met} == set(VARIANTS)
    assert {name for _, name in met} >= names
    assert len(met) > 60
