"""From the start to the first answered request: ``sliceplane up``, and a plane of
``sliceplane.testing``.

*First* start of ``up`` makes the CA, the certificates and the database; a *later* start finds them.
The first plane of a test's process loads the modules, too; what every other one costs is what a
suite of tests pays for each test.
"""

from __future__ import annotations

import http.client
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Result, main
from benchmarks.tools.process import child_environment

RUNS = 10
BUDGET_S = 0.3
#: of a plane for tests, once the modules are loaded
TEST_BUDGET_S = 0.2

_PLANES = """
import http.client, ssl, sys, time
began = time.perf_counter()
from sliceplane.testing import Plane
for _ in range(int(sys.argv[1])):
    with Plane() as plane:
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(plane.url.removeprefix("https://"), context=context, timeout=10)
        connection.request("GET", "/readyz")
        assert connection.getresponse().read() == b"ok"
        print(time.perf_counter() - began, flush=True)
        connection.close()
    began = time.perf_counter()
"""


def start_once(data_dir: Path) -> float:
    """Seconds until ``GET /readyz`` was answered with 200 over a TLS connection."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "sliceplane",
            "up",
            "--data-dir",
            str(data_dir),
            "--secure-port",
            "0",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=child_environment(),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready https://"), f"sliceplane up said {line!r}"
        host, _, port = line.split()[1].removeprefix("https://").rpartition(":")
        # Trust is not what is measured here; the handshake is.
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=10)
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, f"{response.status} {body!r}"
        connection.close()
        return time.perf_counter() - started
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def planes_of_tests(count: int) -> list[float]:
    """Seconds of each of *count* planes of one process, one after another."""
    done = subprocess.run(
        [sys.executable, "-c", _PLANES, str(count)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=child_environment(),
    )
    return [float(line) for line in done.stdout.split()]


def run(small: bool = False) -> list[Result]:
    return [*_processes(1 if small else RUNS), *_planes(1 if small else RUNS)]


def _planes(runs: int) -> list[Result]:
    name = "plane for tests to first answered request"
    first = [planes_of_tests(1)[0] for _ in range(runs)]
    starts = planes_of_tests(runs + 1)[1:]
    return [
        Result(
            name=name,
            size=f"first of a process, median of {runs}",
            unit="s",
            value=statistics.median(first),
        ),
        Result(
            name=name,
            size=f"another, median of {runs}",
            unit="s",
            budget=TEST_BUDGET_S,
            value=statistics.median(starts),
        ),
    ]


def _processes(runs: int) -> list[Result]:
    first = []
    later = []
    with tempfile.TemporaryDirectory(prefix="sliceplane-bench-") as folder:
        for index in range(runs + 1):
            data_dir = Path(folder) / str(index)
            first.append(start_once(data_dir))
            later.append(start_once(data_dir))
    return [
        Result(
            name="up to first answered request",
            size=f"{kind} start, median of {runs}",
            unit="s",
            budget=BUDGET_S,
            value=statistics.median(times[1:]),
        )
        for kind, times in (("first", first), ("later", later))
    ]


if __name__ == "__main__":
    main(run)
