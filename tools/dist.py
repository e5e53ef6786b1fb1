"""Build the package as an index gets it, and try it as a person who installs it does.

    python tools/dist.py            # dist/: wheel and sdist, built twice, checked, installed, run

- Built from what is committed, never from what lies about; twice, in folders of other names under another umask and
  time zone, and the wheel once more out of the sdist: every time the same bytes (SOURCE_DATE_EPOCH is the commit's).
- ``requirements-dist.lock`` pins what builds and checks, with hashes; builds run without isolation and fetch nothing.
- ``twine check --strict`` reads what the index page will show.
- For each Python that is here: the plain wheel in an environment of its own, and the wheel with its extra ``server``.
  What they need comes from ``requirements.lock``, by hash.  The one with the extra runs a plane, the plain one the
  first program of docs/python-client.md against it; what that prints must be what the guide says.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import environments

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
TOOLS = ROOT / "build" / "dist"
GUIDE = ROOT / "docs" / "python-client.md"
_PIP = ("-m", "pip", "--disable-pip-version-check", "-q")
_START_S = 30


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """Its standard output; ends the program where it fails."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"dist: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def build(python: Path, folder: Path, env: Mapping[str, str]) -> Path:
    """Wheel and sdist of what is committed, in ``dist`` below *folder*."""
    source = folder / "source"
    source.mkdir(parents=True)
    archive = folder / "source.tar"
    run("git", "archive", "-o", archive, "HEAD")
    run("tar", "-xf", archive, "-C", source)
    run(python, "-m", "hatchling", "build", "-d", folder / "dist", cwd=source, env=env)
    return folder / "dist"


def build_twice(python: Path, scratch: Path) -> None:
    env = {**os.environ, "SOURCE_DATE_EPOCH": run("git", "log", "-1", "--format=%ct").strip()}
    first = build(python, scratch / "one", env)
    before = os.umask(0o077)
    try:
        again = build(python, scratch / "and-another-one", {**env, "TZ": "Pacific/Kiritimati"})
    finally:
        os.umask(before)
    (sdist,) = first.glob("*.tar.gz")
    run("tar", "-xf", sdist, "-C", scratch)
    unpacked = scratch / sdist.name.removesuffix(".tar.gz")
    offline = ("--no-index", "--no-deps", "--no-build-isolation")
    run(python, *_PIP, "wheel", *offline, "-w", scratch / "wheel", unpacked, env=env)
    if not digests(first) == digests(again) == {sdist.name: digests(first)[sdist.name], **digests(scratch / "wheel")}:
        sys.exit(f"dist: not the same twice: {digests(first)}, {digests(again)}, {digests(scratch / 'wheel')}")
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.copytree(first, DIST)


def environment(python: str, folder: Path, wheels: Path, *wanted: str) -> Path:
    """The folder of its programs.  Nothing comes from an index: *wheels* were fetched by hash."""
    run(python, "-m", "venv", folder)
    run(folder / "bin" / "python", *_PIP, "install", "--no-index", "--find-links", wheels, *wanted)
    return folder / "bin"


@contextmanager
def plane(programs: Path, folder: Path) -> Iterator[dict[str, str]]:
    """``sliceplane up`` on a free port; the variables with which clients find it."""
    command = (programs / "sliceplane", "up", "--secure-port", "0", "--data-dir", folder)
    log = (folder.parent / "up.log").open("w+")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
        if not line.startswith("ready "):
            log.seek(0)
            sys.exit(f"dist: sliceplane up said {line!r}\n{log.read()}")
        print(f"      up: {line}")
        yield {**os.environ, "KUBECONFIG": line.partition("kubeconfig=")[2], "PYTHONUNBUFFERED": "1"}
    finally:
        process.terminate()
        process.communicate(timeout=_START_S)
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
    program = subprocess.Popen((plain / "python", "-c", example[1]), stdout=subprocess.PIPE, text=True, env=env)
    assert program.stdout is not None
    try:
        printed = [program.stdout.readline().strip() for _ in wanted[:-1]]
        run(plain / "python", "-c", _FILL, "one", env=env)
        printed.append(program.stdout.readline().strip())
    finally:
        program.terminate()
        program.communicate(timeout=_START_S)
    if printed != wanted:
        sys.exit(f"dist: the guide's first program printed {printed}, not {wanted}")
    print("      the guide's first program:", *printed, sep="\n        ")


def try_out(version: str, python: str, scratch: Path) -> None:
    """Plain and with its server, in environments that have nothing else."""
    (wheel,) = DIST.glob("*.whl")
    wheels = scratch / "wheels"
    run(python, "-m", "venv", scratch / "fetch")
    fetch = (scratch / "fetch" / "bin" / "python", *_PIP, "download", "--only-binary", ":all:")
    run(*fetch, "--require-hashes", "-r", "requirements.lock", "-d", wheels)
    plain = environment(python, scratch / "plain", wheels, str(wheel))
    listing = json.loads(run(plain / "python", *_PIP[:-1], "list", "--format", "json"))
    print(f"Python {version}: pip install {wheel.name}")
    print(
        "     ", " ".join(f"{package['name']} {package['version']}" for package in listing if package["name"] != "pip")
    )
    for words in (("sliceplane", "--version"), ("kubectl-sliceplane", "--version"), ("sliceplane", "--help")):
        first, *rest = run(plain / words[0], *words[1:], cwd=scratch).splitlines()
        print(f"      {' '.join(words)}: {first}" + (f" ... {len(rest)} lines more" if rest else ""))
    refused = subprocess.run((plain / "sliceplane", "up"), capture_output=True, text=True, check=False, cwd=scratch)
    if refused.returncode != 1 or "sliceplane[server]" not in refused.stderr:
        sys.exit(f"dist: the plain package's up says {refused.stderr}")
    print("      sliceplane up:", *refused.stderr.splitlines(), sep="\n        ")
    server = environment(python, scratch / "server", wheels, f"{wheel}[server]")
    with plane(server, scratch / "data") as env:
        follow(plain, env)


def main() -> None:
    changed = run("git", "status", "--porcelain")
    if changed:
        print(f"dist: only what is committed is built; this is not:\n{changed}", file=sys.stderr)
    if not (TOOLS / "bin" / "python").exists():
        run(sys.executable, "-m", "venv", TOOLS)
    python = TOOLS / "bin" / "python"
    run(python, *_PIP, "install", "--require-hashes", "-r", "requirements-dist.lock")
    with tempfile.TemporaryDirectory(prefix="sliceplane-dist-") as folder:
        build_twice(python, Path(folder))
    print(run(python, "-m", "twine", "check", "--strict", *DIST.iterdir()).strip())
    for version, found in environments.interpreters().items():
        with tempfile.TemporaryDirectory(prefix="sliceplane-dist-") as folder:
            try_out(version, found, Path(folder))
    for name, digest in digests(DIST).items():
        print(f"{digest}  dist/{name}  ({(DIST / name).stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
