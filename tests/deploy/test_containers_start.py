"""Every container of chart and manifests starts with exactly its arguments, and every monitored
port answers.

In a network namespace of its own there is a plane, whose ServiceAccounts and roles are the chart's.
A container is its command line with the account's token: its probes must turn green, and what a
ServiceMonitor names must give metrics.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.helm import MANIFESTS, a_list, documents, rendered
from tests.deploy.test_chart import VALUES, WORKLOADS
from tests.deploy.test_rights import NODE, RIGHTS_AND_WHO
from tests.e2e.running import ROOT, Plane, kubectl, spawn, stop
from tests.kernel.kube_proxy_table import TABLE
from tests.kernel.netns import Host, Net

pytestmark = [pytest.mark.kernel, pytest.mark.kubectl, pytest.mark.timeout(900)]

READY_S = 120.0
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
#: what the field of a Pod gives that a container's argument names
FROM_FIELDS = {"NODE_NAME": "n1", "POD_NAME": "sliceplane-relay-0"}
MANIFEST_FILES = sorted(MANIFESTS.iterdir())
#: what starts the very containers that another case starts
SAME_AS = {
    "one replica": "work",
    "no rights": "as it comes",
    "controllers-shadow.yaml": "as it comes",
    "controllers.yaml": "work",
    "controllers-adopted.yaml": "adopted",
    "observer.yaml": "observer",
    "proxy.yaml": "proxy alone",
    "dns.yaml": "names",
    "xds.yaml": "xds",
    "relay.yaml": "relay",
}
CASES: dict[str, tuple[str, ...]] = {
    name: flags for name, flags in VALUES.items() if name not in SAME_AS
}


@pytest.fixture(scope="module")
def node() -> Iterator[Host]:
    with Net("dep") as net:
        host = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        host.exec(["nft", "-f", "-"], stdin=TABLE.format(family="ip", address="ipv4_addr"))
        yield host


@pytest.fixture(scope="module")
def plane(node: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    folder = tmp_path_factory.mktemp("plane")
    plane = spawn(folder, command="apiserver", prefix=tuple(node.place.command()))
    # kubectl runs where the server is.
    inside = folder / "kubectl"
    inside.write_text(f'#!/bin/sh\nexec {" ".join(node.place.command(plane.kubectl))} "$@"\n')
    inside.chmod(0o755)
    there = Plane(
        plane.process, plane.url, plane.kubeconfig, str(inside), plane.environment, plane.log
    )
    try:
        kubectl(there, "apply", "-f", "-", document=NODE)
        yield there
    finally:
        stop(plane)


def account(plane: Plane, pod: dict[str, Any], found: list[dict[str, Any]], folder: Path) -> Path:
    """A kubeconfig with the token of the ServiceAccount of *pod*; with the roles that came with it,
    if any.
    """
    rights = [each for each in found if each["kind"] in RIGHTS_AND_WHO]
    kubectl(plane, "apply", "-f", "-", document=a_list(rights))
    name = pod["serviceAccountName"]
    config = yaml.safe_load(Path(plane.kubeconfig).read_text())
    token = kubectl(plane, "create", "token", name, "-n", "kube-system").strip()
    config["users"][0]["user"] = {"token": token}
    path = folder / f"{name}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    put_certificate(plane, folder)
    return path


def put_certificate(plane: Plane, folder: Path) -> None:
    """What is in a Secret of the type kubernetes.io/tls, and the authority beside it."""
    pki = Path(plane.kubeconfig).parent / "pki"
    for name, own in (
        ("tls.crt", "apiserver.crt"),
        ("tls.key", "apiserver.key"),
        ("ca.crt", "ca.crt"),
    ):
        (folder / name).write_bytes((pki / own).read_bytes())


def replaced(argument: str) -> str:
    """As a kubelet fills it from the container's ``env``."""
    for name, value in FROM_FIELDS.items():
        argument = argument.replace(f"$({name})", value)
    assert "$(" not in argument, "say in FROM_FIELDS what it is"
    return argument


@contextlib.contextmanager
def started(
    node: Host, container: dict[str, Any], kubeconfig: Path, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [replaced(text) for text in container["args"]]
    for mount in container.get("volumeMounts", ()):
        if mount["name"] == "tls":
            arguments = [
                text.replace(f"{mount['mountPath']}/", f"{kubeconfig.parent}/")
                for text in arguments
            ]
    command = node.place.command(sys.executable, "-m", "sliceplane", *arguments)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "KUBECONFIG": str(kubeconfig)}
    with (
        log.open("wb") as file,
        subprocess.Popen(
            command, env=environment, stdout=file, stderr=file, stdin=subprocess.DEVNULL
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            process.wait(120)


#: prints a line for each URL as soon as it answers with 200, or for the first that does not in time
FETCH = """
import json, ssl, sys, time, urllib.error, urllib.request
unverified = ssl._create_unverified_context()  # as kubelets probe
end = time.monotonic() + float(sys.argv[1])
for url in sys.argv[2:]:
    while True:
        try:
            context = unverified if url.startswith("https") else None
            with urllib.request.urlopen(url, timeout=60, context=context) as answer:
                told = (answer.status, answer.read().decode())
        except urllib.error.HTTPError as error: told = (error.code, error.read().decode())
        except OSError as error: told = (0, str(error))
        if told[0] == 200 or time.monotonic() > end: break
        time.sleep(0.1)
    print(json.dumps(told))
    if told[0] != 200: break
"""


def fetch(
    node: Host, places: list[tuple[int, str]], wait_s: float, scheme: str
) -> list[tuple[int, str]]:
    """Of loopback in the node's namespace, one after the other, each asked until it answers with
    200; what comes after one that does not is not asked. The code 0: nothing listens there. (A
    process takes longer to start than to ask.)
    """
    urls = [f"{scheme}://127.0.0.1:{port}{path}" for port, path in places]
    command = node.place.command(sys.executable, "-I", "-c", FETCH, str(wait_s), *urls)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=wait_s + 60)
    return [(code, text) for code, text in map(json.loads, done.stdout.splitlines())]


def probed(container: dict[str, Any], kind: str) -> tuple[int, str]:
    asked = container[kind]["httpGet"]
    named = {each["name"]: each["containerPort"] for each in container.get("ports", ())}
    return named.get(asked["port"], asked["port"]), asked["path"]


def monitored(found: list[dict[str, Any]], pod: dict[str, Any]) -> list[tuple[int, str]]:
    """Port and path of each ServiceMonitor that leads, by its Service, to *pod* (a template)."""
    labels = pod["metadata"]["labels"].items()
    named = {
        each["name"]: each["containerPort"]
        for each in pod["spec"]["containers"][0].get("ports", ())
    }
    ports = []
    for monitor in (each for each in found if each["kind"] == "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        for service in (each for each in found if each["kind"] == "Service"):
            if (
                not wanted <= service["metadata"]["labels"].items()
                or not service["spec"]["selector"].items() <= labels
            ):
                continue
            for endpoint in monitor["spec"]["endpoints"]:
                (port,) = [
                    each for each in service["spec"]["ports"] if each["name"] == endpoint["port"]
                ]
                target = port.get("targetPort", port["port"])
                ports.append((named.get(target, target), endpoint["path"]))
    return ports


def pods_of(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each["spec"]["template"] for each in found if each["kind"] in WORKLOADS]


def rights_of(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what a label or an annotation says."""
    rights = [each for each in found if each["kind"] in RIGHTS_AND_WHO]
    return [{**each, "metadata": each["metadata"]["name"]} for each in rights]


def is_hook(document: dict[str, Any]) -> bool:
    return "helm.sh/hook" in (document["metadata"].get("annotations") or {})


@pytest.mark.parametrize("name", SAME_AS)
def test_what_need_not_start_again_is_the_same(name: str) -> None:
    """The very command lines, ports, probes and rights, and no metrics that only it would serve."""
    files = {path.name: path for path in MANIFEST_FILES}
    found = documents(files[name].read_text() if name in files else rendered(*VALUES[name]))
    other = documents(rendered(*VALUES[SAME_AS[name]]))
    for key in ("args", "ports", *PROBES):
        containers, others = (
            [pod["spec"]["containers"][0].get(key) for pod in pods_of(each)]
            for each in (found, other)
        )
        assert containers == others, key
    assert containers
    # Where the chart makes no roles others did: those of the chart as it comes.
    # Hooks are helm's alone: a manifest is not uninstalled by it.
    lasting = [each for each in other if not is_hook(each)]
    assert name == "no rights" or rights_of(found) == rights_of(lasting)
    assert not any(monitored(found, pod) for pod in pods_of(found))


def test_every_manifest_is_started() -> None:
    with_pods = {path.name for path in MANIFEST_FILES if pods_of(documents(path.read_text()))}
    assert with_pods <= set(SAME_AS)


@pytest.mark.parametrize("flags", CASES.values(), ids=CASES)
def test_every_container_starts_and_is_scraped(
    flags: tuple[str, ...], node: Host, plane: Plane, tmp_path: Path
) -> None:
    found = documents(rendered(*flags))
    pods = pods_of(found)
    assert pods
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        kubeconfig = account(plane, pod["spec"], found, tmp_path)
        log = tmp_path / f"{container['name']}.log"
        with started(node, container, kubeconfig, log) as process:
            probes = [probed(container, kind) for kind in PROBES]
            pages = monitored(found, pod)
            scheme = container["livenessProbe"]["httpGet"].get("scheme", "HTTP").lower()
            answers = fetch(node, probes + pages, READY_S, scheme)
            codes = [code for code, _ in answers]
            assert codes == [200] * len(probes + pages), (
                f"{probes + pages}: {answers[-1]}\n{log.read_text()}"
            )
            assert all(text.startswith("# HELP ") for _, text in answers[len(probes) :])
            assert process.poll() is None, f"ended with {process.returncode}: {log.read_text()}"
        assert "forbidden" not in log.read_text()


def test_a_monitor_is_there_for_every_component_that_has_metrics() -> None:
    found = documents(rendered(*VALUES["all"]))
    assert [len(monitored(found, pod)) for pod in pods_of(found)] == [1, 1]
