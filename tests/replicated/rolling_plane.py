"""Two API servers over one etcd behind one address, and two instances of the controllers.

All are processes that can be replaced one after the other, as an upgrade does it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tests.ports import free_port
from tests.replicated.balancer import Balancer
from tests.replicated.members import Member
from tests.waiting import eventually

from sliceplane.watch.io import kubeconfig
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.http.replies import Retries

#: a balancer that is held up all that time sends a client to a server that is gone
DELAY_SECONDS = 4.0
STOP_SECONDS_MAX = 60.0
MAX_ENDPOINTS = 5
#: short ones, so that the Lease of a leader that was killed ends soon
LEASE_FLAGS = (
    "--leader-elect-lease-duration=3s",
    "--leader-elect-renew-deadline=2s",
    "--leader-elect-retry-period=500ms",
)


class Process:
    """One program that can be replaced.  Its flags, its port and its folder stay."""

    def __init__(self, log: Path, *command: str) -> None:
        self.log = log
        self._command = [sys.executable, "-m", "sliceplane", *command]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": "src"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)

    async def end(self, how: signal.Signals) -> int:
        """The exit code."""
        process, self.process = self.process, None
        assert process is not None, "it does not run"
        process.send_signal(how)
        try:
            return await asyncio.to_thread(process.wait, STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(
                f"no end after {how.name}\n{self.log.read_text()[-4000:]}"
            ) from None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Controllers(Process):
    def __init__(self, folder: Path, number: int, config: Path, lease_s: float) -> None:
        self.port = free_port()
        super().__init__(
            folder / f"c{number}.log",
            "controllers",
            "--kubeconfig",
            str(config),
            f"--leader-elect-lease-duration={lease_s}s",
            f"--leader-elect-renew-deadline={lease_s * 2 / 3:.1f}s",
            "--leader-elect-retry-period=500ms",
            f"--max-endpoints-per-slice={MAX_ENDPOINTS}",
            f"--healthz-bind-address=127.0.0.1:{self.port}",
        )

    async def says(self) -> str:
        """Of its ``/readyz``: "ok: leading", "ok: standing by, ...", or why it is not ready; ""
        without an answer.
        """
        return await asyncio.to_thread(self._says)

    def _says(self) -> str:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/readyz", timeout=20
            ) as answer:
                return str(answer.read().decode().strip())
        except urllib.error.HTTPError as error:
            return error.read().decode().strip()
        except OSError:
            return ""

    async def until(self, *said: str) -> None:
        await eventually(self.says, lambda now: now.startswith(said))


class RollingPlane:
    """``start``, then replace what you want, then ``close``."""

    def __init__(
        self,
        folder: Path,
        etcd: Member,
        *,
        lease_s: float,
        embedded: bool = False,
        delay_s: float = DELAY_SECONDS,
    ) -> None:
        """*embedded*: the controllers are in the servers (``sliceplane up``), and there are no
        others.
        """
        self.folder = folder
        self.embedded = embedded
        self.delay_s = delay_s
        self.lease_s = lease_s
        ports = [free_port(), free_port()]
        prefix = f"/{os.urandom(6).hex()}"
        self.balancer = Balancer(ports)
        flags = (
            "--etcd",
            etcd.url,
            "--etcd-prefix",
            prefix,
            f"--shutdown-delay-duration={delay_s}s",
        )
        if embedded:
            flags += (f"--max-endpoints-per-slice={MAX_ENDPOINTS}",)
        self.servers = [
            Process(
                folder / f"s{number}.log",
                *(
                    "up" if embedded else "apiserver",
                    "--data-dir",
                    str(self._data(number)),
                    "--secure-port",
                    str(port),
                    *flags,
                ),
            )
            for number, port in enumerate(ports)
        ]
        self.controllers: list[Controllers] = []
        self._clients: list[HttpClient] = []

    def _data(self, number: int) -> Path:
        return self.folder / f"data{number}"

    async def start(self) -> None:
        await self.balancer.start()
        self.servers[0].start()
        await self.balancer.until_ready(0)
        self._data(1).mkdir(mode=0o700)
        shutil.copytree(self._data(0) / "pki", self._data(1) / "pki")
        shutil.copy(self._data(0) / "tokens.csv", self._data(1) / "tokens.csv")
        self.servers[1].start()
        if not self.embedded:
            config = self.folder / "shared.kubeconfig"
            text = (self._data(0) / "admin.kubeconfig").read_text()
            config.write_text(
                text.replace(
                    f"127.0.0.1:{self.balancer.ports[0]}", f"127.0.0.1:{self.balancer.port}"
                )
            )
            self.controllers = [
                Controllers(self.folder, number, config, self.lease_s) for number in range(2)
            ]
            for each in self.controllers:
                each.start()
        await self.balancer.until_ready(1)
        await asyncio.gather(*(each.until("ok") for each in self.controllers))

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.balancer.port}"

    def client(self, server: int | None = None) -> HttpClient:
        """Of one server, or of the address of all; closed with the plane."""
        port = self.balancer.port if server is None else self.balancer.ports[server]
        connection = kubeconfig.load_for(
            f"https://127.0.0.1:{port}", self._data(0) / "admin.kubeconfig"
        )
        self._clients.append(HttpClient(connection, retries=Retries()))
        return self._clients[-1]

    def tls(self) -> ssl.SSLContext:
        pki = self._data(0) / "pki"
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        return context

    async def leader(self) -> int:
        async def said() -> list[str]:
            return [await controllers.says() for controllers in self.controllers]

        return (await eventually(said, lambda said: "ok: leading" in said)).index("ok: leading")

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for each in (*self.controllers, *self.servers):
            each.kill()
        await self.balancer.close()
