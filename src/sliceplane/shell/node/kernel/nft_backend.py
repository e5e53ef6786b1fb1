"""nftables as a back end of the node proxy: ``nft.table`` over ``nft_runner``."""

from __future__ import annotations

import asyncio
import os
from typing import Literal, Protocol

from sliceplane.kit.ip import Family
from sliceplane.nft.layout import PAUSE_S, steps
from sliceplane.nft.names import TABLE
from sliceplane.nft.objects import Memory, TableRef, Transaction, deletion
from sliceplane.nft.table import NFT_FAMILIES, NftPlane, nft_plane, wants_memory
from sliceplane.proxy.plane import NodePlaneConfig
from sliceplane.shell.node.kernel.backend import KernelError
from sliceplane.shell.process.log import get_logger

_log = get_logger("node-proxy")


class NftCommands(Protocol):
    """What is needed of ``nft_runner.NftRunner``; every call may raise ``KernelError``."""

    async def run(self, text: str) -> None: ...

    async def write(self, transaction: Transaction) -> bool: ...

    async def tables(self) -> frozenset[TableRef]: ...

    def disturbed(self) -> bool: ...

    async def memory(self, table: TableRef) -> Memory: ...

    async def probe(self) -> tuple[int, ...]: ...


class Nftables:
    """A ``backend.RulesBackend``.  *table*: the name of the table in both families."""

    mode: Literal["nftables"] = "nftables"

    def __init__(self, runner: NftCommands, *, table: str = TABLE, writer: str = "") -> None:
        """*writer*: a word that no other process has which might write this table; "": a random one."""
        self._runner = runner
        self._table = table
        self._writer = writer or os.urandom(8).hex()
        self.ways = {"netlink": 0, "nft": 0}

    def plane(self, family: Family, config: NodePlaneConfig) -> NftPlane:
        return nft_plane(family, config, self._table, self._writer)

    async def probe(self) -> None:
        await self._runner.probe()

    async def prepare(self, plane: NftPlane) -> None:
        """A new table leaves each client where it is, as far as the kernel says where."""
        if wants_memory(plane):
            try:
                plane.rules.remember(await self._runner.memory(plane.rules.table))
            except KernelError as error:
                _log.warning("session affinity is forgotten", family=plane.family, error=str(error))

    async def write(self, plane: NftPlane, transaction: Transaction) -> None:
        first, *rest = steps(transaction)
        await self._write(first)
        for step in rest:
            await asyncio.sleep(PAUSE_S)
            await self._write(step)

    async def holds(self, plane: NftPlane) -> bool:
        return plane.rules.table in await self._runner.tables()

    def disturbed(self) -> bool:
        return self._runner.disturbed()

    async def remove(self, families: tuple[Family, ...]) -> None:
        tables = (TableRef(NFT_FAMILIES[family], self._table) for family in families)
        await self._runner.run("".join(deletion(table).render() for table in tables))

    async def remove_leftovers(self, families: tuple[Family, ...]) -> None:
        await self.remove(families)

    async def _write(self, step: Transaction) -> None:
        by_messages = await self._runner.write(step)
        self.ways["netlink" if by_messages else "nft"] += 1
