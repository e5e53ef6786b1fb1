"""The Helm chart, the manifests made from it and the Dockerfile: valid, complete, and true to the
commands.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
from typing import Any

import kubernetes_validate
import pytest
from click.testing import CliRunner
from tests.deploy.helm import (
    CHART,
    KUBERNETES,
    MANIFESTS,
    PROCESS,
    ROOT,
    documents,
    helm,
    rendered,
)
from tools.make_manifests import FILES, POLICY_KIND, manifest

import sliceplane
from sliceplane.cli.main import main

#: the first test may have to build helm
pytestmark = pytest.mark.timeout(900)

PROXY = ("--set=proxy.enabled=true", "--set=proxy.apiServer.host=192.0.2.1")
VALUES = {
    "as it comes": (),
    "work": ("--set=controllers.mode=work",),
    "one replica": ("--set=controllers.mode=work", "--set=controllers.replicas=1"),
    "slices alone": (
        "--set=controllers.mode=work",
        "--set=controllers.run={endpointslice-controller}",
    ),
    "proxy": (
        *PROXY,
        "--set=proxy.clusterCIDR=10.0.0.0/8",
        "--set=proxy.extraArgs={--masquerade-all}",
    ),
    "proxy alone": (*PROXY, "--set=controllers.enabled=false"),
    "all": (
        *PROXY,
        "--set=controllers.mode=work",
        "--set=metrics.serviceMonitor.enabled=true",
        "--set=metrics.serviceMonitor.labels.release=prometheus",
        "--set=imagePullSecrets[0].name=registry",
        "--set=controllers.podAnnotations.a=b",
        "--set=proxy.podAnnotations.a=b",
        "--set=controllers.tolerations[0].operator=Exists",
        '--set-json=controllers.affinity={"podAntiAffinity":{}}',
    ),
    "no rights": ("--set=rbac.create=false",),
    "iptables": (
        "--set=controllers.enabled=false",
        "--set=proxy.enabled=true",
        "--set=proxy.apiServer.host=127.0.0.1",
        "--set=proxy.mode=iptables",
        "--set=metrics.serviceMonitor.enabled=true",
    ),
    "all controllers": (
        "--set=controllers.mode=work",
        "--set=metrics.serviceMonitor.enabled=true",
        "--set=controllers.run[3]=traffic-distribution-controller",
        "--set=controllers.run[0]=endpointslice-controller",
        "--set=controllers.run[1]=endpoints-controller",
        "--set=controllers.run[2]=endpointslice-mirroring-controller",
    ),
    "reverse mirror": (
        "--set=controllers.mode=work",
        "--set=controllers.run={endpointslice-controller,reverse-mirror-controller}",
    ),
    "observer": (
        "--set=controllers.enabled=false",
        "--set=observer.enabled=true",
        "--set=observer.podAnnotations.a=b",
        "--set=metrics.serviceMonitor.enabled=true",
        f"--api-versions={POLICY_KIND}",
    ),
    "observer that counts": (
        "--set=controllers.enabled=false",
        "--set=observer.enabled=true",
        "--set=observer.demand=true",
        "--set=observer.conntrack=true",
    ),
    "adopted": ("--set=controllers.adoptedOnly=true",),
    "adopted and measured": (
        "--set=controllers.adoptedOnly=true",
        "--set=controllers.run={measured-zones-controller}",
    ),
    "names": (
        "--set=controllers.enabled=false",
        "--set=dns.enabled=true",
        "--set=dns.clusterIP=10.96.0.10",
    ),
    "xds": ("--set=controllers.enabled=false", "--set=xds.enabled=true"),
    "xds for some": (
        "--set=controllers.enabled=false",
        "--set=xds.enabled=true",
        "--set=xds.namespaces={shop,bank}",
        "--set=xds.listeners=cluster-ip",
        "--set=xds.trustNodeMetadata=node",
        "--set=xds.extraArgs={--leds-from=0}",
        "--set=xds.tls.clientCA=/etc/sliceplane/tls/ca.crt",
    ),
    "relay": ("--set=controllers.enabled=false", "--set=relay.enabled=true"),
    "relays of zones": (
        "--set=controllers.enabled=false",
        "--set=relay.enabled=true",
        "--set=relay.zones={eu-1,eu-2}",
        "--set=relay.subset=true",
        "--set=relay.trustNodes=true",
        "--set=relay.resourcesServed={endpointslices}",
        "--set=relay.tls.clientCA=/etc/sliceplane/tls/ca.crt",
        "--set=relay.service.type=LoadBalancer",
        "--set=relay.extraArgs={--history-keep=10m}",
    ),
    "relays that report": (
        "--set=controllers.enabled=false",
        "--set=relay.enabled=true",
        "--set=relay.zones={eu-1,eu-2}",
        "--set=relay.aggregateReports=true",
        f"--api-versions={POLICY_KIND}",
    ),
    "lease policies": (
        *PROXY,
        "--set=controllers.mode=work",
        "--set=dns.enabled=true",
        "--set=xds.enabled=true",
        f"--api-versions={POLICY_KIND}",
    ),
    "conditions alone": (
        "--set=controllers.mode=work",
        "--set=controllers.run={traffic-distribution-controller}",
    ),
}


#: kinds with Pods of ours
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_helm_finds_nothing_wrong(values: tuple[str, ...]) -> None:
    known = [
        flag for flag in values if not flag.startswith("--api-versions")
    ]  # of "template" alone
    command = [helm(), "lint", "--strict", "--kube-version", KUBERNETES, str(CHART), *known]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=PROCESS)
    assert done.returncode == 0, done.stdout + done.stderr


@functools.cache
def validate(document: str) -> None:
    """Once for each document: most are the same with many values, and each reads all schemas."""
    kubernetes_validate.validate(json.loads(document), "1.36", strict=True)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_everything_is_what_kubernetes_takes(values: tuple[str, ...]) -> None:
    found = documents(rendered(*values))
    assert found
    for document in found:
        if document["kind"] == "ServiceMonitor":  # of the Prometheus operator, not of Kubernetes
            assert document["apiVersion"] == "monitoring.coreos.com/v1"
            continue
        validate(json.dumps(document))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (("--set=controllers.replica=3",), "replica' not allowed"),
        (("--set=controllers.mode=wrok",), "controllers/mode"),
        (("--set=controllers.run={}",), "controllers/run"),
        (("--set=xds.listeners=all",), "xds/listeners"),
        (("--set=observer.healthz.port=1",), "healthz' not allowed"),
        (
            (*PROXY, "--set=observer.enabled=true"),
            "both would write the Lease of the node: --set observer.enabled=false",
        ),
        (
            ("--set=proxy.enabled=true",),
            (
                "needs an address of the API server that works without it: --set "
                "proxy.apiServer.host=ADDRESS"
            ),
        ),
    ],
)
def test_wrong_values_are_refused_with_their_name(values: tuple[str, ...], told: str) -> None:
    done = subprocess.run(
        [helm(), "template", "x", str(CHART), "--kube-version", KUBERNETES, *values],
        check=False,
        capture_output=True,
        text=True,
        env=PROCESS,
    )
    assert done.returncode != 0
    assert told in done.stderr


@functools.cache
def flags_of(command: str) -> set[str]:
    text = CliRunner().invoke(main, [command, "--help"]).output
    return set(re.findall(r"--[a-z0-9-]+", text))


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_commands_know_every_flag_of_the_containers(values: tuple[str, ...]) -> None:
    pods = [each for each in documents(rendered(*values)) if each["kind"] in WORKLOADS]
    assert pods
    for each in pods:
        command, *flags = each["spec"]["template"]["spec"]["containers"][0]["args"]
        assert {flag.partition("=")[0] for flag in flags} <= flags_of(command)


def test_selectors_find_their_pods_and_no_others() -> None:
    found = documents(rendered(*VALUES["all"]))
    pods = {
        each["kind"]: each["spec"]["template"]["metadata"]["labels"]
        for each in found
        if each["kind"] in WORKLOADS
    }
    for each in found:
        selector = _selector(each)
        if selector is None:
            continue
        component = selector["app.kubernetes.io/component"]
        chosen = {kind for kind, labels in pods.items() if selector.items() <= labels.items()}
        assert chosen == {"controllers": {"Deployment"}, "proxy": {"DaemonSet"}}[component], each[
            "metadata"
        ]["name"]


def test_each_zone_has_a_relay_on_its_nodes() -> None:
    found = documents(rendered(*VALUES["relays of zones"]))
    pods = [each["spec"]["template"] for each in found if each["kind"] == "Deployment"]
    services = [each["spec"]["selector"] for each in found if each["kind"] == "Service"]
    assert len(pods) == len(services) == 2
    for zone, pod, selector in zip(("eu-1", "eu-2"), pods, services, strict=True):
        assert pod["spec"]["nodeSelector"]["topology.kubernetes.io/zone"] == zone
        assert f"--zone={zone}" in pod["spec"]["containers"][0]["args"]
        chosen = [selector.items() <= each["metadata"]["labels"].items() for each in pods]
        assert chosen == [each is pod for each in pods]


def test_a_relay_that_reports_has_a_name_that_stays() -> None:
    """A Deployment's Pods have new names after each update, and each would leave a Lease."""
    found = documents(rendered(*VALUES["relays that report"]))
    sets = [each for each in found if each["kind"] == "StatefulSet"]
    assert len(sets) == 2
    for each in sets:
        (container,) = each["spec"]["template"]["spec"]["containers"]
        assert "--aggregate-reports=$(POD_NAME)" in container["args"]
        (name,) = container["env"]
        assert name["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"


def _selector(document: dict[str, Any]) -> dict[str, str] | None:
    if document["kind"] == "Service":
        return dict(document["spec"]["selector"])
    if document["kind"] in (*WORKLOADS, "PodDisruptionBudget"):
        return dict(document["spec"]["selector"]["matchLabels"])
    return None


def test_a_shadow_may_write_nothing() -> None:
    for document in documents(rendered("--set=controllers.mode=shadow")):
        if document["kind"] in ("ClusterRole", "Role"):
            assert {verb for rule in document["rules"] for verb in rule["verbs"]} == {
                "list",
                "watch",
            }


def test_an_uninstall_releases_adopted_services_first() -> None:
    found = documents(rendered(*VALUES["adopted"]))
    hooks = [each for each in found if "helm.sh/hook" in each["metadata"].get("annotations", {})]
    assert sorted(each["kind"] for each in hooks) == [
        *("ClusterRole", "ClusterRoleBinding", "Job", "ServiceAccount"),
    ]
    (job,) = (each for each in hooks if each["kind"] == "Job")
    command, *flags = job["spec"]["template"]["spec"]["containers"][0]["args"]
    told = CliRunner().invoke(main, [command, "--help"]).output
    assert all(flag.partition("=")[0] in told for flag in flags)
    left = documents(rendered(*VALUES["adopted"], "--set=controllers.releaseOnUninstall=false"))
    assert not [each for each in left if each["kind"] == "Job"]


@pytest.mark.parametrize("name", FILES)
def test_manifests_are_what_the_chart_renders(name: str) -> None:
    assert (MANIFESTS / name).read_text() == manifest(name), "run tools/make_manifests.py"


def test_nothing_else_is_among_the_manifests() -> None:
    assert {each.name for each in MANIFESTS.iterdir()} == set(FILES)


def test_the_image_has_what_it_copies() -> None:
    text = (ROOT / "Dockerfile").read_text()
    shown = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        name
        for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE)
        for name in line.split()[:-1]
    }
    assert copied == shown
    assert all((ROOT / name).exists() for name in copied)


def test_versions_agree() -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    chart = (CHART / "Chart.yaml").read_text()
    assert sliceplane.__version__ == version[1]
    assert f"\nversion: {version[1]}\n" in chart
    assert f"\nappVersion: {version[1]}\n" in chart
    assert f"sliceplane:{version[1]} " in (ROOT / "Dockerfile").read_text()
