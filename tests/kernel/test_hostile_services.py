"""What a tenant's Services and EndpointSlices cost others on a node, with packets: the attacks' own
figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.attack import kernel_packets, services
from tests.attack.harness import Figure
from tests.kernel.cluster import Mode

pytestmark = pytest.mark.kernel

SLOW = pytest.mark.slow
MODES = ["nftables", "iptables-nft", pytest.param("iptables-legacy", marks=SLOW)]


#: beside other tests everything takes longer: ``make attack`` holds the limits of times, a test
#: what grows without end
TIMES_LONGER = 10
TIMES = ("s", "of a core")


def is_met(figure: Figure) -> bool:
    if figure.unit in TIMES and not figure.at_least:
        return figure.value <= TIMES_LONGER * figure.limit
    return figure.met


def all_met(figures: Sequence[Figure]) -> None:
    assert figures
    missed = [
        f"{figure.what}: {figure.value:g} {figure.unit}" for figure in figures if not is_met(figure)
    ]
    assert not missed, missed


@pytest.mark.parametrize("mode", MODES)
async def test_a_load_balancers_status_takes_no_address_of_others(mode: Mode) -> None:
    all_met(await kernel_packets.hostile_balancers(mode))


@pytest.mark.parametrize("mode", MODES)
async def test_others_do_not_wait_for_a_service_of_very_many_endpoints(mode: Mode) -> None:
    """Issue 30: they waited for minutes, as long as its 250,000 chains took."""
    all_met(await kernel_packets.heavy(mode, "None"))


@SLOW
@pytest.mark.parametrize("mode", MODES)
async def test_others_do_not_wait_for_a_sticky_service_of_very_many_endpoints(mode: Mode) -> None:
    all_met(await kernel_packets.heavy(mode, "ClientIP"))


async def test_others_do_not_wait_for_a_service_of_very_many_ports_in_iptables_mode(
    tmp_path: Path,
) -> None:
    """Issue 30: a portion of 4,000 ports was 8,000 chains, and took the kernel ten seconds."""
    all_met(await services.many_ports(tmp_path, mode="iptables"))


async def test_a_held_lock_of_iptables_is_waited_for_and_the_loop_goes_on(tmp_path: Path) -> None:
    all_met(await kernel_packets.locked(tmp_path))
