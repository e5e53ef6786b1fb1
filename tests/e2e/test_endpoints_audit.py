"""``sliceplane endpoints audit`` against a prepared server with three planted problems and against
a clean one.

The prepared one runs without controllers, so that what is planted stays; its own audit log tells of
two clients.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running import ROOT, Plane, running_plane
from tests.e2e.test_kill9 import Api

CORE = "/api/v1/namespaces/default"
DISCOVERY = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
MIRRORING = "endpointslicemirroring-controller.k8s.io"
CONTROLLER = "endpointslice-controller.k8s.io"


def audit(plane: Plane, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "sliceplane",
        "endpoints",
        "audit",
        "--kubeconfig",
        plane.kubeconfig,
    ]
    return subprocess.run(
        [*command, "--second-look", "100ms", *flags],
        env={"PYTHONPATH": str(ROOT / "src"), **plane.environment},
        capture_output=True,
        text=True,
        check=False,
    )


def post(
    api: Api, path: str, body: dict[str, Any], manager: str = "kube-controller-manager"
) -> None:
    status, answer = api.call("POST", f"{path}?fieldManager={manager}", body)
    assert status == 201, answer


def service(api: Api, name: str, selector: bool = True) -> None:
    spec: dict[str, Any] = {"ports": [{"port": 80}]}
    post(
        api,
        f"{CORE}/services",
        {
            "metadata": {"name": name},
            "spec": spec | ({"selector": {"a": name}} if selector else {}),
        },
    )


def addresses(count: int, third: int = 0) -> list[str]:
    return [f"10.1.{third + number // 200}.{number % 200 + 1}" for number in range(count)]


def endpoints(
    api: Api, name: str, ips: list[str], manager: str = "kube-controller-manager", **metadata: Any
) -> None:
    subset = {"addresses": [{"ip": ip} for ip in ips], "ports": [{"port": 80}]}
    post(
        api,
        f"{CORE}/endpoints",
        {"metadata": {"name": name, **metadata}, "subsets": [subset]},
        manager,
    )


def slices(api: Api, service_name: str, suffix: str, ips: list[str], manager: str) -> None:
    labels = {
        "kubernetes.io/service-name": service_name,
        "endpointslice.kubernetes.io/managed-by": manager,
    }
    for start in range(0, len(ips), 100):
        listed = [
            {"addresses": [ip], "conditions": {"ready": True}} for ip in ips[start : start + 100]
        ]
        name = f"{service_name}-{suffix}{start // 100 or ''}"
        body = {
            "metadata": {"name": name, "labels": labels},
            "addressType": "IPv4",
            "endpoints": listed,
            "ports": [],
        }
        post(api, DISCOVERY, body)


def request_as(plane: Plane, agent: str, token: str, path: str) -> int:
    host, _, port = plane.url.removeprefix("https://").rpartition(":")
    connection = http.client.HTTPSConnection(
        host, int(port), context=ssl._create_unverified_context(), timeout=60
    )
    connection.request(
        "GET", path, headers={"Authorization": f"Bearer {token}", "User-Agent": agent}
    )
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def prepare(plane: Plane) -> None:
    """A sound Service, and three that are not."""
    api = Api(plane)
    service(api, "billing")
    endpoints(api, "billing", addresses(2))
    slices(api, "billing", "x7k2p", addresses(2), CONTROLLER)
    # 1: more addresses than Endpoints hold
    service(api, "search")
    over = {"endpoints.kubernetes.io/over-capacity": "truncated"}
    endpoints(api, "search", addresses(1000, 10), annotations=over)
    slices(api, "search", "9fd4c", addresses(1200, 10), CONTROLLER)
    # 2: nobody's Endpoints
    endpoints(api, "old-queue", addresses(1, 30), "queue-operator")
    # 3: what was mirrored before the Service got a selector
    service(api, "inference")
    slices(api, "inference", "mm8tq", addresses(2, 40), MIRRORING)
    slices(api, "inference", "zz5wd", addresses(1, 50), CONTROLLER)
    api.close()


@pytest.fixture
def prepared(tmp_path: Path) -> Iterator[Plane]:
    tokens = tmp_path / "given.csv"
    names = ("admin", "router", "metrics", "queue-operator")
    tokens.write_text("".join(f"{name}-token,{name},{name},system:masters\n" for name in names))
    flags = ("--audit-log-path", str(tmp_path / "audit.log"), "--token-auth-file", str(tokens))
    with running_plane(tmp_path, *flags, command="apiserver") as plane:
        Path(plane.kubeconfig).with_name("tokens.csv").write_text(tokens.read_text())
        prepare(plane)
        assert (
            request_as(plane, "edge-router/1.4 (linux/amd64)", "router-token", "/api/v1/endpoints")
            == 200
        )
        assert request_as(plane, "scraper/0.9", "metrics-token", f"{CORE}/endpoints/billing") == 200
        assert (
            request_as(
                plane, "queue-operator/2", "queue-operator-token", f"{CORE}/endpoints/old-queue"
            )
            == 200
        )
        assert request_as(plane, "nobody/1", "wrong-token", "/api/v1/endpoints") == 401
        yield plane


def documented() -> list[str]:
    """The output that docs/hand-over.md shows."""
    text = (ROOT / "docs" / "hand-over.md").read_text(encoding="utf-8")
    shown = re.search(
        r"^\$ sliceplane endpoints audit --kubeconfig[^\n]*\n(.*?)^```$",
        text,
        re.DOTALL | re.MULTILINE,
    )
    assert shown is not None
    return shown[1].splitlines()


def without_times(lines: list[str]) -> list[str]:
    """Times are of the day, and the number of lines in the log of the machine's speed."""
    plain = [re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", line) for line in lines]
    return [
        re.sub(r"read [\d,]+ lines", "read N lines", re.sub(r" {2,}", "  ", line)) for line in plain
    ]


def test_three_problems_and_two_clients(prepared: Plane, tmp_path: Path) -> None:
    ran = audit(prepared)
    assert ran.returncode == 1, ran
    assert ran.stderr == ""
    problems = "3 findings are against it (E4, E8, L3)"
    assert (
        ran.stdout.splitlines()[-1]
        == f"safe to switch the Endpoints controller off: no, because {problems}"
    )

    ran = audit(prepared, "--audit-log", str(tmp_path / "audit.log"))
    assert ran.returncode == 1, ran
    assert without_times(ran.stdout.splitlines()) == without_times(documented()), ran.stdout

    ran = audit(prepared, "--audit-log", str(tmp_path / "audit.log"), "--output", "json")
    assert ran.returncode == 1, ran
    told = json.loads(ran.stdout)
    codes = [
        (each["code"], each["severity"], each["subject"]["name"])
        for each in told["findings"]
        if each["blocks"]
    ]
    assert codes == [
        ("E4", "error", "inference"),
        ("E8", "warning", "search"),
        ("L3", "warning", "old-queue"),
    ]
    concerned = {
        each["program"]: each["dependsOnController"]
        for each in told["clients"]
        if each["user"] != "admin"
    }
    assert concerned == {"edge-router": True, "scraper": True, "queue-operator": False}
    assert told["reasons"][0] == "2 clients read Endpoints"
    assert told["safe"] is False


def test_the_audit_writes_nothing_and_asks_only_to_read(prepared: Plane, tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    before = log.stat().st_size
    audit(prepared)
    with log.open() as lines:
        lines.seek(before)
        asked = [json.loads(line) for line in lines]
    verbs = {
        (each["verb"], each["objectRef"]["resource"])
        for each in asked
        if each["userAgent"] == "sliceplane"
    }
    assert {verb for verb, _ in verbs} == {"get", "list"}
    assert {resource for _, resource in verbs} == {"services", "endpoints", "endpointslices"}


def test_a_clean_server(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    with running_plane(tmp_path, "--audit-log-path", str(log), "--emulate") as plane:
        api = Api(plane)
        service(api, "billing")
        pod: dict[str, Any] = {"containers": [{"name": "main", "image": "x"}]}
        template = {"metadata": {"labels": {"a": "billing"}}, "spec": pod}
        spec = {"replicas": 3, "selector": {"matchLabels": {"a": "billing"}}, "template": template}
        post(
            api,
            "/apis/apps/v1/namespaces/default/deployments",
            {"metadata": {"name": "billing"}, "spec": spec},
        )
        api.close()
        ran = audit(plane, "--second-look", "2s", "--audit-log", str(log))
        assert ran.returncode == 0, ran
        verdict = ran.stdout.splitlines()[-1]
        assert verdict.startswith(
            "safe to switch the Endpoints controller off: yes, no client that depends on it was"
        )
        ran = audit(plane)
        assert ran.returncode == 0, ran
        assert ran.stdout.splitlines()[-1].endswith(
            "yes, judged by the objects; only an audit log shows who reads them"
        )


def test_it_says_why_it_could_not_look(tmp_path: Path) -> None:
    with running_plane(tmp_path, command="apiserver") as plane:
        nonsense = tmp_path / "nonsense.log"
        nonsense.write_text("this\nis no log\n")
        for flags, sentence in (
            (
                ("--kubeconfig", "/nonexistent"),
                "Error: kubeconfig /nonexistent: No such file or directory",
            ),
            (
                ("--audit-log", "/nonexistent"),
                "Error: audit log /nonexistent: No such file or directory",
            ),
            (
                ("--audit-log", str(nonsense)),
                f"Error: audit log {nonsense}: none of its 2 lines is an audit event",
            ),
        ):
            ran = audit(plane, *flags)
            assert (ran.returncode, ran.stderr.strip()) == (2, sentence)
    ran = audit(plane)
    assert ran.returncode == 2
    assert ran.stderr.startswith("Error: https://127.0.0.1:")
