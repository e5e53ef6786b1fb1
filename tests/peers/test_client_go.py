"""A real client-go program against a running plane: its caches must equal the server's lists,
whatever happens.

Followers (``follow``) hold the informers of a node proxy over protobuf and over JSON, one process
with WatchList on and one with it off. A writer (``churn``) changes slices through protobuf bodies.

A restart in place keeps the history, so no follower may be told that its place in it is gone. Twice
followers are cut off: they are held with SIGSTOP while the server goes on at another port, where
objects change and the history is compacted past what they have seen, and comes back to the port
that they know. Each of their informers must then be told Expired once and begin anew once; a
visitor, connected to the other port all the time, must not be told at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running import Plane, ask, spawn, stop
from tests.peers.programs import build
from tests.waiting import until

pytestmark = pytest.mark.timeout(900)

SOURCE = Path(__file__).with_name("clientgo")
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
NOT_HEADLESS = "!service.kubernetes.io/headless"
#: what a node proxy follows: kind -> path and query of the server's list
FOLLOWED: dict[str, tuple[str, dict[str, str]]] = {
    "endpointslices": (SLICES, {"labelSelector": NOT_HEADLESS}),
    "nodes": ("/api/v1/nodes", {"fieldSelector": "metadata.name=node-1"}),
    "servicecidrs": ("/apis/networking.k8s.io/v1/servicecidrs", {}),
    "services": (
        "/api/v1/services",
        {
            "fieldSelector": "spec.clusterIP!=None",
            "labelSelector": "!service.kubernetes.io/service-proxy-name",
        },
    ),
}
WIRES = ("json", "protobuf")
#: client-go lists again, unasked, when a watch without events ends within its first second
WATCH_AGE_S = 1.2
LONG, SHORT = ("--history-keep", "10m"), ("--history-keep", "1s")
SETTLE_S = 60.0


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(SOURCE, tmp_path_factory.mktemp("peer"))


@dataclass(frozen=True)
class Follower:
    process: subprocess.Popen[str]
    watch_list: bool

    def ask(self, line: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def totals(self, what: str) -> dict[str, int]:
        """``begun``, ``expired`` or ``bytes`` of every informer, by wire format and kind."""
        told = self.ask("totals")
        return {
            f"{wire} {kind}": told[wire][FOLLOWED[kind][0]][what]
            for wire in WIRES
            for kind in FOLLOWED
        }

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()


def follow(peer: str, plane: Plane, *, watch_list: bool) -> Follower:
    environment = {**os.environ, "KUBE_FEATURE_WatchListClient": str(watch_list).lower()}
    command = [peer, "follow", plane.kubeconfig, "node-1"]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=null, text=True, env=environment
    )
    return Follower(process, watch_list)


@dataclass
class Server:
    """The plane that runs now; ``move`` replaces it by one with the same data."""

    folder: Path
    plane: Plane
    home: str
    peaks: list[int] = field(default_factory=list)

    def move(self, port: str, *flags: str) -> None:
        time.sleep(WATCH_AGE_S)
        self.end()
        self.plane = spawn(self.folder, *flags, "--secure-port", port)

    def end(self) -> None:
        status = Path(f"/proc/{self.plane.process.pid}/status").read_text()
        peak = re.search(r"VmHWM:\s*(\d+) kB", status)
        assert peak is not None, status
        self.peaks.append(int(peak[1]) // 1024)
        assert stop(self.plane) == 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    plane = spawn(tmp_path, *LONG)
    running = Server(tmp_path, plane, str(urllib.parse.urlsplit(plane.url).port))
    yield running
    stop(running.plane)


def get(plane: Plane, path: str, **query: str) -> Any:
    """What the server says in JSON to its administrator."""
    code, text = ask(plane, f"{path}?{urllib.parse.urlencode(query)}")
    assert code == 200, text
    return json.loads(text)


def versions(listed: Any) -> str:
    lines = sorted(
        (f"{meta.get('namespace', '')}/{meta['name']}", meta["resourceVersion"])
        for meta in (item["metadata"] for item in listed["items"])
    )
    return hashlib.sha256(
        "".join(f"{name}@{revision}\n" for name, revision in lines).encode()
    ).hexdigest()


def churn(peer: str, plane: Plane, seed: int, slices: int, changes: int) -> None:
    command = [peer, "churn", plane.kubeconfig, str(seed), str(slices), str(changes)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def settle(plane: Plane, followers: list[Follower]) -> None:
    """Wait until every cache holds what the server lists, the same in both wire formats."""
    lists = {kind: get(plane, path, **query) for kind, (path, query) in FOLLOWED.items()}
    wanted = {kind: (len(listed["items"]), versions(listed)) for kind, listed in lists.items()}

    def facts() -> list[dict[str, Any]]:
        told = [one.ask("facts") for one in followers]
        return [
            {kind: each[f"{wire} {kind}"] for kind in FOLLOWED} for each in told for wire in WIRES
        ]

    held = until(
        facts,
        lambda held: all(
            (one[kind]["size"], one[kind]["versions"]) == wanted[kind] and one[kind]["synced"]
            for one in held
            for kind in FOLLOWED
        ),
        within_s=SETTLE_S,
    )
    for kind in FOLLOWED:
        assert len({one[kind]["contents"] for one in held}) == 1, (
            f"the wire formats differ in {kind}"
        )


def compacted_past(plane: Plane, revision: str) -> None:
    query = {"resourceVersion": revision, "resourceVersionMatch": "Exact", "limit": "1"}
    path = f"{SLICES}?{urllib.parse.urlencode(query)}"
    code, text = until(lambda: ask(plane, path), lambda answer: answer[0] != 200, within_s=SETTLE_S)
    assert (code, json.loads(text)["reason"]) == (410, "Expired")


@pytest.mark.parametrize(
    ("slices", "changes"),
    [(300, 200), pytest.param(10_000, 5_000, marks=pytest.mark.peer)],
    ids=["small", "large"],
)
def test_caches_equal_lists(peer: str, server: Server, slices: int, changes: int) -> None:
    begin = time.monotonic()
    churn(peer, server.plane, 1, slices, 0)
    followers = [follow(peer, server.plane, watch_list=switch) for switch in (True, False)]
    try:
        settle(server.plane, followers)
        filled = time.monotonic()
        fifth = changes // 5
        churn(peer, server.plane, 2, slices, fifth)
        settle(server.plane, followers)
        server.move(server.home, *LONG)
        churn(peer, server.plane, 3, slices, fifth)
        settle(server.plane, followers)
        assert all(set(one.totals("expired").values()) == {0} for one in followers), (
            "history survives a restart"
        )
        for seed in (4, 5):
            _cut_off(peer, server, followers, seed, slices, fifth)
        churn(peer, server.plane, 6, slices, changes - 4 * fifth)
        settle(server.plane, followers)
        _requests_are_a_proxys(followers)
        _figures(server, followers, filled - begin, time.monotonic() - begin)
    finally:
        for one in followers:
            one.end()


def _cut_off(
    peer: str, server: Server, followers: list[Follower], seed: int, slices: int, changes: int
) -> None:
    """Followers miss more than the history keeps; exactly they are told so, once for each
    informer.
    """
    earlier = [(one.totals("expired"), one.totals("begun")) for one in followers]
    for one in followers:
        one.process.send_signal(signal.SIGSTOP)
    server.move("0", *SHORT)
    visitor = follow(peer, server.plane, watch_list=True)
    try:
        settle(server.plane, [visitor])
        # newer than anything that the followers can have been told before they stopped
        before = get(server.plane, SLICES, limit="1")["metadata"]["resourceVersion"]
        churn(peer, server.plane, seed, slices, changes)
        compacted_past(server.plane, before)
        settle(server.plane, [visitor])
        assert set(visitor.totals("expired").values()) == {0}, (
            "a stream that is read is not cut by compaction"
        )
        assert set(visitor.totals("begun").values()) == {1}
    finally:
        visitor.end()
    server.move(server.home, *LONG)
    for one in followers:
        one.process.send_signal(signal.SIGCONT)
    for one, (_, begun) in zip(followers, earlier, strict=True):  # nobody can go on without a list
        until(
            lambda one=one: one.totals("begun"),  # type: ignore[misc]
            lambda now, begun=begun: all(count > begun[name] for name, count in now.items()),  # type: ignore[misc]
            within_s=SETTLE_S,
        )
    settle(server.plane, followers)
    told = 0
    for one, (expired, _) in zip(followers, earlier, strict=True):
        now_expired = one.totals("expired")
        assert all(now_expired[name] - count in (0, 1) for name, count in expired.items()), (
            "told once is told"
        )
        told += sum(now_expired[name] - count for name, count in expired.items())
    # A client whose first request meets a connection that died under it lists at once, without
    # having asked.
    assert told >= len(followers) * len(WIRES) * len(FOLLOWED) * 3 // 4, (
        f"only {told} were told that they had Expired"
    )


def _requests_are_a_proxys(followers: list[Follower]) -> None:
    """Each asked in its own wire format, and the streaming ones began with a stream."""
    for one in followers:
        for wire, made in one.ask("requests").items():
            mine = [each for each in made if each["path"] == SLICES]
            assert {each["labelSelector"] for each in mine} == {NOT_HEADLESS}
            first = [
                each for each in mine if (each["sendInitialEvents"] == "true") or not each["watch"]
            ]
            good = [each for each in first if each["code"] == 200]
            assert all(each["watch"] == one.watch_list for each in good), good
            assert sum(each["count"] for each in good) >= 3, (
                "once at the start and once for each compaction"
            )
            for each in good:
                assert each["contentType"].startswith(each["accept"].partition(",")[0]), (
                    wire,
                    each,
                )


def _figures(server: Server, followers: list[Follower], filled_s: float, all_s: float) -> None:
    relists = sum(count - 1 for one in followers for count in one.totals("begun").values())
    expired = sum(count for one in followers for count in one.totals("expired").values())
    received = {"stream" if one.watch_list else "list": one.totals("bytes") for one in followers}
    mib = {
        f"{how} {name}": round(count / 2**20, 1)
        for how, each in received.items()
        for name, count in each.items()
    }
    shown = {name: size for name, size in mib.items() if "endpointslices" in name}
    print(
        f"\nfilled after {filled_s:.1f} s, all {all_s:.1f} s; {expired} times Expired, {relists} "
        "relists;"
    )
    print(f"received, MiB: {shown}; server's peak RSS at each of its ends, MiB: {server.peaks}")
