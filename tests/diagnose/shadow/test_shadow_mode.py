"""Shadow mode over the network: a server, controllers beside it that are sound or have a bug, and
the command.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.shadow import planted
from tests.diagnose.shadow.beside import (
    NAMESPACE,
    controlled,
    delete_pod,
    endpoints,
    populate,
    set_ready,
)
from tests.diagnose.shadow.planted import Planted
from tests.ports import free_port
from tests.server.serving import Server, run_plane
from tests.waiting import until

from sliceplane.api.core import Pod
from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import ConfigMaps, EndpointSlices
from sliceplane.cli.run.shadow import Printed
from sliceplane.controllers.endpointslice import EndpointSliceConfig
from sliceplane.diagnose.shadow.differences import DifferenceKind, SliceDifference
from sliceplane.diagnose.shadow.io.hosting import ShadowRun
from sliceplane.diagnose.shadow.ledger import DIFFERENCES_PER_SERVICE_MAX, DifferenceLedger, News
from sliceplane.diagnose.shadow.report import (
    ShadowSummary,
    findings,
    findings_of_lines,
    json_line,
    line,
    summary_of,
)
from sliceplane.server.io.plane import PlaneConfig
from sliceplane.watch.io import kubeconfig
from sliceplane.watch.io.base import ReadOnlyClient
from sliceplane.watch.io.http.client import HttpClient

ROOT = Path(__file__).parents[3]
PODS = 4


@pytest.fixture
def server() -> Iterator[Server]:
    """Without controllers of its own."""
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0))
    yield Server(plane)
    end()


def command(server: Server, *flags: str) -> list[str]:
    program = [
        sys.executable,
        "-m",
        "sliceplane",
        "controllers",
        "--shadow",
        "--shadow-grace=500ms",
    ]
    return [*program, "--kubeconfig", str(server.plane.kubeconfig), *flags]


def once(server: Server, *flags: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"}
    arguments = command(server, "--once", *flags)
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)


class Heard:
    """An ``Output`` that keeps what it is told."""

    def __init__(self) -> None:
        self.all: list[News] = []

    def news(self, news: tuple[News, ...]) -> None:
        self.all += news

    def on_state(self, ledger: DifferenceLedger, summary: ShadowSummary, now: float) -> None:
        assert summary.differences == len(tuple(ledger.standing()))


def compared(server: Server) -> list[News]:
    """What ``--wait_until_compared`` finds, in this process."""

    async def look() -> list[News]:
        client = HttpClient(kubeconfig.load(server.plane.kubeconfig), read_only=True)
        run, heard = ShadowRun(client, EndpointSliceConfig(), grace_s=0.5), Heard()
        run.start()
        assert await run.wait_until_compared(heard, 20.0)
        await run.close()
        await client.close()
        assert run.client.refused == 0
        return heard.all

    return asyncio.run(look())


def drain(server: Server, number: int) -> None:
    """The Pod terminates and its kubelet takes its time."""
    finalized = {"metadata": {"finalizers": ["test/held"]}}
    path, patch = f"{NAMESPACE}/pods/web-{number}", {"Content_Type": "application/merge-patch+json"}
    assert server.request("PATCH", path, finalized, **patch).code == 200
    assert server.request("DELETE", path).code == 200


@pytest.mark.parametrize(
    ("bug", "expected"),
    [
        (
            "terminating",
            {
                ("ready", "Pod web-1", "false", "true"),
                ("terminating", "Pod web-1", "true", "false"),
            },
        ),
        ("zone", {("zone", f"Pod web-{n}", "a", "b") for n in (0, 2)}),
        ("stale", {("endpoint-stale", "Pod web-3", "(none)", "10.9.0.4")}),
        (
            "hints",
            {
                ("hint-missing", f"Pod web-{n}", f"zones {'ab'[n % 2]}", "(none)")
                for n in range(PODS)
            },
        ),
        (
            "ports",
            {
                ("ports", f"Pod web-{n}", "admin:8081/TCP, http:8080/TCP", "http:8080/TCP")
                for n in range(PODS)
            },
        ),
    ],
)
def test_a_planted_bug_is_found_and_named(
    server: Server, bug: str, expected: set[tuple[str, ...]]
) -> None:
    populate(server, PODS)
    distort = {
        "terminating": planted.terminating_stay_ready,
        "zone": planted.wrong_zone,
        "stale": planted.sound,
        "hints": planted.no_hints,
        "ports": planted.last_port_dropped,
    }[bug]
    with controlled(server, lambda: Planted(distort, never_lose=Pod if bug == "stale" else None)):
        until(lambda: len(endpoints(server)) == PODS)
        if bug == "terminating":
            drain(server, 1)
        if bug == "stale":
            delete_pod(server, 3)
        found = compared(server)
    assert {(each.what, each.standing.key) for each in found} == {("appeared", "default/web")}
    named = {
        (d.kind.value, d.subject, d.desired, d.actual)
        for d in (each.standing.difference for each in found)
    }
    assert named >= expected
    # a hint follows from the zone
    assert {kind for kind, *_ in named - expected} <= {"hints"}
    for number in range(PODS):
        server.request(
            "PATCH", f"{NAMESPACE}/pods/web-{number}", {"metadata": {"finalizers": None}}
        )


def test_beside_a_sound_controller_there_is_no_difference_during_churn(
    server: Server, tmp_path: Path
) -> None:
    populate(server, PODS)
    output = tmp_path / "differences"
    flags = (
        f"--metrics-bind-address=127.0.0.1:{(port := free_port())}",
        f"--shadow-output={output}",
    )
    with controlled(server, lambda: Planted(planted.sound)):
        until(lambda: len(endpoints(server)) == PODS)
        before = written(server)
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        with subprocess.Popen(
            command(server, *flags), env=environment, stdout=subprocess.PIPE, text=True
        ) as shadow:
            assert shadow.stdout is not None
            assert shadow.stdout.readline() == "ready shadow\n"
            began, rounds = time.monotonic(), 0
            while rounds <= 20 or time.monotonic() - began < 2.0:
                set_ready(server, rounds % PODS, "False" if rounds // PODS % 2 else "True")
                rounds += 1
                time.sleep(0.01)
            figures = page(port, "metrics")
            assert page(port, "readyz") == "ok: shadow\n"
            shadow.send_signal(signal.SIGTERM)
            rest = shadow.stdout.read()
        assert shadow.returncode == 0
    assert rest.startswith("no difference in 2 services"), rest
    assert "sliceplane_shadow_services 2.0" in figures
    assert "sliceplane_shadow_differences{" not in figures
    assert 'rest_client_requests_total{code="200",host="127.0.0.1' in figures
    (summary,) = [json.loads(line) for line in output.read_text().splitlines()]
    assert (summary["event"], summary["differences"]) == ("summary", 0)
    assert summary["comparisons"] >= 3
    assert rounds > 20
    assert before == {"Lease": 0, "Event": 0}
    assert written(server) == {"Lease": 0, "Event": 0}


def written(server: Server) -> dict[str, int]:
    """What a process that writes would have written."""
    leases = server.get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases").json["items"]
    events = server.get("/api/v1/events").json["items"]
    return {"Lease": len(leases), "Event": len(events)}


def page(port: int, name: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=60) as answer:
        return str(answer.read().decode())


def test_once_says_that_all_is_the_same_and_an_account_that_may_only_read_is_enough(
    server: Server, tmp_path: Path
) -> None:
    populate(server, PODS)
    role: dict[str, Any] = {
        "metadata": {"name": "shadow"},
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["services", "pods", "nodes"],
                "verbs": ["get", "list", "watch"],
            },
            {
                "apiGroups": ["discovery.k8s.io"],
                "resources": ["endpointslices"],
                "verbs": ["get", "list", "watch"],
            },
        ],
    }
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    assert server.request("POST", f"{rbac}/clusterroles", role).code == 201
    binding = {
        "metadata": {"name": "shadow"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "shadow",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "shadow", "namespace": "default"}],
    }
    assert server.request("POST", f"{rbac}/clusterrolebindings", binding).code == 201
    assert (
        server.request(
            "POST", f"{NAMESPACE}/serviceaccounts", {"metadata": {"name": "shadow"}}
        ).code
        == 201
    )
    made = server.request(
        "POST", f"{NAMESPACE}/serviceaccounts/shadow/token", {"spec": {"expirationSeconds": 600}}
    )
    config = json.loads(kubeconfig_with_token(server, made.json["status"]["token"]))
    path = Path(server.plane.kubeconfig).with_name("shadow.kubeconfig")
    path.write_text(json.dumps(config))
    with controlled(server, lambda: Planted(planted.sound)):
        until(lambda: len(endpoints(server)) == PODS)
        done = once(server, f"--kubeconfig={path}")
        assert (done.returncode, done.stdout.splitlines()[-1][:28]) == (
            0,
            "no difference in 2 services ",
        ), done.stderr
    delete_pod(server, 1)
    done = once(server, f"--kubeconfig={path}", "--shadow-output=-")
    assert done.returncode == 1, done.stderr
    found, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert (found["event"], found["kind"]) == ("appeared", "endpoint-stale")
    told, web = found["finding"], {"kind": "Service", "namespace": "default", "name": "web"}
    assert (told["code"], told["severity"], told["subject"]) == ("E1", "error", web)
    assert told["sentence"] == "in the slices, and should not be: web-1 (IPv4)"
    assert told["evidence"] == [
        {
            "object": web,
            "field": "endpoints[web-1] endpoint-stale",
            "value": "10.9.0.2",
            "was": "",
            "wanted": "(none)",
            "writer": "",
            "written": "",
        }
    ]
    report = tmp_path / "report"
    report.write_text(done.stdout)
    explained = [
        sys.executable,
        "-m",
        "sliceplane",
        "explain",
        "service",
        "web",
        "--shadow",
        str(report),
    ]
    said = subprocess.run(
        [*explained, "--kubeconfig", str(server.plane.kubeconfig)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "E1 certain: in the slices, and should not be: web-1 (IPv4)" in said.stdout, said.stderr
    assert (summary["event"], summary["differences"], summary["services"]) == ("summary", 1, 2)


def kubeconfig_with_token(server: Server, token: str) -> str:
    cluster = {"server": server.plane.url, "certificate-authority": str(server.plane.pki.ca_file)}
    return json.dumps(
        {
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "c", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        }
    )


def test_beside_nobody_a_person_is_told_so_and_reads_each_difference_once(server: Server) -> None:
    populate(server, PODS)
    done = once(server)
    assert done.returncode == 1, done.stderr
    *rows, summary, nobody, question = done.stdout.splitlines()
    assert max(len(nobody), len(question)) <= 80
    assert question == "endpointslice-controller.k8s.io.  Does an EndpointSlice controller run?"
    assert nobody.startswith("Nobody seems to write EndpointSlices here")
    # the Service kubernetes has no selector: it is compared, and nothing is due to it
    assert summary.startswith("5 differences in 1 of 2 services after "), summary
    assert rows[0].startswith("SEVERITY")
    assert [row.split()[:3] for row in rows[1:]] == [
        ["error", "E1", "default/web"],
        ["warning", "E16", "default/web"],
    ]
    assert "not in the slices: web-0, web-1, web-2 and 1 more (IPv4), for " in rows[1]
    assert not [row for row in rows if " appeared " in row]


def test_who_follows_a_cluster_without_controller_is_told_once_and_gets_no_table_of_the_lines_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed, ledger = Printed(None, to_stdout=False), DifferenceLedger(0.0)
    found = [
        SliceDifference(
            DifferenceKind.ENDPOINT_MISSING, "IPv4", f"Pod p{n}", "10.0.0.1", "(none)", f"p{n}"
        )
        for n in range(3)
    ]
    ledger.observe("a/b", found, (), unrest=False, now=1.0)
    ledger.confirm("a/b", ledger.due("a/b", 1.0), 1.0)
    printed.news(ledger.take_news())
    for now in (2.0, 3.0):
        printed.on_state(ledger, summary_of(ledger, 4), now)
    printed.end(ledger, summary_of(ledger, 4), 4.0, complete=True)
    lines = capsys.readouterr().out.splitlines()
    assert [sum(f"not in the slices: p{n} (IPv4)" in each for each in lines) for n in range(3)] == [
        1,
        1,
        1,
    ]
    assert lines[-3] == "3 differences in 1 of 4 services after 1 comparison"
    assert sum("Nobody seems" in each for each in lines) == 2, "when it shows, and in the summary"
    ledger.managed = 1
    assert not summary_of(ledger, 4).lacks_controller


def test_what_people_read() -> None:
    ledger = DifferenceLedger(5.0)
    found = [
        SliceDifference(DifferenceKind.ZONE, "IPv4", f"Pod web-{n}", "a", "b" * 60, f"web-{n}")
        for n in range(3)
    ]
    ledger.observe("default/web", found, (), unrest=False, now=100.0)
    assert not list(findings(ledger.standing(), 100.0))
    ledger.confirm("default/web", ledger.due("default/web", 105.0), 105.0)
    (finding,) = findings(ledger.standing(), 130.0)
    assert (finding.code, str(finding.subject)) == ("E1", "Service default/web")
    assert (
        finding.sentence == f"zone of web-0, web-1, web-2: {'b' * 60}, should be a (IPv4), for 30 s"
    )
    first = ledger.take_news()[0]
    said = line(first)
    assert said.startswith(
        "1970-01-01T00:01:45.000000Z appeared E1 default/web: zone of web-0: bbb"
    ), said
    (again,) = findings_of_lines([json_line(first)])
    assert (again.code, again.sentence) == ("E1", f"zone of web-0: {'b' * 60}, should be a (IPv4)")
    assert again.evidence[0].expected == "a"


def test_differences_beyond_the_limit_are_counted_and_push_nobody_out() -> None:
    def differences(first: int, count: int) -> list[SliceDifference]:
        pods = [f"web-{n:05d}" for n in range(first, first + count)]
        return [
            SliceDifference(DifferenceKind.READY, "IPv4", f"Pod {pod}", "true", "false", pod)
            for pod in pods
        ]

    ledger, beyond = DifferenceLedger(0.0), 5
    later = differences(50_000, DIFFERENCES_PER_SERVICE_MAX)
    ledger.observe("a/b", later, (), unrest=False, now=1.0)
    ledger.confirm("a/b", ledger.due("a/b", 1.0), 1.0)
    ledger.take_news()
    ledger.observe("a/b", [*differences(0, beyond), *later], (), unrest=False, now=2.0)
    assert (ledger.take_news(), ledger.beyond, ledger.pending) == ((), beyond, 0)
    assert summary_of(ledger, 1).text.startswith(
        f"{DIFFERENCES_PER_SERVICE_MAX + beyond:,} differences in 1 service"
    )
    ledger.observe("a/b", later[:-1], (), unrest=False, now=3.0)
    assert ([news.what for news in ledger.take_news()], ledger.beyond) == (["resolved"], 0)
    ledger.check()


def test_a_terminal_shows_a_picture_and_only_when_it_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    printed, ledger = Printed(None, to_stdout=False), DifferenceLedger(0.0)
    for now in (1.0, 2.0):
        printed.on_state(ledger, summary_of(ledger, 1), now)
    ledger.observe(
        "a/b",
        [SliceDifference(DifferenceKind.READY, "IPv4", "Pod p", "true", "false", "p")],
        (),
        unrest=False,
        now=3.0,
    )
    ledger.confirm("a/b", ledger.due("a/b", 3.0), 3.0)
    printed.news(ledger.take_news())
    printed.on_state(ledger, summary_of(ledger, 1), 4.0)
    first, second = capsys.readouterr().out.split("\x1b[H\x1b[2J")[1:]
    assert first.strip() == "no difference in 1 service after no comparison"
    assert "Nobody seems to write EndpointSlices here" in second
    assert second.startswith("1 difference in 1 service after 1 comparison")
    assert "error     E1    a/b      ready of p: false, should be true (IPv4), for 1 s" in second


class _SmallDisk(FileIO):
    """Takes *room* bytes."""

    def __init__(self, path: Path, room: int) -> None:
        super().__init__(path, "a")
        self.room = room

    def write(self, data: Any) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = super().write(bytes(data)[: self.room])
        self.room -= taken
        return taken


def test_lines_that_a_full_disk_does_not_take_are_counted_and_the_rest_can_be_read(
    tmp_path: Path,
) -> None:
    with _SmallDisk(tmp_path / "news", 25) as disk:
        printed = Printed(disk, to_stdout=False)
        for number in range(4):
            printed.json(b'{"first":%d}' % number)
        assert printed.lost == 2
        disk.room = 1000
        printed.json(b'{"then":4}')
        printed.json(b'{"then":5}')
        assert printed.lost == 2
    written = (tmp_path / "news").read_bytes()
    assert written == b'{"first":0}\n{"first":1}\n{\n{"then":4}\n{"then":5}\n'


async def test_no_write_reaches_the_server(server: Server) -> None:
    """Neither by the client that a shadow's controller has, nor by the one under it."""
    transport = HttpClient(kubeconfig.load(server.plane.kubeconfig), read_only=True)
    client = ReadOnlyClient(transport)
    for each in (client, transport):
        for attempt in (
            lambda one: one.create(ConfigMaps, "default", b'{"metadata":{"name":"a"}}'),
            lambda one: one.update(ConfigMaps, "default", "a", b"{}"),
            lambda one: one.patch(ConfigMaps, "default", "a", b"{}", patch_type="merge"),
            lambda one: one.delete(EndpointSlices, "default", "a"),
        ):
            with pytest.raises(StatusError) as error:
                await attempt(each)
            assert (error.value.code, "only reads" in error.value.message) == (405, True)
    assert client.refused == 4
    assert {
        sample.labels[1] for family in transport.metrics.families() for sample in family.samples
    } == set()
    await client.close()


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (
            ("--shadow", "--controllers=endpoints-controller"),
            64,
            "compares what endpointslice-controller writes",
        ),
        (("--shadow-output=-",), 64, "--shadow-output is for --shadow"),
        (("--shadow", "--once", "--kubeconfig=/nonexistent"), 2, "No such file"),
    ],
)
def test_wrong_usage_is_told(flags: tuple[str, ...], code: int, text: str) -> None:
    program = [sys.executable, "-m", "sliceplane", "controllers", *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, text in done.stderr) == (code, True), done.stderr
