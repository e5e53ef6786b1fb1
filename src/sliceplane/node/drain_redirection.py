"""The rules for ``preStop`` hooks: they redirect this host's connections to a port of some local
Pods to a program of the host.

They are separate from those of Services and are always replaced as a whole, since few Pods opt in.
With nft they are a separate table in each family; ``redirect`` in the output hook matches packets
that the node itself sends (the kubelet's calls), and none of Pods. With iptables they are one chain;
the jump to it is the first rule of OUTPUT.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sliceplane.kit.ip import Family
from sliceplane.node.iptables.text import one
from sliceplane.node.nft.table import NFT_FAMILIES

#: suffix to the name of the table of Services
_SUFFIX: Final = "-drain-hook"
#: priority before the translation of Services
_PRIORITY: Final = -101
CHAIN: Final = "SLICEPLANE-DRAIN"
#: the rule of OUTPUT in ``nat``, as arguments of iptables
JUMP: Final = ("OUTPUT", "-p", "tcp", "-j", CHAIN)


def nft_redirection(
    table: str, families: Iterable[Family], addresses: Iterable[str], port: int
) -> str:
    """Returns text for ``nft -f``; no addresses: it deletes the tables."""
    return "".join(
        _nft_table(f"{table}{_SUFFIX}", family, _own(family, addresses), port)
        for family in families
    )


def _nft_table(name: str, family: Family, addresses: list[str], port: int) -> str:
    kind = NFT_FAMILIES[family]
    text = f"add table {kind} {name}\ndelete table {kind} {name}\n"
    if not addresses:
        return text
    field = "ipv4_addr" if family == "IPv4" else "ipv6_addr"
    return text + (
        f"add table {kind} {name}\n"
        f"add set {kind} {name} pods {{ type {field}; elements = {{ {', '.join(addresses)} }}; }}\n"
        f"add chain {kind} {name} output "
        f"{{ type nat hook output priority {_PRIORITY}; policy accept; }}\n"
        f"add rule {kind} {name} output {kind} daddr @pods tcp dport {port} redirect to :{port}\n"
    )


def iptables_redirection(family: Family, addresses: Iterable[str], port: int) -> str:
    """Returns text for ``iptables-restore --noflush``: the chain's rules, without the jump."""
    rules = "".join(
        f"-A {CHAIN} -d {one(address)} -p tcp --dport {port} -j REDIRECT --to-ports {port}\n"
        for address in _own(family, addresses)
    )
    return f"*nat\n:{CHAIN} - [0:0]\n{rules}COMMIT\n"


def _own(family: Family, addresses: Iterable[str]) -> list[str]:
    return sorted(address for address in set(addresses) if (":" in address) == (family == "IPv6"))
