"""Every container of chart and manifests starts with exactly its arguments, and every monitored port answers.

In a network namespace of its own there is a plane, whose ServiceAccounts and roles are the chart's.  A container is its
command line with the account's token: its probes must turn green, and what a ServiceMonitor names must give metrics.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.helm import MANIFESTS, documents, rendered
from tests.deploy.test_chart import VALUES
from tests.deploy.test_rights import NODE, RIGHTS_AND_WHO
from tests.e2e.running import ROOT, Plane, kubectl, spawn, stop
from tests.kernel.netns import Host, Net

pytestmark = [pytest.mark.kernel, pytest.mark.kubectl, pytest.mark.timeout(900)]

READY_S = 40.0
NODE_NAME = "n1"
CASES: dict[str, tuple[str, ...] | Path] = {
    **VALUES,
    **{path.name: path for path in sorted(MANIFESTS.iterdir())},
}  # fmt: skip


@pytest.fixture(scope="module")
def node() -> Iterator[Host]:
    with Net("dep") as net:
        yield net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")


@pytest.fixture(scope="module")
def plane(node: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    folder = tmp_path_factory.mktemp("plane")
    plane = spawn(folder, command="apiserver", prefix=tuple(node.place.command("env")))
    # kubectl runs where the server is.
    inside = folder / "kubectl"
    inside.write_text(f'#!/bin/sh\nexec {" ".join(node.place.command(plane.kubectl))} "$@"\n')
    inside.chmod(0o755)
    there = Plane(plane.process, plane.url, plane.kubeconfig, str(inside), plane.environment, plane.log)
    try:
        kubectl(there, "apply", "-f", "-", document=NODE)
        yield there
    finally:
        stop(plane)


def account(plane: Plane, pod: dict[str, Any], found: list[dict[str, Any]], folder: Path) -> Path:
    """A kubeconfig with the token of the ServiceAccount of *pod*; with the roles that came with it, if any."""
    rights = [each for each in found if each["kind"] in RIGHTS_AND_WHO]
    kubectl(plane, "apply", "-f", "-", document=yaml.safe_dump_all(rights))
    name = pod["serviceAccountName"]
    config = yaml.safe_load(Path(plane.kubeconfig).read_text())
    token = kubectl(plane, "create", "token", name, "-n", "kube-system").strip()
    config["users"][0]["user"] = {"token": token}
    path = folder / f"{name}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@contextlib.contextmanager
def started(node: Host, container: dict[str, Any], kubeconfig: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [text.replace("$(NODE_NAME)", NODE_NAME) for text in container["args"]]
    command = node.place.command(sys.executable, "-m", "sliceplane", *arguments)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "KUBECONFIG": str(kubeconfig)}
    with (
        log.open("wb") as file,
        subprocess.Popen(command, env=environment, stdout=file, stderr=file, stdin=subprocess.DEVNULL) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            process.wait(20)


def fetch(node: Host, port: int, path: str) -> tuple[int, str]:
    """Of loopback in the node's namespace.  The code 0: nothing listens there."""
    program = (
        "import sys, urllib.error, urllib.request\n"
        "try: answer = urllib.request.urlopen(sys.argv[1], timeout=60); print(answer.status, answer.read().decode())\n"
        "except urllib.error.HTTPError as error: print(error.code, error.read().decode())\n"
        "except OSError as error: print(0, error)\n"
    )
    code, _, text = node.python(program, f"http://127.0.0.1:{port}{path}").stdout.partition(" ")
    return int(code), text


def probed(container: dict[str, Any], kind: str) -> tuple[int, str]:
    asked = container[kind]["httpGet"]
    named = {each["name"]: each["containerPort"] for each in container.get("ports", ())}
    return named.get(asked["port"], asked["port"]), asked["path"]


def until_green(node: Host, container: dict[str, Any], process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + READY_S
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        port, path = probed(container, kind)
        while (answer := fetch(node, port, path))[0] != 200:
            assert process.poll() is None, f"ended with {process.returncode}: {log.read_text()}"
            assert time.monotonic() < end, f"{kind} {port}{path}: {answer}\n{log.read_text()}"
            time.sleep(0.2)


def monitored(found: list[dict[str, Any]], pod: dict[str, Any]) -> list[tuple[int, str]]:
    """Port and path of each ServiceMonitor that leads, by its Service, to *pod* (a template)."""
    labels = pod["metadata"]["labels"].items()
    named = {each["name"]: each["containerPort"] for each in pod["spec"]["containers"][0].get("ports", ())}
    ports = []
    for monitor in (each for each in found if each["kind"] == "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        for service in (each for each in found if each["kind"] == "Service"):
            if not wanted <= service["metadata"]["labels"].items() or not service["spec"]["selector"].items() <= labels:
                continue
            for endpoint in monitor["spec"]["endpoints"]:
                (port,) = [each for each in service["spec"]["ports"] if each["name"] == endpoint["port"]]
                target = port.get("targetPort", port["port"])
                ports.append((named.get(target, target), endpoint["path"]))
    return ports


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_container_starts_and_is_scraped(
    case: tuple[str, ...] | Path, node: Host, plane: Plane, tmp_path: Path
) -> None:
    found = documents(case.read_text() if isinstance(case, Path) else rendered(*case))
    pods = [each["spec"]["template"] for each in found if each["kind"] in ("Deployment", "DaemonSet")]
    assert pods
    # Where the chart makes no roles somebody else has; here they are those of the chart as it comes.
    rights = found if any(each["kind"] == "ClusterRole" for each in found) else documents(rendered())
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        kubeconfig = account(plane, pod["spec"], rights, tmp_path)
        log = tmp_path / f"{container['name']}.log"
        with started(node, container, kubeconfig, log) as process:
            until_green(node, container, process, log)
            for port, path in monitored(found, pod):
                code, text = fetch(node, port, path)
                assert (code, text[:7]) == (200, "# HELP "), f"{port}{path}: {code} {text[:200]}"
            assert process.poll() is None
        assert "forbidden" not in log.read_text()


def test_a_monitor_is_there_for_every_component_that_has_metrics() -> None:
    found = documents(rendered(*VALUES["all"]))
    pods = [each["spec"]["template"] for each in found if each["kind"] in ("Deployment", "DaemonSet")]
    assert [len(monitored(found, pod)) for pod in pods] == [1, 1]
