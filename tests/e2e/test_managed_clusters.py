"""The reading commands at managed clusters (EKS, GKE, AKS): what such a cluster lacks is named,
nothing that was not read is called well, and the API server gets few requests, slowly.
"""

from __future__ import annotations

import gc
import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import pytest
from benchmarks.reading_commands import commands, managed
from benchmarks.tools.managed_api import ManagedApi, Request, Shape, release
from benchmarks.tools.managed_cluster import Size
from benchmarks.tools.process import PlaneProcess
from click.testing import CliRunner

from sliceplane.cli import cluster
from sliceplane.cli.main import main
from sliceplane.consume.io import drain_marks
from sliceplane.diagnose.explain.investigation import LOOKUPS_MAX

SIZE: Final = Size(nodes=200, namespaces=10, services=400, slices=5, pods=1)
COMMANDS: Final = {
    **commands(SIZE),
    "drift --node": ("drift", "--node", SIZE.node(0)),
    "explain from": ("explain", "service", "svc-00000", "-n", "team-000", "--from", "zone/zone-a"),
    "recorder save": ("recorder", "save", "FILE"),
    "snapshot save": ("snapshot", "save", "FILE"),
    "agent grant": ("agent", "grant", "vm-1", "--service", "svc-00000", "-n", "team-000"),
}
RELEASES: Final = range(28, 38)
#: these run at every release, the others at the oldest alone
AT_EVERY_RELEASE: Final = ("check", "explain service", "trace", "drain pod --dry-run", "what-if")
#: what commands list of all namespaces, or of the cluster, without a selector
OF_ONE: Final = {"namespaces", "nodes", "servicecidrs"}
LISTS_OF_LINT: Final = {
    *("daemonsets", "deployments", "endpoints", "endpointslices", "ingresses", "jobs"),
    *("namespaces", "networkpolicies", "nodes", "pods", "replicasets", "replicationcontrollers"),
    *("resourcequotas", "servicecidrs", "services", "statefulsets"),
}
WHOLE_LISTS: Final = {
    "check": LISTS_OF_LINT,
    "check -n": OF_ONE,
    "status": LISTS_OF_LINT,
    "lint": LISTS_OF_LINT,
    "lint -n": OF_ONE,
    "explain service": {"servicecidrs"},
    "explain pod": {"servicecidrs"},
    "explain node": {"nodes"},
    "explain zone": {"nodes", "services", "endpointslices"},
    "trace": {"nodes", "services", "servicecidrs"},
    "trace --via xds": {"nodes"},
    "drift": {"nodes"},
    "drift --node": {"nodes"},
    "timeline": set(),
    "what-if": {"nodes"},
    "endpoints audit": {"endpoints", "endpointslices", "services"},
    "guard status": {"services"},
    "agent list -A": set(),
    "dns query": {"namespaces", "nodes"},
    "drain pod --dry-run": {"nodes"},
    "drain node --dry-run": {"nodes"},
    "adopt --dry-run": set(),
}
RATE_MAX: Final = 20


class Cluster:
    """A managed cluster in a folder of its own; its shape is chosen for each test."""

    def __init__(self, plane: PlaneProcess, folder: Path) -> None:
        self._plane = plane
        self._folder = folder

    @property
    def kubeconfig(self) -> str | Path:
        return self._plane.kubeconfig

    def run(self, name: str, shape: Shape, *flags: str) -> tuple[int, str, list[Request]]:
        """The exit code, the output, and the requests."""
        words = [str(self._folder / "file") if w == "FILE" else w for w in COMMANDS[name]]
        return self.run_words((*words, *flags), shape)

    def run_words(self, words: tuple[str, ...], shape: Shape) -> tuple[int, str, list[Request]]:
        with ManagedApi(self._plane.kubeconfig, shape) as api:
            config = api.kubeconfig(self._folder)
            done = CliRunner().invoke(main, [*words, "--kubeconfig", config])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output, api.requests


@pytest.fixture(scope="module")
def managed_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("managed")
    with managed(folder, SIZE) as plane:
        yield Cluster(plane, folder)


@pytest.fixture
def haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands as fast as they can, where their rate is not the subject."""
    monkeypatch.setattr(cluster, "READING_QPS", 1e6)


@pytest.mark.parametrize(
    ("minor", "name"),
    [
        pytest.param(
            minor, name, marks=() if minor in (RELEASES[0], RELEASES[-1]) else pytest.mark.slow
        )
        for minor in RELEASES
        for name in COMMANDS
        if minor == RELEASES[0] or name in AT_EVERY_RELEASE
    ],
)
@pytest.mark.usefixtures("haste")
def test_a_command_answers_whatever_a_release_lacks(
    managed_cluster: Cluster, minor: int, name: str
) -> None:
    code, text, _ = managed_cluster.run(name, release(minor))
    assert code in (0, 1, 2), text
    assert "objects that no API server accepts" not in text
    assert not re.search(r"(?i)error: the server refuses:|page not found|could not find", text), (
        text
    )
    assert "forbidden" not in text
    assert not re.search(r"^cause +\w+ certain", text, re.MULTILINE), "nothing is wrong for sure"
    well = re.search(r"^well +(.*)$", text, re.MULTILINE)
    if well is not None:
        links = well[1].split(", ")
        assert "node proxies" not in links, "no node reports there"
        assert ("Service" in links) <= (minor >= 33), "without ServiceCIDRs it was not looked at"
    if name == "check":
        assert f"v1.{minor}." in text
        assert f"{SIZE.nodes} of {SIZE.nodes} Nodes reported no progress" in text


@pytest.mark.parametrize("name", WHOLE_LISTS)
@pytest.mark.usefixtures("haste")
def test_only_what_is_needed_is_listed(managed_cluster: Cluster, name: str) -> None:
    _, text, requests = managed_cluster.run(name, release(36))
    whole = {request.path.rpartition("/")[2] for request in requests if _is_of_all(request)}
    assert whole == WHOLE_LISTS[name], text
    watched = "drain" in name  # a probe, the list that is followed, its pages
    for request in requests:
        assert request.path != "/api/v1/secrets"
        if _is_of_all(request) and not watched:
            assert "limit=" in request.target, "in pages"
    repeated = {
        target
        for target, count in Counter(r.target for r in requests if "limit=" in r.target).items()
        if count > 1
    }
    assert watched or not repeated, "each list once"


@pytest.mark.usefixtures("haste")
def test_nothing_is_due_in_a_cluster_whose_controllers_have_converged(
    managed_cluster: Cluster,
) -> None:
    """References to owners without their uid made ``what-if`` create every Pod anew, in each of its
    runs: for minutes, and for a prediction of three times as many endpoints.
    """
    code, text, _ = managed_cluster.run("what-if", release(31))
    assert code == 0, text
    assert "before any change" not in text
    assert re.search(rf"^ready endpoints +{SIZE.replicas + 1} ", text, re.MULTILINE), text


@pytest.mark.parametrize("name", ["check -n", "lint -n"])
@pytest.mark.usefixtures("haste")
def test_few_addresses_are_looked_up_for_a_namespace(managed_cluster: Cluster, name: str) -> None:
    """Forty Services of the namespace have an address of another manager; each was a request."""
    _, text, requests = managed_cluster.run(name, release(36))
    assert sum("status.podIP" in request.target for request in requests) == LOOKUPS_MAX
    assert len(requests) <= 60, text
    assert f"{LOOKUPS_MAX} of 40 addresses looked up" in " ".join(text.split())


def _is_of_all(request: Request) -> bool:
    """Returns True for a list without a namespace and without a selector."""
    steps = request.path.strip("/").split("/")
    query = parse_qs(urlsplit(request.target).query)
    is_list = steps[0] in ("api", "apis") and len(steps) == (3 if steps[0] == "api" else 4)
    return is_list and not {"fieldSelector", "labelSelector"} & query.keys()


@pytest.mark.parametrize("name", ["check", "lint", "endpoints audit"])
def test_the_rate_is_bounded(managed_cluster: Cluster, name: str) -> None:
    """The pages of 2,000 slices and Pods come one after the other, lists side by side."""
    _, text, requests = managed_cluster.run(name, release(36))
    assert len(requests) >= 7, text
    for request in requests:
        after = [r for r in requests if request.at <= r.at < request.at + 1.0]
        assert len(after) <= RATE_MAX, [f"{r.at:.2f} {r.target}" for r in after]


def test_a_webhook_that_times_out_ends_an_adoption_that_has_changed_nothing(
    managed_cluster: Cluster,
) -> None:
    shape = release(31)._replace(webhook_s=0.2)
    words = ("adopt", "service", "svc-00001", "-n", "team-001", "--timeout", "2s")
    code, text, requests = managed_cluster.run_words(words, shape)
    assert code == 1, text
    assert "NOT adopted: team-001/svc-00001: the server refuses: Internal error" in text
    assert "context deadline exceeded" in text
    assert sum(request.method != "GET" for request in requests) == 1
    _, plan, _ = managed_cluster.run_words((*words[:5], "--dry-run", "-o", "json"), release(31))
    assert json.loads(plan)["plans"][0]["steps"][0].startswith("annotate it"), "it is as before"


def test_a_webhook_that_times_out_ends_a_drain_with_the_command_that_undoes_it(
    managed_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_marks, "TAKE_BACK_MAX_S", 3.0)
    shape = release(31)._replace(webhook_s=0.2)
    pod = SIZE.pod(1, 0)
    words = ("drain", "pod", pod, "-n", "team-001", "--force", "--timeout", "2s")
    code, text, requests = managed_cluster.run_words(words, shape)
    assert code == 2, text
    assert "context deadline exceeded" in text
    assert {r.path.rpartition("/")[2] for r in requests if r.method == "PATCH"} == {pod}
    # Whether a write that timed out has happened is not known.
    assert f"sliceplane drain pod {pod} -n team-001" in text
    assert "--undo" in text


def test_no_connection_is_left_open_by_the_end_of_the_layer(managed_cluster: Cluster) -> None:
    """Clients connect while it ends. What asyncio loses is told as a warning of the collection."""

    def knock(port: int) -> None:
        with suppress(OSError):
            for _ in range(15):
                with socket.create_connection(("127.0.0.1", port)) as client:
                    client.sendall(b"GET /version HTTP/1.1\r\n\r\n")

    for _ in range(20):
        with ManagedApi(managed_cluster.kubeconfig, release(36)) as api:
            clients = [threading.Thread(target=knock, args=(api.port,)) for _ in range(3)]
            for client in clients:
                client.start()
        for client in clients:
            client.join()
    gc.collect()
