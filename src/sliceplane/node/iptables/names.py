"""Names of chains: upstream's, so that people and tools that know one ruleset can read the other.

``KUBE-SVC-`` (Cluster policy), ``KUBE-SVL-`` (Local policy), ``KUBE-EXT-`` (what comes from
outside), ``KUBE-FW-`` (source ranges) and ``KUBE-SEP-`` (one endpoint), each with 16 characters of
a hash over service port and protocol (as upstream's ``pkg/proxy/iptables/proxier.go``). iptables
takes 28 characters; the longest name has 25.

Unlike our nftables table these chains are no private ground: a kube-proxy in iptables mode on the
same node would write them, too. Whole writes take over what it left.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final, Literal

from sliceplane.consume.model import ServicePortName

Prefix = Literal["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"]

HASH_LENGTH: Final = 16
NAME_LENGTH_MAX: Final = 28
#: chains of service ports, all ours to remove; the last is of older kube-proxies
OF_SERVICES: Final = ("KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-", "KUBE-XLB-")

SERVICES: Final = "KUBE-SERVICES"
EXTERNAL_SERVICES: Final = "KUBE-EXTERNAL-SERVICES"
NODE_PORTS: Final = "KUBE-NODEPORTS"
CLUSTER_IPS: Final = "KUBE-CLUSTER-IPS"
PROXY_FIREWALL: Final = "KUBE-PROXY-FIREWALL"
FORWARD: Final = "KUBE-FORWARD"
REJECT: Final = "KUBE-REJECT"
POSTROUTING: Final = "KUBE-POSTROUTING"
MARK_MASQ: Final = "KUBE-MARK-MASQ"
#: says that the rules are this program's; it has one rule, so that flushing everything is seen as
#: well
CANARY: Final = "SLICEPLANE-CANARY"


def chain_name(prefix: Prefix, name: ServicePortName, endpoint: str = "") -> str:
    """The chain of a service port, or of one *endpoint* ("ip:port") of it."""
    digest = hashlib.sha256(f"{name}{name.protocol.lower()}{endpoint}".encode()).digest()
    return prefix + base64.b32encode(digest).decode()[:HASH_LENGTH]
