"""The name server of an embedded plane (``sliceplane up --dns``): a process of its own, and a Service that leads to it.

A process, for a list of 100,000 endpoints that the plane serves must not hold up answers.  It ends with the plane, and
is started again if it dies.  ``kube-system/kube-dns`` has the tenth address of the Service range, as in every cluster,
and a slice with the address at which the process listens: so whoever runs a node proxy reaches it at port 53.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import sys
from collections.abc import Sequence
from typing import Final

from sliceplane.api.codec import encode
from sliceplane.api.discovery import LABEL_SERVICE_NAME
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.requests import Write
from sliceplane.api.scheme import EndpointSlices, Resource, Services
from sliceplane.shell.process.interfaces import addresses
from sliceplane.shell.process.log import get_logger
from sliceplane.shell.process.start_error import StartError
from sliceplane.shell.transport.base import Client
from sliceplane.shell.transport.service import ServiceContext

NAMESPACE: Final = "kube-system"
SERVICE: Final = "kube-dns"
#: the address of the Service, counted from the range's first
NUMBER: Final = 10
_PORTS: Final = (("dns", "UDP"), ("dns-tcp", "TCP"))
_LABELS: Final = {"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"}
_START_S: Final = 60.0
_AGAIN_S: Final = (0.5, 30.0)

_log = get_logger("dns")


class DnsService:
    """A ``shell.transport.service.PlaneService``.  *flags*: more of ``sliceplane dns``."""

    name = "dns"

    def __init__(self, listen: tuple[str, int], service_cidrs: Sequence[str], flags: Sequence[str] = ()) -> None:
        self._listen = listen
        self._cidrs = tuple(service_cidrs)
        self._flags = tuple(flags)
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        #: where it listens
        self.address: tuple[str, int] = listen

    async def start(self, context: ServiceContext) -> None:
        """Raises ``StartError`` where the process does not come to answer."""
        self._command = (
            sys.executable, "-m", "sliceplane", "dns", "--progress-lease=true", "--kubeconfig", str(context.kubeconfig),
            *(f"--reverse-cidrs={cidr}" for cidr in self._cidrs), *self._flags,
        )  # fmt: skip
        self.address = await self._begin(self._listen)
        context.add_check("dns", lambda: "" if self._is_running() else "the name server's process has ended")
        await write_service(context.client("system:admin", "sliceplane-dns"), self._cidrs, self.address)
        self._keeping = asyncio.create_task(self._keep(), name="name server's process")

    async def _begin(self, listen: tuple[str, int]) -> tuple[str, int]:
        host, port = listen
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._process = await asyncio.create_subprocess_exec(
            *self._command, f"--listen={shown}", stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout is not None, "asked for"
        line = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                line = await self._process.stdout.readline()
        if not line.startswith(b"ready "):
            await self._end()
            raise StartError(f"--dns: no name server at {shown}; its own words are above")
        return host, int(line.split()[1].rpartition(b":")[2])

    def _is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _keep(self) -> None:
        pause_s = _AGAIN_S[0]
        while True:
            assert self._process is not None, "it was started"
            code = await self._process.wait()
            _log.error("the name server's process has ended, and is started again", exit_code=code)
            await asyncio.sleep(pause_s)
            try:
                await self._begin(self.address)
                pause_s = _AGAIN_S[0]
            except StartError as error:
                _log.error("the name server does not start", error=str(error))
                pause_s = min(2 * pause_s, _AGAIN_S[1])

    async def _end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            try:
                async with asyncio.timeout(5.0):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    async def drain(self) -> None:
        """Clients have names to the end."""

    async def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self._end()


def service_address(cidrs: Sequence[str]) -> str:
    return str(ipaddress.ip_network(cidrs[0])[NUMBER])


def reachable(host: str) -> str:
    """The address under which others reach what listens on *host*; "": they do not, as on loopback."""
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        return next((text for text in addresses(ipv6=address.version == 6) if (":" in text) == (":" in host)), "")
    return "" if address.is_loopback or address.is_link_local else host


async def write_service(client: Client, cidrs: Sequence[str], listening: tuple[str, int]) -> None:
    """``kube-system/kube-dns``, if it is not there, and its slice as it is to be now."""
    host, port = reachable(listening[0]), listening[1]
    if not host:
        _log.warning(
            "kube-dns has no endpoint: a loopback address can be none; nodes reach another one", address=listening[0]
        )
    ports = [{"name": name, "protocol": protocol, "port": 53} for name, protocol in _PORTS]
    service: Document = {
        "metadata": {"name": SERVICE, "namespace": NAMESPACE, "labels": _LABELS},
        "spec": {"clusterIP": service_address(cidrs), "ports": ports},
    }
    family = "IPv6" if ":" in (host or cidrs[0]) else "IPv4"
    made: Document = {
        "metadata": {
            "name": f"{SERVICE}-sliceplane",
            "namespace": NAMESPACE,
            "labels": {LABEL_SERVICE_NAME: SERVICE, "endpointslice.kubernetes.io/managed-by": "dns.sliceplane.dev"},
        },
        "addressType": family,
        "endpoints": [{"addresses": [host], "conditions": {"ready": True}}] if host else [],
        "ports": [{"name": name, "protocol": protocol, "port": port} for name, protocol in _PORTS],
    }
    await _put(client, Services, service, replace=False)
    await _put(client, EndpointSlices, made, replace=True)


async def _put(client: Client, resource: Resource, document: Document, *, replace: bool) -> None:
    """Raises ``StartError``."""
    name = document["metadata"]["name"]
    write = Write(verb="create", resource=resource, namespace=NAMESPACE, body=encode(document))
    try:
        try:
            await client.perform(write)
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise
            if replace:
                await client.perform(Write(verb="delete", resource=resource, namespace=NAMESPACE, name=name))
                await client.perform(write)
    except StatusError as error:
        raise StartError(f"--dns: {NAMESPACE}/{name} cannot be written: {error}") from error
