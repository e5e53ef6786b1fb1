"""The commands that only read, at a managed cluster of 5,000 Nodes and 50,000 slices: time, peak
memory and requests of each.

The API server is ours behind ``tools.managed_api``, which counts; a command is a process of its own.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final, NamedTuple

from benchmarks.harness import Result, main, note
from benchmarks.tools.cluster import populate
from benchmarks.tools.managed_api import ManagedApi, release
from benchmarks.tools.managed_cluster import Size, objects
from benchmarks.tools.process import PlaneProcess, child_environment, scratch

LARGE: Final = Size(nodes=5000, namespaces=100, services=10_000, slices=5, pods=2)
SMALL: Final = Size(nodes=20, namespaces=4, services=20, slices=2, pods=2)
#: Kubernetes 1.31, in the middle of the releases that providers support
RELEASE: Final = 31
#: requests in any second
RATE_MAX: Final = 20
MEMORY_MIB_MAX: Final = 1024
SECONDS_MAX: Final = 120.0
#: between two looks at the memory of a command
LOOK_S: Final = 0.01


def commands(size: Size) -> dict[str, tuple[str, ...]]:
    """The arguments of each command; names of objects are those of the first Service."""
    namespace, service = size.service(0)
    pod, node = size.pod(0, 0), size.node(0)
    of = ("-n", namespace)
    return {
        "check": ("check",),
        "check -n": ("check", *of),
        "status": ("status",),
        "lint": ("lint",),
        "lint -n": ("lint", *of),
        "explain service": ("explain", "service", service, *of),
        "explain pod": ("explain", "pod", pod, *of),
        "explain node": ("explain", "node", node),
        "explain zone": ("explain", "zone", "zone-a"),
        "trace": ("trace", "--from", f"node/{node}", "--to", service, *of),
        "trace --via xds": ("trace", "--via", "xds", "--client", node, "--to", service, *of),
        "drift": ("drift",),
        "timeline": ("timeline", "service", service, *of),
        "what-if": ("what-if", service, "--set", "replicas=12", *of),
        "endpoints audit": ("endpoints", "audit", "--second-look", "0s"),
        "guard status": ("guard", "status"),
        "agent list -A": ("agent", "list", "-A"),
        "dns query": ("dns", "query", f"{service}.{namespace}", "--why"),
        "drain pod --dry-run": ("drain", "pod", pod, "--dry-run", *of),
        "drain node --dry-run": ("drain", "node", node, "--dry-run"),
        "adopt --dry-run": ("adopt", "service", service, "--dry-run", *of),
    }


class Run(NamedTuple):
    """``most``: requests in the busiest second."""

    exit_code: int
    seconds: float
    mib: float
    requests: int
    most: int
    output: str


@contextmanager
def managed(folder: Path, size: Size) -> Iterator[PlaneProcess]:
    """An API server of ours with the objects of *size*, without controllers."""
    data = folder / "data"
    asyncio.run(populate(data, objects(size, time.time())))
    with PlaneProcess(folder, "--data-dir", str(data), command="apiserver") as plane:
        yield plane


def measured(api: ManagedApi, kubeconfig: str, words: tuple[str, ...]) -> Run:
    """Runs one command in a process of its own."""
    api.requests.clear()
    command = [sys.executable, "-m", "sliceplane", *words, "--kubeconfig", kubeconfig]
    began = time.monotonic()
    with TemporaryFile("w+") as output:
        child = subprocess.Popen(
            command, env=child_environment(), stdout=output, stderr=subprocess.STDOUT
        )
        mib = 0.0
        while child.poll() is None:
            mib = max(mib, _peak_mib(child.pid))
            time.sleep(LOOK_S)
        seconds = time.monotonic() - began
        output.seek(0)
        said = output.read()
    return Run(child.returncode, seconds, mib, len(api.requests), api.most_within(1.0), said)


def _peak_mib(pid: int) -> float:
    """The most that the process had in memory so far; 0: it has ended.  ``getrusage`` would count
    the memory of the parent, whose copy a child begins as.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def run(small: bool) -> list[Result]:
    size = SMALL if small else LARGE
    label = f"{size.nodes:,} Nodes, {size.all_slices:,} slices"
    results: list[Result] = []
    with (
        scratch() as folder,
        managed(Path(folder), size) as plane,
        ManagedApi(plane.kubeconfig, release(RELEASE)) as api,
    ):
        kubeconfig = api.kubeconfig(Path(folder))
        for name, words in commands(size).items():
            seen = measured(api, kubeconfig, words)
            if seen.exit_code not in (0, 1, 2) or "Traceback" in seen.output:
                raise RuntimeError(f"{name}: exit code {seen.exit_code}: {seen.output[-2000:]}")
            if seen.exit_code == 2:
                note(f"{name}: cannot tell: {seen.output.strip().splitlines()[0]}")
            figures = (
                ("time", seen.seconds, "s", SECONDS_MAX),
                ("memory", seen.mib, "MiB", MEMORY_MIB_MAX),
                ("requests", seen.requests, "requests", None),
                ("busiest second", seen.most, "requests", RATE_MAX),
            )
            results += [
                Result(name=f"{name}: {what}", size=label, value=value, unit=unit, budget=budget)
                for what, value, unit, budget in figures
            ]
    return results


if __name__ == "__main__":
    main(run)
