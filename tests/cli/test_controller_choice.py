"""Which controllers ``--controllers`` leaves to run, and that the others cost nothing."""

from __future__ import annotations

import pytest

from sliceplane.cli.run.flags.controllers import choose
from sliceplane.controllers.io.catalogue import DiscoveryConfig, default_controllers
from sliceplane.watch.io.hosting.host import ControllerEntry

ALL = (
    *("endpointslice-controller", "endpoints-controller", "endpointslice-mirroring-controller"),
    *("garbage-collector-controller", "namespace-controller", "pod-garbage-collector-controller"),
    "resourcequota-controller",
    *("serviceaccount-controller", "service-claims-controller", "measured-zones-controller"),
    "traffic-distribution-controller",
    *("pod-drained-controller", "external-endpoints-controller"),
)


def entries() -> tuple[ControllerEntry, ...]:
    return default_controllers(DiscoveryConfig())


def names(text: str, **options: tuple[str, ...]) -> list[str]:
    return [entry.make().info.name for entry in choose(text, entries, **options)]


def without(*left_out: str) -> list[str]:
    return [name for name in ALL if name not in left_out]


@pytest.mark.parametrize(
    ("text", "running"),
    [
        ("*", without()),
        ("*,-endpoints", without("endpoints-controller")),
        ("*,-endpoint", without("endpoints-controller")),
        ("*,-pod-garbage-collector-controller", without("pod-garbage-collector-controller")),
        ("*,-podgc", without("pod-garbage-collector-controller")),
        ("-endpoints,*", without("endpoints-controller")),
        (
            "*, -endpointslicemirroring , -endpoints",
            without("endpoints-controller", "endpointslice-mirroring-controller"),
        ),
        ("endpoints,endpointslice", ["endpointslice-controller", "endpoints-controller"]),
        ("*,-endpoints,endpoints", without()),
    ],
)
def test_names_aliases_and_stars(text: str, running: list[str]) -> None:
    assert names(text) == running


def test_a_star_stands_for_the_defaults() -> None:
    assert names("*,namespace-controller", defaults=("endpoints-controller",)) == [
        "endpoints-controller",
        "namespace-controller",
    ]


def test_the_mirror_does_not_wait_for_an_endpoints_controller_that_is_left_out() -> None:
    (mirror,) = (entry.make() for entry in choose("endpointslice-mirroring-controller", entries))
    mirror.on_synced(1000.0)
    mirror.take_work(1000.0, 1)
    assert mirror.next_deadline() is None, "it looks for the end of a first sync that nobody began"
