"""A server and relays as processes, every way between them in the hands of the test.

``east`` and ``west`` follow the server, ``leaf`` both of them, ``twig`` only ``east``.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path
from typing import Final

from tests.relay.relaying import ADMIN, kubeconfig
from tests.replicated.chaos_plane import ChaosProcess
from tests.replicated.proxies import Link

PARENTS: Final = {
    "east": ("root",),
    "west": ("root",),
    "leaf": ("east", "west"),
    "twig": ("east",),
}


class Root(ChaosProcess):
    """A ``sliceplane apiserver`` with a database of its own."""

    def arguments(self) -> list[str]:
        return [
            *("apiserver", "--data-dir", str(self.folder), "--secure-port", str(self.port)),
            *("--token-auth-file", str(self.folder.with_name("tokens.csv"))),
        ]


class RelayProcess(ChaosProcess):
    """A ``sliceplane relay``; the first of *links* leads to the parent that it begins with."""

    def __init__(self, folder: Path, links: list[Link], pki: Path) -> None:
        super().__init__(folder, links)
        self._pki = pki

    def arguments(self) -> list[str]:
        ways = [
            kubeconfig(
                self.folder.parent, f"https://127.0.0.1:{link.port}", self._pki / "ca.crt", ADMIN
            )
            for link in self.links
        ]
        return [
            *("relay", "--listen", f"127.0.0.1:{self.port}"),
            *(word for way in ways for word in ("--upstream", str(way))),
            *("--tls-cert-file", str(self._pki / "apiserver.crt")),
            *("--tls-private-key-file", str(self._pki / "apiserver.key")),
        ]


class ChaosTree:
    """``start``, then anything, then ``heal`` and ``close``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = Root(folder / "root", [])
        self.relays: dict[str, RelayProcess] = {}

    @property
    def processes(self) -> tuple[ChaosProcess, ...]:
        return (self.root, *self.relays.values())

    async def start(self) -> None:
        (self.folder / "tokens.csv").write_text(f'{ADMIN},admin,1,"system:masters"\n')
        self.root.start()
        await self.root.wait_listening()
        for name, parents in PARENTS.items():
            links = [
                Link((self.root if parent == "root" else self.relays[parent]).port)
                for parent in parents
            ]
            for link in links:
                await link.start()
            self.relays[name] = RelayProcess(self.folder / name, links, self.root.folder / "pki")
            self.relays[name].start()
        await self.heal()

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.root.folder / "pki" / "ca.crt"))

    async def back_up(self) -> None:
        """Copies the database while nobody writes to it."""
        self.root.kill()
        await asyncio.to_thread(shutil.copytree, self.root.folder, self._backup)
        await self.heal()

    async def restore(self) -> None:
        """The server goes on from the copy: what came after it never was."""
        self.root.kill()
        await asyncio.to_thread(shutil.rmtree, self.root.folder)
        await asyncio.to_thread(shutil.copytree, self._backup, self.root.folder)
        await self.heal()

    @property
    def _backup(self) -> Path:
        return self.folder / "backup"

    async def heal(self) -> None:
        for process in self.processes:
            process.go_on()
            for link in process.links:
                link.cut = link.deaf = False
        for process in self.processes:
            await process.wait_listening()

    async def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            for link in process.links:
                await link.close()

    def logs(self) -> list[str]:
        """The end of each process's log."""
        return [
            f"{process.folder.name}: "
            + process.folder.with_suffix(".log").read_text(errors="replace")[-3000:]
            for process in self.processes
        ]
