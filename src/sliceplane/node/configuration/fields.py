"""Every field of ``KubeProxyConfiguration``
(``staging/src/k8s.io/kube-proxy/config/v1alpha1/types.go``), by its path.

A field is *set* if its value is not null and, unless upstream keeps a pointer to it, not Go's zero
value: files that programs write (kubeadm's) name every field, and mean the default by ``""``, ``0s``
and ``null``.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

API_VERSION: Final = "kubeproxy.config.k8s.io/v1alpha1"
KIND: Final = "KubeProxyConfiguration"

Kind = Literal["string", "boolean", "integer", "number", "duration", "strings", "gates", "free"]
#: durations are seconds, lists are tuples, gates are sorted pairs
Value = str | bool | int | float | tuple[str, ...] | tuple[tuple[str, bool], ...] | None

#: upstream's names for ``--proxy-mode`` of modes with a back end
Mode = Literal["nftables", "iptables"]
BACK_ENDS: Final[tuple[Mode, ...]] = get_args(Mode)
#: sections that have an effect only in the modes of their names
MODE_SECTIONS: Final = ("iptables", "ipvs", "nftables", "winkernel")
#: the mode that an empty ``mode`` means
DEFAULT_MODE: Final[Mode] = "nftables"
#: the bit of the packet mark that our rules use (``node.nft.statements.MASQUERADE_MARK``)
MASQUERADE_BIT: Final = 14


class ConfigField(msgspec.Struct, frozen=True):
    """``default`` is the effective value if the field is not set. ``pointer``: zero counts as set.
    ``idle``: the reason why the field has no effect here, whatever its value; "": it has one.
    """

    path: str
    kind: Kind
    default: Value = None
    pointer: bool = False
    idle: str = ""
    #: removed from ``v1alpha1``, so it is not written
    removed: bool = False


_REQUESTS: Final = "the proxy makes few requests, and does not limit them"
_JSON: Final = "the proxy reads and writes JSON"
_LOGGING: Final = "--log-level and --log-format say what is logged, to stderr"
_RESYNC: Final = "caches are kept by watches that are checked, and are not handed on again"
_LOOPBACK: Final = "node ports are not served on loopback addresses"
_WINDOWS: Final = "it is for Windows"

FIELDS: Final = (
    ConfigField("bindAddress", "string", "0.0.0.0"),
    ConfigField("bindAddressHardFail", "boolean", False),
    ConfigField("clientConnection.acceptContentTypes", "string", "", idle=_JSON),
    ConfigField("clientConnection.burst", "integer", 10, idle=_REQUESTS),
    ConfigField(
        "clientConnection.contentType", "string", "application/vnd.kubernetes.protobuf", idle=_JSON
    ),
    ConfigField("clientConnection.kubeconfig", "string", ""),
    ConfigField("clientConnection.qps", "number", 5, idle=_REQUESTS),
    ConfigField("clusterCIDR", "string", ""),
    ConfigField("configSyncPeriod", "duration", 900.0, idle=_RESYNC),
    ConfigField("conntrack.maxPerCore", "integer", 32768, pointer=True),
    ConfigField("conntrack.min", "integer", 131072, pointer=True),
    ConfigField("conntrack.tcpBeLiberal", "boolean", False),
    ConfigField("conntrack.tcpCloseWaitTimeout", "duration", 3600.0, pointer=True),
    ConfigField("conntrack.tcpEstablishedTimeout", "duration", 86400.0, pointer=True),
    ConfigField("conntrack.udpStreamTimeout", "duration", 0.0),
    ConfigField("conntrack.udpTimeout", "duration", 0.0),
    ConfigField("detectLocal.bridgeInterface", "string", ""),
    ConfigField("detectLocal.interfaceNamePrefix", "string", ""),
    ConfigField("detectLocalMode", "string", "ClusterCIDR"),
    ConfigField("enableProfiling", "boolean", False, idle="there are no profiling pages"),
    ConfigField("featureGates", "gates", ()),
    ConfigField("healthzBindAddress", "string", "0.0.0.0:10256"),
    ConfigField("hostnameOverride", "string", ""),
    ConfigField("iptables.localhostNodePorts", "boolean", False, idle=_LOOPBACK),
    ConfigField("iptables.masqueradeAll", "boolean", False),
    ConfigField("iptables.masqueradeBit", "integer", MASQUERADE_BIT, pointer=True),
    ConfigField("iptables.minSyncPeriod", "duration", 0.0),
    ConfigField("iptables.syncPeriod", "duration", 30.0),
    ConfigField("ipvs.excludeCIDRs", "strings", ()),
    ConfigField("ipvs.minSyncPeriod", "duration", 0.0),
    ConfigField("ipvs.scheduler", "string", ""),
    ConfigField("ipvs.strictARP", "boolean", False),
    ConfigField("ipvs.syncPeriod", "duration", 30.0),
    ConfigField("ipvs.tcpFinTimeout", "duration", 0.0),
    ConfigField("ipvs.tcpTimeout", "duration", 0.0),
    ConfigField("ipvs.udpTimeout", "duration", 0.0),
    ConfigField("logging.flushFrequency", "free", "5s", idle=_LOGGING),
    ConfigField("logging.format", "string", "text", idle=_LOGGING),
    ConfigField("logging.options", "free", None, idle=_LOGGING),
    ConfigField("logging.verbosity", "integer", 0, idle=_LOGGING),
    ConfigField("logging.vmodule", "free", None, idle=_LOGGING),
    ConfigField("metricsBindAddress", "string", "127.0.0.1:10249"),
    ConfigField("mode", "string", ""),
    ConfigField("nftables.masqueradeAll", "boolean", False),
    ConfigField("nftables.masqueradeBit", "integer", MASQUERADE_BIT, pointer=True),
    ConfigField("nftables.minSyncPeriod", "duration", 0.0),
    ConfigField("nftables.syncPeriod", "duration", 30.0),
    ConfigField("nodePortAddresses", "strings", ("primary",)),
    ConfigField("oomScoreAdj", "integer", -999, pointer=True),
    ConfigField("portRange", "string", "", idle="it has had none since the userspace mode went"),
    ConfigField(
        "resourceContainer",
        "string",
        "/kube-proxy",
        idle="it went from Kubernetes in 1.16",
        removed=True,
    ),
    ConfigField("showHiddenMetricsForVersion", "string", "", idle="no metric is hidden"),
    ConfigField(
        "udpIdleTimeout", "duration", 0.0, idle="it went with the userspace mode", removed=True
    ),
    ConfigField("windowsRunAsService", "boolean", False, idle=_WINDOWS),
    ConfigField("winkernel.enableDSR", "boolean", False),
    ConfigField("winkernel.forwardHealthCheckVip", "boolean", False),
    ConfigField("winkernel.networkName", "string", ""),
    ConfigField("winkernel.rootHnsEndpointName", "string", ""),
    ConfigField("winkernel.sourceVip", "string", ""),
)
BY_PATH: Final = {field.path: field for field in FIELDS}
SECTIONS: Final = frozenset(field.path.partition(".")[0] for field in FIELDS if "." in field.path)


def section_of(path: str) -> str:
    """Returns ``nftables`` for ``nftables.syncPeriod``; "" for a top-level field."""
    section, dot, _ = path.partition(".")
    return section if dot else ""


def effective_mode(mode: str) -> str:
    return mode or DEFAULT_MODE
