"""The door for ``preStop`` hooks with iptables: ``node.nft.drain_hook`` says what it is for.

One chain, which is written whole; the jump to it stands at the head of OUTPUT.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sliceplane.kit.ip import Family
from sliceplane.node.iptables.text import one

CHAIN: Final = "SLICEPLANE-DRAIN"


#: the rule of OUTPUT in ``nat``, as arguments of iptables
JUMP: Final = ("OUTPUT", "-p", "tcp", "-j", CHAIN)


def redirection(family: Family, addresses: Iterable[str], port: int) -> str:
    """For ``iptables-restore --noflush``: what is in the chain; the jump is not in it."""
    own = sorted(address for address in set(addresses) if (":" in address) == (family == "IPv6"))
    rules = "".join(
        f"-A {CHAIN} -d {one(address)} -p tcp --dport {port} -j REDIRECT --to-ports {port}\n"
        for address in own
    )
    return f"*nat\n:{CHAIN} - [0:0]\n{rules}COMMIT\n"
