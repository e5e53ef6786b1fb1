"""The parts of a resource that a relay keeps: all of it, or the slices for one zone.

With ``--zone`` a relay does not read the slices for other zones (KEP-2030). A label selector cannot
say "for this zone or for none", so EndpointSlices have three parts, each with a list and a watch of
its own: slices for the zone, for a region, and for everyone. A request is served from a part if its
own selector leaves nothing but objects of that part, as the selectors of a KEP-2030 consumer do.
Any other request, for all slices or one by name, is not the zone's to answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from sliceplane.api.discovery import LABEL_FOR_REGION, LABEL_FOR_ZONE
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection
from sliceplane.api.resource import Resource
from sliceplane.api.scheme import EndpointSlices
from sliceplane.api.selectors.grammar import parse_labels
from sliceplane.api.selectors.labels import Operator, Requirement

V = TypeVar("V")

_ONE_OF: Final = (Operator.EQUALS, Operator.DOUBLE_EQUALS, Operator.IN)


def parts_of(resources: Iterable[Resource], zone: str = "") -> tuple[Selection, ...]:
    """Returns the selections that a relay of *zone* ("": of all zones) reads."""
    in_zone = (
        f"{LABEL_FOR_ZONE}={zone}",
        LABEL_FOR_REGION,
        f"!{LABEL_FOR_ZONE},!{LABEL_FOR_REGION}",
    )
    return tuple(
        Selection(resource, label_selector=selector)
        for resource in resources
        for selector in (in_zone if zone and resource is EndpointSlices else ("",))
    )


def name_of(part: Selection) -> str:
    """Returns the name of *part* in metrics and health checks."""
    selector = part.label_selector
    return f"{part.resource.key} {selector}".rstrip()


def part_of(parts: Mapping[Selection, V], resource: Resource, label_selector: str) -> V | None:
    """Returns the value of a part that has every object that *label_selector* selects."""
    for part, value in parts.items():
        if part.resource is resource and _implies(label_selector, part.label_selector):
            return value
    return None


def _implies(requested: str, kept: str) -> bool:
    """Returns True if what *requested* selects is a part of what *kept* selects."""
    if not kept:
        return True
    try:
        requirements = parse_labels(requested).requirements
    except StatusError:
        return True  # an error of the client, which is answered without a look at the objects
    return all(
        any(_is_stricter(one, other) for one in requirements)
        for other in parse_labels(kept).requirements
    )


def _is_stricter(one: Requirement, other: Requirement) -> bool:
    """Returns True if each object that fulfils *one* fulfils *other*."""
    if one.key != other.key:
        return False
    if other.operator is Operator.DOES_NOT_EXIST:
        return one.operator is Operator.DOES_NOT_EXIST
    if other.operator is Operator.EXISTS:
        return one.operator is Operator.EXISTS or one.operator in _ONE_OF
    return one.operator in _ONE_OF and set(one.values) <= set(other.values)
