"""``drained-is-drained``: no kernel sends to a Pod of which the barrier says that it is drained,
whatever is lost, delayed, relisted or restarted; and a barrier that believes too soon is found out.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.figures import over_seeds, tell

from sliceplane.api.codec import decode, encode
from sliceplane.api.discovery import EndpointSlice
from sliceplane.consume.drain import barrier, cluster
from sliceplane.lab.sim.checks.drains import is_ahead
from sliceplane.lab.sim.checks.steady import Broken
from sliceplane.lab.sim.faults import parse_faults
from sliceplane.lab.sim.simulation import Options, Simulation

ROUNDS, STEPS = 4, 8
#: after the steps of a round; nodes tell every ten seconds
REST_S = 25.0
CALM_S = 60.0
#: those that make, move and remove endpoints; others would take as much time again
CONTROLLERS = (
    "endpointslice",
    "garbage-collector",
    "namespace",
    "deployment",
    "replicaset",
    "kubelet",
)


def proven(seed: int) -> int:
    """How often the barrier of one history said that a Pod is drained.  Raises ``Broken``."""
    faults = parse_faults(("none", "normal", "heavy")[seed % 3])
    simulation = Simulation(
        Options(
            seed=seed, steps=ROUNDS * STEPS, faults=faults, drains=True, controllers=CONTROLLERS
        )
    )
    simulation.begin()
    for _ in range(ROUNDS):
        for _ in range(STEPS):
            simulation.step()
        simulation.scheduler.run_until(simulation.scheduler.now + REST_S)
    simulation.faults.active = (
        False  # what was lost is found out: under heavy faults little is proven before
    )
    simulation.scheduler.run_until(simulation.scheduler.now + CALM_S)
    assert simulation.drains is not None, "it was asked for"
    return simulation.drains.proven


def test_drained_is_drained_over_some_seeds() -> None:
    assert sum(proven(seed) for seed in range(1, 7)) > 10, "the barrier says so now and then"


def test_who_does_not_wait_for_nodes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(*arguments: Any, **options: Any) -> barrier.Proof:
        return barrier.compare(*arguments, **options)._replace(waiting=())

    monkeypatch.setattr(cluster, "compare", hasty)
    with pytest.raises(Broken, match=r"is drained, and bare-[01] sends to it"):
        sum(proven(seed) for seed in range(1, 7))


def test_seed_7073_a_list_that_is_cut_short_is_one_that_is_doubted() -> None:
    """It lacked most slices and few endpoints, was believed, and a proxy told that its kernel held
    them.
    """
    assert proven(7073) >= 0


def test_seed_2360_a_slice_left_one_reading_and_another_that_lags_still_shows_it() -> None:
    """Given from a zone to all nodes and then deleted, while the zone's watch stood still: the
    kernel keeps it as the zone's reading shows it, which is told at the version of before, and the
    barrier waits for that reading.
    """
    assert proven(2360) >= 0


def test_seed_1388_an_endpoint_in_a_slice_of_another_manager_is_ready_for_kernels_too() -> None:
    """The check looked at our slices alone, saw nobody else, and took the kernel to fall back on
    who terminates.
    """
    assert proven(1388) >= 0


def test_seed_26803_a_kernel_without_a_slice_that_is_gone_is_ahead_of_who_still_knows_it() -> None:
    """The last ready endpoint had gone with its slice, so kernels fell back; no version of a slice
    told of it.
    """

    def seen(name: str, version: int) -> EndpointSlice:
        return decode(
            encode(
                {"metadata": {"namespace": "shop", "name": name, "resourceVersion": str(version)}}
            ),
            EndpointSlice,
        )

    kernel, known = [seen("a", 303)], ["shop/a", "shop/b"]
    assert is_ahead(kernel, known, 303, lambda key: key == "shop/a")
    assert not is_ahead(kernel, known, 303, lambda _: True), (
        "it is behind, and held to what it told"
    )
    assert not is_ahead(kernel, ["shop/a"], 303, lambda _: True)
    assert is_ahead(kernel, ["shop/a"], 302, lambda _: True)


@pytest.mark.slow
def test_drained_is_drained_over_ten_thousand_seeds() -> None:
    drains = sum(over_seeds(range(1, 10_001), proven))
    assert drains > 10_000
    tell(f"10,000 seeds, {drains:,} drains, none said too early")
