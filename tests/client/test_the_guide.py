"""The guide's programs compile, and its first one prints what the guide says it prints."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import sys
from pathlib import Path

from tests.client.conftest import Writer, endpoint
from tests.server.serving import Server

from sliceplane.api import codec
from sliceplane.client import HttpClient, Namespaces

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "python-client.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


def test_programs_compile() -> None:
    assert len(PROGRAMS) > 4
    for program in PROGRAMS:
        compile(program, "python-client.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


async def test_the_first_program_prints_what_the_guide_says(
    live: Server, client: HttpClient
) -> None:
    printed = GUIDE.split(PROGRAMS[0])[1].split("```")[2].strip().splitlines()
    await client.create(Namespaces, "", codec.encode({"metadata": {"name": "shop"}}))
    writer = Writer(client, "shop")
    await writer.put("a", endpoint(1, zone="east"), endpoint(2, zone="west"))
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAMS[0],
        stdout=asyncio.subprocess.PIPE,
        env={
            **os.environ,
            "KUBECONFIG": str(live.plane.kubeconfig),
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONUNBUFFERED": "1",
        },
    )
    assert program.stdout is not None
    async with asyncio.timeout(120):
        lines = [(await program.stdout.readline()).decode().strip() for _ in range(2)]

        await writer.put("a", endpoint(2, zone="west"))
        lines.append((await program.stdout.readline()).decode().strip())
        program.terminate()
        await program.wait()
    assert lines == printed
