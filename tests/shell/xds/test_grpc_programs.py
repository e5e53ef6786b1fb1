"""Python's gRPC as it is calls ``xds:///`` names of Services: no mesh, no CRD, nothing of ours in the program."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.shell.xds.conftest import Served, Shop, endpoint, grpc_program, host_address
from tests.waiting import eventually

from sliceplane.client import EndpointSlices, Services

pytestmark = pytest.mark.asyncio


async def test_a_program_sees_endpoints_come_and_go_and_an_unknown_name_fails_and_recovers(
    tmp_path: Path, served: Served, shop: Shop
) -> None:
    target = f"xds:///web.{shop.namespace}:80"
    at = host_address()
    async with grpc_program(tmp_path, served.wish(node_id="program")) as program:
        first, second = [await program.ask("backend", at) for _ in range(2)]
        told = await program.ask("call", target, 1)
        assert told["answered"] == {}
        assert told["s"] < 10.0, "a name that leads nowhere is not waited for: gRPC would do so for 15 s"

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
