"""Health: names, forms, exclusions, and what a stop looks like."""

from __future__ import annotations

import threading

import pytest
from tests.server.serving import Server, run_plane
from tests.server.surface import Case, check

from sliceplane.server.io.plane import PlaneConfig
from sliceplane.watch.io.service import ServiceContext

TEXT = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
LIVE = "[+]ping ok\n[+]log ok\n[+]etcd ok\n"
READY = f"{LIVE}[+]informer-sync ok\n[+]shutdown ok\nreadyz check passed\n"
WARNED = 'warn: some health checks cannot be excluded: no matches for "aa","zz"\n'

CASES = [
    *(
        Case("B1 ok", "GET", f"/{name}", 200, "ok", headers=TEXT)
        for name in ("healthz", "livez", "readyz")
    ),
    Case("B1 verbose", "GET", "/livez?verbose", 200, f"{LIVE}livez check passed\n"),
    Case(
        "B1 verbose, any value", "GET", "/healthz?verbose=0", 200, f"{LIVE}healthz check passed\n"
    ),
    Case("B1 order of readyz", "GET", "/readyz?verbose=1", 200, READY),
    Case(
        "B1 exclude",
        "GET",
        "/livez?verbose&exclude=log",
        200,
        "[+]ping ok\n[+]log excluded: ok\n[+]etcd ok\n",
    ),
    Case("B1 exclude quietly", "GET", "/livez?exclude=log&exclude=etcd", 200, "ok"),
    Case(
        "B1 exclude unknown",
        "GET",
        "/livez?verbose&exclude=zz&exclude=aa",
        200,
        f"{LIVE}{WARNED}livez check passed",
    ),
    *(
        Case("B1 single", "GET", path, 200, "ok", headers=TEXT)
        for path in (
            "/livez/ping",
            "/livez/etcd",
            "/healthz/log",
            "/readyz/informer-sync",
            "/readyz/shutdown",
        )
    ),
    *(
        Case("B1 no such", "GET", path, 404, "404 page not found\n")
        for path in ("/livez/shutdown", "/livez/nope")
    ),
    *(
        Case("B1 slash", "GET", path, 404, "404 page not found\n")
        for path in ("/livez/", "/readyz/", "/healthz/")
    ),
    Case("B1 HEAD", "HEAD", "/readyz", 200),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_health(server: Server, case: Case) -> None:
    reply = check(server, case)
    if case.told == "ok":
        assert reply.body == b"ok"


def test_the_results_of_health_checks_are_a_page_of_their_own(server: Server) -> None:
    """Upstream's page of service level indicators."""
    before = _results(server)
    check(server, Case("B1", "GET", "/readyz", 200, "ok"))
    after = _results(server)
    series = 'kubernetes_healthchecks_total{name="etcd",status="success",type="readyz"}'
    assert after[series] == before.get(series, 0) + 1
    assert after['kubernetes_healthcheck{name="etcd",type="readyz"}'] == 1
    assert {name.split("_")[0] for name in after} == {"kubernetes", "process"}


def _results(server: Server) -> dict[str, float]:
    lines = server.request("GET", "/metrics/slis").body.decode().splitlines()
    rows = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


class Probing:
    """A service that takes its time to stop, and looks at the plane meanwhile."""

    name = "probing"

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, str]] = []
        self.server: Server

    async def start(self, context: ServiceContext) -> None:
        """The test gives it the server."""

    async def drain(self) -> None:
        """Nobody drains here."""

    async def stop(self) -> None:
        import asyncio

        for path in ("/livez", "/readyz", "/readyz/shutdown"):
            reply = await asyncio.to_thread(self.server.get, path)
            self.seen.append((path, reply.code, reply.body.decode()))


def test_a_plane_that_stops_is_alive_and_not_ready() -> None:
    probing = Probing()
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0), services=(probing,))
    probing.server = Server(plane)
    end()
    assert threading.active_count() >= 1
    assert probing.seen == [
        ("/livez", 200, "ok"),
        (
            "/readyz",
            500,
            (
                f"{LIVE}[+]informer-sync ok\n[-]shutdown failed: reason withheld\nreadyz check "
                "failed\n\n"
            ),
        ),
        ("/readyz/shutdown", 500, "internal server error: the process is stopping\n"),
    ]
