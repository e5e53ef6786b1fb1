"""Every field of ``KubeProxyConfiguration`` (``staging/src/k8s.io/kube-proxy/config/v1alpha1/types.go``), by its path.

A field is *given* if it has another value than null and, unless upstream keeps a pointer to it, than Go's zero value:
files written by programs (kubeadm's) name every field, and mean the default by ``""``, ``0s`` and ``null``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

API_VERSION: Final = "kubeproxy.config.k8s.io/v1alpha1"
KIND: Final = "KubeProxyConfiguration"

Kind = Literal["string", "boolean", "integer", "number", "duration", "strings", "gates", "free"]
#: durations are seconds, lists are tuples, gates are sorted pairs
Value = str | bool | int | float | tuple[str, ...] | tuple[tuple[str, bool], ...] | None

#: upstream's names for ``--proxy-mode``, of those that there is a back end for
Mode = Literal["nftables", "iptables"]
BACK_ENDS: Final[tuple[Mode, ...]] = get_args(Mode)
#: sections that count in the modes of their names only
MODE_SECTIONS: Final = ("iptables", "ipvs", "nftables", "winkernel")
#: the mode that an empty ``mode`` means
DEFAULT_MODE: Final[Mode] = "nftables"
#: the bit of the packet mark that our rules use (``nft.statements.MASQUERADE_MARK``)
MASQUERADE_BIT: Final = 14


@dataclass(frozen=True, slots=True)
class Field:
    """``default`` is what holds where nothing is given.  ``pointer``: zero is a value of its own.  ``idle``: why the
    field has no effect here, whatever its value; "": it has."""

    path: str
    kind: Kind
    default: Value = None
    pointer: bool = False
    idle: str = ""
    #: not of today's ``v1alpha1`` any more, so it is not written
    gone: bool = False


_REQUESTS: Final = "the proxy makes few requests, and does not limit them"
_JSON: Final = "the proxy reads and writes JSON"
_LOGGING: Final = "--log-level and --log-format say what is logged, to stderr"
_RESYNC: Final = "caches are kept by watches that are checked, and are not handed on again"
_LOOPBACK: Final = "node ports are not served on loopback addresses"
_WINDOWS: Final = "it is for Windows"

FIELDS: Final = (
    Field("bindAddress", "string", "0.0.0.0"),
    Field("bindAddressHardFail", "boolean", False),
    Field("clientConnection.acceptContentTypes", "string", "", idle=_JSON),
    Field("clientConnection.burst", "integer", 10, idle=_REQUESTS),
    Field("clientConnection.contentType", "string", "application/vnd.kubernetes.protobuf", idle=_JSON),
    Field("clientConnection.kubeconfig", "string", ""),
    Field("clientConnection.qps", "number", 5, idle=_REQUESTS),
    Field("clusterCIDR", "string", ""),
    Field("configSyncPeriod", "duration", 900.0, idle=_RESYNC),
    Field("conntrack.maxPerCore", "integer", 32768, pointer=True),
    Field("conntrack.min", "integer", 131072, pointer=True),
    Field("conntrack.tcpBeLiberal", "boolean", False),
    Field("conntrack.tcpCloseWaitTimeout", "duration", 3600.0, pointer=True),
    Field("conntrack.tcpEstablishedTimeout", "duration", 86400.0, pointer=True),
    Field("conntrack.udpStreamTimeout", "duration", 0.0),
    Field("conntrack.udpTimeout", "duration", 0.0),
    Field("detectLocal.bridgeInterface", "string", ""),
    Field("detectLocal.interfaceNamePrefix", "string", ""),
    Field("detectLocalMode", "string", "ClusterCIDR"),
    Field("enableProfiling", "boolean", False, idle="there are no profiling pages"),
    Field("featureGates", "gates", ()),
    Field("healthzBindAddress", "string", "0.0.0.0:10256"),
    Field("hostnameOverride", "string", ""),
    Field("iptables.localhostNodePorts", "boolean", False, idle=_LOOPBACK),
    Field("iptables.masqueradeAll", "boolean", False),
    Field("iptables.masqueradeBit", "integer", MASQUERADE_BIT, pointer=True),
    Field("iptables.minSyncPeriod", "duration", 0.0),
    Field("iptables.syncPeriod", "duration", 30.0),
    Field("ipvs.excludeCIDRs", "strings", ()),
    Field("ipvs.minSyncPeriod", "duration", 0.0),
    Field("ipvs.scheduler", "string", ""),
    Field("ipvs.strictARP", "boolean", False),
    Field("ipvs.syncPeriod", "duration", 30.0),
    Field("ipvs.tcpFinTimeout", "duration", 0.0),
    Field("ipvs.tcpTimeout", "duration", 0.0),
    Field("ipvs.udpTimeout", "duration", 0.0),
    Field("logging.flushFrequency", "free", "5s", idle=_LOGGING),
    Field("logging.format", "string", "text", idle=_LOGGING),
    Field("logging.options", "free", None, idle=_LOGGING),
    Field("logging.verbosity", "integer", 0, idle=_LOGGING),
    Field("logging.vmodule", "free", None, idle=_LOGGING),
    Field("metricsBindAddress", "string", "127.0.0.1:10249"),
    Field("mode", "string", ""),
    Field("nftables.masqueradeAll", "boolean", False),
    Field("nftables.masqueradeBit", "integer", MASQUERADE_BIT, pointer=True),
    Field("nftables.minSyncPeriod", "duration", 0.0),
    Field("nftables.syncPeriod", "duration", 30.0),
    Field("nodePortAddresses", "strings", ("primary",)),
    Field("oomScoreAdj", "integer", -999, pointer=True),
    Field("portRange", "string", "", idle="it has had none since the userspace mode went"),
    Field("resourceContainer", "string", "/kube-proxy", idle="it went from Kubernetes in 1.16", gone=True),
    Field("showHiddenMetricsForVersion", "string", "", idle="no metric is hidden"),
    Field("udpIdleTimeout", "duration", 0.0, idle="it went with the userspace mode", gone=True),
    Field("windowsRunAsService", "boolean", False, idle=_WINDOWS),
    Field("winkernel.enableDSR", "boolean", False),
    Field("winkernel.forwardHealthCheckVip", "boolean", False),
    Field("winkernel.networkName", "string", ""),
    Field("winkernel.rootHnsEndpointName", "string", ""),
    Field("winkernel.sourceVip", "string", ""),
)
BY_PATH: Final = {field.path: field for field in FIELDS}
SECTIONS: Final = frozenset(field.path.partition(".")[0] for field in FIELDS if "." in field.path)


def section_of(path: str) -> str:
    """``nftables`` of ``nftables.syncPeriod``; "" for a field of the top."""
    section, dot, _ = path.partition(".")
    return section if dot else ""


def effective_mode(mode: str) -> str:
    return mode or DEFAULT_MODE
