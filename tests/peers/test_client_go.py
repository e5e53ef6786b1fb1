"""A real client-go program against a running plane: its caches must equal the server's lists, whatever happens.

Followers (``follow``) hold the informers of a node proxy over protobuf and over JSON, one process with WatchList on and
one with it off.  A writer (``churn``) changes slices through protobuf bodies.  Followers are held with SIGSTOP while
the server changes objects, compacts and restarts on the same port and data.  What the server sent meanwhile may wait
in socket buffers, so this does not prove that a follower had to begin anew.  ServiceCIDRs need not synchronise.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running import Plane, spawn, stop

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

SOURCE = Path(__file__).with_name("clientgo")
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
NOT_HEADLESS = "!service.kubernetes.io/headless"
HISTORY_KEEP_S = 2
SETTLE_S = 60.0


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> str:
    go = shutil.which("go")
    if go is None:
        assert "CI" not in os.environ, "CI must have Go: the client-go peer cannot be built"
        pytest.skip("no Go toolchain: the client-go peer cannot be built")
    binary = tmp_path_factory.mktemp("peer") / "clientgo"
    done = subprocess.run(
        [go, "build", "-trimpath", "-o", str(binary), "."], cwd=SOURCE, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return str(binary)


@dataclass(frozen=True)
class Follower:
    process: subprocess.Popen[str]

    def ask(self, line: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def follower(peer: str, plane: Plane, *, watch_list: bool) -> Follower:
    environment = {**os.environ, "KUBE_FEATURE_WatchListClient": str(watch_list).lower()}
    return Follower(
        subprocess.Popen(
            [peer, "follow", plane.kubeconfig, "node-1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
    )


def get(plane: Plane, path: str, **query: str) -> Any:
    """What the server says in JSON to its administrator, by way of kubectl, unparsed."""
    return json.loads(
        subprocess.run(
            [plane.kubectl, "get", "--raw", f"{path}?{urllib.parse.urlencode(query)}"],
            env=plane.environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )


def versions(listed: Any) -> str:
    lines = sorted(
        (f"{meta.get('namespace', '')}/{meta['name']}", meta["resourceVersion"])
        for meta in (item["metadata"] for item in listed["items"])
    )
    return hashlib.sha256("".join(f"{name}@{revision}\n" for name, revision in lines).encode()).hexdigest()


def churn(peer: str, plane: Plane, seed: int, slices: int, changes: int) -> None:
    command = [peer, "churn", plane.kubeconfig, str(seed), str(slices), str(changes)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def settle(plane: Plane, followers: list[Follower]) -> dict[str, Any]:
    """Wait until every cache holds what the server lists; the facts of the first follower."""
    listed = get(plane, SLICES, labelSelector=NOT_HEADLESS)
    wanted = versions(listed)
    deadline = time.monotonic() + SETTLE_S
    while True:
        facts = [one.ask("facts") for one in followers]
        slices = [one[f"{wire} endpointslices"] for one in facts for wire in ("protobuf", "json")]
        synced = all(each["synced"] for one in facts for key, each in one.items() if "servicecidrs" not in key)
        if synced and all(one["versions"] == wanted for one in slices):
            assert {one["size"] for one in slices} == {len(listed["items"])}
            assert len({one["contents"] for one in slices}) == 1, "the wire formats differ in content"
            return facts[0]
        assert time.monotonic() < deadline, (len(listed["items"]), wanted, facts)
        time.sleep(0.2)


def compacted_past(plane: Plane, revision: str) -> None:
    deadline = time.monotonic() + SETTLE_S
    path = f"{SLICES}?resourceVersion={revision}&resourceVersionMatch=Exact"
    while True:
        done = subprocess.run(
            [plane.kubectl, "get", "--raw", path], env=plane.environment, check=False, capture_output=True, text=True
        )
        if done.returncode != 0:
            assert "too old" in done.stderr or "Expired" in done.stderr or "provided" in done.stderr, done.stderr
            return
        assert time.monotonic() < deadline, "history was not compacted"
        time.sleep(0.5)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[list[Plane]]:
    """The running plane, as the only entry: ``restart`` replaces it."""
    planes = [spawn(tmp_path, "--history-keep", f"{HISTORY_KEEP_S}s")]
    yield planes
    stop(planes[0])


def restart(server: list[Plane], folder: Path) -> None:
    port = str(urllib.parse.urlsplit(server[0].url).port)
    assert stop(server[0]) == 0
    server[0] = spawn(folder, "--history-keep", f"{HISTORY_KEEP_S}s", "--secure-port", port)


@pytest.mark.parametrize(("slices", "changes"), [(1_000, 500), (10_000, 5_000)])
def test_caches_equal_lists(peer: str, server: list[Plane], tmp_path: Path, slices: int, changes: int) -> None:
    churn(peer, server[0], 1, slices, 0)
    followers = [follower(peer, server[0], watch_list=True), follower(peer, server[0], watch_list=False)]
    try:
        settle(server[0], followers)
        fifth = changes // 5
        churn(peer, server[0], 2, slices, fifth)
        settle(server[0], followers)
        restart(server, tmp_path)
        churn(peer, server[0], 3, slices, fifth)
        settle(server[0], followers)
        for seed in (4, 5):
            before = get(server[0], SLICES, limit="1")["metadata"]["resourceVersion"]
            for one in followers:
                one.process.send_signal(signal.SIGSTOP)
            churn(peer, server[0], seed, slices, fifth)
            compacted_past(server[0], before)
            restart(server, tmp_path)
            for one in followers:
                one.process.send_signal(signal.SIGCONT)
            settle(server[0], followers)
        churn(peer, server[0], 6, slices, changes - 4 * fifth)
        settle(server[0], followers)
        _requests_are_a_proxys(followers)
    finally:
        for one in followers:
            one.process.send_signal(signal.SIGCONT)
            one.process.kill()
            one.process.communicate()


def _requests_are_a_proxys(followers: list[Follower]) -> None:
    """The streaming client streamed, in its own wire format."""
    for watch_list, one in zip((True, False), followers, strict=True):
        for wire, made in one.ask("requests").items():
            mine = [each for each in made if each["path"] == SLICES]
            assert {each["labelSelector"] for each in mine} == {NOT_HEADLESS}
            first = [each for each in mine if (each["sendInitialEvents"] == "true") or not each["watch"]]
            good = [each for each in first if each["code"] == 200]
            assert all(each["watch"] == watch_list for each in good), good
            assert sum(each["count"] for each in good) >= 1, mine
            for each in good:
                assert each["contentType"].startswith(each["accept"].partition(",")[0]), (wire, each)
