"""The steps of docs/hand-over.md after the audit: hand over to the reverse mirror, verify,
clean up.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running import ROOT, Plane, running_plane
from tests.e2e.test_endpoints_audit import (
    CONTROLLER,
    CORE,
    addresses,
    audit,
    endpoints,
    request_as,
    service,
    slices,
)
from tests.e2e.test_kill9 import Api
from tests.waiting import until

MANAGED_BY = "endpoints.kubernetes.io/managed-by"
OURS = "reverse-mirror.sliceplane.dev"


def controllers(plane: Plane, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "sliceplane",
        "controllers",
        "--kubeconfig",
        plane.kubeconfig,
        *flags,
    ]
    environment = {"PYTHONPATH": str(ROOT / "src"), **plane.environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def reconcile(plane: Plane, *flags: str) -> None:
    ran = controllers(plane, "--controllers=reverse-mirror-controller", *flags)
    assert ran.returncode == 0, ran
    assert "reconciled in" in ran.stdout


def labels(api: Api) -> dict[str, str]:
    """Of all Endpoints but ``kubernetes``: by whom they are managed."""
    _, listed = api.call("GET", f"{CORE}/endpoints")
    items: Any = listed["items"]
    found = {
        each["metadata"]["name"]: each["metadata"].get("labels", {}).get(MANAGED_BY, "")
        for each in items
    }
    return {name: manager for name, manager in found.items() if name != "kubernetes"}


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with running_plane(
        tmp_path, "--audit-log-path", str(tmp_path / "audit.log"), command="apiserver"
    ) as running:
        yield running


def test_from_the_controller_to_the_reverse_mirror_to_nothing(plane: Plane, tmp_path: Path) -> None:
    api = Api(plane)
    for name in ("billing", "search"):
        service(api, name)
        slices(api, name, "x", addresses(2), CONTROLLER)
    endpoints(api, "billing", addresses(2), labels={MANAGED_BY: "endpoint-controller"})
    endpoints(api, "mine", addresses(1), "queue-operator")
    service(api, "mine", selector=False)
    slices(api, "mine", "m", addresses(1), "endpointslicemirroring-controller.k8s.io")
    token = Path(plane.kubeconfig).with_name("tokens.csv").read_text().partition(",")[0]
    assert request_as(plane, "edge-router/1.4", token, "/api/v1/endpoints") == 200
    log = ("--audit-log", str(tmp_path / "audit.log"))
    verdict = audit(plane, *log).stdout.splitlines()[-1]
    assert (
        verdict
        == "safe to switch the Endpoints controller off: no, because 1 client reads Endpoints"
    )

    reconcile(plane, "--once")
    assert labels(api) == {"billing": "endpoint-controller", "mine": "", "search": OURS}, (
        "what is not ours stays"
    )

    selected = ("endpoints", "-A", "-l", f"{MANAGED_BY}=endpoint-controller")
    ran = subprocess.run(
        [plane.kubectl, "label", "--overwrite", *selected, f"{MANAGED_BY}={OURS}"],
        env=plane.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran
    reconcile(plane, "--once")
    ran = audit(plane, *log)
    assert ran.returncode == 0, ran
    assert "edge-router" in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith(
        "safe to switch the Endpoints controller off: yes, no client that"
    )
    _, billing = api.call("GET", f"{CORE}/endpoints/billing")
    (subset,) = billing["subsets"]  # type: ignore[misc]  # a list
    assert [address["ip"] for address in subset["addresses"]] == addresses(2)

    reconcile(plane, "--cleanup")
    assert labels(api) == {"mine": ""}
    api.close()


def test_clean_up_is_for_the_reverse_mirror_alone(plane: Plane) -> None:
    ran = controllers(plane, "--cleanup")
    assert ran.returncode == 64
    assert "--cleanup is for --controllers=reverse-mirror-controller alone" in ran.stderr


def test_an_embedded_plane_with_the_reverse_mirror(tmp_path: Path) -> None:
    with running_plane(tmp_path, "--reverse-mirror") as plane:
        api = Api(plane)
        service(api, "billing")
        assert until(lambda: labels(api)) == {"billing": OURS}
        api.close()
