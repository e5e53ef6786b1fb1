"""kill -9 at any moment: every acknowledged write is there at the next start, and nothing is
written for nothing.

A writer thread sends creates, updates and deletes and notes each acknowledgement; the plane is
killed while it does, started again on the same data, and asked for everything that was
acknowledged.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import ssl
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running import Plane, spawn, stop
from tests.figures import tell
from tests.waiting import until

COLLECTION = "/api/v1/namespaces/default/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
WRITERS = 4


class Api:
    """One HTTPS connection with the admin's credentials."""

    def __init__(self, plane: Plane) -> None:
        token = Path(plane.kubeconfig).with_name("tokens.csv").read_text().partition(",")[0]
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        context = ssl._create_unverified_context()
        host, _, port = plane.url.removeprefix("https://").rpartition(":")
        self._connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=60)

    def call(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, object]]:
        data = None if body is None else json.dumps(body)
        self._connection.request(method, path, data, self._headers)
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def close(self) -> None:
        self._connection.close()


@dataclass
class Ledger:
    """What was acknowledged: name -> value, ``None`` for a delete.  ``unsure``: sent and not
    answered.
    """

    acknowledged: dict[str, str | None] = field(default_factory=dict)
    unsure: dict[str, set[str | None]] = field(default_factory=dict)
    writes: int = 0


def write_until_killed(plane: Plane, writer: int, round_: int, ledger: Ledger) -> None:
    rng = random.Random(f"{writer}/{round_}")
    api = Api(plane)
    try:
        for number in range(1_000_000):
            name = f"w{writer}-{rng.randrange(20)}"
            value: str | None = f"{round_}-{number}"
            current = ledger.acknowledged.get(name)
            body = {"metadata": {"name": name}, "data": {"value": value}}
            if current is None:
                method, path = "POST", COLLECTION
            elif rng.random() < 0.3:
                method, path, body, value = "DELETE", f"{COLLECTION}/{name}", {}, None
            else:
                method, path = "PUT", f"{COLLECTION}/{name}"
            ledger.unsure[name] = {value}
            status, answer = api.call(method, path, body)
            assert status in (200, 201), f"{method} {path}: {status} {answer}"
            ledger.acknowledged[name] = value
            del ledger.unsure[name]
            ledger.writes += 1
    except (OSError, http.client.HTTPException):
        return  # killed; the last write stays in doubt
    finally:
        api.close()


def verify(plane: Plane, ledgers: list[Ledger]) -> None:
    api = Api(plane)
    status, listed = api.call("GET", COLLECTION)
    assert status == 200, listed
    found = {
        item["metadata"]["name"]: item["data"]["value"]
        for item in listed["items"]
        if item["metadata"]["name"][0] == "w"
    }  # type: ignore[attr-defined]
    api.close()
    for ledger in ledgers:
        for name, doubts in ledger.unsure.items():
            # An unanswered write may or may not have happened; from now on what is there is the
            # truth.
            assert found.get(name) in doubts | {ledger.acknowledged.get(name)}, (
                f"{name}: {found.get(name)}"
            )
            ledger.acknowledged[name] = found.get(name)
        ledger.unsure.clear()
        for name, value in ledger.acknowledged.items():
            assert found.get(name) == value, (
                f"{name}: acknowledged {value!r}, found {found.get(name)!r}"
            )


def kill_loop(folder: Path, kills: int) -> int:
    """Number of acknowledged writes; raises if one was lost."""
    rng = random.Random(kills)
    data_dir = str(folder / "data")
    ledgers = [Ledger() for _ in range(WRITERS)]
    for round_ in range(kills):
        plane = spawn(folder, data_dir=data_dir)
        verify(plane, ledgers)
        threads = [
            threading.Thread(target=write_until_killed, args=(plane, writer, round_, ledger))
            for writer, ledger in enumerate(ledgers)
        ]
        for thread in threads:
            thread.start()
        before, more = sum(ledger.writes for ledger in ledgers), rng.randrange(15, 100)
        until(
            lambda before=before, more=more: (
                sum(ledger.writes for ledger in ledgers) >= before + more
            )
        )
        os.kill(plane.process.pid, signal.SIGKILL)
        for thread in threads:
            thread.join()
        plane.process.communicate()
    plane = spawn(folder, data_dir=data_dir)
    verify(plane, ledgers)
    assert stop(plane) == 0
    return sum(ledger.writes for ledger in ledgers)


def test_no_acknowledged_write_is_lost(tmp_path: Path) -> None:
    assert kill_loop(tmp_path, kills=3) > 30


@pytest.mark.slow
def test_no_acknowledged_write_is_lost_in_a_thousand_kills(tmp_path: Path) -> None:
    writes = kill_loop(tmp_path, kills=1000)
    tell(f"1,000 kills of a plane, {writes:,} acknowledged writes, 0 lost")


def test_a_restart_writes_nothing(tmp_path: Path) -> None:
    """Controllers converge with no needless write: after kill -9 at rest the revision does not
    move.
    """
    flags = ("--emulate", "--emulate-nodes", "2", "--zones", "zone-a,zone-b")
    data_dir = str(tmp_path / "data")
    plane = spawn(tmp_path, *flags, data_dir=data_dir)
    api = Api(plane)
    service = {
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    }
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    deployment = {
        "metadata": {"name": "web"},
        "spec": {"replicas": 3, "selector": {"matchLabels": labels}, "template": template},
    }
    assert api.call("POST", "/api/v1/namespaces/default/services", service)[0] == 201
    assert api.call("POST", DEPLOYMENTS, deployment)[0] == 201

    def available() -> Any:
        shown: Any = api.call("GET", f"{DEPLOYMENTS}/web")[1]
        return shown.get("status", {}).get("availableReplicas")

    until(available, lambda count: count == 3)
    until(lambda: endpoints_of_web(api) == 3)
    before = settled_revision(api)
    api.close()
    os.kill(plane.process.pid, signal.SIGKILL)
    plane.process.communicate()

    plane = spawn(tmp_path, *flags, data_dir=data_dir)
    api = Api(plane)
    try:
        assert settled_revision(api) == before
        assert endpoints_of_web(api) == 3
    finally:
        api.close()
        assert stop(plane) == 0


def endpoints_of_web(api: Api) -> int:
    selector = "labelSelector=kubernetes.io%2Fservice-name%3Dweb"
    slices: Any = api.call(
        "GET", f"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?{selector}"
    )[1]
    return sum(len(item["endpoints"]) for item in slices["items"])


def settled_revision(api: Api) -> int:
    """The store's revision once it has not moved for a second."""
    last, since = -1, time.monotonic()
    while time.monotonic() < since + 1.0:
        listed = api.call("GET", "/api/v1/namespaces?limit=1")[1]
        current = int(listed["metadata"]["resourceVersion"])  # type: ignore[index]
        if current != last:
            last, since = current, time.monotonic()
        time.sleep(0.05)
    return last
