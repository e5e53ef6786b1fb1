"""nftables as a back end of the node proxy: ``node.nft.table`` over the kernel.

``NftRunner`` writes by netlink messages (``nft_netlink``), and runs ``nft`` if that is not possible:
one process for each transaction, its text by standard input, in a network namespace if requested.
Every failure becomes one ``NftError`` with a sentence for the user (``program``).
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import Literal, Protocol

from msgspec.structs import replace

from sliceplane.kit.io.log import get_logger
from sliceplane.kit.ip import Family
from sliceplane.node.drain_redirection import nft_redirection
from sliceplane.node.io.kernel.backend import KernelError
from sliceplane.node.io.kernel.nft_netlink import (
    TABLE_OF_ANOTHER,
    Messages,
    NftError,
    generation,
    read_dynamic_sets,
)
from sliceplane.node.io.kernel.program import KernelProgram
from sliceplane.node.nft.layout import PAUSE_S, steps
from sliceplane.node.nft.listing import differences, expected, listed
from sliceplane.node.nft.names import TABLE
from sliceplane.node.nft.objects import (
    DynamicSetContents,
    TableRef,
    Transaction,
    contents_of,
    deletion,
)
from sliceplane.node.nft.table import NFT_FAMILIES, NftPlane, needs_set_contents, nft_plane
from sliceplane.node.plane import NodePlaneConfig

__all__ = ["NftError", "NftRunner", "explain"]

#: the oldest version that accepts our rules
VERSION_MIN = (1, 0, 1)
TIMEOUT_S = 60.0

#: a small ruleset with every feature of nft and the kernel that ours needs; ``nft --check`` fails if
#: one is missing
_PROBE = """\
add table ip sliceplane-probe
add map ip sliceplane-probe endpoints { typeof numgen random mod 2 : ip daddr . tcp dport; }
add map ip sliceplane-probe single { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }
add map ip sliceplane-probe several { \
typeof ip daddr . meta l4proto . th dport . numgen random mod 2 : ip daddr . th dport; }
add map ip sliceplane-probe services { type ipv4_addr . inet_proto . inet_service : verdict; }
add chain ip sliceplane-probe output { type nat hook output priority -100; }
add chain ip sliceplane-probe service
add rule ip sliceplane-probe service meta l4proto tcp dnat ip to numgen random mod 2 offset 2 map @endpoints
add rule ip sliceplane-probe output ip daddr . meta l4proto . th dport vmap @services
add rule ip sliceplane-probe output dnat ip to ip daddr . meta l4proto . th dport map @single
add rule ip sliceplane-probe output \
dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 4 map @several
add set ip sliceplane-probe clients { type ipv4_addr; flags dynamic,timeout; timeout 10s; }
add rule ip sliceplane-probe service update @clients { ip saddr }
add rule ip sliceplane-probe output fib daddr type local meta mark set meta mark or 0x4000
add rule ip sliceplane-probe output numgen random mod 1 vmap { 0 : goto service }
"""


class NftRunner:
    """Runs transactions in one network namespace (``netns``: a name under /run/netns; "" is our
    own).

    Calls may be concurrent; the kernel applies one transaction at a time.
    """

    def __init__(
        self, *, netns: str = "", program: str = "nft", timeout_s: float = TIMEOUT_S
    ) -> None:
        self._program = program
        self._netns = netns
        self._programs = _programs(netns, timeout_s)
        self._running = 0
        self._accepted = 0
        self._foreign_generation: int | None = None
        self._messages = Messages(netns)

    async def write(self, transaction: Transaction) -> bool:
        """Applies *transaction* atomically.  Returns True if it was sent by messages, False if the
        program wrote it. Raises ``NftError``.
        """
        self._running += 1
        try:
            if await self._messages.write(transaction):
                self._accepted += 1
                return True
        except NftError as error:
            self._on_error(error)
            raise
        finally:
            self._running -= 1
        await self.run(transaction.render())
        return False

    async def run(self, text: str) -> None:
        """Applies *text* atomically, by the program.  Raises ``NftError``."""
        self._running += 1
        try:
            await self._nft("-f", "-", stdin=text)
            self._accepted += 1
        except NftError as error:
            self._on_error(error)
            raise
        finally:
            self._running -= 1

    def disturbed(self) -> bool:
        """Returns True if another program changed rules since the last call, perhaps ours.  While a
        transaction of ours runs, a later call reports the change. Cheap at any size.
        """
        now = None if self._running else generation(self._netns)
        if now is None:
            return False
        before = self._foreign_generation
        self._foreign_generation = (now - self._accepted) % 2**32
        return before is not None and before != self._foreign_generation

    async def tables(self) -> frozenset[TableRef]:
        """Returns all tables of IPv4 and IPv6, ours and others; cheap at any size.  Raises
        ``NftError``.
        """
        listed = re.findall(
            r"^table (ip6?) (\S+)$", await self._nft("list", "tables"), re.MULTILINE
        )
        return frozenset(TableRef(family, name) for family, name in listed)

    async def dynamic_sets(self, table: TableRef) -> DynamicSetContents:
        """Returns the elements that packets added to the dynamic sets of *table*, at most
        ``REMEMBERED_MAX`` clients; empty if there is no table. Raises ``NftError``.
        """
        try:
            return await asyncio.to_thread(read_dynamic_sets, table, self._netns)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            raise NftError("resources", f"clients could not be read: {error}") from error

    async def listing(self, table: TableRef) -> str:
        """Returns the JSON listing of *table*, for ``node.nft.listing``.  Raises ``NftError``."""
        return await self._nft("-j", "list", "table", table.family, table.name)

    async def probe(self) -> tuple[int, ...]:
        """Checks that nft and the kernel support our rules, without a change, and returns nft's
        version. Raises ``NftError``.
        """
        answer = await self._nft("--version")
        version = self._programs.check_version("nft", answer, VERSION_MIN)
        await self._nft("--check", "-f", "-", stdin=_PROBE)
        return version

    def _on_error(self, error: NftError) -> None:
        if error.reason != "rejected":
            self._foreign_generation = None  # the kernel may have applied it

    async def _nft(self, *arguments: str, stdin: str = "") -> str:
        return await self._programs.run(self._program, *arguments, stdin=stdin)


def explain(stderr: str, code: int, netns: str) -> KernelError:
    """Returns the error of a failed run, from the output of nft (or ip netns)."""
    if re.search(r"^flush chain \S+ \S+ writer-", stderr, re.MULTILINE):
        return NftError("rejected", TABLE_OF_ANOTHER)
    return _programs(netns, TIMEOUT_S).explain("nft", stderr, code)


def _programs(netns: str, timeout_s: float) -> KernelProgram:
    return KernelProgram(
        netns=netns, timeout_s=timeout_s, package="nftables", rules="nftables", error=NftError
    )


_log = get_logger("node-proxy")


class NftCommands(Protocol):
    """The part of ``NftRunner`` that ``Nftables`` uses; every call may raise ``KernelError``."""

    async def run(self, text: str) -> None: ...

    async def write(self, transaction: Transaction) -> bool: ...

    async def tables(self) -> frozenset[TableRef]: ...

    def disturbed(self) -> bool: ...

    async def dynamic_sets(self, table: TableRef) -> DynamicSetContents: ...

    async def listing(self, table: TableRef) -> str: ...

    async def probe(self) -> tuple[int, ...]: ...


class Nftables:
    """A ``backend.RulesBackend``.  *table*: the name of the table in both families."""

    mode: Literal["nftables"] = "nftables"

    def __init__(self, runner: NftCommands, *, table: str = TABLE, writer: str = "") -> None:
        """*writer*: a unique name of this process as a writer of the table; "": a random one."""
        self._runner = runner
        self._table = table
        self._writer = writer or os.urandom(8).hex()
        self.writes_by_transport = {"netlink": 0, "nft": 0}

    def plane(self, family: Family, config: NodePlaneConfig) -> NftPlane:
        return nft_plane(family, config, self._table, self._writer)

    async def probe(self) -> None:
        await self._runner.probe()

    async def prepare(self, plane: NftPlane) -> None:
        """Reads the clients of session affinity, so that a new table keeps their endpoints."""
        if needs_set_contents(plane):
            try:
                plane.rules.restore_sets(await self._runner.dynamic_sets(plane.rules.table))
            except KernelError as error:
                _log.warning("session affinity is forgotten", family=plane.family, error=str(error))

    async def write(self, plane: NftPlane, transaction: Transaction) -> None:
        for number, step in enumerate(steps(transaction)):
            if number:
                await asyncio.sleep(PAUSE_S)
            by_messages = await self._runner.write(step)
            self.writes_by_transport["netlink" if by_messages else "nft"] += 1

    async def has_rules(self, plane: NftPlane) -> bool:
        return plane.rules.table in await self._runner.tables()

    async def differences(self, plane: NftPlane) -> tuple[str, ...]:
        table = plane.rules.table
        whole = replace(plane.rules.shadow(), full=True)
        desired = expected(contents_of(whole), table.family)
        if table not in await self._runner.tables():
            return (f"the table {table.family} {table.name} is missing",)
        return differences(listed(await self._runner.listing(table)), desired)

    def disturbed(self) -> bool:
        return self._runner.disturbed()

    async def admit(
        self, families: tuple[Family, ...], addresses: tuple[str, ...], port: int
    ) -> None:
        await self._runner.run(nft_redirection(self._table, families, addresses, port))

    async def remove(self, families: tuple[Family, ...]) -> None:
        tables = (TableRef(NFT_FAMILIES[family], self._table) for family in families)
        ours = "".join(deletion(table).render() for table in tables)
        await self._runner.run(ours + nft_redirection(self._table, families, (), 0))

    async def remove_leftovers(self, families: tuple[Family, ...]) -> None:
        await self.remove(families)
