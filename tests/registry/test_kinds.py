"""The table of kinds, and what a kind must say."""

from __future__ import annotations

import pytest

from sliceplane.api.requests import SUBRESOURCES
from sliceplane.api.scheme import OPTIONAL_RESOURCES, SERVED, Resource, Services
from sliceplane.server.registry.kinds import KINDS, kind_of
from sliceplane.server.registry.kinds.kind import Kind
from sliceplane.server.registry.registry import _POSTED, _VIEWS


def test_every_resource_has_its_kind_and_no_kind_is_there_twice() -> None:
    assert sorted(kind.resource.key for kind in KINDS) == sorted(
        resource.key for resource in SERVED
    )
    for resource in OPTIONAL_RESOURCES:
        assert kind_of(resource).resource is resource.hub


def test_a_kind_of_a_resource_alone_has_no_rules_and_is_not_counted() -> None:
    """A stranger's first version of a kind: everything is accepted, nobody is granted anything."""
    kind = Kind(resource=Services)
    document = {"metadata": {"name": "a"}, "spec": {"ports": "none"}}
    kind.defaults(document)
    assert document == {"metadata": {"name": "a"}, "spec": {"ports": "none"}}
    assert (
        kind.validate(document)
        == kind.validate_update(document, {})
        == kind.status.validate(document, {})
        == []
    )
    assert (kind.quota.counted, kind.granted.view, list(kind.warnings(document, None))) == (
        False,
        (),
        [],
    )
    assert kind.status.first(document) is None


@pytest.mark.parametrize("resource", SERVED, ids=lambda resource: resource.key)
def test_a_resource_has_subresources_of_the_table_alone(resource: Resource) -> None:
    assert set(resource.subresources) <= SUBRESOURCES.keys()


def test_what_is_foreign_at_a_subresource_is_served_by_a_function_of_its_own() -> None:
    assert {
        name for name, row in SUBRESOURCES.items() if row.body
    } == _POSTED.keys() | _VIEWS.keys()
    assert {name for name, row in SUBRESOURCES.items() if row.is_posted} == _POSTED.keys()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.key)
def test_a_kind_with_a_status_sets_the_first_one_or_leaves_it_to_clients(kind: Kind) -> None:
    """Without the endpoint ``status`` there is none to set."""
    first = kind.status.first({"metadata": {"name": "x"}, "spec": {}})
    assert first is None or kind.resource.has_status
