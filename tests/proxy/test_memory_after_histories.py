"""However long a history was, what a plane holds in the end is what it holds after a short one;
also where nobody looks at UDP flows, and where the kernel takes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.nft.machine import Machine, service
from tests.nft.random_world import FAMILIES, NODE, RULES, World, blocks, take_consequences, tell

from sliceplane.consume.model import ServedPort
from sliceplane.kit.ip import Family
from sliceplane.kit.rng import Rng
from sliceplane.node import post_sync
from sliceplane.node.io.metrics import ProxyMetrics
from sliceplane.node.io.options import HostAccess
from sliceplane.node.io.side_effects import SideEffects
from sliceplane.node.iptables.table import IptablesPlane, iptables_plane
from sliceplane.node.nft.elements import RETIRE_AFTER_S
from sliceplane.node.nft.table import NftPlane, nft_plane
from sliceplane.node.plane import NodePlaneConfig

SERVICES, BATCH, EVENTS, MANY_EVENTS = 30, 40, 1_000, 4_000
#: blocks of a few hundred thousand; where nobody takes what went, two planes gain 350 by ``EVENTS``
GROWTH_MAX = 200

AnyPlane = NftPlane | IptablesPlane


class Churn:
    """Two planes, and a kernel that takes everything."""

    def __init__(self, make: Callable[[Family, NodePlaneConfig], AnyPlane], *, flows: bool) -> None:
        """*flows*: there is somebody to look at UDP flows."""
        self._planes = [
            make(family, NodePlaneConfig(node_name=NODE, rules=RULES)) for family in FAMILIES
        ]
        self._world, self._rng, self._now = World(Rng(7), SERVICES), Rng(8), 0.0
        self._flows = flows
        for plane in self._planes:
            plane.on_synced(0.0)

    def run(self, events: int) -> int:
        """*events*, and then everything goes; the memory in use after that."""
        for number in range(events):
            self._tell(*self._world.event())
            if number % BATCH == 0:
                self._sync()
                self._now += self._rng.uniform(0.0, 1.0)
        for event in self._world.removals():
            self._tell(*event)
        for _ in range(3):
            self._sync()
            self._now += RETIRE_AFTER_S
        for plane in self._planes:
            plane.check()
            assert (len(plane.tracker.services()), plane.schedule.next_deadline()) == (0, None)
        return blocks()

    def _tell(self, old: Any, new: Any) -> None:
        for plane in self._planes:
            tell(plane, old, new, self._now)

    def _sync(self) -> None:
        for plane in self._planes:
            while plane.schedule.due(self._now):
                if plane.take_transaction(self._now) is not None:
                    plane.on_success(self._now)
            if self._flows:
                take_consequences(plane)
            else:  # no ``conntrack`` on this host
                plane.post_sync.return_udp(
                    plane.post_sync.take_udp(), plane.post_sync.take_removed_udp()
                )


@pytest.mark.parametrize("make", [nft_plane, iptables_plane])
@pytest.mark.parametrize("flows", [True, False])
@pytest.mark.parametrize("events", [EVENTS, pytest.param(MANY_EVENTS, marks=pytest.mark.slow)])
def test_a_history_leaves_nothing_however_long_it_was(
    make: Callable[[Family, NodePlaneConfig], AnyPlane],
    flows: bool,
    events: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(post_sync, "REMOVED_UDP_MAX", 50)
    churn = Churn(make, flows=flows)
    churn.run(events)  # tables of whatever kind have their size
    before = churn.run(events)
    assert churn.run(events) - before < GROWTH_MAX


def dns(number: int) -> dict[str, Any]:
    return {"ports": [{"name": "dns", "port": number, "protocol": "UDP"}]}


def test_of_udp_ports_that_went_the_newest_are_kept_until_flows_were_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(post_sync, "REMOVED_UDP_MAX", 3)
    machine = Machine()
    told = machine.plane.post_sync

    def numbers(ports: tuple[ServedPort, ...]) -> list[int]:
        return [port.port for port in ports]

    for number in range(1, 7):
        machine.put(service(**dns(number)))
        machine.sync()
    services, gone = told.take_udp(), told.take_removed_udp()
    assert numbers(gone) == [3, 4, 5]
    machine.put(service(**dns(4)))  # 6 goes, 4 comes back
    machine.sync()
    told.return_udp(services, gone)
    machine.plane.check()
    assert numbers(told.take_removed_udp()) == [3, 5, 6]
    told.return_udp((), gone)
    machine.put(service(**dns(5)))
    machine.sync()
    machine.plane.check()
    assert numbers(told.take_removed_udp()) == [3, 4]
    assert told.take_udp() == services
    machine.drop(service())
    machine.sync()
    told.return_udp(services, ())
    assert told.take_udp() == (), "a Service that is gone has no endpoints to compare flows with"


def test_trigger_times_do_not_pile_up_where_the_kernel_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(post_sync, "TRIGGERS_MAX", 3)
    told = post_sync.PostSync()
    for moment in range(10):
        told.note_triggers((float(moment), moment + 0.5))
        told.check()
    told.on_success(10.0)
    assert told.take_latencies() == (10.0, 9.5, 9.0)


async def test_a_proxy_that_leaves_flows_alone_keeps_none_to_look_at() -> None:
    machine = Machine()

    async def listen(*_: Any) -> Any:
        raise AssertionError("there are no health ports")

    side_effects = SideEffects(
        machine.plane,
        ProxyMetrics(),
        HostAccess(listen=listen),
        healthy=lambda: True,
        on_port_failed=lambda *_: None,
        clock=lambda: 0.0,
    )
    for number in (1, 2):
        machine.put(service(**dns(number)))
        machine.sync()
    await side_effects.on_written(full=False)
    assert (machine.plane.post_sync.take_udp(), machine.plane.post_sync.take_removed_udp()) == (
        (),
        (),
    )
    await side_effects.close()
