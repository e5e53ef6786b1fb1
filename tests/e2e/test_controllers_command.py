"""``sliceplane controllers`` against an API server that runs without controllers: once, and two of
them by turns.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.e2e.running import ROOT, Plane, running_plane
from tests.e2e.test_kill9 import Api
from tests.ports import free_port
from tests.waiting import until

from sliceplane.cli.main import main

NAMESPACE = "/api/v1/namespaces/default"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/sliceplane-controllers"
EVENTS = (
    "/apis/events.k8s.io/v1/namespaces/kube-system/events?fieldSelector=reason%3DLeaderElection"
)
PYTHON = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
#: a leader that was killed is missed after the lease's duration
TIMES = (
    "--leader-elect-lease-duration=8s",
    "--leader-elect-renew-deadline=6s",
    "--leader-elect-retry-period=500ms",
)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with running_plane(tmp_path, command="apiserver") as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """For tests that leave each other's Services alone and need no election that is still open."""
    with running_plane(tmp_path_factory.mktemp("shared"), command="apiserver") as running:
        yield running


def command(plane: Plane, *flags: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "sliceplane",
        "controllers",
        "--kubeconfig",
        plane.kubeconfig,
        *flags,
    ]


def once(plane: Plane, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(plane, "--once", *flags), env=PYTHON, capture_output=True, text=True, check=False
    )


@contextlib.contextmanager
def instance(plane: Plane, *flags: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command(plane, *TIMES, *flags),
        env=PYTHON,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ready_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], 90.0)
    assert readable, "no ready line within 90 s"
    return process.stdout.readline().strip()


def make_service(api: Api, name: str, pods: int) -> None:
    service = {
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    assert api.call("POST", f"{NAMESPACE}/services", service)[0] == 201
    for number in range(pods):
        add_pod(api, name, number)


def add_pod(api: Api, name: str, number: int) -> None:
    pod = {
        "metadata": {"name": f"{name}-{number}", "labels": {"app": name}},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "x"}]},
    }
    assert api.call("POST", f"{NAMESPACE}/pods", pod)[0] == 201
    code, stored = api.call("GET", f"{NAMESPACE}/pods/{name}-{number}")
    address = f"10.9.{len(name)}.{number + 1}"
    stored["status"] = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    code, answer = api.call("PUT", f"{NAMESPACE}/pods/{name}-{number}/status", stored)
    assert code == 200, answer


def endpoints(api: Api, service: str) -> set[str]:
    _, found = api.call("GET", f"{SLICES}?labelSelector=kubernetes.io/service-name={service}")
    items: Any = found["items"]
    return {
        address
        for item in items
        for endpoint in item["endpoints"]
        for address in endpoint["addresses"]
    }


def holder(api: Api) -> str:
    code, lease = api.call("GET", LEASE)
    spec: Any = lease.get("spec", {})
    return str(spec.get("holderIdentity", "")) if code == 200 else ""


def test_once_reconciles_and_then_has_nothing_to_do(shared: Plane) -> None:
    plane, api = shared, Api(shared)
    assert api.call("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})[0] == 201
    make_service(api, "web", 3)
    first = once(plane)
    assert first.returncode == 0, first.stderr
    assert "endpointslice-controller: 1 jobs, 1 writes, 0 failed" in first.stdout
    assert first.stdout.splitlines()[0].startswith(
        "read 2 services, 3 pods, 1 nodes, 1 endpointslices"
    )
    assert endpoints(api, "web") == {"10.9.3.1", "10.9.3.2", "10.9.3.3"}
    again = once(plane)
    assert again.returncode == 0, again.stderr
    assert "with 0 writes" in again.stdout.splitlines()[-1]
    api.close()


def test_once_says_what_it_could_not_do(plane: Plane) -> None:
    api = Api(plane)
    assert api.call("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})[0] == 201
    quota = {
        "metadata": {"name": "none"},
        "spec": {"hard": {"count/endpointslices.discovery.k8s.io": "0"}},
    }
    assert api.call("POST", f"{NAMESPACE}/resourcequotas", quota)[0] == 201
    quota["status"] = {
        "hard": quota["spec"]["hard"],
        "used": {"count/endpointslices.discovery.k8s.io": "0"},
    }
    assert api.call("PUT", f"{NAMESPACE}/resourcequotas/none/status", quota)[0] in (200, 201)
    make_service(api, "web", 1)
    done = once(plane, "--once-timeout=4s")
    assert done.returncode == 1
    assert re.search(
        "NOT reconciled after .*endpointslice-controller.* would go on", done.stdout
    ), done.stdout
    assert endpoints(api, "web") == set()
    api.close()


def test_the_second_takes_over_when_the_first_goes_or_dies(plane: Plane) -> None:
    api = Api(plane)
    assert api.call("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})[0] == 201
    make_service(api, "web", 1)
    with instance(plane) as first:
        assert ready_line(first) == "ready leading"
        until(lambda: endpoints(api, "web"), lambda shown: shown == {"10.9.3.1"})
        leader = holder(api)
        with instance(plane) as second:
            assert ready_line(second) == f"ready standby leader={leader}"
            # a clean end gives the Lease back: nobody waits for its duration
            first.send_signal(signal.SIGTERM)
            assert first.wait(60) == 0
            add_pod(api, "web", 1)
            until(lambda: endpoints(api, "web"), lambda shown: shown == {"10.9.3.1", "10.9.3.2"})
            successor = holder(api)
            assert successor not in ("", leader)
            with instance(plane) as third:
                assert ready_line(third) == f"ready standby leader={successor}"
                second.kill()
                second.wait(60)
                add_pod(api, "web", 2)
                until(lambda: endpoints(api, "web"), lambda shown: len(shown) == 3)
                assert holder(api) not in ("", leader, successor)
    _, lease = api.call("GET", LEASE)
    spec: Any = lease["spec"]
    assert spec["leaseTransitions"] == 2
    _, told = api.call("GET", EVENTS)
    items: Any = told["items"]
    assert {(each["regarding"]["kind"], each["regarding"]["name"]) for each in items} == {
        ("Lease", "sliceplane-controllers")
    }
    said = {(each["type"], each["reportingController"], each["note"]) for each in items}
    # who is killed says nothing
    assert {
        ("Normal", "sliceplane-controllers", f"{leader} {what}")
        for what in ("became leader", "stopped leading")
    } | {("Normal", "sliceplane-controllers", f"{successor} became leader")} <= said
    api.close()


def test_a_leader_that_was_stopped_wakes_as_a_standby_and_can_lead_again(plane: Plane) -> None:
    api = Api(plane)
    assert api.call("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})[0] == 201
    make_service(api, "web", 1)
    health = free_port()
    with instance(plane, f"--healthz-bind-address=127.0.0.1:{health}") as first:
        assert ready_line(first) == "ready leading"
        leader = holder(api)
        with instance(plane) as second:
            assert ready_line(second) == f"ready standby leader={leader}"
            first.send_signal(signal.SIGSTOP)
            add_pod(api, "web", 1)
            until(lambda: endpoints(api, "web"), lambda shown: len(shown) == 2)
            successor = holder(api)
            assert successor not in ("", leader)
            first.send_signal(signal.SIGCONT)
            standby = "ok: standing by"
            until(
                lambda: page("readyz", health)[1],
                lambda said: said.startswith(standby),
                ignoring=(OSError,),
            )
            assert holder(api) == successor
            second.send_signal(signal.SIGTERM)
            assert second.wait(60) == 0
            add_pod(api, "web", 2)
            until(lambda: endpoints(api, "web"), lambda shown: len(shown) == 3)
            assert holder(api) == leader
    api.close()


def test_without_an_election_it_works_at_once(shared: Plane) -> None:
    """And leaves no Lease."""
    api = Api(shared)
    with instance(shared, "--leader-elect=false") as process:
        assert ready_line(process) == "ready leading"
        assert api.call("GET", LEASE)[0] == 404
    api.close()


def test_pages_tell_standby_from_leading(shared: Plane) -> None:
    plane, api = shared, Api(shared)
    make_service(api, "shown", 1)
    health, metrics = free_port(), free_port()
    flags = (
        f"--healthz-bind-address=127.0.0.1:{health}",
        f"--metrics-bind-address=127.0.0.1:{metrics}",
    )
    with instance(plane, *flags) as process:
        assert ready_line(process) == "ready leading"
        until(lambda: slices_of(api, "shown"), lambda slices: len(slices) == 1)
        # Others may see the slice before the controller has the answer.
        created = '\nendpoint_slice_controller_changes{operation="create"} 1.0'
        code, figures = until(lambda: page("metrics", metrics), lambda told: created in told[1])
        assert code == 200
        for line in (
            'leader_election_master_status{name="sliceplane-controllers"} 1.0',
            'workqueue_depth{name="endpoint_slice"} 0.0',
            'rest_client_requests_total{code="201",host="127.0.0.1:',
            'rest_client_rate_limiter_duration_seconds_bucket{host="127.0.0.1:',
            "sliceplane_informer_staleness_seconds ",
            "process_resident_memory_bytes ",
            "kubernetes_build_info{",
        ):
            assert f"\n{line}" in figures, figures
        assert page("livez", metrics) == (200, "ok\n")
        assert page("readyz", health) == (200, "ok: leading\n")
        assert page("healthz", health) == (200, "ok\n")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            page("other", health)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert holder(api) == ""
    api.close()


def slices_of(api: Api, service: str) -> list[Any]:
    _, found = api.call("GET", f"{SLICES}?labelSelector=kubernetes.io/service-name={service}")
    items: Any = found["items"]
    return list(items)


def page(name: str, port: int) -> tuple[int, str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=60) as answer:
        return answer.status, answer.read().decode()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--controllers=typo",), "there is no controller 'typo', only"),
        (("--controllers=-endpointslice",), "no controller is selected"),
        (("--leader-elect-lease-duration=5s",), "must be greater than the renew deadline"),
        (("--kubeconfig=/nonexistent",), "kubeconfig /nonexistent: No such file or directory"),
    ],
)
def test_wrong_usage_is_told_in_a_line(flags: tuple[str, ...], text: str) -> None:
    # In this process, since nothing is started.
    done = CliRunner().invoke(
        main, ["controllers", *flags], env={"HOME": "/nonexistent", "KUBECONFIG": ""}
    )
    assert done.exit_code != 0
    assert isinstance(done.exception, SystemExit), done.exception
    assert text in done.stderr
