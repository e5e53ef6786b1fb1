"""Alert rules and dashboard: their expressions parse, name what the programs serve, and each alert
fires and clears.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.running import ROOT, Plane, kubectl, spawn, stop
from tests.kernel.kube_proxy_table import TABLE
from tests.kernel.netns import Host, Net

RULES = ROOT / "deploy" / "prometheus" / "sliceplane.rules.yaml"
BOARD = ROOT / "deploy" / "grafana" / "sliceplane.json"
#: Prometheus makes it
OF_PROMETHEUS = {"up"}
#: with --proxy-mode iptables alone
OTHER_MODE = {"kubeproxy_sync_proxy_rules_iptables_restore_failures_total"}
_WORDS = {
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "and",
    "or",
    "unless",
    "offset",
    "bool",
}


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def targets() -> list[tuple[str, str]]:
    """Title of the panel, expression."""
    panels = json.loads(BOARD.read_text())["panels"]
    return [
        (panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", ())
    ]


def metrics_of(expression: str) -> set[str]:
    """The names of metrics; what stands in braces, in a list of labels or before a parenthesis is
    none.
    """
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring)\s*\([^)]*\)", " ", bare)
    return {
        name for name in re.findall(r"\b([a-zA-Z_:][\w:]*)\b(?!\s*\()", bare) if name not in _WORDS
    }


@pytest.fixture(scope="module")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Prometheus' own; else the one in Debian's package, which is unpacked and not installed."""
    found = shutil.which("promtool")
    if found is not None:
        return found
    kept = ROOT / "build" / "prometheus" / "usr" / "bin" / "promtool"
    if not kept.exists():
        folder = tmp_path_factory.mktemp("deb")
        folder.chmod(0o755)
        got = shutil.which("apt-get") and subprocess.run(
            ["apt-get", "download", "prometheus"],
            cwd=folder,
            capture_output=True,
            timeout=300,
            check=False,
        )
        packages = list(folder.glob("*.deb"))
        if not packages:
            assert not os.environ.get("CI"), f"CI must have promtool: {got}"
            pytest.skip("needs promtool: apt-get install prometheus")
        kept.parents[2].mkdir(parents=True, exist_ok=True)  # dpkg makes the last folder only
        subprocess.run(
            ["dpkg", "-x", packages[0], ROOT / "build" / "prometheus"], check=True, timeout=300
        )
    return str(kept)


@pytest.mark.timeout(400)
def test_prometheus_takes_the_rules(promtool: str) -> None:
    told = subprocess.run(
        [promtool, "check", "rules", RULES], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    assert f"{len(rules())} rules found" in told.stdout


@pytest.mark.timeout(400)
def test_prometheus_takes_what_the_dashboard_asks(promtool: str, tmp_path: Path) -> None:
    expressions = [
        expr.replace("$__rate_interval", "5m").replace("$instance", ".*") for _, expr in targets()
    ]
    assert len(expressions) > 25
    records = [
        {"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(expressions)
    ]
    (tmp_path / "board.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "board", "rules": records}]})
    )
    told = subprocess.run(
        [promtool, "check", "rules", tmp_path / "board.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr


def test_the_dashboard_is_whole() -> None:
    board = json.loads(BOARD.read_text())
    identifiers = [panel["id"] for panel in board["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places)
    assert all("$instance" in expr for _, expr in targets())
    assert {each["name"] for each in board["templating"]["list"]} == {"datasource", "instance"}


# What is named is served


@pytest.fixture(scope="module")
def node() -> Iterator[Host]:
    with Net("mon") as net:
        yield net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")


@pytest.fixture(scope="module")
def served(node: Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Program -> names of what it serves: samples, and families that have none yet."""
    folder = tmp_path_factory.mktemp("served")
    inside = tuple(node.place.command())
    audit = ("--audit-log-path", str(folder / "audit.log"))
    plane = spawn(folder, *audit, prefix=inside)
    try:
        shell = folder / "kubectl"
        shell.write_text(f'#!/bin/sh\nexec {" ".join(node.place.command(plane.kubectl))} "$@"\n')
        shell.chmod(0o755)
        plane = type(plane)(
            plane.process, plane.url, plane.kubeconfig, str(shell), plane.environment, plane.log
        )
        pages = {"apiserver": kubectl(plane, "get", "--raw", "/metrics")}
        kubeconfig = f"--kubeconfig={plane.kubeconfig}"
        node.exec(["nft", "-f", "-"], stdin=TABLE.format(family="ip", address="ipv4_addr"))
        for program, port in (("controllers", 10257), ("proxy", 10249), ("observe", 10262)):
            bound = f"--metrics-bind-address=127.0.0.1:{port}"
            more = (
                ["--controllers=*,traffic-distribution,measured-zones"]
                if program == "controllers"
                else []
            )
            child = node.spawn(
                [sys.executable, "-m", "sliceplane", program, kubeconfig, bound, *more]
            )
            assert child.stdout is not None
            assert child.stdout.readline().startswith("ready ")
            pages[program] = node.exec(["curl", "-sS", f"http://127.0.0.1:{port}/metrics"]).stdout
        pages["observer"] = pages.pop("observe")
        pages["relay"] = _relay_page(node, plane)
        return {program: _names(text) for program, text in pages.items()}
    finally:
        node.close()
        stop(plane)


def _relay_page(node: Host, plane: Plane) -> str:
    """The metrics of a relay with the certificates of *plane*."""
    pki = Path(plane.kubeconfig).with_name("pki")
    child = node.spawn(
        [
            *(sys.executable, "-m", "sliceplane", "relay", "--upstream", plane.kubeconfig),
            *("--tls-cert-file", str(pki / "apiserver.crt")),
            *("--tls-private-key-file", str(pki / "apiserver.key")),
            *("--client-ca-file", str(pki / "ca.crt")),
        ]
    )
    assert child.stdout is not None
    assert child.stdout.readline().startswith("ready ")
    shown = ("get", "--raw", "/metrics", "--server=https://127.0.0.1:6444")
    return kubectl(plane, *shown)


def _names(text: str) -> set[str]:
    found = set(re.findall(r"^([a-zA-Z_:][\w:]*)[ {]", text, re.MULTILINE))
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        found |= (
            {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
        )
    return found


@pytest.mark.kernel
@pytest.mark.kubectl
@pytest.mark.timeout(180)
def test_every_metric_that_is_named_is_served(served: dict[str, set[str]]) -> None:
    there = set().union(*served.values()) | OF_PROMETHEUS | OTHER_MODE
    for place, expression in [*((rule["alert"], rule["expr"]) for rule in rules()), *targets()]:
        named = metrics_of(expression)
        assert named, place
        assert named <= there, f"{place}: nothing serves {sorted(named - there)}"


@pytest.mark.kernel
@pytest.mark.kubectl
@pytest.mark.timeout(180)
def test_what_an_alert_asks_of_a_program_is_served_by_that_program(
    served: dict[str, set[str]],
) -> None:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        program = group["name"].removeprefix("sliceplane-")
        for rule in group["rules"]:
            for name in metrics_of(rule["expr"]) - OF_PROMETHEUS - OTHER_MODE:
                asked = served if program == "any" else [program]
                assert all(name in served[each] for each in asked), (
                    f"{rule['alert']}: {name} is not of {program}"
                )


# Each fires, and clears.  A series: what promtool takes; one sample a minute

_API = 'job="sliceplane-apiserver",instance="a"'
_PROXY = 'job="sliceplane-proxy",instance="n1"'
_OBSERVER = 'job="sliceplane-observer",instance="n2"'
_CONTROLLERS = 'job="sliceplane-controllers",instance="c"'
_RELAY = 'job="sliceplane-relay",instance="r",resource="nodes"'
_QUEUE = 'job="sliceplane-controllers",instance="c",name="endpoint"'
_PROGRAMMED = (
    f'kubeproxy_network_programming_duration_seconds_bucket{{{_PROXY},ip_family="IPv4",le='
)
_QUIET = "0x60"
#: minutes 0 to 29: trouble; then it is over
PLANTED: dict[str, dict[str, str]] = {
    "SliceplaneDown": {f"up{{{_API}}}": "0x29 1x60"},
    "SliceplaneLogLost": {f"sliceplane_log_lost_lines{{{_API}}}": "0+5x29 145x60"},
    "SliceplaneDescriptorsScarce": {
        f"process_open_fds{{{_API}}}": "900x29 100x60",
        f"process_max_fds{{{_API}}}": "1024x90",
    },
    "SliceplaneWritesFail": {
        f'kubernetes_healthcheck{{{_API},name="etcd",type="livez"}}': "0x29 1x60",
        f"sliceplane_storage_failures_total{{{_API}}}": "0+1x29 29x60",
    },
    "SliceplaneStorageStale": {f"sliceplane_storage_staleness_seconds{{{_API}}}": "30x29 0x60"},
    "SliceplaneRequestsFail": {
        f'apiserver_request_total{{{_API},code="500"}}': "0+60x29 1740x60",
        f'apiserver_request_total{{{_API},code="200"}}': "0+600x90",
    },
    "SliceplaneRequestsRefused": {
        "apiserver_flowcontrol_rejected_requests_total"
        f'{{{_API},priority_level="workload-low",flow_schema="service-accounts",reason="queue-full"}}': "0+60x29 1740x60"  # noqa: E501
    },
    "SliceplaneShareRefused": {
        f'sliceplane_shared_refused_total{{{_API},what="watches"}}': "0+60x29 1740x60"
    },
    "SliceplaneConnectionsRefused": {
        f"sliceplane_refused_connections_total{{{_API}}}": "0+9x29 261x60",
        f"sliceplane_accept_failures_total{{{_API}}}": _QUIET,
    },
    "SliceplaneEventLoopHeld": {
        f'sliceplane_event_loop_lag_seconds_bucket{{{_API},le="0.1"}}': "0+1x29 29+600x60",
        f'sliceplane_event_loop_lag_seconds_bucket{{{_API},le="1"}}': "0+600x90",
        f'sliceplane_event_loop_lag_seconds_bucket{{{_API},le="+Inf"}}': "0+600x90",
    },
    "SliceplaneWatchersTooSlow": {
        f"sliceplane_hub_overflowed_watches_total{{{_API}}}": "0+1x29 29x60"
    },
    "SliceplaneAuditLost": {f"apiserver_audit_lost_events{{{_API}}}": "0+5x29 145x60"},
    "SliceplaneIncidentRecorded": {
        f'sliceplane_recorder_saves_total{{{_API},result="saved"}}': "0+1x29 29x60"
    },
    "SliceplaneRecordingLost": {
        f'sliceplane_recorder_saves_total{{{_API},result="failed"}}': "0+1x29 29x60"
    },
    "SliceplaneCachesStale": {
        'sliceplane_informer_staleness_seconds{job="sliceplane-controllers",instance="c"}': "300x29 5x60"
    },
    "SliceplaneNoLeader": {
        'leader_election_master_status{job="sliceplane-controllers",instance="c",name="x"}': "0x29 1x60",
        'leader_election_master_status{job="sliceplane-controllers",instance="d",name="x"}': "0x90",
    },
    "SliceplaneSyncsFail": {
        'endpoint_slice_controller_syncs{job="sliceplane-controllers",instance="c",result="error"}': "0+2x29 58x60"
    },
    "SliceplaneQueueStuck": {
        f"workqueue_longest_running_processor_seconds{{{_QUEUE}}}": _QUIET,
        f"workqueue_depth{{{_QUEUE}}}": "500x29 0x60",
    },
    "SliceplaneMassRemovalHeld": {
        f"sliceplane_mass_removal_held_endpoints{{{_CONTROLLERS}}}": "40x29 0x60"
    },
    "SliceplaneMassRemovalRefuted": {
        f'sliceplane_mass_removal_confirmations_total{{{_CONTROLLERS},result="refuted"}}': "0+1x29 29x60"
    },
    "SliceplaneNodesBehind": {
        f"sliceplane_node_proxies_behind_seconds{{{_CONTROLLERS}}}": "0+60x29 0x60"
    },
    "SliceplaneNodeStopped": {
        f'sliceplane_node_proxies{{{_CONTROLLERS},state="stopped"}}': "1x29 0x60"
    },
    "SliceplaneNodeCacheDiffers": {
        f'sliceplane_node_proxies{{{_CONTROLLERS},state="cache_differs"}}': "1x29 0x60"
    },
    "SliceplaneNodeRulesDamaged": {
        f'sliceplane_node_proxies{{{_CONTROLLERS},state="rules_damaged"}}': "2x29 0x60"
    },
    "SliceplaneDemandCapped": {f"sliceplane_demand_nodes_capped{{{_CONTROLLERS}}}": "1x29 0x60"},
    "SliceplaneRulesRefused": {
        f'kubeproxy_sync_proxy_rules_nftables_sync_failures_total{{{_PROXY},ip_family="IPv4"}}': "0+2x29 58x60"
    },
    "SliceplaneRulesLate": {
        f'kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{{{_PROXY},ip_family="IPv4"}}': "1000x90",
        f'kubeproxy_sync_proxy_rules_last_timestamp_seconds{{{_PROXY},ip_family="IPv4"}}': "900x29 1001x60",
    },
    "SliceplaneRulesDeleted": {
        f'sliceplane_proxy_rules_put_back_total{{{_PROXY},ip_family="IPv4"}}': "0+1x29 29x60"
    },
    "SliceplaneProgrammingSlow": {
        f'{_PROGRAMMED}"5"}}': "0+1x29 29+600x60",
        f'{_PROGRAMMED}"60"}}': "0+600x90",
        f'{_PROGRAMMED}"+Inf"}}': "0+600x90",
    },
    "SliceplaneServicesNotServed": {
        f'sliceplane_proxy_services_not_fully_served{{{_PROXY},ip_family="IPv4"}}': "2x29 0x60"
    },
    "SliceplaneNoLocalEndpoints": {
        f'kubeproxy_sync_proxy_rules_no_local_endpoints_total{{{_PROXY},ip_family="IPv4",traffic_policy="internal"}}': "1x29 0x60"  # noqa: E501
    },
    "SliceplaneKubeProxyLate": {f"sliceplane_observer_late_services{{{_OBSERVER}}}": "3x29 0x60"},
    "SliceplaneNodeNotObserved": {
        f'sliceplane_observer_source{{{_OBSERVER},rules="none"}}': "1x29 _x60",
        f'sliceplane_observer_source{{{_OBSERVER},rules="nftables"}}': "_x29 1x60",
    },
    "SliceplaneRelaySilent": {f"sliceplane_relay_silence_seconds{{{_RELAY}}}": "300x29 5x60"},
    "SliceplaneRelayResets": {f"sliceplane_relay_resets_total{{{_RELAY}}}": "0+1x29 29x60"},
}
FIRES_AT, CLEAR_AT = "28m", "58m"


@pytest.fixture(scope="module")
def said(promtool: str, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """What Prometheus has to say of each alert and time, where none is expected to fire: nothing if
    none does.
    """
    tests = [
        {
            "name": rule["alert"],
            "interval": "1m",
            "input_series": [
                {"series": name, "values": values}
                for name, values in PLANTED[rule["alert"]].items()
            ],
            "alert_rule_test": [
                {"eval_time": at, "alertname": rule["alert"], "exp_alerts": []}
                for at in (FIRES_AT, CLEAR_AT)
            ],
        }
        for rule in rules()
    ]
    path = tmp_path_factory.mktemp("alerts") / "test.yaml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests})
    )
    told = subprocess.run(
        [promtool, "test", "rules", path], capture_output=True, text=True, check=False, timeout=300
    )
    assert "FAILED" in told.stderr + told.stdout, told.stderr
    parts = re.split(r"alertname: (\w+), time: (\w+), \n", told.stderr + told.stdout)
    return {
        (alert, at): text
        for alert, at, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    }


@pytest.mark.timeout(400)
@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_the_alert_fires_and_clears(rule: dict[str, Any], said: dict[tuple[str, str], str]) -> None:
    fired = said.get((rule["alert"], FIRES_AT), "")
    assert f'alertname="{rule["alert"]}"' in fired, f"silent: {fired}"
    assert f'severity="{rule["labels"]["severity"]}"' in fired
    summary = re.search(r'summary="(.*?)"', fired)
    assert summary is not None
    assert "no value" not in summary[1]
    assert "<" not in summary[1], summary[1]
    assert (rule["alert"], CLEAR_AT) not in said


def test_each_alert_has_planted_samples() -> None:
    assert set(PLANTED) == {rule["alert"] for rule in rules()}


# The table of the documents


def test_every_alert_has_its_row_and_every_row_its_alert() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    rows = re.findall(
        r'^\| <a id="(\w+)"></a>`(\w+)` \| (\w+) \| (.+?) \| (.+?) \|$', text, re.MULTILINE
    )
    assert [(name, severity) for _, name, severity, _, _ in rows] == [
        (rule["alert"], rule["labels"]["severity"]) for rule in rules()
    ]
    for (anchor, name, _, meaning, action), rule in zip(rows, rules(), strict=True):
        assert anchor == name.lower()
        assert rule["annotations"]["runbook_url"].endswith(f"docs/troubleshooting.md#{anchor}")
        assert len(meaning) > 20
        assert len(action) > 20
