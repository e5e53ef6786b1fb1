"""``explain --probe``: what a connection from here makes certain, and connections themselves."""

from __future__ import annotations

import asyncio
import socket

from tests.diagnose.explain.faults.ports import UNDECLARED_REFUSES
from tests.diagnose.explain.world import add_pod, healthy, write_slice

from sliceplane.api.requests import PortProbe
from sliceplane.diagnose.explain.case import TARGETS_MAX
from sliceplane.watch.io.base import connect


def test_a_refusal_makes_a_port_that_nobody_declares_certain() -> None:
    world = healthy()
    UNDECLARED_REFUSES(world)
    finding = world.explain().findings[0]
    assert (finding.code, finding.certainty) == ("T1", "certain")
    world.unopened = None
    assert world.explain().findings[0].certainty == "likely"


def test_refusals_are_certain_where_another_endpoint_shows_that_the_way_leads_there() -> None:
    world = healthy()
    first, *others = (f"{pod['status']['podIP']}:8080" for pod in world.all("Pod"))
    world.unopened = {first: "refused"}
    assert world.explain().findings[0].certainty == "certain"
    world.unopened = dict.fromkeys((first, *others), "refused")
    assert world.explain().findings[0].certainty == "likely"


def test_where_nothing_was_tried_nothing_is_said_of_it() -> None:
    world = healthy()
    assert "connections from here" not in world.explain().well
    world.unopened = {}
    assert "connections from here" in world.explain().well


def test_of_many_endpoints_some_are_tried() -> None:
    world = healthy(0)
    for number in range(40):
        add_pod(world, f"cart-{number}", "shop", "node-0", {"app": "cart"})
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    write_slice(world, "cart")
    world.unopened = {f"{pod['status']['podIP']}:8080": "refused" for pod in world.all("Pod")}
    finding = next(entry for entry in world.explain().findings if entry.code == "T6")
    assert finding.sentence.startswith(f"{TARGETS_MAX} of {TARGETS_MAX} ready endpoints refused")


async def test_connections_of_loopback() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await connect(PortProbe("127.0.0.1", port)) == "open"
        # It listens on one address of loopback alone: another refuses, as a Pod's own address
        # would.
        assert await connect(PortProbe("127.0.0.2", port)) == "refused"


async def test_who_does_not_answer_is_waited_for_a_second() -> None:
    """The backlog of a socket that accepts nothing is full after a few."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        target = PortProbe(*listening.getsockname())
        taken = [socket.create_connection(listening.getsockname()) for _ in range(1)]
        began = asyncio.get_running_loop().time()
        outcomes = await asyncio.gather(*(connect(target) for _ in range(4)))
        for connection in taken:
            connection.close()
    assert "silent" in outcomes
    assert asyncio.get_running_loop().time() - began < 60
