"""The flags of the node proxy that say what fields of its configuration file say, under upstream's
names.

Each flag is one field, so flags and file are judged by the same rules (``node.configuration``).
With ``--config`` the file decides, as upstream: a flag beside it that the file has a field for is
not used, and that is told.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sliceplane.cli.flags import choice, duration, number, port, string, switch, with_options
from sliceplane.node.configuration.fields import BACK_ENDS

if TYPE_CHECKING:
    from sliceplane.api.gates import Gates
    from sliceplane.node.configuration.fields import Value

#: parameter -> the fields that it gives
_FIELDS: dict[str, tuple[str, ...]] = {
    "kubeconfig": ("clientConnection.kubeconfig",),
    "proxy_mode": ("mode",),
    "bind_address": ("bindAddress",),
    "bind_address_hard_fail": ("bindAddressHardFail",),
    "healthz_bind_address": ("healthzBindAddress",),
    "metrics_bind_address": ("metricsBindAddress",),
    "sync_period": ("nftables.syncPeriod", "iptables.syncPeriod"),
    "min_sync_period": ("nftables.minSyncPeriod", "iptables.minSyncPeriod"),
    "cluster_cidr": ("clusterCIDR",),
    "detect_local_mode": ("detectLocalMode",),
    "pod_bridge_interface": ("detectLocal.bridgeInterface",),
    "pod_interface_name_prefix": ("detectLocal.interfaceNamePrefix",),
    "masquerade_all": ("nftables.masqueradeAll", "iptables.masqueradeAll"),
    "nodeport_addresses": ("nodePortAddresses",),
    "conntrack_max_per_core": ("conntrack.maxPerCore",),
    "conntrack_min": ("conntrack.min",),
    "conntrack_tcp_timeout_established": ("conntrack.tcpEstablishedTimeout",),
    "conntrack_tcp_timeout_close_wait": ("conntrack.tcpCloseWaitTimeout",),
    "conntrack_tcp_be_liberal": ("conntrack.tcpBeLiberal",),
    "conntrack_udp_timeout": ("conntrack.udpTimeout",),
    "conntrack_udp_timeout_stream": ("conntrack.udpStreamTimeout",),
    "oom_score_adj": ("oomScoreAdj",),
    "feature_gates": ("featureGates",),
}
#: modes whose rules no kernel here can hold
RENDERED: Final = ("ipvs", "kernelspace")


#: of ``sliceplane proxy`` and ``sliceplane up --proxy``
drain_port_option = port(
    "--drain-port",
    "Answer preStop hooks of Pods here that opted in, on this port of theirs.  [default: off]",
)


#: every flag of ``_FIELDS``; they reach the command by the names there
proxy_options = with_options(
    choice(
        "--proxy-mode",
        "What rules are made of; the last two can be rendered, not run.  [default: nftables]",
        (*BACK_ENDS, *RENDERED),
    ),
    string(
        "--bind-address",
        "IP",
        "The node's own address; nothing is bound to it.  [default: what its Node says]",
    ),
    switch("--bind-address-hard-fail", "Always so: an address that is taken is an error."),
    string("--healthz-bind-address", "IP:PORT", "Serve /healthz and /livez there.  [default: off]"),
    string(
        "--metrics-bind-address", "IP:PORT", "Serve /metrics and /proxyMode there.  [default: off]"
    ),
    duration(
        "--sync-period --iptables-sync-period sync_period",
        "How often tables and addresses of the node are looked at.  [default: 30s]",
    ),
    duration(
        "--min-sync-period --iptables-min-sync-period min_sync_period",
        "Pause between two writes.  [default: 0]",
    ),
    string(
        "--cluster-cidr", "CIDR[,CIDR]", "Ranges of Pod IPs, for --detect-local-mode ClusterCIDR."
    ),
    choice(
        "--detect-local-mode",
        "How traffic of this node's Pods is told from others'.  [default: ClusterCIDR]",
        ("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"),
    ),
    string("--pod-bridge-interface", "NAME", "For --detect-local-mode BridgeInterface."),
    string("--pod-interface-name-prefix", "PREFIX", "For --detect-local-mode InterfaceNamePrefix."),
    switch("--masquerade-all", "Masquerade whatever goes to a cluster IP."),
    string(
        "--nodeport-addresses",
        "CIDR,...",
        "Where node ports are served: addresses within these ranges, or 'primary', the Node's "
        "own.  "
        "[default: primary]",
    ),
    number(
        "--conntrack-max-per-core",
        "Connections tracked for each CPU; 0: as it is.  [default: 32768]",
    ),
    number(
        "--conntrack-min", "Connections tracked, whatever the number of CPUs.  [default: 131072]"
    ),
    duration(
        "--conntrack-tcp-timeout-established",
        "Of idle TCP connections; 0: as it is.  [default: 24h]",
    ),
    duration(
        "--conntrack-tcp-timeout-close-wait",
        "Of half-closed TCP connections; 0: as it is.  [default: 1h]",
    ),
    switch("--conntrack-tcp-be-liberal", "Track TCP packets outside of the window, too."),
    duration(
        "--conntrack-udp-timeout", "Of UDP flows without an answer; 0: as it is.  [default: 0]"
    ),
    duration(
        "--conntrack-udp-timeout-stream", "Of UDP flows with answers; 0: as it is.  [default: 0]"
    ),
    number("--oom-score-adj", "Of this process, for when memory is short.  [default: -999]"),
    string("--feature-gates", "NAME=BOOL,...", "Features to switch on or off."),
)


def given_by(flags: dict[str, Any], gates: Gates) -> dict[str, Value]:
    """The fields that *flags* give.  Raises ``click.UsageError`` for what is wrong with them."""
    from sliceplane.node.configuration.validation import errors_of

    mode = flags["proxy_mode"]
    if mode in RENDERED:
        raise click.UsageError(
            f"--proxy-mode {mode} is for renders only: sliceplane proxy render --proxy-mode {mode}"
        )
    values: dict[str, Value] = {}
    for name in used(flags):
        for path in _FIELDS[name]:
            values[path] = _value(name, flags[name], gates)
    for error in errors_of(values, release=gates.release):
        raise click.UsageError(f"{_flag_of(error.field)}: {error.message}")
    return values


def used(flags: dict[str, Any]) -> tuple[str, ...]:
    """The parameters that the command line or the environment gives."""
    return tuple(
        name for name in _FIELDS if flags.get(name) not in {None, ""} and flags[name] is not False
    )


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _value(name: str, value: Any, gates: Gates) -> Value:
    match name:
        case "nodeport_addresses":
            return tuple(part.strip() for part in str(value).split(",") if part.strip())
        case "feature_gates":
            return tuple(gates.chosen.items())
        case _:
            plain: Value = str(value) if isinstance(value, Path) else value
            return plain


def _flag_of(path: str) -> str:
    """The flag of a field, or of the list that it is in."""
    plain = path.partition("[")[0]
    return next((flag(name) for name, paths in _FIELDS.items() if plain in paths), path)
