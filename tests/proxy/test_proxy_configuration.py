"""A node proxy's configuration: what is read, refused and told of, and what it amounts to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.node.configuration.fields import API_VERSION, BY_PATH, FIELDS, KIND
from sliceplane.node.configuration.parsing import parse_config
from sliceplane.node.configuration.settings import ConntrackSettings, document_of, settings_of
from sliceplane.node.configuration.sysctls import Sysctl, conntrack_max, conntrack_sysctls
from sliceplane.node.configuration.validation import errors_of, notes_on

KUBEADM = (Path(__file__).parent / "data" / "kubeadm-config.conf").read_bytes()
HEAD = f"apiVersion: {API_VERSION}\nkind: {KIND}\n"


def problems(text: str) -> list[str]:
    """As a person is told: line and sentence."""
    found = parse_config(text.encode())
    told = found.problems or [found.at(error) for error in errors_of(found.values)]
    return [f"{problem.line}: {problem.text}" for problem in told]


def given_in(text: str) -> dict[str, Any]:
    found = parse_config((HEAD + text).encode())
    assert not found.problems
    assert not errors_of(found.values)
    return dict(found.values)


# kubeadm


def test_the_file_that_kubeadm_writes_is_taken_as_it_is() -> None:
    found = parse_config(KUBEADM)
    assert found.problems == ()
    assert errors_of(found.values) == []
    assert dict(found.values) == {
        "bindAddress": "0.0.0.0",
        "clientConnection.kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf",
        "clusterCIDR": "10.244.0.0/16",
    }
    assert [str(note) for note in notes_on(found.values)] == [
        "mode: is empty, which is nftables here, and iptables for kube-proxy"
    ]
    settings = settings_of(found.values, listen_by_default=True)
    assert (settings.healthz, settings.metrics) == (("0.0.0.0", 10256), ("127.0.0.1", 10249))
    assert settings.rules.cluster_cidrs == ("10.244.0.0/16",)
    assert settings.rules.node_port_addresses == ("primary",)
    assert settings.oom_score_adj == -999
    assert settings.rules.bind_address == ""
    assert settings.conntrack == ConntrackSettings(32768, 131072, 86400.0, 3600.0)


def test_a_file_with_every_default_spelled_out_means_the_same() -> None:
    """As ``--write-config-to`` writes it, and kube-proxy's."""
    found = parse_config(KUBEADM)
    spelled = parse_config(yaml.safe_dump(document_of(found.values)).encode())
    assert spelled.problems == ()
    assert settings_of(spelled.values, listen_by_default=True) == settings_of(
        found.values, listen_by_default=True
    )
    assert len(notes_on(spelled.values)) == 1


# Refused, with the place


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ["0: is empty: a KubeProxyConfiguration is expected"]),
        ("- 1\n", ["0: is not a mapping: a KubeProxyConfiguration is expected"]),
        ("a: [", ["2: did not find expected node content"]),
        (
            "kind: KubeProxyConfiguration\n",
            [f"0: apiVersion: Required value: must be {API_VERSION}"],
        ),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1beta9\nkind: KubeProxyConfiguration\n",
            [
                (
                    '1: apiVersion: Unsupported value: "kubeproxy.config.k8s.io/v1beta9": '
                    "supported values: "
                    '"kubeproxy.config.k8s.io/v1alpha1"'
                )
            ],
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\ndata: {}\n",
            [
                (
                    "2: kind: Forbidden: a ConfigMap holds the file, as its key config.conf: name "
                    "the "
                    "file itself"
                )
            ],
        ),
        (HEAD + "---\nkind: Other\n", ["4: a second document: the file may hold one"]),
        (HEAD + "---\n", []),
        (HEAD + "mode: nftables\nmode: ''\n", ['4: key "mode" already set in map']),
        (
            HEAD + "nftables:\n  syncPeroid: 1s\n",
            ["4: nftables.syncPeroid: Forbidden: unknown field; did you mean nftables.syncPeriod?"],
        ),
        (HEAD + "fo: 1\n", ["3: fo: Forbidden: unknown field"]),
        (HEAD + "conntrack: 5\n", ["3: conntrack: Invalid value: 5: must be a mapping"]),
        (
            HEAD + "enableProfiling: maybe\n",
            ['3: enableProfiling: Invalid value: "maybe": must be true or false'],
        ),
        (
            HEAD + "oomScoreAdj: 1.5\n",
            ["3: oomScoreAdj: Invalid value: 1.5: must be a 32-bit integer"],
        ),
        (
            HEAD + "oomScoreAdj: true\n",
            ["3: oomScoreAdj: Invalid value: true: must be a 32-bit integer"],
        ),
        (
            HEAD + "oomScoreAdj: 1001\n",
            ["3: oomScoreAdj: Invalid value: 1001: must be within the range [-1000, 1000]"],
        ),
        (
            HEAD + "configSyncPeriod: 15\n",
            [
                (
                    "3: configSyncPeriod: Invalid value: 15: must be a duration with its unit, "
                    "such "
                    "as 30s or 1m30s"
                )
            ],
        ),
        (
            HEAD + "configSyncPeriod: -1s\n",
            ['3: configSyncPeriod: Invalid value: "-1s": must be greater than 0'],
        ),
        (
            HEAD + "nftables:\n  syncPeriod: 1s\n  minSyncPeriod: 2s\n",
            [
                (
                    '5: nftables.minSyncPeriod: Invalid value: "2s": must not be greater than '
                    "syncPeriod, which is 1s"
                )
            ],
        ),
        (
            HEAD + "conntrack:\n  min: -1\n  udpTimeout: -1s\n",
            [
                "4: conntrack.min: Invalid value: -1: must be greater than or equal to 0",
                '5: conntrack.udpTimeout: Invalid value: "-1s": must be greater than or equal to 0',
            ],
        ),
        (
            HEAD + "mode: ipvs\n",
            ['3: mode: Unsupported value: "ipvs": supported values: "", "nftables", "iptables"'],
        ),
        (
            HEAD + "nftables: {masqueradeBit: 3}\n",
            ['3: nftables.masqueradeBit: Unsupported value: 3: supported values: "14"'],
        ),
        (
            HEAD + "nftables: {masqueradeBit: 32}\n",
            ["3: nftables.masqueradeBit: Invalid value: 32: must be within the range [0, 31]"],
        ),
        (
            HEAD + "bindAddress: here\n",
            ['3: bindAddress: Invalid value: "here": must be a valid IP address'],
        ),
        (
            HEAD + "healthzBindAddress: 1.2.3.4\n",
            ['3: healthzBindAddress: Invalid value: "1.2.3.4": must be IP:port'],
        ),
        (
            HEAD + 'healthzBindAddress: "x:1"\n',
            ['3: healthzBindAddress: Invalid value: "x:1": must be a valid IP'],
        ),
        (
            HEAD + 'metricsBindAddress: "[::1]:0"\n',
            ['3: metricsBindAddress: Invalid value: "[::1]:0": must be a valid port'],
        ),
        (
            HEAD + "clusterCIDR: 10.0.0.0\n",
            [
                (
                    '3: clusterCIDR: Invalid value: "10.0.0.0": must be a valid CIDR block '
                    "(e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)"
                )
            ],
        ),
        (
            HEAD + "clusterCIDR: 10.0.0.0/8,11.0.0.0/8\n",
            [
                (
                    '3: clusterCIDR: Invalid value: "10.0.0.0/8,11.0.0.0/8": must be either a '
                    "single CIDR block or a "
                    "dual-stack pair of CIDR blocks"
                )
            ],
        ),
        (
            HEAD + "nodePortAddresses: [primary, 10.0.0.0/8]\n",
            [
                (
                    "3: nodePortAddresses[0]: Invalid value: \"primary\": can't use both 'primary' "
                    "and CIDRs"
                )
            ],
        ),
        (
            HEAD + "nodePortAddresses: [10.0.0.1]\n",
            ['3: nodePortAddresses[0]: Invalid value: "10.0.0.1": must be a valid CIDR'],
        ),
        (
            HEAD + "detectLocalMode: BridgeInterface\n",
            ["0: detectLocal.bridgeInterface: Required value: by detectLocalMode BridgeInterface"],
        ),
        (
            HEAD + "featureGates:\n  NoSuch: true\n",
            ["4: featureGates.NoSuch: Forbidden: unrecognized feature gate: NoSuch"],
        ),
        (
            HEAD + "hostnameOverride: ' '\n",
            ['3: hostnameOverride: Invalid value: " ": must not be empty'],
        ),
    ],
)
def test_mistakes_are_told_with_their_lines(text: str, told: list[str]) -> None:
    assert problems(text) == told


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = HEAD + "x: 1\nmode: 5\nconntrack:\n  y: 2\n"
    assert [line.partition(":")[0] for line in problems(text)] == ["3", "4", "6"]


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_bytes_crash_it(raw: bytes) -> None:
    found = parse_config(raw)
    assert found.problems or found.values is not None


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
LIKELY = st.one_of(
    JUNK,
    st.sampled_from(
        [
            "",
            "0s",
            "30s",
            "-5s",
            "nftables",
            "10.0.0.0/8",
            "primary",
            "::",
            "1.2.3.4:99",
            "BridgeInterface",
        ]
    ),
    st.integers(-2000, 2000),
    st.lists(st.sampled_from(["primary", "10.0.0.0/8"])),
)


@given(st.dictionaries(st.sampled_from([field.path for field in FIELDS]), LIKELY, max_size=6))
def test_any_values_are_refused_or_survive_being_written(values: dict[str, Any]) -> None:
    document: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND}
    for path, value in values.items():
        section, dot, name = path.partition(".")
        (document.setdefault(section, {}) if dot else document)[name if dot else section] = value
    found = parse_config(yaml.safe_dump(document, allow_unicode=True).encode())
    if found.problems or errors_of(found.values):
        return
    notes_on(found.values)
    again = parse_config(yaml.safe_dump(document_of(found.values), allow_unicode=True).encode())
    assert not again.problems
    assert not errors_of(again.values)
    assert settings_of(again.values, listen_by_default=True) == settings_of(
        found.values, listen_by_default=True
    )


# Told


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        ("mode: nftables\n", []),
        (
            "mode: nftables\nwinkernel: {enableDSR: true}\n",
            ["winkernel.enableDSR: has no effect in mode nftables"],
        ),
        (
            "mode: nftables\nipvs: {scheduler: wrr}\n",
            ["ipvs.scheduler: has no effect in mode nftables"],
        ),
        (
            "mode: nftables\niptables: {syncPeriod: 9s}\n",
            ["iptables.syncPeriod: has no effect in mode nftables"],
        ),
        (
            "mode: nftables\nclientConnection: {qps: 50}\n",
            [
                (
                    "clientConnection.qps: has no effect: the proxy makes few requests, and does "
                    "not "
                    "limit them"
                )
            ],
        ),
        (
            "mode: nftables\nportRange: 1-2\n",
            ["portRange: has no effect: it has had none since the userspace mode went"],
        ),
        (
            "mode: nftables\nlogging: {options: {json: {infoBufferSize: 1k}}}\n",
            [
                (
                    "logging.options: has no effect: --log-level and --log-format say what is "
                    "logged, "
                    "to stderr"
                )
            ],
        ),
    ],
)
def test_what_changes_nothing_is_told(text: str, notes: list[str]) -> None:
    assert [str(note) for note in notes_on(given_in(text))] == notes


# What it amounts to


def test_the_section_of_the_mode_counts() -> None:
    both = (
        "iptables: {masqueradeAll: true, syncPeriod: 7s}\nnftables: "
        "{syncPeriod: 9s, minSyncPeriod: 2s}\n"
    )
    empty = settings_of(given_in(both), listen_by_default=False)
    assert (empty.rules.masquerade_all, empty.sync_period_s, empty.min_sync_period_s) == (
        True,
        9.0,
        2.0,
    )
    named = settings_of(given_in(f"mode: nftables\n{both}"), listen_by_default=False)
    assert (named.rules.masquerade_all, named.sync_period_s, named.min_sync_period_s) == (
        False,
        9.0,
        2.0,
    )


def test_addresses() -> None:
    six = settings_of(given_in('bindAddress: "fd00::1"\n'), listen_by_default=True)
    assert (six.rules.bind_address, six.healthz, six.metrics) == (
        "fd00::1",
        ("::", 10256),
        ("::1", 10249),
    )
    quiet = settings_of({}, listen_by_default=False)
    assert (quiet.healthz, quiet.metrics) == (None, None)
    configured = settings_of(given_in('healthzBindAddress: "[::1]:99"\n'), listen_by_default=False)
    assert (configured.healthz, configured.metrics) == (("::1", 99), None)


@pytest.mark.parametrize(
    ("per_core", "least", "cpus", "bound"),
    [
        (32768, 131072, 2, 131072),
        (32768, 131072, 8, 262144),
        (32768, 131072, 96, 1_048_576),
        (0, 131072, 8, 0),
    ],
)
def test_the_bound_of_tracked_connections(per_core: int, least: int, cpus: int, bound: int) -> None:
    assert conntrack_max(ConntrackSettings(max_per_core=per_core, min=least), cpus) == bound


def test_defaults_are_wishes_and_given_values_are_orders() -> None:
    wishes = conntrack_sysctls(settings_of({}, listen_by_default=False).conntrack, 2)
    assert wishes == (
        Sysctl(
            "nf_conntrack_max", 131072, "conntrack.maxPerCore", configured=False, only_raise=True
        ),
        Sysctl(
            "nf_conntrack_tcp_timeout_established",
            86400,
            "conntrack.tcpEstablishedTimeout",
            configured=False,
        ),
        Sysctl(
            "nf_conntrack_tcp_timeout_close_wait",
            3600,
            "conntrack.tcpCloseWaitTimeout",
            configured=False,
        ),
    )
    text = (
        "conntrack: "
        "{min: 5000, maxPerCore: 100, tcpBeLiberal: true, tcpEstablishedTimeout: 0s, udpTimeout: 1m}\n"
    )
    orders = conntrack_sysctls(settings_of(given_in(text), listen_by_default=False).conntrack, 2)
    assert orders == (
        Sysctl("nf_conntrack_max", 5000, "conntrack.maxPerCore", configured=True),
        Sysctl("nf_conntrack_tcp_be_liberal", 1, "conntrack.tcpBeLiberal", configured=True),
        Sysctl(
            "nf_conntrack_tcp_timeout_close_wait",
            3600,
            "conntrack.tcpCloseWaitTimeout",
            configured=False,
        ),
        Sysctl("nf_conntrack_udp_timeout", 60, "conntrack.udpTimeout", configured=True),
    )


def test_fields_are_named_once() -> None:
    assert len(BY_PATH) == len(FIELDS)
