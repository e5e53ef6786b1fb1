"""Three etcd members and two API servers as processes, every link between them in the hands of the
test.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import ssl
import subprocess
import sys
from abc import abstractmethod
from pathlib import Path

from tests.ports import free_port
from tests.replicated.members import Member
from tests.replicated.proxies import Link
from tests.waiting import eventually, until

from sliceplane.server.io.storage.etcd import wire
from sliceplane.server.io.storage.etcd.client import EtcdClient, EtcdConfig, NoAnswer

PREFIX = "/chaos"
#: short, so that a server which was away has missed something for good
COMPACTION_INTERVAL = "2s"
#: A connection that a process accepted before it ended is reset; only a slow machine needs so long
#: for an answer.
ANSWER_SECONDS_MAX = 30.0


class ChaosProcess:
    """One ``sliceplane``, always at the same port; its log is *folder* with the suffix ``.log``."""

    def __init__(self, folder: Path, links: list[Link]) -> None:
        self.folder = folder
        #: its ways to others
        self.links = links
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @abstractmethod
    def arguments(self) -> list[str]:
        """Of the command."""

    def start(self) -> None:
        command = [sys.executable, "-m", "sliceplane", *self.arguments()]
        environment = {**os.environ, "PYTHONPATH": "src"}
        with self.folder.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def send(self, which: signal.Signals) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(which)

    def go_on(self) -> None:
        """After ``SIGSTOP``, or after it was killed."""
        self.send(signal.SIGCONT)
        if self.process is None:
            self.start()

    def kill(self) -> None:
        if self.process is not None:
            self.send(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    async def wait_listening(self) -> None:
        """The port is taken long before; what counts is that somebody answers there."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

        async def answers() -> bool:
            if self.process is not None and self.process.poll() is not None:
                self.process = None
                # it gave up, as without etcd for too long: a supervisor would start it again
                self.start()
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
            writer.transport.abort()
            return True

        await eventually(answers, ignoring=(OSError, TimeoutError))


class ApiProcess(ChaosProcess):
    """A ``sliceplane apiserver`` over etcd."""

    def arguments(self) -> list[str]:
        servers = ",".join(f"http://127.0.0.1:{link.port}" for link in self.links)
        return [
            "apiserver",
            "--data-dir",
            str(self.folder),
            "--secure-port",
            str(self.port),
            "--etcd",
            servers,
            "--etcd-prefix",
            PREFIX,
            "--etcd-compaction-interval",
            COMPACTION_INTERVAL,
            "--history-keep",
            "60s",
        ]


class ChaosPlane:
    """``start``, then anything, then ``heal`` and ``close``."""

    def __init__(self, folder: Path, members: int = 3, servers: int = 2) -> None:
        self.folder = folder
        self.members: list[Member] = []
        #: the way of other members to a member
        self.peer_links: list[Link] = []
        self.ids: list[bytes] = []
        self.servers: list[ApiProcess] = []
        self._member_count, self._server_count = members, servers

    async def start(self) -> None:
        for number in range(self._member_count):
            listen = free_port()
            link = Link(listen)
            await link.start()
            self.peer_links.append(link)
            self.members.append(Member(f"m{number}", self.folder, free_port(), listen, link.port))
        everybody = ",".join(
            f"{each.name}=http://127.0.0.1:{each.advertised_peer_port}" for each in self.members
        )
        for each in self.members:
            each.everybody = everybody
            each.start()
        for each in self.members:
            await asyncio.to_thread(each.wait_ready)
        self.ids = [await asyncio.to_thread(self._id_of, each) for each in self.members]
        for number in range(self._server_count):
            links = [Link(each.port) for each in self.members]
            for link in links:
                await link.start()
            server = ApiProcess(self.folder / f"s{number}", links)
            if number:
                server.folder.mkdir(mode=0o700)
                shutil.copytree(self.servers[0].folder / "pki", server.folder / "pki")
                shutil.copy(self.servers[0].folder / "tokens.csv", server.folder / "tokens.csv")
            server.start()
            self.servers.append(server)
            await server.wait_listening()

    @staticmethod
    def _id_of(member: Member) -> bytes:
        """As soon as it answers, which needs a majority."""
        client = EtcdClient(EtcdConfig(servers=(member.url,)))
        try:
            answer = until(lambda: client.ask("status", wire.StatusRequest()), ignoring=(NoAnswer,))
            return f"{answer.header.member_id:x}".encode()
        finally:
            client.close()

    @property
    def etcd(self) -> EtcdConfig:
        """Straight to the members, for who looks on."""
        return EtcdConfig(servers=tuple(each.url for each in self.members), prefix=PREFIX)

    def tls(self) -> ssl.SSLContext:
        pki = self.servers[0].folder / "pki"
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        return context

    # What can be done to it

    def isolate(self, member: int, *, from_servers: bool) -> None:
        for number, link in enumerate(self.peer_links):
            if number == member:
                link.cut = True
            else:
                link.cut_from.add(self.ids[member])
        if from_servers:
            for server in self.servers:
                server.links[member].cut = True

    async def heal(self) -> None:
        for link in self.peer_links:
            link.cut = False
            link.cut_from.clear()
        for server in self.servers:
            for link in server.links:
                link.cut = link.deaf = False
            server.go_on()
        for member in self.members:
            member.go_on()
            if member.process is None:
                member.start()
        for member in self.members:
            await asyncio.to_thread(member.wait_ready)
        for server in self.servers:
            await server.wait_listening()

    async def close(self) -> None:
        for server in self.servers:
            server.kill()
        for member in self.members:
            member.kill()
        for link in (*self.peer_links, *(link for server in self.servers for link in server.links)):
            await link.close()
