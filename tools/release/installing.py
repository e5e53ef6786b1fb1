"""Wheels, installed where nothing else is, for each Python that is here, and run as a user runs
them.

The plain wheel in one environment, and the wheel with its extra ``server`` in another; what they
need comes from ``requirements.lock``, by hash. The one with the extra runs a plane, the plain one
the first program of docs/python-client.md against it, whose output must be what the guide says; the
agent's file makes a process an endpoint of it. ``uvx`` runs the wheel out of a local index, as
README says of a published one.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.environments import VERSIONS, interpreters
from tools.release import agent_file
from tools.release.running import DIST, PIP, ROOT, START_S, VERSION, WORK, run

GUIDE: Final = ROOT / "docs" / "python-client.md"


def environment(python: str, folder: Path, wheels: Path, *wanted: str) -> Path:
    """The folder of its programs.  All packages come from *wheels*, which were fetched by hash."""
    run(python, "-m", "venv", folder)
    run(folder / "bin" / "python", *PIP, "install", "--no-index", "--find-links", wheels, *wanted)
    return folder / "bin"


@contextmanager
def plane(program: tuple[str | Path, ...], folder: Path) -> Iterator[dict[str, str]]:
    """Runs ``up`` of *program* on a free port.  The value is the environment with which clients
    find it.
    """
    command = (*program, "up", "--secure-port", "0", "--data-dir", folder)
    log = (folder.parent / "up.log").open("w+")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
        if not line.startswith("ready "):
            log.seek(0)
            sys.exit(f"release: sliceplane up printed {line!r}\n{log.read()}")
        print(f"      up: {line}")
        yield {
            **os.environ,
            "KUBECONFIG": line.partition("kubeconfig=")[2],
            "PYTHONUNBUFFERED": "1",
        }
    finally:
        process.terminate()
        process.communicate(timeout=START_S)
        log.close()


_FILL = """
import asyncio, json, sys
from sliceplane.client import EndpointSlices, Namespaces, connect

def endpoint(number, zone):
    pod = {"kind": "Pod", "name": f"web-{number}", "namespace": "shop"}
    return {"addresses": [f"10.1.0.{number}"], "zone": zone, "conditions": {"ready": True}, "targetRef": pod}

async def main():
    endpoints = [endpoint(1, "east"), endpoint(2, "west")]
    body = {"metadata": {"name": "a", "labels": {"kubernetes.io/service-name": "web"}}, "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints}
    async with connect() as client:
        if sys.argv[1] == "two":
            await client.create(Namespaces, "", json.dumps({"metadata": {"name": "shop"}}).encode())
            await client.create(EndpointSlices, "shop", json.dumps(body).encode())
        else:
            left = json.dumps({"endpoints": endpoints[1:]}).encode()
            await client.patch(EndpointSlices, "shop", "a", left, patch_type="merge")

asyncio.run(main())
"""


def follow(plain: Path, env: Mapping[str, str]) -> None:
    """The guide's first program against a plane that fills, and then loses an endpoint."""
    text = GUIDE.read_text()
    example = re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert example is not None, f"{GUIDE} has no program"
    wanted = text[example.end() :].split("```")[1].strip().splitlines()
    run(plain / "python", "-c", _FILL, "two", env=env)
    program = subprocess.Popen(
        (plain / "python", "-c", example[1]), stdout=subprocess.PIPE, text=True, env=env
    )
    assert program.stdout is not None
    try:
        printed = [program.stdout.readline().strip() for _ in wanted[:-1]]
        run(plain / "python", "-c", _FILL, "one", env=env)
        printed.append(program.stdout.readline().strip())
    finally:
        program.terminate()
        program.communicate(timeout=START_S)
    if printed != wanted:
        sys.exit(f"release: the guide's first program printed {printed}, not {wanted}")
    print("      the guide's first program:", *printed, sep="\n        ")


def _one_python(version: str, python: str, scratch: Path) -> None:
    """Plain and with its server, in environments that have nothing else."""
    (wheel,) = DIST.glob("*.whl")
    wheels = scratch / "wheels"
    run(python, "-m", "venv", scratch / "fetch")
    fetch = (scratch / "fetch" / "bin" / "python", *PIP, "download", "--only-binary", ":all:")
    run(*fetch, "--require-hashes", "-r", "requirements.lock", "-d", wheels)
    plain = environment(python, scratch / "plain", wheels, str(wheel))
    listing = json.loads(run(plain / "python", *PIP[:-1], "list", "--format", "json"))
    print(f"Python {version}: pip install {wheel.name}")
    print(
        "     ",
        " ".join(
            f"{package['name']} {package['version']}"
            for package in listing
            if package["name"] != "pip"
        ),
    )
    for words in (
        ("sliceplane", "--version"),
        ("kubectl-sliceplane", "--version"),
        ("sliceplane", "--help"),
    ):
        first, *rest = run(plain / words[0], *words[1:], cwd=scratch).splitlines()
        print(
            f"      {' '.join(words)}: {first}" + (f" ... {len(rest)} lines more" if rest else "")
        )
    refused = subprocess.run(
        (plain / "sliceplane", "up"), capture_output=True, text=True, check=False, cwd=scratch
    )
    if refused.returncode != 1 or "sliceplane[server]" not in refused.stderr:
        sys.exit(f"release: the plain package's up says {refused.stderr}")
    print("      sliceplane up:", *refused.stderr.splitlines(), sep="\n        ")
    server = environment(python, scratch / "server", wheels, f"{wheel}[server]")
    with plane((server / "sliceplane",), scratch / "data") as env:
        follow(plain, env)
        if (DIST / agent_file.NAME).exists():
            become_endpoint(python, env, scratch)
    uvx(python, wheels, scratch)


def become_endpoint(python: str, env: Mapping[str, str], scratch: Path) -> None:
    """Starts a process with the agent's file, and waits until its endpoint passes its check."""
    agent = (python, "-I", "-S", str(DIST / agent_file.NAME))
    state = {
        **env,
        "XDG_STATE_HOME": str(scratch / "state"),
        "XDG_RUNTIME_DIR": str(scratch / "state"),
    }
    (scratch / "state").mkdir(exist_ok=True)
    address, port = _free_place()
    child = (python, "-m", "http.server", str(port), "--bind", address)
    flags = ("--name", "one", "--port", f"http={port}", "--http", "/", "--create-service")
    command = (*agent, "run", "outside", *flags, "--", *child)
    with (scratch / "agent.log").open("w+") as log:
        process = subprocess.Popen(command, env=state, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_S
            listed = ""
            while "passing" not in listed:
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    sys.exit(
                        f"release: {agent_file.NAME} has no endpoint that passes: "
                        f"{listed}\n{log.read()}"
                    )
                # It ends with 1 as long as an endpoint is not well.
                done = subprocess.run(
                    (*agent, "list"), env=state, capture_output=True, text=True, check=False
                )
                listed = done.stdout or done.stderr
        finally:
            process.terminate()
            process.wait(START_S)
    print("     ", *listed.splitlines()[-1:], f"({agent_file.NAME})")


def _free_place() -> tuple[str, int]:
    """An address of this machine that is not loopback, which no endpoint may be on, and a port that
    is free there.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
        towards.connect(("192.0.2.1", 9))  # sends nothing
        address = towards.getsockname()[0]
    with socket.socket() as free:
        free.bind((address, 0))
        return address, free.getsockname()[1]


def uvx(python: str, wheels: Path, scratch: Path) -> None:
    """README's first line for a published version, from an index of files: the plane becomes
    ready.
    """
    uv = WORK / "uv" / "bin" / "uv"
    if not uv.exists():
        run(sys.executable, "-m", "venv", uv.parents[1])
    run(
        uv.with_name("python"),
        *PIP,
        "install",
        "--require-hashes",
        "-r",
        "requirements-install.lock",
    )
    index = ("--offline", "--no-index", "--find-links", wheels, "--find-links", DIST, "--no-cache")
    program = (
        uv,
        "tool",
        "run",
        *index,
        "--python",
        python,
        "--from",
        "sliceplane[server]",
        "sliceplane",
    )
    printed = run(*program, "--version").strip()
    assert printed == f"sliceplane, version {VERSION}", printed
    print(f"      uvx --from 'sliceplane[server]' sliceplane --version: {printed}")
    with plane(program, scratch / "uvx"):
        pass


def try_out(scratch: Path) -> None:
    here = interpreters()
    for version, python in here.items():
        folder = scratch / version
        folder.mkdir()
        _one_python(version, python, folder)
    if missing := [version for version in VERSIONS if version not in here]:
        print(f"      not tried, since not on this machine: Python {', '.join(missing)}")
