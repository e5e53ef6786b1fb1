"""gRPC for Go talks to the xDS server's port: many streams on one connection, messages of many
sizes, refusals.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.peers import programs
from tests.xds.echo import Answering, Echo, plain, secure

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1500)]

MODULE = Path(__file__).with_name("grpcgo")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    return programs.build(MODULE, tmp_path_factory.mktemp("programs"))


async def test_it_hears_what_it_says(program: str) -> None:
    echo = Echo()
    async with plain(echo) as (_, port):
        assert await asyncio.to_thread(programs.run, program, f"127.0.0.1:{port}") == "ok\n"
    assert echo.told.count("half closed") == 20


async def test_over_tls_with_a_token(program: str, tmp_path: Path) -> None:
    echo = Echo()
    async with secure(echo, Answering(), tmp_path) as (_, port, pki):
        said = await asyncio.to_thread(
            programs.run, program, f"localhost:{port}", str(pki.ca_file), "token"
        )
        assert said == "ok\n"
    assert {call.headers["authorization"] for call in echo.calls} == {"Bearer token"}
