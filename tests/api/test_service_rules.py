"""The rules of Services that servers and readers share, against the table that upstream's functions
give.
"""

from __future__ import annotations

import pytest

from sliceplane.api.service_rules import (
    PORT_MAX,
    TYPES,
    has_health_check_port,
    is_externally_accessible,
    is_port,
    takes_node_ports,
)


@pytest.mark.parametrize("service_type", [*TYPES, "", None])
@pytest.mark.parametrize("policy", ["Cluster", "Local", "", None])
def test_only_a_load_balancer_with_local_policy_has_a_health_check_port(
    service_type: str | None, policy: str | None
) -> None:
    assert has_health_check_port(service_type, policy) == (
        (service_type, policy) == ("LoadBalancer", "Local")
    )


@pytest.mark.parametrize(
    ("service_type", "without", "with_external_ips"),
    [
        ("ClusterIP", False, True),
        ("NodePort", True, True),
        ("LoadBalancer", True, True),
        ("ExternalName", False, False),
        (None, False, False),
    ],
)
def test_what_can_be_reached_from_outside(
    service_type: str | None, without: bool, with_external_ips: bool
) -> None:
    assert is_externally_accessible(service_type, None) is without
    assert is_externally_accessible(service_type, []) is without
    assert is_externally_accessible(service_type, ["192.0.2.1"]) is with_external_ips


@pytest.mark.parametrize(
    ("service_type", "answers"),
    [
        ("ClusterIP", (False, False, False)),
        ("NodePort", (True, True, True)),
        ("LoadBalancer", (True, True, False)),
        ("ExternalName", (False, False, False)),
    ],
)
def test_allocate_load_balancer_node_ports_counts_for_load_balancers_alone(
    service_type: str, answers: tuple[bool, bool, bool]
) -> None:
    assert (
        tuple(takes_node_ports(service_type, allocates) for allocates in (None, True, False))
        == answers
    )


def test_port_numbers_end_on_both_sides() -> None:
    assert [is_port(number) for number in (-1, 0, 1, PORT_MAX, PORT_MAX + 1)] == [
        False,
        False,
        True,
        True,
        False,
    ]
