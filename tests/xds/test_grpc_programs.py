"""Python's gRPC as it is calls ``xds:///`` names of Services: no mesh, no CRD, nothing of ours in
the program.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.figures import tell
from tests.waiting import eventually
from tests.xds.conftest import (
    Served,
    Shop,
    delta_client,
    endpoint,
    grpc_program,
    host_address,
)
from tests.xds.streams.clients import node

from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EventsV1
from sliceplane.client import EndpointSlices, Services
from sliceplane.xds.names import CLUSTER

#: rolling updates of the long test
UPDATES = 50

pytestmark = pytest.mark.asyncio


async def test_a_program_sees_endpoints_come_and_go_and_an_unknown_name_fails_and_recovers(
    tmp_path: Path, served: Served, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    target = f"xds:///web.{shop.namespace}:80"
    at = host_address()
    async with grpc_program(tmp_path, served.wish(node_id="program")) as program:
        first, second = [await program.ask("backend", at) for _ in range(2)]
        told = await program.ask("call", target, 1)
        assert told["answered"] == {}
        assert told["s"] < 10.0, (
            "a name that leads nowhere is not waited for: gRPC would do so for 15 s"
        )
        (listeners,) = next(report for report in served.server.reports() if report.types).types
        why = f"there is no Service in the namespace {shop.namespace}"
        assert listeners.absent == {f"web.{shop.namespace}:80": why}
        line = next(
            line
            for line in capsys.readouterr().err.splitlines()
            if "a name that resolves to nothing" in line
        )
        assert all(
            part in line
            for part in ("level=info", "client=program", f"web.{shop.namespace}:80", why)
        ), line

        await shop.service()
        await shop.slice("web-1", first, endpoint(at, "one"))
        await eventually(lambda: program.answered(target), lambda ports: ports == {first})
        await shop.slice("web-2", second, endpoint(at, "two"))
        await eventually(lambda: program.answered(target), lambda ports: ports == {first, second})
        await shop.delete(EndpointSlices, "web-1")
        await eventually(lambda: program.answered(target), lambda ports: ports == {second})
        # The last one terminates, and serves still.
        going = {"ready": False, "serving": True, "terminating": True}
        await shop.slice("web-2", second, endpoint(at, "two", conditions=going))
        assert await program.answered(target) == {second}
        await shop.delete(Services, "web")
        await eventually(lambda: program.ask("call", target, 1), lambda told: not told["answered"])
        report = next(report for report in served.server.reports() if report.types)
        assert (report.kind, report.id) == ("grpc", "program")


async def test_what_a_client_refuses_and_what_is_not_heeded_are_events_of_the_service(
    served: Served, shop: Shop
) -> None:
    await shop.service(annotations={"sliceplane.dev/xds-lb-policy": "fastest"})
    key = f"{shop.namespace}/web:http"
    await eventually(lambda: served.server.revision_of_clients, lambda revision: revision >= 1)
    async with delta_client(served.port) as picky:
        await picky.say(CLUSTER, subscribe=(key,), of_node=node(node_id="picky"))
        response = await picky.next()
        while key not in response.resources:  # the Service had not been read
            await picky.say(CLUSTER, nonce=response.nonce)
            response = await picky.next()
        await picky.say(CLUSTER, nonce=response.nonce, error="no such policy")

        async def reasons() -> list[str]:
            page = await shop.client.list(Selection(EventsV1, shop.namespace))
            return [event["reason"] for event in map(json.loads, page.items)]

        await eventually(reasons, lambda seen: {"XdsRefused", "XdsNotHeeded"} <= set(seen))
        (report,) = [report for report in served.server.reports() if report.id == "picky"]
        assert (report.types[0].refused, report.types[0].refusal) == (key, "no such policy")
        told = {family.name: family.samples for family in served.server.metrics.families()}
        assert [sample.value for sample in told["sliceplane_xds_refusals_total"]] == [1.0]


@pytest.mark.slow
@pytest.mark.timeout(0)
async def test_no_call_of_500_a_second_fails_in_rolling_updates(
    tmp_path: Path, served: Served, shop: Shop
) -> None:
    target = f"xds:///web.{shop.namespace}:80"
    at = host_address()
    await shop.service()
    async with grpc_program(tmp_path, served.wish(node_id="roller")) as program:
        ports = []
        for number in range(4):
            ports.append(await program.ask("backend", at))
            await shop.slice(f"web-0-{number}", ports[-1], endpoint(at, f"pod-0-{number}"))
        await eventually(lambda: program.answered(target), lambda seen: seen == set(ports))
        await program.ask("load", target, 500)

        async def answers(port: int) -> bool:
            return str(port) in (await program.ask("so_far"))["answered"]

        async def is_left(port: int) -> bool:
            """A hundred calls went elsewhere: the program has taken what it has accepted."""
            before = (await program.ask("so_far"))["answered"]
            wanted = sum(before.values()) + 100
            after = await eventually(
                lambda: program.ask("so_far"), lambda told: sum(told["answered"].values()) > wanted
            )
            return bool(after["answered"].get(str(port)) == before.get(str(port)))

        for update in range(1, UPDATES + 1):
            for number, old in enumerate(ports):
                new = ports[number] = await program.ask("backend", at)
                await shop.slice(
                    f"web-{update}-{number}", new, endpoint(at, f"pod-{update}-{number}")
                )
                await eventually(lambda port=new: answers(port))  # type: ignore[misc]
                before = f"{update - 1}-{number}"
                going = {"ready": False, "serving": True, "terminating": True}
                await shop.slice(
                    f"web-{before}", old, endpoint(at, f"pod-{before}", conditions=going)
                )
                await eventually(lambda port=old: is_left(port))  # type: ignore[misc]
                await program.ask("stop", old)
                await shop.delete(EndpointSlices, f"web-{before}")
        told = await program.ask("end")
        assert told["failed"] == {}
        assert sum(told["answered"].values()) > 100
        tell(
            f"0 of {sum(told['answered'].values()):,} calls failed in {UPDATES} rolling updates "
            "of 4 Pods"
        )
