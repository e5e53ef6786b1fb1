"""The client is small: what it imports, and that a plain installation is enough."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from tests.client.conftest import Writer, endpoint
from tests.server.serving import Server

from sliceplane.kit.io.extras import EXTRA_OF

ROOT = Path(__file__).parents[2]

#: what the extras bring, and what a client loads with its first kubeconfig or request only
NOT_IMPORTED = {*EXTRA_OF, "aiohttp", "click", "yaml", "sqlite3", "email", "http"}
#: of our own packages
IMPORTED = {"api", "client", "consume", "kit", "watch"}

_LOADED = """
import json, sys
import {what}
print(json.dumps(sorted(sys.modules)))
"""


def imported(what: str) -> set[str]:
    """The modules that there are after importing *what* in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED.format(what=what)],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout))


def test_nothing_of_servers_is_imported() -> None:
    modules = imported("sliceplane.client")
    assert {name.partition(".")[0] for name in modules} & NOT_IMPORTED == set()
    ours = {name.split(".")[1] for name in modules if name.startswith("sliceplane.")}
    assert ours == IMPORTED
    assert {name for name in modules if name.startswith("sliceplane.kit.io.")} == {
        "sliceplane.kit.io.files",
        "sliceplane.kit.io.line_writer",
        "sliceplane.kit.io.log",
        "sliceplane.kit.io.log_lines",
    }


def test_importing_loads_fewer_modules_than_aiohttp() -> None:
    assert len(imported("sliceplane.client")) < len(imported("asyncio, aiohttp"))


def test_the_proxy_needs_its_extra_only() -> None:
    """``sliceplane[proxy]`` has neither the server's HTTP stack nor its cryptography."""
    hidden = (
        "import sys\n"
        "for name in ('uvicorn', 'uvloop', 'httptools', 'cryptography', 'jsonpatch'): "
        "sys.modules[name] = None\n"
        "import sliceplane.node.io.node_proxy, sliceplane.node.io.setup, "
        "sliceplane.node.io.healthz\n"
        "from sliceplane.cli.entry import main\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", hidden, "proxy", "--help"],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def outcome(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


_FOLLOW = """
import asyncio, sys
from sliceplane.client import EndpointView, connect

async def main():
    async with connect(sys.argv[1]) as client, EndpointView(client, "web", sys.argv[2], port="http") as view:
        await view.wait_ready(60)
        async for change in view:
            print(*sorted(each.authority for each in view.endpoints), flush=True)
            if not view.endpoints:
                return

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_plain_installation_follows_a_plane(
    live: Server, writer: Writer, tmp_path: Path
) -> None:
    """The wheel in a fresh environment without extras.  Needs a package index."""

    def install() -> Path:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "wheel",
                "-q",
                "--no-deps",
                "-w",
                str(tmp_path),
                str(ROOT),
            ],
            check=True,
        )
        (wheel,) = tmp_path.glob("sliceplane-*.whl")
        venv.create(tmp_path / "venv", with_pip=True)
        python = tmp_path / "venv" / "bin" / "python"
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", str(wheel)],
            check=True,
        )
        return python

    python = await asyncio.to_thread(install)
    listing = "import importlib.metadata as m; print(*[d.name.lower() for d in m.distributions()])"
    installed = (await asyncio.to_thread(outcome, python, "-c", listing)).stdout.split()
    assert {"aiohttp", "msgspec"} <= set(installed)
    assert not {"cryptography", "prometheus-client", "structlog", "uvicorn", "uvloop"} & set(
        installed
    )
    await writer.put("a", endpoint(1), endpoint(2))
    follower = await asyncio.create_subprocess_exec(
        python,
        "-c",
        _FOLLOW,
        str(live.plane.kubeconfig),
        writer.namespace,
        stdout=asyncio.subprocess.PIPE,
        cwd=tmp_path,
    )
    assert follower.stdout is not None
    assert await follower.stdout.readline() == b"10.1.0.1:8080 10.1.0.2:8080\n"
    await writer.put("a", endpoint(2))
    assert await follower.stdout.readline() == b"10.1.0.2:8080\n"
    await writer.delete("a")
    assert await follower.stdout.readline() == b"\n"
    assert await asyncio.wait_for(follower.wait(), 60) == 0
    program = await asyncio.to_thread(outcome, python.parent / "sliceplane", "up")
    assert "which the plain package does not bring" in program.stderr
    assert "sliceplane[server] @ file://" in program.stderr
    told = await asyncio.to_thread(outcome, python.parent / "kubectl-sliceplane", "--version")
    assert told.stdout.startswith("sliceplane, version ")
