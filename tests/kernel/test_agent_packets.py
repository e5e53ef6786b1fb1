"""What an agent promises, seen from a client of the Service: real programs, each machine a network
namespace.

``PYTHONPATH=src:. python -m tests.kernel.test_agent_packets`` prints the figures; the outages last
60 s, and 600 s with ``--long``.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.kernel.agents import VIP, AgentTown, agent_town
from tests.kernel.load import load
from tests.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(600)]

BOTH: Final = {"vm1", "vm2"}
#: requests a second that tell until when a client was led to what is gone
PROBES: Final = 200.0


@pytest.fixture
def town(tmp_path: Path) -> Any:
    with agent_town(tmp_path) as made:
        yield made


async def until_seen(look: Callable[[], Any], wanted: Any) -> float:
    """Seconds."""
    began = time.monotonic()
    await eventually(
        lambda: asyncio.to_thread(look), lambda seen: seen == wanted, ignoring=(RuntimeError,)
    )
    return time.monotonic() - began


async def _serve(town: AgentTown) -> None:
    for machine in town.machines:
        machine.start()
    await until_seen(town.ready, BOTH)
    await until_seen(town.led_to, BOTH)


async def terminate_under_load(
    town: AgentTown, rate: float, drained: str = "all 1 nodes have followed"
) -> dict[str, Any]:
    """One agent gets SIGTERM while clients ask, a second's requests before and after."""
    first = town.machines[0]
    async with load(town.node, VIP, rate) as client:
        await client.more(round(rate))
        began = time.monotonic()
        first.end()
        code = await first.ended()
        took_s = time.monotonic() - began
        await client.more(round(rate))
        tally = await client.tally()
    assert code == 0, first.said
    tally.assert_none_failed()
    assert set(tally.answers) == BOTH, "both were asked"
    assert any(drained in line for line in first.said), first.said
    return {
        "sent": tally.sent,
        "a second": round(tally.rate),
        "failed": len(tally.errors),
        "s": round(took_s, 2),
    }


async def test_no_request_fails_when_an_agent_ends(town: AgentTown) -> None:
    await _serve(town)
    await terminate_under_load(town, 100)
    assert set(await asyncio.to_thread(town.slices)) == {"web-vm2-4"}, "nothing is left of it"
    second = town.machines[1]
    os.kill(second.server(), signal.SIGKILL)
    assert await second.ended() == 128 + signal.SIGKILL
    assert await asyncio.to_thread(town.slices) == {}


@pytest.mark.slow
async def test_no_request_fails_at_a_thousand_a_second(town: AgentTown) -> None:
    await _serve(town)
    await terminate_under_load(town, 1000)


async def kill_process(town: AgentTown) -> dict[str, float]:
    """A server dies; the agent says so, and ends. Seconds until the slice says so, and until the
    last request of a client that was led there had failed.
    """
    first = town.machines[0]
    async with load(town.node, VIP, PROBES) as client:
        await client.more(25)
        began = time.time()
        os.kill(first.server(), signal.SIGKILL)
        ready_s = await until_seen(town.ready, {"vm2"})
        assert await first.ended() == 128 + signal.SIGKILL
        await until_seen(town.led_to, {"vm2"})
        tally = await client.tally()
    packets_s = max((at - began for at, _ in tally.errors), default=0.0)
    return {"ready": round(ready_s, 3), "packets": round(packets_s, 3)}


async def kill_agent(town: AgentTown) -> dict[str, float]:
    """An agent dies, and its server goes on: nobody renews its Lease."""
    first = town.machines[0]
    server = first.server()
    began = time.monotonic()
    first.end(signal.SIGKILL)
    await until_seen(town.ready, {"vm2"})
    took = {"ready": time.monotonic() - began}
    await until_seen(town.led_to, {"vm2"})
    took["packets"] = time.monotonic() - began
    os.kill(server, signal.SIGTERM)
    await first.ended()
    return took


async def come_back(town: AgentTown) -> float:
    began = time.monotonic()
    town.machines[0].start()
    await until_seen(town.ready, BOTH)
    await until_seen(town.led_to, BOTH)
    return time.monotonic() - began


@pytest.mark.slow
async def test_what_was_killed_is_not_ready_on_any_node(town: AgentTown) -> None:
    await _serve(town)
    await kill_process(town)
    await come_back(town)
    await kill_agent(town)
    await come_back(town)


def versions(town: AgentTown) -> dict[str, str]:
    """By name of the slice: equal if no one wrote."""
    return {name: found["metadata"]["resourceVersion"] for name, found in town.slices().items()}


async def renewed(town: AgentTown, times: int) -> None:
    """Each agent renewed its Lease so often from now on."""

    def version() -> list[str]:
        return [
            town.kubectl(
                "get",
                "lease",
                f"agent-{machine.name}",
                "-o",
                "jsonpath={.metadata.resourceVersion}",
            )
            for machine in town.machines
        ]

    for _ in range(times):
        seen = await asyncio.to_thread(version)
        await eventually(
            lambda: asyncio.to_thread(version),
            lambda now, seen=seen: all(new != old for new, old in zip(now, seen, strict=True)),
        )


async def api_away(town: AgentTown, seconds: float) -> dict[str, Any]:
    """Server and judge stop and come back; clients ask on."""
    before = await asyncio.to_thread(versions, town)
    async with load(town.node, VIP, 50) as client:
        await asyncio.to_thread(town.ground.stop)
        await asyncio.sleep(seconds)
        await client.more(25)
        await asyncio.to_thread(town.ground.start)
        await renewed(town, 5)
        await client.more(25)
        tally = await client.tally()
    tally.assert_none_failed()
    assert set(tally.answers) == BOTH
    assert await asyncio.to_thread(versions, town) == before, "no slice was written"
    return {"away": seconds, "sent": tally.sent, "failed": len(tally.errors)}


async def clocks_moved(town: AgentTown) -> int:
    """An hour forth and back, first of an agent alone, then of the judge.  Gives how often a clock
    was moved.
    """
    before = await asyncio.to_thread(versions, town)
    moves = 0
    for clock in (town.machines[0].clock, town.ground.clock):
        assert clock is not None, "the town has clocks"
        for seconds in (3600, -3600, 0):
            clock.move(seconds)
            await renewed(town, 4)
            moves += 1
    assert await asyncio.to_thread(versions, town) == before, "no slice was written"
    assert await asyncio.to_thread(town.led_to) == BOTH
    return moves


@pytest.mark.slow
async def test_a_minute_without_the_api_writes_no_slice(town: AgentTown) -> None:
    await _serve(town)
    await api_away(town, 60.0)


@pytest.mark.slow
@pytest.mark.skipif(
    not shutil.which("faketime") and not os.environ.get("CI"), reason="needs faketime"
)
async def test_a_clock_that_is_set_by_an_hour_writes_no_slice(tmp_path: Path) -> None:
    with agent_town(tmp_path, clocks=True) as town:
        await _serve(town)
        await clocks_moved(town)
        await kill_process(town)


async def main(outages: tuple[float, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder, agent_town(Path(folder)) as town:
        await _serve(town)
        for rate in (100, 1000, 1000):
            print(
                "SIGTERM of an agent under",
                rate,
                "a second:",
                await terminate_under_load(town, rate),
                flush=True,
            )
            print("  back, s:", round(await come_back(town), 2), flush=True)
        for _ in range(3):
            print("kill -9 of the process, s:", await kill_process(town), flush=True)
            await come_back(town)
            print("kill -9 of the agent, s:", await kill_agent(town), flush=True)
            await come_back(town)
        for seconds in outages:
            print("API away:", await api_away(town, seconds), flush=True)
    with tempfile.TemporaryDirectory() as folder, agent_town(Path(folder), clocks=True) as town:
        await _serve(town)
        print(
            "clocks moved by an hour, and no slice written:", await clocks_moved(town), flush=True
        )


if __name__ == "__main__":
    asyncio.run(main((60.0, 600.0) if "--long" in sys.argv else (60.0,)))
