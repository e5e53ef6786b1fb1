"""The door for ``preStop`` hooks: this host's connections to a port of some local Pods come to a
program of the host.

A table of its own in each family, which stands beside that of Services and is replaced whole: Pods
that opted in are few. ``redirect`` in the output hook sees what the node itself sends (the
kubelet's calls) and nothing of Pods.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sliceplane.kit.ip import Family
from sliceplane.node.nft.table import NFT_FAMILIES

#: "-drain-hook" follows the name of the table of Services
SUFFIX: Final = "-drain-hook"
#: before the translation of Services
_PRIORITY: Final = -101


def redirection(table: str, families: Iterable[Family], addresses: Iterable[str], port: int) -> str:
    """For ``nft -f``; no addresses: the tables go."""
    known = sorted(set(addresses))
    return "".join(_of_family(f"{table}{SUFFIX}", family, known, port) for family in families)


def _of_family(name: str, family: Family, addresses: list[str], port: int) -> str:
    kind = NFT_FAMILIES[family]
    own = ", ".join(address for address in addresses if (":" in address) == (family == "IPv6"))
    text = f"add table {kind} {name}\ndelete table {kind} {name}\n"
    if not own:
        return text
    field = "ipv4_addr" if family == "IPv4" else "ipv6_addr"
    return text + (
        f"add table {kind} {name}\n"
        f"add set {kind} {name} pods {{ type {field}; elements = {{ {own} }}; }}\n"
        f"add chain {kind} {name} output "
        f"{{ type nat hook output priority {_PRIORITY}; policy accept; }}\n"
        f"add rule {kind} {name} output {kind} daddr @pods tcp dport {port} redirect to :{port}\n"
    )
