"""`helm install` of our own chart on our own server: its workloads become ready by emulation, and
go again.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.helm import CHART, helm
from tests.e2e.running import Plane, kubectl, running_plane

#: the first test may have to build helm
pytestmark = [pytest.mark.kubectl, pytest.mark.timeout(900)]

WORK = (
    "--set=controllers.mode=work",
    "--set=proxy.enabled=true",
    "--set=proxy.apiServer.host=192.0.2.1",
)


def run_helm(plane: Plane, *arguments: str) -> str:
    command = [helm(), *arguments, "--namespace=kube-system"]
    done = subprocess.run(
        command, env=plane.environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def status(plane: Plane, resource: str, name: str) -> Any:
    return json.loads(kubectl(plane, "get", resource, name, "-n", "kube-system", "-o", "json"))[
        "status"
    ]


def test_the_chart_installs_in_work_mode_and_its_workloads_become_ready(tmp_path: Path) -> None:
    with running_plane(
        tmp_path, "--emulate", "--emulate-nodes", "3", "--emulate-termination", "0s"
    ) as plane:
        waiting = ("--wait", "--timeout=180s")
        assert "STATUS: deployed" in run_helm(plane, "install", "sp", str(CHART), *WORK, *waiting)
        assert status(plane, "deployment", "sp-sliceplane-controllers")["readyReplicas"] == 2
        proxies = status(plane, "daemonset", "sp-sliceplane-proxy")
        assert (
            proxies["desiredNumberScheduled"],
            proxies["numberReady"],
            proxies["numberAvailable"],
        ) == (3, 3, 3)
        budget = kubectl(plane, "get", "pdb", "-n", "kube-system", "--no-headers").split()
        assert budget[:3] == ["sp-sliceplane-controllers", "1", "N/A"]

        changed = run_helm(
            plane, "upgrade", "sp", str(CHART), *WORK, "--set=proxy.logLevel=debug", *waiting
        )
        assert "REVISION: 2" in changed
        assert status(plane, "daemonset", "sp-sliceplane-proxy")["updatedNumberScheduled"] == 3

        assert 'release "sp" uninstalled' in run_helm(plane, "uninstall", "sp", *waiting)
        left = kubectl(
            plane,
            "get",
            "deployments,replicasets,daemonsets,pdb,pods",
            "-n",
            "kube-system",
            "-o",
            "name",
        )
        assert left == ""
