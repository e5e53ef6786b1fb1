"""Parts of rules, spelled as ``iptables-save`` spells them: what we wrote can be compared with what
it lists.

A rule is a line without its ``-A CHAIN``; a target always comes last.
"""

from __future__ import annotations

import re
from typing import Final

from sliceplane.consume.model import ServicePortName
from sliceplane.kit.ip import Family

#: upstream's default: bit 14
MASQUERADE_MARK: Final = "0x4000/0x4000"
#: xt_comment takes 255; no name that an API server lets through is longer than 191
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
    """An address as a network."""
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


def remembered(clients: str, family: Family, seconds: int) -> str:
    """Matches who was seen less than *seconds* ago; forgets older ones."""
    return (
        f"-m recent --rcheck --seconds {seconds} --reap --name {clients} --mask {_MASK[family]} "
        "--rsource"
    )


def remember(clients: str, family: Family) -> str:
    """Always matches, and remembers the source."""
    return f"-m recent --set --name {clients} --mask {_MASK[family]} --rsource"


def translate(ip: str, port: int) -> str:
    return f"-j DNAT --to-destination {f'[{ip}]' if ':' in ip else ip}:{port}"


def jump(chain: str) -> str:
    return f"-j {chain}"


def target_of(line: str) -> str:
    """Where a rule leads; "" if nowhere.  What a comment says does not count."""
    match = _TARGET.search(_QUOTED.sub("", line))
    return match[1] if match is not None else ""


def rule(*parts: str) -> str:
    return " ".join(part for part in parts if part)
