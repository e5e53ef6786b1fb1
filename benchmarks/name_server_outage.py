"""The API server dies under a name server that is asked all the time, is away for a minute, and
comes back with a list of 100,000 endpoints (kubernetes/kubernetes#139117: DNS servers that ran out
of memory at such a moment).

Every answer is compared with what was there throughout. Counted are wrong ones (SERVFAIL, NXDOMAIN,
fewer addresses), questions without an answer, the name server's memory at its peak over what it had
before, and the longest wait.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dns.message

from benchmarks.harness import Result, main, note
from benchmarks.tools.cluster import Wanted, populate
from benchmarks.tools.process import PlaneProcess, Process, scratch
from sliceplane.api.codec import encode
from sliceplane.api.scheme import ConfigMaps, EndpointSlices, Services
from sliceplane.server.io.config import PlaneConfig
from sliceplane.server.io.plane import ServerPlane

SLICE_ENDPOINTS = 100
SLICES_PER_SERVICE = 10
RSS_BUDGET = 1.3
_PORT = {"name": "http", "port": 80, "protocol": "TCP"}


def objects(services: int) -> Iterator[Wanted]:
    for number in range(services):
        spec = {"ports": [_PORT], **({"clusterIP": "None"} if number % 2 else {})}
        yield Services, "default", {"metadata": {"name": f"s{number}"}, "spec": spec}, None
    for number in range(services):
        for at in range(SLICES_PER_SERVICE):
            yield EndpointSlices, "default", slice_document(number, at), None


def slice_document(service: int, at: int) -> dict[str, Any]:
    first = (service * SLICES_PER_SERVICE + at) * SLICE_ENDPOINTS
    endpoints = [
        {
            "addresses": [f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"],
            "conditions": {"ready": True},
        }
        for number in range(first, first + SLICE_ENDPOINTS)
    ]
    return {
        "metadata": {
            "name": f"s{service}-{at}",
            "labels": {"kubernetes.io/service-name": f"s{service}"},
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [_PORT],
    }


class Asking(threading.Thread):
    """Asks for one Service after the other, until told to stop.  A question that is not answered is
    asked again.
    """

    def __init__(self, port: int, services: int) -> None:
        super().__init__(daemon=True)
        names = [f"s{number}.default.svc.cluster.local" for number in range(services)]
        self._packets = [
            dns.message.make_query(name, "A", id=0, use_edns=0).to_wire() for name in names
        ]
        self._port = port
        self.stop = threading.Event()
        self.outcomes: Counter[str] = Counter()
        self.longest_s = 0.0

    def run(self) -> None:
        wanted: dict[int, int] = {}
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.settimeout(2.0)
            own.connect(("127.0.0.1", self._port))
            number = 0
            while not self.stop.is_set():
                number += 1
                place = number % len(self._packets)
                mark = (number % 65536).to_bytes(2, "big")
                began = time.monotonic()
                try:
                    own.send(mark + self._packets[place][2:])
                    while (answer := own.recv(4096))[:2] != mark:
                        pass
                except OSError:
                    self.outcomes["unanswered"] += 1
                    continue
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                count = int.from_bytes(answer[6:8], "big")
                right = not answer[3] & 15 and 0 < count == wanted.setdefault(place, count)
                self.outcomes["right" if right else "wrong"] += 1
                if number % 16 == 0:
                    time.sleep(0.005)


def staleness_s(metrics_port: int) -> float:
    """Of the name server's oldest cache, as its page says; -1: it does not say."""
    page = fetched(metrics_port)
    found = re.search(rb"^sliceplane_dns_staleness_seconds (\S+)", page, re.MULTILINE)
    return float(found[1]) if found else -1.0


def fetched(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10) as own:
        own.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        return b"".join(iter(lambda: own.recv(65536), b""))


def free_port() -> int:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])


async def forget(data_dir: Path) -> None:
    """The history that the name server has seen: it must list anew, and cannot go on where it
    was.
    """
    async with ServerPlane(
        PlaneConfig(data_dir=str(data_dir), secure_port=0, history_keep_s=0.2)
    ) as plane:
        client = plane.client("benchmark")
        for number in range(8):
            await client.create(
                ConfigMaps, "default", encode({"metadata": {"name": f"later-{number}"}})
            )
            await asyncio.sleep(0.1)


def run(small: bool) -> list[Result]:
    services, away_s, settle_s = (4, 0.0, 0.1) if small else (100, 60.0, 2.0)
    with scratch() as name:
        folder = Path(name)
        asyncio.run(populate(folder / "data", objects(services)))
        secure, metrics = free_port(), free_port()
        flags = ("--secure-port", str(secure))
        plane = PlaneProcess(folder, *flags, command="apiserver")
        server = Process(
            *(
                sys.executable,
                "-m",
                "sliceplane",
                "dns",
                "--listen",
                "127.0.0.1:0",
                "--forward",
                "none",
            ),
            *(
                "--kubeconfig",
                str(plane.kubeconfig),
                "--metrics-bind-address",
                f"127.0.0.1:{metrics}",
            ),
            log=folder / "dns.log",
        )
        try:
            with server:
                port = int(server.line().rpartition(":")[2])
                asking = Asking(port, services)
                asking.start()
                time.sleep(settle_s)
                before = server.rss_mib(peak=True)
                plane.process.kill()
                plane.stop()
                until = time.monotonic() + away_s
                asyncio.run(forget(folder / "data"))
                time.sleep(max(0.0, until - time.monotonic()))
                away = asking.outcomes.copy()
                plane = PlaneProcess(folder, *flags, command="apiserver")
                back = time.monotonic()
                while not 0 <= staleness_s(metrics) < time.monotonic() - back:
                    time.sleep(0.2)
                    if time.monotonic() - back > 300:
                        raise RuntimeError("the name server did not hear of the API server again")
                time.sleep(settle_s)
                asking.stop.set()
                asking.join()
                peak = server.rss_mib(peak=True)
                log = (folder / "dns.log").read_text()
                if not re.search("endpointslices.*too old resource version", log):
                    raise RuntimeError(f"the name server did not list anew: {log[-2000:]}")
        finally:
            plane.stop()
        note(
            f"{before:.0f} MiB before, {peak:.0f} MiB at the peak; away: {dict(away)}; in all: "
            f"{dict(asking.outcomes)}"
        )
        note(f"longest wait {asking.longest_s * 1000:.0f} ms")
    size = f"{services * SLICES_PER_SERVICE * SLICE_ENDPOINTS:,} endpoints, API away {away_s:.0f} s"
    return [
        Result(
            name="wrong answers while the API is away and lists anew",
            size=size,
            value=float(asking.outcomes["wrong"]),
            unit="",
            budget=0.0,
        ),
        Result(
            name="memory peak over before",
            size=size,
            value=peak / before,
            unit="x",
            budget=RSS_BUDGET,
        ),
        Result(
            name="longest wait for an answer", size=size, value=asking.longest_s * 1000, unit="ms"
        ),
    ]


if __name__ == "__main__":
    main(run)
