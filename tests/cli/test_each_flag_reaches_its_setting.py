"""Every flag is named in a test; those that no other test uses are parsed here and reach their
settings.

A case runs a command line up to the function or class that works with what its flags say, which is
exchanged for one that notes its arguments and ends the command.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click
import pytest
from click.testing import CliRunner

from sliceplane.cli.main import COMMANDS, main
from sliceplane.diagnose.drift.answer import Drift, DriftRow
from sliceplane.lab.conformance.verdict import ConsumerReport

TESTS = Path(__file__).parents[1]
KUBECONFIG = """
{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}], users: [{name: a, user: {}}]}
"""
FLAG = re.compile(r"--[a-z][a-z0-9-]*")


class Given(NamedTuple):
    """What the command gave to the place where a case ends."""

    arguments: tuple[Any, ...]
    members: dict[str, Any]


class Case(NamedTuple):
    #: {folder} is the test's; a kubeconfig is given to all
    command_line: str
    #: dotted name of a function or class: what it is given is looked at
    ends_at: str
    look: Callable[[Given], Any]
    value: Any


def seen(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    notes: list[Any] = []

    def note(*arguments: Any, **members: Any) -> Any:
        notes.append(case.look(Given(arguments, members)))
        raise SystemExit(0)

    (folder / "kubeconfig").write_text(KUBECONFIG)
    (folder / "file").write_text("")
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
    monkeypatch.setattr(case.ends_at, note)
    # descriptors and signals are the test run's own
    monkeypatch.setattr("sliceplane.cli.process.spare_descriptors", lambda: None)
    monkeypatch.setattr("sliceplane.cli.process.on_stop_signal", lambda callback: None)
    monkeypatch.setattr("sliceplane.cli.logs.Logs.begin", lambda logs: None)
    done = CliRunner().invoke(
        main, [word.format(folder=folder) for word in case.command_line.split()]
    )
    assert notes, f"{done.output}{done.exception!r}"
    return notes[0]


# What is looked at


def agent_file(given: Given) -> Any:
    return given.arguments[1]()


def agent_options(given: Given) -> Any:
    return given.arguments[2]


def checks(given: Given) -> Any:
    return agent_file(given).services[0].checks


def first(given: Given) -> Any:
    return given.arguments[0]


def plane_config(given: Given) -> Any:
    return first(given)()


REGISTER = "agent register web --port 80"
RUN = "agent run web --port 80"
SERVE_AGENT = "sliceplane.agent.io.start.serve"
CONTROLLERS = "sliceplane.controllers.io.catalogue.default_controllers"
RESOLVER = "sliceplane.dns.io.service.Resolver"
XDS = "sliceplane.cli.run.xds._serve"
PROGRAM = "sliceplane.lab.conformance.consumers.program.ProgramConsumer"
SCALE = "sliceplane.lab.sim.scale.run.ScaleRun"
UP = "sliceplane.cli.run.up.serve"


def _agents() -> Iterator[Case]:
    for flag, kind in (("--http", "http"), ("--https", "https")):
        line = f"{REGISTER} {flag} /well"
        yield Case(
            line, SERVE_AGENT, lambda g: [(c.kind, c.target) for c in checks(g)], [(kind, "/well")]
        )
    yield Case(
        f"{REGISTER} --grpc",
        SERVE_AGENT,
        lambda g: [(c.kind, c.target) for c in checks(g)],
        [("grpc", "")],
    )
    yield Case(
        f"{REGISTER} --grpc=a.B",
        SERVE_AGENT,
        lambda g: [(c.kind, c.target) for c in checks(g)],
        [("grpc", "a.B")],
    )
    yield Case(
        f"{REGISTER} --exec true",
        SERVE_AGENT,
        lambda g: [(c.kind, c.target) for c in checks(g)],
        [("exec", "true")],
    )
    yield Case(
        f"{REGISTER} --ttl 7s",
        SERVE_AGENT,
        lambda g: [(c.kind, c.period_s) for c in checks(g)],
        [("ttl", 7.0)],
    )
    yield Case(
        f"{RUN} --notify true",
        SERVE_AGENT,
        lambda g: [c.kind for c in checks(g)],
        ["notify", "process"],
    )
    yield Case(
        f"{REGISTER} --rise 2 --fall 4",
        SERVE_AGENT,
        lambda g: [(c.rise, c.fall) for c in checks(g)],
        [(2, 4)],
    )
    yield Case(
        f"{REGISTER} --lease 20s", SERVE_AGENT, lambda g: agent_options(g).terms.lease_s, 20.0
    )
    yield Case(
        f"{REGISTER} --takeover", SERVE_AGENT, lambda g: agent_options(g).terms.takeover, True
    )
    yield Case(f"{REGISTER} --stop-timeout 9s", SERVE_AGENT, lambda g: agent_options(g).stop_s, 9.0)
    yield Case(
        f"{RUN} --on-orphan end true", SERVE_AGENT, lambda g: agent_options(g).on_orphan, "end"
    )
    yield Case(f"{REGISTER} --zone eu-1", SERVE_AGENT, lambda g: agent_file(g).zone, "eu-1")
    yield Case(
        f"{REGISTER} --node-name vm-1", SERVE_AGENT, lambda g: agent_file(g).node_name, "vm-1"
    )
    said = "sliceplane.agent.io.control.send_request"
    yield Case("agent pass a --fail", said, lambda g: g.arguments[1]["verb"], "fail")
    yield Case("agent pass a --text slow", said, lambda g: g.arguments[1]["text"], "slow")


def _controllers() -> Iterator[Case]:
    rows: tuple[tuple[str, Callable[[Any], Any], Any], ...] = (
        ("--claim-unlabelled-slices", lambda c: c.slices.claim_unlabelled_slices, True),
        (
            "--concurrent-service-endpoint-syncs 7",
            lambda c: c.slices.concurrent_service_endpoint_syncs,
            7,
        ),
        ("--hold-mass-removals", lambda c: c.slices.hold_mass_removals, True),
        ("--probe-held-endpoints", lambda c: c.slices.probe_held, True),
        ("--concurrent-endpoint-syncs 7", lambda c: c.endpoints.concurrent_endpoint_syncs, 7),
        (
            "--endpoint-updates-batch-period 3s",
            lambda c: c.endpoints.endpoint_updates_batch_period_s,
            3.0,
        ),
        (
            "--mirroring-concurrent-service-endpoint-syncs 7",
            lambda c: c.mirroring.concurrent_service_endpoint_syncs,
            7,
        ),
        (
            "--mirroring-max-endpoints-per-subset 7",
            lambda c: c.mirroring.max_endpoints_per_subset,
            7,
        ),
        ("--mirroring-max-endpoints-per-slice 7", lambda c: c.mirroring.max_endpoints_per_slice, 7),
        (
            "--mirroring-endpointslice-updates-batch-period 3s",
            lambda c: c.mirroring.endpointslice_updates_batch_period_s,
            3.0,
        ),
    )
    for flags, look, value in rows:
        yield Case(f"controllers {flags}", CONTROLLERS, lambda g, look=look: look(first(g)), value)  # type: ignore[misc]
    client = "sliceplane.watch.io.http.client.HttpClient"
    yield Case(
        "controllers --once --kube-api-burst 7", client, lambda g: g.members["limit"].burst, 7
    )


def _name_servers() -> Iterator[Case]:
    ten = ip_network("10.0.0.0/8")
    rows: tuple[tuple[str, Callable[[Given], Any], Any], ...] = (
        (
            "--cluster-domain one.test --cluster-domain two.test",
            lambda g: first(g).domains,
            ("one.test", "two.test"),
        ),
        ("--ttl 9s", lambda g: first(g).ttl_s, 9),
        ("--namespaces a,b", lambda g: first(g).namespaces, ("a", "b")),
        ("--reverse-cidrs 10.0.0.0/8", lambda g: first(g).reverse_cidrs, (ten,)),
        ("--client-zone 10.0.0.0/8=eu-1", lambda g: first(g).client_zones, ((ten, "eu-1"),)),
        ("--allow 10.0.0.0/8", lambda g: g.arguments[1].allow, (ten,)),
        ("--shared-resolvers 10.0.0.0/8", lambda g: g.arguments[1].shared_resolvers, (ten,)),
        ("--rate-limit 2.5", lambda g: g.arguments[1].rate, 2.5),
        ("--forward 10.9.9.9", lambda g: g.members["forward"].forward, ("10.9.9.9",)),
        ("--forward none", lambda g: g.members["forward"], None),
        ("--forward-skip 10.9.9.8", lambda g: g.members["forward"].skip, ("10.9.9.8",)),
        ("--forward-max 7", lambda g: g.members["forward"].max_concurrent, 7),
        (
            "--stub corp.test=10.9.9.9",
            lambda g: g.members["forward"].stubs,
            ("corp.test=10.9.9.9",),
        ),
        ("--hosts {folder}/file", lambda g: Path(g.members["forward"].hosts).name, "file"),
        ("--serve-stale 1h", lambda g: g.members["forward"].stale_s, 3600.0),
    )
    for flags, look, value in rows:
        yield Case(f"dns --listen 127.0.0.1:0 {flags}", RESOLVER, look, value)
    yield Case(
        "dns --reuse-port",
        "sliceplane.cli.run.dns._serve",
        lambda g: g.arguments[2]["reuse_port"],
        True,
    )
    yield Case(
        "dns --shutdown-delay 4s",
        "sliceplane.cli.run.dns._serve",
        lambda g: g.arguments[2]["shutdown_delay"],
        4.0,
    )


def _xds() -> Iterator[Case]:
    catalog, server = "sliceplane.xds.catalog.XdsCatalog", "sliceplane.xds.io.server.XdsServer"
    yield Case("xds --cluster-domain one.test", catalog, lambda g: first(g).domains, ("one.test",))
    yield Case("xds --namespaces a,b", catalog, lambda g: first(g).namespaces, ("a", "b"))
    yield Case("xds --endpoint-names", catalog, lambda g: first(g).with_names, True)
    yield Case("xds --listeners capture", server, lambda g: g.arguments[1].listeners, "capture")
    yield Case("xds --trust-node-metadata node", server, lambda g: g.arguments[1].trust, "node")
    yield Case("xds --streams-per-user 7", XDS, lambda g: g.arguments[1].calls_per_user_max, 7)
    yield Case(
        "xds --insecure-bind-address 127.0.0.1:7",
        XDS,
        lambda g: g.arguments[1].plain,
        ("127.0.0.1", 7),
    )
    yield Case("xds --shutdown-delay 4s", XDS, lambda g: g.arguments[2]["shutdown_delay"], 4.0)
    wish = "sliceplane.xds.bootstrap.envoy_bootstrap"
    rows = (
        ("--node-name vm", "node_name", "vm"),
        ("--client-namespace shop", "namespace", "shop"),
        ("--listeners port", "listeners", "port"),
    )
    for flags, name, value in rows:
        line = f"xds bootstrap --for envoy --insecure {flags}"
        yield Case(line, wish, lambda g, name=name: first(g).metadata[name], value)  # type: ignore[misc]
    line = "xds bootstrap --for envoy --insecure --load-reports"
    yield Case(line, wish, lambda g: first(g).load_reports, True)
    line = "relay --tls-cert-file {folder}/file --tls-private-key-file {folder}/file"
    relay = "sliceplane.cli.run.relay._serve"
    yield Case(f"{line} --trust-nodes", relay, lambda g: g.arguments[1].trust_nodes, True)
    yield Case(f"{line} --zone eu-1", relay, lambda g: g.arguments[1].zone, "eu-1")
    yield Case(
        f"{line} --upstream {{folder}}/kubeconfig --upstream {{folder}}/kubeconfig",
        relay,
        lambda g: len(g.arguments[2]),
        1,
    )
    yield Case(
        f"{line} --requestheader-client-ca-file {{folder}}/file --requestheader-allowed-names a",
        relay,
        lambda g: g.arguments[1].front_proxies.names,
        frozenset("a"),
    )
    yield Case(
        f"{line} --proxy-client-cert-file {{folder}}/file --proxy-client-key-file {{folder}}/file",
        relay,
        lambda g: [path.name for path in g.arguments[1].proxy_certificate],
        ["file", "file"],
    )
    name = f"{line} --aggregate-reports a"
    yield Case(name, relay, lambda g: g.arguments[1].reports_name, "a")
    yield Case(
        f"{line} --resources pods,nodes",
        relay,
        lambda g: [each.plural for each in g.arguments[1].resources],
        ["pods", "nodes"],
    )
    yield Case(
        "xds bootstrap --for envoy --insecure --zone eu-1", wish, lambda g: first(g).zone, "eu-1"
    )


def _planes() -> Iterator[Case]:
    files = "--etcd-certfile {folder}/file --etcd-keyfile {folder}/kubeconfig"
    etcd = f"up --data-dir {{folder}} --etcd http://127.0.0.1:1 {files}"
    yield Case(etcd, UP, lambda g: plane_config(g).etcd.cert_file.name, "file")
    yield Case(etcd, UP, lambda g: plane_config(g).etcd.key_file.name, "kubeconfig")
    yield Case(
        "up --topology-storage annotation",
        UP,
        lambda g: plane_config(g).topology_storage,
        "annotation",
    )
    yield Case(
        "up --recordings {folder}", UP, lambda g: plane_config(g).flight.folder.is_dir(), True
    )
    yield Case("up --readers 3", UP, lambda g: plane_config(g).readers, 3)
    yield Case("up --no-color", UP, lambda g: g.members["logs"].colour, False)
    proxy = "sliceplane.cli.run.proxy._serve"
    yield Case("proxy --healthz-api-timeout 4s", proxy, lambda g: g.arguments[1].api_timeout_s, 4.0)
    yield Case(
        "proxy --cluster-domain one.test", proxy, lambda g: g.arguments[1].domains, ("one.test",)
    )
    given: Callable[[Given], Any] = lambda g: g.arguments[1].chosen.values["iptables.minSyncPeriod"]  # noqa: E731
    yield Case("proxy --iptables-min-sync-period 4s", proxy, given, 4.0)


def _answers() -> Iterator[Case]:
    for flag, word, name, value in (
        ("--claims", "hints", "claims", {"hints"}),
        ("--unable", "large", "unable", {"large"}),
        ("--patience", "4s", "patience_s", 4.0),
    ):
        yield Case(
            f"conformance --run program:x {flag} {word}",
            PROGRAM,
            lambda g, name=name: g.members[name],
            value,
        )  # type: ignore[misc]
    yield Case(
        "drain pod a --forget 7s",
        "sliceplane.consume.drain.options.DrainOptions",
        lambda g: g.members["forget_s"],
        7,
    )
    envoy = "sliceplane.diagnose.io.drifting.read_envoy_drift"
    yield Case(
        "drift --envoy http://127.0.0.1:9", envoy, lambda g: g.arguments[1], "http://127.0.0.1:9"
    )
    hints = "sliceplane.lab.whatif.estimate.estimate"
    yield Case("estimate --hints", hints, lambda g: first(g).traffic_distribution, "PreferSameZone")
    explained = "sliceplane.cli.query.explain.explained"
    yield Case(
        "explain service a --protocol udp", explained, lambda g: g.arguments[1].protocol, "UDP"
    )
    traced = "sliceplane.diagnose.io.tracing.question_of"
    yield Case(
        "trace --from a --to b --protocol UDP", traced, lambda g: g.members["protocol"], "udp"
    )
    by_xds = "sliceplane.diagnose.io.tracing.xds_question_of"
    line = "trace --via xds --to b --cluster-domain one.test"
    yield Case(line, by_xds, lambda g: g.members["domain"], "one.test")
    restored = "sliceplane.diagnose.io.snapshot.restore"
    yield Case(
        "snapshot restore {folder}/file --bump-revision 7", restored, lambda g: g.members["bump"], 7
    )


def _simulations() -> Iterator[Case]:
    rows: tuple[tuple[str, Callable[[Any], Any], Any], ...] = (
        ("--at-once 3", lambda plan: plan.at_once, 3),
        ("--servers 3", lambda plan: plan.servers, 3),
        ("--relays 4", lambda plan: plan.relays, 4),
        ("--relays 4 --levels 2", lambda plan: plan.levels, 2),
        ("--sampled 1", lambda plan: plan.sampled, 1),
        (
            "--batch-period 4s",
            lambda plan: plan.controller.endpointslice_updates_batch_period_s,
            4.0,
        ),
        ("--marks 7", lambda plan: plan.marks_per_s, 7.0),
        ("--memory 2", lambda plan: plan.budgets.memory_mib, 2048.0),
    )
    for flags, look, value in rows:
        yield Case(f"simulate --scale {flags}", SCALE, lambda g, look=look: look(first(g)), value)  # type: ignore[misc]
    traced = "sliceplane.cli.lab.simulate._traced"
    yield Case("simulate --workload classic", traced, lambda g: first(g).workload, "classic")
    yield Case("simulate --record {folder}/r", traced, lambda g: g.arguments[2].name, "r")


CASES = [
    *_agents(),
    *_controllers(),
    *_name_servers(),
    *_xds(),
    *_planes(),
    *_answers(),
    *_simulations(),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.command_line.replace("{folder}/", ""))
def test_a_flag_reaches_its_setting(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seen(case, tmp_path, monkeypatch) == case.value


# Flags of answers


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "simulated.recording"
    done = CliRunner().invoke(
        main, ["simulate", "--steps", "4", "--faults", "none", "--record", str(path)]
    )
    assert done.exit_code == 0, done.output
    return path


def answer(*arguments: str) -> str:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_recording_is_shown_by_its_head_alone_and_exported(recording: Path) -> None:
    head = answer("recorder", "show", str(recording), "--head")
    whole = answer("recorder", "show", str(recording))
    assert whole.startswith(head)
    assert len(whole.splitlines()) > 2 * len(head.splitlines())
    assert json.loads(answer("recorder", "export", str(recording), "--format", "chrome"))[
        "traceEvents"
    ]


def test_a_timeline_compares_two_moments(recording: Path) -> None:
    line = (
        "timeline",
        "service",
        "web",
        "-n",
        "default",
        "--from",
        str(recording),
        "-o",
        "json",
        "--diff",
    )
    same = json.loads(answer(*line, "0s", "0s"))
    assert same["before"] == same["after"]
    earlier = json.loads(answer(*line, "7m48s", "0s"))
    assert earlier["after"] == same["after"]
    assert earlier["before"] != earlier["after"]


def test_drift_is_read_again_as_long_as_it_is_watched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = iter((1, 1, 2))

    async def read_drift(*_: Any, **__: Any) -> Drift:
        if (revision := next(rows, None)) is None:
            raise asyncio.CancelledError  # as by Ctrl-C
        state: Literal["behind", "in step"] = "behind" if revision == 1 else "in step"
        return Drift((DriftRow("n1", state, revision, 0, 0.0, 0.0, "", ""),), (), ())

    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    monkeypatch.setattr("sliceplane.diagnose.io.drifting.read_drift", read_drift)
    monkeypatch.setattr("sliceplane.cli.cluster.WATCH_PERIOD_S", 0)
    done = CliRunner().invoke(
        main, ["drift", "--watch", "-o", "json", "--kubeconfig", str(tmp_path / "kubeconfig")]
    )
    assert (done.exit_code, done.stdout.count('"behind"'), done.stdout.count('"in step"')) == (
        0,
        1,
        1,
    ), done.output


def test_a_report_of_conformance_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    report = ConsumerReport("view", frozenset(), ())
    monkeypatch.setattr("sliceplane.cli.lab.conformance._judged", lambda *_, **__: report)
    answer("conformance", "--run", "view", "--report", str(tmp_path / "made"))
    assert {(path.stem, path.suffix) for path in (tmp_path / "made").iterdir()} == {
        ("view", ".json"),
        ("view", ".md"),
    }


# No flag is forgotten


def options_of(command: click.Command) -> Iterator[click.Option]:
    yield from (parameter for parameter in command.params if isinstance(parameter, click.Option))
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from options_of(below)


def unnamed(options: list[click.Option], texts: list[str]) -> list[str]:
    """The flags of which no spelling is in *texts*."""
    named = {flag for text in texts for flag in FLAG.findall(text)}
    spelled = {
        tuple(sorted(flag for flag in option.opts if flag.startswith("--"))) for option in options
    }
    return sorted(flags[0] for flags in spelled if flags and not named.intersection(flags))


def test_every_flag_is_in_a_test() -> None:
    commands = [main.get_command(click.Context(main), name) for name in COMMANDS]
    options = [
        option for command in commands if command is not None for option in options_of(command)
    ]
    assert len(options) > 400
    texts = [path.read_text(encoding="utf-8") for path in sorted(TESTS.rglob("*.py"))]
    assert unnamed(options, texts) == [], "flags that no test uses: a case of this file"


def test_a_flag_without_a_test_is_seen() -> None:
    options = [
        click.Option(["--old-name", "--new-name"]),
        click.Option(["--lost"]),
        click.Option(["-n", "--kept"]),
    ]
    assert unnamed(options, ['run("--new-name=1", "--kept")', "--lost-and-found"]) == ["--lost"]
