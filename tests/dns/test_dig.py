"""Real clients, dig and kdig, ask over both transports for names of the cluster and of others."""

from __future__ import annotations

import asyncio
import shutil
from os import environ

import pytest
from tests.dns.test_upstream import forwarding, others
from tests.dns.world import ZONE

from sliceplane.dns.io.upstream import ForwardFlags

OWN = f"demo.default.svc.{ZONE}"


async def run(program: str, port: int, *words: str) -> str:
    """What *program* prints; it asks again where a datagram is lost."""
    if shutil.which(program) is None and not environ.get("CI"):
        pytest.skip(f"{program} is missing: tools/install.sh dev installs it as root")
    command = (program, "@127.0.0.1", "-p", str(port), "+retry=5", "+time=10", *words)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


@pytest.mark.parametrize("program", ["dig", "kdig"])
async def test_real_clients_get_names_of_the_cluster_and_of_others(program: str) -> None:
    async with others(1) as (_, where), forwarding(ForwardFlags(forward=(where,))) as (_, port):
        for transport in ("+notcp", "+tcp"):
            assert await run(program, port, transport, "+short", OWN) == "10.96.0.7\n"
            assert await run(program, port, transport, "+short", "www.example.org") == "192.0.2.1\n"
            external = await run(program, port, transport, "+short", f"out.default.svc.{ZONE}")
            assert external == "www.example.org.\n192.0.2.1\n"
        # what UDP does not take comes over TCP, which the client does by itself
        assert len((await run(program, port, "+short", "large.example.org")).split()) == 100
        assert "NXDOMAIN" in await run(program, port, f"none.default.svc.{ZONE}")
        assert "NXDOMAIN" in await run(program, port, "a.invalid")
        assert await run(program, port, "+short", "localhost", "AAAA") == "::1\n"
        assert "RFC8482" in await run(program, port, "+short", "www.example.org", "ANY")
