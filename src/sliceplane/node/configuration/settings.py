"""Effective settings of the configured fields, in the form in which the proxy uses them.

As in upstream's internal type, the fields of the mode's own section are top-level. An empty ``mode``
means nftables here and iptables upstream. Files with an empty ``mode`` and fields of ``iptables``
mean the latter to have effect, so fields that ``nftables`` does not set are taken from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from sliceplane.kit.ip import parse_strict
from sliceplane.kit.times import format_duration
from sliceplane.node.configuration.fields import (
    API_VERSION,
    BY_PATH,
    DEFAULT_MODE,
    FIELDS,
    KIND,
    ConfigField,
    Mode,
    Value,
    effective_mode,
)
from sliceplane.node.context import DetectLocalMode, RulesConfig

FieldValues = Mapping[str, Value]
Listen = tuple[str, int]


class ConntrackSettings(msgspec.Struct, frozen=True):
    """``max_per_core`` 0: the bound is not changed. Timeouts in seconds; 0: not changed.
    ``configured``: names of fields with another value than the default; it is an error if the kernel
    refuses one of them.
    """

    max_per_core: int = 0
    min: int = 0
    tcp_established_timeout_s: float = 0.0
    tcp_close_wait_timeout_s: float = 0.0
    tcp_be_liberal: bool = False
    udp_timeout_s: float = 0.0
    udp_stream_timeout_s: float = 0.0
    configured: frozenset[str] = frozenset()


class ProxySettings(msgspec.Struct, frozen=True):
    """All settings of a node proxy. ``healthz`` and ``metrics`` ``None``: not served.
    ``oom_score_adj`` ``None``: not changed.
    """

    mode: Mode = DEFAULT_MODE
    kubeconfig: str = ""
    hostname_override: str = ""
    healthz: Listen | None = None
    metrics: Listen | None = None
    rules: RulesConfig = RulesConfig()
    sync_period_s: float = 30.0
    min_sync_period_s: float = 0.0
    oom_score_adj: int | None = None
    #: ``NAME=BOOL,...``
    feature_gates: str = ""
    conntrack: ConntrackSettings = ConntrackSettings()


def value_of(values: FieldValues, path: str) -> Any:
    """Returns the effective value of a field: the configured one, or its default."""
    return values.get(path, BY_PATH[path].default)


def sectioned(values: FieldValues, name: str) -> Any:
    """Returns the effective value of a field in the mode's section (``syncPeriod``,
    ``masqueradeAll``, ...), which is ``iptables`` for modes without these fields.
    """
    mode = str(value_of(values, "mode"))
    sections = {"": (DEFAULT_MODE, "iptables"), DEFAULT_MODE: (DEFAULT_MODE,)}.get(
        mode, ("iptables",)
    )
    paths = [path for section in sections if (path := f"{section}.{name}") in values]
    return value_of(values, paths[0] if paths else f"{sections[0]}.{name}")


def settings_of(values: FieldValues, *, listen_by_default: bool) -> ProxySettings:
    """Returns the settings of *values*, which are valid.  *listen_by_default*: health and metrics are
    served even if their addresses are not set.
    """
    bind_address = str(value_of(values, "bindAddress"))
    unspecified = parse_strict(bind_address) in {parse_strict("0.0.0.0"), parse_strict("::")}
    listens = [
        _listen(values, path, six=":" in bind_address)
        if listen_by_default or path in values
        else None
        for path in ("healthzBindAddress", "metricsBindAddress")
    ]
    return ProxySettings(
        mode=cast(Mode, effective_mode(str(value_of(values, "mode")))),
        kubeconfig=str(value_of(values, "clientConnection.kubeconfig")),
        hostname_override=str(value_of(values, "hostnameOverride")),
        healthz=listens[0],
        metrics=listens[1],
        rules=RulesConfig(
            masquerade_all=bool(sectioned(values, "masqueradeAll")),
            detect_local_mode=cast(DetectLocalMode, value_of(values, "detectLocalMode")),
            cluster_cidrs=tuple(
                filter(None, map(str.strip, str(value_of(values, "clusterCIDR")).split(",")))
            ),
            pod_bridge_interface=str(value_of(values, "detectLocal.bridgeInterface")),
            pod_interface_name_prefix=str(value_of(values, "detectLocal.interfaceNamePrefix")),
            node_port_addresses=tuple(value_of(values, "nodePortAddresses")),
            bind_address="" if unspecified else bind_address,
        ),
        sync_period_s=float(sectioned(values, "syncPeriod")),
        min_sync_period_s=float(sectioned(values, "minSyncPeriod")),
        oom_score_adj=int(value_of(values, "oomScoreAdj")),
        feature_gates=",".join(
            f"{name}={str(on).lower()}" for name, on in value_of(values, "featureGates")
        ),
        conntrack=_conntrack(values),
    )


def _conntrack(values: FieldValues) -> ConntrackSettings:
    def seconds(name: str) -> float:
        return float(value_of(values, f"conntrack.{name}"))

    return ConntrackSettings(
        max_per_core=int(value_of(values, "conntrack.maxPerCore")),
        min=int(value_of(values, "conntrack.min")),
        tcp_established_timeout_s=seconds("tcpEstablishedTimeout"),
        tcp_close_wait_timeout_s=seconds("tcpCloseWaitTimeout"),
        tcp_be_liberal=bool(value_of(values, "conntrack.tcpBeLiberal")),
        udp_timeout_s=seconds("udpTimeout"),
        udp_stream_timeout_s=seconds("udpStreamTimeout"),
        configured=frozenset(
            path.partition(".")[2]
            for path, value in values.items()
            if path.startswith("conntrack.") and value != BY_PATH[path].default
        ),
    )


def _listen(values: FieldValues, path: str, *, six: bool) -> Listen:
    """Returns an address; the default is of the family of ``bindAddress``, as upstream."""
    text = str(value_of(values, path))
    host, port = split_listen(text)
    if six and path not in values:
        host = {"0.0.0.0": "::", "127.0.0.1": "::1"}[host]
    return host, port


def split_listen(text: str) -> Listen:
    """Parses ``ADDRESS:PORT``, IPv6 in brackets; port -1 if there is none."""
    host, _, port = text.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else -1
    return host.removeprefix("[").removesuffix("]"), number


def document_of(values: FieldValues) -> dict[str, Any]:
    """Returns the whole configuration as a document for a file: every current field with its effective
    value.
    """
    document: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND}
    for field in FIELDS:
        if field.removed or field.kind == "free":
            continue
        section, dot, name = field.path.partition(".")
        target = document.setdefault(section, {}) if dot else document
        target[name if dot else section] = _written(field, value_of(values, field.path))
    return document


def _written(field: ConfigField, value: Value) -> Any:
    match field.kind:
        case "duration":
            assert isinstance(value, float), f"{field.path}: {value!r} is no duration"
            return format_duration(value)
        case "strings":
            assert isinstance(value, tuple), f"{field.path}: {value!r} is no list"
            return list(value) or None
        case "gates":
            assert isinstance(value, tuple), f"{field.path}: {value!r} has no gates"
            return dict(cast(tuple[tuple[str, bool], ...], value)) or None
    return value
