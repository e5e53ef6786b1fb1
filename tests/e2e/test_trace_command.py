"""``sliceplane trace`` beside a real server: Pods with hints, refusals, exit codes; and it writes
nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.running import ROOT, Plane, running_plane
from tests.e2e.test_kill9 import Api
from tests.waiting import until

CORE = "/api/v1/namespaces/default"
FLAGS = ("--emulate", "--emulate-nodes", "2", "--zones", "zone-a,zone-b")
WAIT_S = 90.0


def trace(plane: Plane, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sliceplane", "trace", *flags],
        env={**plane.environment, "PYTHONPATH": str(ROOT / "src"), "KUBECONFIG": plane.kubeconfig},
        capture_output=True,
        text=True,
        check=False,
    )


def post(api: Api, path: str, body: dict[str, Any]) -> dict[str, Any]:
    status, answer = api.call("POST", path, body)
    assert status == 201, answer
    return answer


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """Four Pods in two zones behind a Service that prefers the client's."""
    folder = tmp_path_factory.mktemp("trace")
    with running_plane(folder, *FLAGS, "--audit-log-path", str(folder / "audit.log")) as plane:
        api = Api(plane)
        template = {
            "metadata": {"labels": {"app": "api"}},
            "spec": {"containers": [{"name": "c", "image": "x"}]},
        }
        spec = {"replicas": 4, "selector": {"matchLabels": {"app": "api"}}, "template": template}
        post(
            api,
            "/apis/apps/v1/namespaces/default/deployments",
            {"metadata": {"name": "api"}, "spec": spec},
        )
        service = {
            "selector": {"app": "api"},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
            "trafficDistribution": "PreferSameZone",
        }
        post(api, f"{CORE}/services", {"metadata": {"name": "api"}, "spec": service})
        until(lambda: hinted(api), lambda count: count >= 4, within_s=WAIT_S)
        yield plane
        api.close()


def hinted(api: Api) -> int:
    _, found = api.call("GET", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices")
    items: Any = found["items"]
    rows = [
        row
        for item in items
        for row in item["endpoints"]
        if item["metadata"]["name"].startswith("api-")
    ]
    return sum(bool(row.get("hints")) and row["conditions"]["ready"] for row in rows)


def pods(plane: Plane) -> dict[str, str]:
    """address -> node."""
    api = Api(plane)
    _, found = api.call("GET", f"{CORE}/pods?labelSelector=app%3Dapi")
    api.close()
    items: Any = found["items"]
    return {item["status"]["podIP"]: item["spec"]["nodeName"] for item in items}


def test_a_pod_is_led_to_its_own_zone(plane: Plane) -> None:
    where = pods(plane)
    senders = {node: ip for ip, node in sorted(where.items())}
    assert len(senders) == 2
    for node, source in sorted(senders.items()):
        ran = trace(
            plane, "--from", source, "--to", "api", "-o", "json", "--cluster-cidr", "10.244.0.0/16"
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        answer = json.loads(ran.stdout)
        assert {each["address"] for each in answer["targets"]} == {
            ip for ip, on in where.items() if on == node
        }
        assert (answer["node"]["name"], answer["hints"]["zone"]) == (node, "honoured")
        assert [each["masquerade"] for each in answer["targets"]] == [
            each["address"] == source for each in answer["targets"]
        ]


def test_the_text_for_people(plane: Plane) -> None:
    source = min(pods(plane))
    ran = trace(plane, "--from", source, "--to", "api:http")
    assert ran.returncode == 0
    assert ran.stdout.startswith(
        "verdict     dnat: Service default/api port http leads to one of 2 endpoints, evenly\n"
    )
    assert "(trafficDistribution PreferSameZone)" in ran.stdout
    assert len(re.findall(r"^  1/2 ", ran.stdout, re.MULTILINE)) == 2
    assert len(re.findall(r"its hint names zone zone-[ab]$", ran.stdout, re.MULTILINE)) == 4
    assert "\x1b" not in ran.stdout


def test_a_client_of_xds_is_given_what_its_node_would_use(plane: Plane) -> None:
    where = pods(plane)
    for node in sorted(set(where.values())):
        ran = trace(
            plane, "--via", "xds", "--client", node, "--to", "xds:///api.default:80", "-o", "json"
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        answer = json.loads(ran.stdout)
        assert {each["address"] for each in answer["targets"]} == {
            ip for ip, on in where.items() if on == node
        }
        assert (answer["client"]["node"], answer["hints"]["zone"]) == (node, "honoured")
    for flags, sentence in (
        (
            ("--via", "xds", "--from", "10.0.0.1"),
            "Error: --via xds takes a --client, not --from or --node",
        ),
        (("--client", "node-1"), "Error: --client goes with --via xds"),
    ):
        ran = trace(plane, *flags, "--to", "api")
        assert (ran.returncode, sentence in ran.stderr) == (64, True)


def test_refused_is_1_and_no_answer_is_2(plane: Plane) -> None:
    source = min(pods(plane))
    ran = trace(plane, "--from", source, "--to", "10.96.0.1:443")
    assert ran.returncode == 1
    assert ran.stdout.startswith(
        "verdict     reject: Service default/kubernetes port https has no endpoints\n"
    )
    for flags, sentence in (
        (("--to", "api", "--node", "x"), "Error: there is no Node x; there are node-1, node-2\n"),
        (("--to", "api", "--kubeconfig", "/nowhere"), "Error: kubeconfig /nowhere: "),
    ):
        ran = trace(plane, "--from", source, *flags)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.startswith(sentence)


def test_it_asks_only_to_read(plane: Plane) -> None:
    trace(plane, "--from", min(pods(plane)), "--to", "api")
    log = (plane.log.parent / "audit.log").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in log]
    asked = {
        (event["verb"], event["objectRef"]["resource"])
        for event in events
        if event.get("userAgent") == "sliceplane"
    }
    assert asked == {
        ("list", resource)
        for resource in ("services", "nodes", "pods", "servicecidrs", "endpointslices")
    }
