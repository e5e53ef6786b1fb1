"""Reads kube-proxy's iptables rules with ``iptables-save``, when they may have changed.

iptables has no events of its own. The nf_tables variant has those of nftables (``nft_reader`` passes
them on); for the legacy one a read is due when the API changed, and then after 1, 2, 4 ... 30 s until
the rules agree. A read costs a listing of the table, so there is at most one a second.

``iptables-legacy-save`` creates the table that it lists, so it runs only if the kernel has it.
"""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Final

from sliceplane.kit.delays import Backoff
from sliceplane.kit.ip import Family
from sliceplane.node.io.kernel.netns import within_blocking
from sliceplane.node.observing.graph import RuleGraph
from sliceplane.node.observing.saved import read_saved

#: seconds between two reads, at least
PAUSE_S: Final = 1.0
RETRY: Final = Backoff(base_s=1.0, cap_s=30.0)
#: the legacy tables that the kernel has, of the network namespace of the reading thread
_LEGACY_TABLES: Final[dict[Family, Path]] = {
    "IPv4": Path("/proc/thread-self/net/ip_tables_names"),
    "IPv6": Path("/proc/thread-self/net/ip6_tables_names"),
}
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
        is_missing = False
        for program in _PROGRAMS[family]:
            if "legacy" in program and not self._has_legacy_table(family):
                continue
            command = [program, "-t", "nat"]
            if self._netns:
                command = ["ip", "netns", "exec", self._netns, *command]
            try:
                graph = _read(command, family)
            except FileNotFoundError:
                is_missing = True
                continue
            if graph.is_hooked:
                return graph, program
        if is_missing:
            raise OSError("iptables-save was not found: install the package iptables")
        return RuleGraph(family), ""

    def _has_legacy_table(self, family: Family) -> bool:
        try:
            names = within_blocking(self._netns, _LEGACY_TABLES[family].read_text)
        except OSError:  # the kernel has no legacy iptables of that family
            return False
        return "nat" in names.split()


def _read(command: list[str], family: Family) -> RuleGraph:
    """Streams the output of *command*.  Raises ``OSError`` and ``UnreadableRules``."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None, "a pipe was requested"
        assert process.stderr is not None, "a pipe was requested"
        graph = read_saved(process.stdout, family)
        problem = process.stderr.read().strip()
    if process.returncode:
        raise OSError(f"{' '.join(command)}: {problem or f'exit code {process.returncode}'}")
    return graph
