"""``sliceplane drift`` beside a real server, with Leases as node proxies write them: exit codes,
and versions of the past.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.running import ROOT, Plane, running_plane
from tests.e2e.test_kill9 import Api
from tests.waiting import until

from sliceplane.api.codec import decode
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.scheme import EndpointSlices
from sliceplane.consume.progress import Progress
from sliceplane.consume.selections import ALL
from sliceplane.watch.cache import Change, Mark

SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
NODE = "node-a"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    folder = tmp_path_factory.mktemp("drift")
    with running_plane(folder) as plane:
        yield plane


def drift(plane: Plane, *flags: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "sliceplane", "drift", "-o", "json", *flags],
        env={**plane.environment, "PYTHONPATH": str(ROOT / "src"), "KUBECONFIG": plane.kubeconfig},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {"error": done.stderr}


def make_slice(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"]}],
    }


def listing(api: Api) -> tuple[str, list[EndpointSlice]]:
    _, answer = api.call("GET", SLICES)
    items: Any = answer["items"]
    metadata: Any = answer["metadata"]
    return metadata["resourceVersion"], [
        decode(json.dumps(item).encode(), EndpointSlice) for item in items
    ]


def report(api: Api, version: str, slices: list[EndpointSlice]) -> None:
    """What the proxy of NODE writes whose cache holds *slices* at *version*."""
    progress = Progress(NODE, ("IPv4",))
    for item in slices:
        progress.on_change(Change(EndpointSlices.key, None, item), ALL, 0.0)
    progress.on_mark(EndpointSlices.key, ALL, Mark(EndpointSlices.key, version))
    progress.on_idle("IPv4")
    body = json.loads(progress.take_report(time.time()))
    api.call("DELETE", f"{LEASES}/{progress.name}", {})
    status, answer = api.call("POST", LEASES, body)
    assert status == 201, answer


def test_from_nothing_to_a_node_that_lost_an_event(plane: Plane) -> None:
    api = Api(plane)
    try:
        assert drift(plane)[0] == 2, "no proxy reports here"
        for name in ("web-1", "web-2"):
            assert api.call("POST", SLICES, make_slice(name))[0] == 201
        version, slices = until(lambda: listing(api), lambda found: len(found[1]) >= 2)
        report(api, version, slices)
        code, answer = drift(plane)
        (row,) = [row for row in answer["nodes"] if row["node"] == NODE]
        assert (row["state"], row["cache"], answer["notLookedAt"]) == ("in step", "equal", [])
        assert (answer["findings"], code) == ([], 0), "there is no Node, so no name is wrong"
        assert api.call("POST", "/api/v1/nodes", {"metadata": {"name": f"other-{NODE}"}})[0] == 201
        assert [finding["code"] for finding in drift(plane)[1]["findings"]] == ["N7"], (
            "no Node has that name"
        )
        assert api.call("DELETE", f"/api/v1/nodes/other-{NODE}", {})[0] == 200
        assert api.call("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})[0] == 201
        assert drift(plane)[0] == 0

        # A slice that came since: the node is compared at its own version, which the server still
        # knows.
        assert api.call("POST", SLICES, make_slice("web-3"))[0] == 201
        code, answer = drift(plane)
        (row,) = answer["nodes"]
        assert (row["cache"], row["objectsBehind"]) == ("equal", 1)
        # Which of the two depends on how long this machine took to look.
        assert (row["state"], code) in {("catching up", 2), ("behind", 1)}

        # One that it never heard of, although it says it is further.
        version, _ = listing(api)
        report(api, version, slices)
        code, answer = drift(plane)
        (finding,) = answer["findings"]
        assert (finding["code"], code) == ("N4", 1)
        assert answer["notLookedAt"] == [f"{NODE}: its proxy's pages (its address is not known)"]
    finally:
        api.close()
