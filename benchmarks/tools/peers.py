"""Programs of ours that run upstream's own libraries, built with the machine's Go and kept between runs.

Without Go, or without a module proxy, there is no peer: the caller falls back on recorded figures and says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.harness import note

PEERS = Path(__file__).parent.parent / "peers"
BUILT = Path(__file__).parent.parent / "results" / "peers"
#: a cold module cache and a slow machine
BUILD_TIMEOUT_S = 900


def build(name: str, module: Path | None = None, package: str = ".") -> Path | None:
    """The program of a module, by default ``peers/<name>``; ``None``, after a note, if it cannot be built here."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        note(f"no Go on this machine: {name} is compared with recorded figures")
        return None
    program = BUILT / name
    program.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [go, "build", "-trimpath", "-ldflags=-s -w", "-o", str(program), package],
        cwd=module or PEERS / name,
        env={**os.environ, "CGO_ENABLED": "0"},  # and flags as the tests have them: Go's cache serves both
        check=False,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
    )
    if done.returncode:
        note(f"{name} does not build, so it is compared with recorded figures: {done.stderr.strip()[-400:]}")
        return None
    return program


def run(program: Path, *arguments: str, timeout_s: float = 600.0) -> list[dict[str, Any]]:
    """Its lines of JSON."""
    done = subprocess.run([str(program), *arguments], check=True, stdout=subprocess.PIPE, text=True, timeout=timeout_s)
    return [json.loads(line) for line in done.stdout.splitlines()]
