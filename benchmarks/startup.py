"""``sliceplane up``: from the start of the process to the first answered request.

*First* start makes the CA, the certificates and the database; a *later* start finds them.
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
BUDGET_S = 1.0


def start_once(data_dir: Path) -> float:
    """Seconds until ``GET /readyz`` was answered with 200 over a TLS connection."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "sliceplane", "up", "--data-dir", str(data_dir), "--secure-port", "0"],
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


def run(small: bool = False) -> list[Result]:
    runs = 1 if small else RUNS
    first, later = [], []
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
