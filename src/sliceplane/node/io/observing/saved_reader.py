"""Reads kube-proxy's iptables rules with ``iptables-save``, when they may have changed.

iptables has no events of its own. The nf_tables variant has those of nftables (``nft_reader`` passes
them on); for the legacy one a read is due when the API changed, and then after 1, 2, 4 ... 30 s until
the rules agree. A read costs a listing of the table, so there is at most one a second.
"""

from __future__ import annotations

import asyncio
import subprocess
from typing import Final

from sliceplane.kit.delays import Backoff
from sliceplane.kit.ip import Family
from sliceplane.node.observing.graph import RuleGraph
from sliceplane.node.observing.saved import read_saved

#: seconds between two reads, at least
PAUSE_S: Final = 1.0
RETRY: Final = Backoff(base_s=1.0, cap_s=30.0)
_PROGRAMS: Final[dict[Family, tuple[str, ...]]] = {
    "IPv4": ("iptables-nft-save", "iptables-legacy-save"),
    "IPv6": ("ip6tables-nft-save", "ip6tables-legacy-save"),
}


class SavedReader:
    """Reads the rules of both families.  *netns*: a name under /run/netns; "" is our own."""

    def __init__(self, families: tuple[Family, ...], netns: str = "") -> None:
        self._netns = netns
        self.graphs = {family: RuleGraph(family) for family in families}
        #: the variant that has kube-proxy's chains; "" if none has
        self.variant = ""
        self.reads = 0

    async def read(self) -> None:
        """Reads the rules of every family.  Raises ``OSError`` and ``UnreadableRules``."""
        self.reads += 1
        for family in self.graphs:
            graph, program = await asyncio.to_thread(self._read_family, family)
            self.graphs[family] = graph
            if program:
                self.variant = "legacy" if "legacy" in program else "nft"

    def _read_family(self, family: Family) -> tuple[RuleGraph, str]:
        """Returns the graph of the variant that has kube-proxy's chains, and its program."""
        found = RuleGraph(family)
        for program in _PROGRAMS[family]:
            command = [program, "-t", "nat"]
            if self._netns:
                command = ["ip", "netns", "exec", self._netns, *command]
            try:
                graph = _read(command, family)
            except FileNotFoundError:
                continue
            if graph.is_hooked:
                return graph, program
        return found, ""


def _read(command: list[str], family: Family) -> RuleGraph:
    """Streams the output of *command*.  Raises ``OSError`` and ``UnreadableRules``."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None, "a pipe was requested"
        return read_saved(process.stdout, family)
