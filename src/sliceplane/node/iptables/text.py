"""Names of chains, and parts of rules, in the spelling of ``iptables-save``, so that our rules can be
compared with its output. A rule is a line without its ``-A CHAIN``; the target always comes last.

**Names** of chains are upstream's, so that people and tools that know one ruleset can read the
other.

``KUBE-SVC-`` (Cluster policy), ``KUBE-SVL-`` (Local policy), ``KUBE-EXT-`` (traffic from outside),
``KUBE-FW-`` (source ranges) and ``KUBE-SEP-`` (one endpoint), each with 16 characters of a hash over
service port and protocol (as upstream's ``pkg/proxy/iptables/proxier.go``). iptables allows 28
characters; the longest name has 25.

Unlike our nftables table, these chains are not ours alone: a kube-proxy in iptables mode on the same
node would write them, too. Full writes replace its rules.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Final, Literal

from sliceplane.consume.model import ServicePortName
from sliceplane.kit.ip import Family

Prefix = Literal["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"]

HASH_LENGTH: Final = 16
NAME_LENGTH_MAX: Final = 28
#: prefixes of chains of service ports, all of which we may remove; the last is of older kube-proxies
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
#: marks the rules as this program's; it has one rule, so that a flush of all chains is detected too
CANARY: Final = "SLICEPLANE-CANARY"
#: upstream's default: bit 14
MASQUERADE_MARK: Final = "0x4000/0x4000"
#: xt_comment allows 255; no name that an API server accepts is longer than 191
COMMENT_LENGTH_MAX: Final = 200

_LENGTH: dict[Family, int] = {"IPv4": 32, "IPv6": 128}
_MASK: dict[Family, str] = {
    "IPv4": "255.255.255.255",
    "IPv6": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
}
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_TARGET = re.compile(r"(?<!\S)-[jg] (\S+)")
_NOT_IN_COMMENTS = re.compile(r"[^A-Za-z0-9 /:_.\-]")


def family_of(ip: str) -> Family:
    return "IPv6" if ":" in ip else "IPv4"


def one(ip: str) -> str:
    """Returns an address as a network."""
    return f"{ip}/{_LENGTH[family_of(ip)]}"


def port_of(protocol: str, port: int, remark: str) -> str:
    return f"-p {protocol} {comment(remark)} -m {protocol} --dport {port}"


def comment(remark: str) -> str:
    return f'-m comment --comment "{_NOT_IN_COMMENTS.sub("_", remark)[:COMMENT_LENGTH_MAX]}"'


def remark(name: ServicePortName, what: str) -> str:
    return f"{name} {what}"


def one_in(count: int) -> str:
    """Matches one packet in *count*, at random.  Ten digits: the kernel has 31 bits."""
    return f"-m statistic --mode random --probability {1 / count:.10f}"


def match_recent(clients: str, family: Family, seconds: int) -> str:
    """Matches sources that were recorded less than *seconds* ago; forgets older ones."""
    return (
        f"-m recent --rcheck --seconds {seconds} --reap --name {clients} --mask {_MASK[family]} "
        "--rsource"
    )


def set_recent(clients: str, family: Family) -> str:
    """Always matches, and records the source."""
    return f"-m recent --set --name {clients} --mask {_MASK[family]} --rsource"


def translate(ip: str, port: int) -> str:
    return f"-j DNAT --to-destination {f'[{ip}]' if ':' in ip else ip}:{port}"


def jump(chain: str) -> str:
    return f"-j {chain}"


def target_of(line: str) -> str:
    """Returns the target of a rule; "" if it has none.  Ignores the text of comments."""
    match = _TARGET.search(_QUOTED.sub("", line))
    return match[1] if match is not None else ""


def rule(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def chain_name(prefix: Prefix, name: ServicePortName, endpoint: str = "") -> str:
    """Returns the name of the chain of a service port, or of one *endpoint* ("ip:port") of it."""
    digest = hashlib.sha256(f"{name}{name.protocol.lower()}{endpoint}".encode()).digest()
    return prefix + base64.b32encode(digest).decode()[:HASH_LENGTH]
