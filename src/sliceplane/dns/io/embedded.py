"""The name server of an embedded plane (``sliceplane up --dns``): a child process, and a Service
for it.

It is a separate process because a list of 100,000 endpoints that the plane serves must not delay
answers. The plane restarts it if it exits. It ends with the plane, or ``GRACE_S`` later, so that
names resolve while the plane restarts.

``kube-system/kube-dns`` has the tenth address of the Service range, as in every cluster, and an
EndpointSlice with the address on which the process listens: a node with a node proxy reaches it at
port 53.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sliceplane.api.codec import encode
from sliceplane.api.discovery import LABEL_SERVICE_NAME
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.requests import Write
from sliceplane.api.scheme import EndpointSlices, Resource, Services
from sliceplane.consume.io.accounts import Rule
from sliceplane.consume.io.child import ChildService
from sliceplane.dns.forwarding.configuration import parse_resolv_conf
from sliceplane.dns.io.sockets import ListenError, bound
from sliceplane.kit.io.interfaces import addresses
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.start_error import StartError
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.service import ServiceContext

NAMESPACE: Final = "kube-system"
SERVICE: Final = "kube-dns"
#: index of the Service's address in its range
NUMBER: Final = 10
#: seconds for which the name server outlives the plane
GRACE_S: Final = 60
RESOLV_CONF: Final = Path("/etc/resolv.conf")
DOMAIN: Final = "cluster.local"
_PORT: Final = 53
_PORTS: Final = (("dns", "UDP"), ("dns-tcp", "TCP"))
#: the same as in the chart (``dns-rbac.yaml``)
RULES: Final = (
    Rule("", ("services", "namespaces", "nodes"), ("list", "watch")),
    Rule("discovery.k8s.io", ("endpointslices",), ("list", "watch")),
    Rule("events.k8s.io", ("events",), ("create", "patch")),
)
_LABELS: Final = {"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"}

_log = get_logger("dns")


class DnsService(ChildService):
    """The child process ``sliceplane dns``.  *outlives*: it runs for ``GRACE_S`` after the plane
    ended.
    """

    def __init__(
        self, listen: tuple[str, int], service_cidrs: Sequence[str], *, outlives: bool = False
    ) -> None:
        super().__init__("dns", "--listen", listen, RULES, grace_s=GRACE_S if outlives else 0)
        self._cidrs = tuple(service_cidrs)
        self._outlives = outlives

    def flags(self, context: ServiceContext) -> tuple[str, ...]:
        own = f"--forward-skip={service_address(self._cidrs)}"
        shared = ("--reuse-port",) if self._outlives else ()
        return (*(f"--reverse-cidrs={cidr}" for cidr in self._cidrs), own, *shared)

    def check_free(self, listen: tuple[str, int]) -> None:
        try:
            datagrams, stream = bound(*listen)
        except ListenError as error:
            raise StartError(f"--dns: {error}") from error
        datagrams.close()
        stream.close()

    async def started(self, context: ServiceContext) -> None:
        await write_service(
            context.client("system:admin", "sliceplane-dns"), self._cidrs, self.address
        )


def service_address(cidrs: Sequence[str]) -> str:
    return str(ipaddress.ip_network(cidrs[0])[NUMBER])


def reachable(host: str) -> str:
    """Returns the address at which other hosts reach a listener on *host*; "" if they cannot, as on
    loopback.
    """
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        return next(
            (
                text
                for text in addresses(ipv6=address.version == 6)
                if (":" in text) == (":" in host)
            ),
            "",
        )
    return "" if address.is_loopback or address.is_link_local else host


def resolv_conf(
    listen: tuple[str, int], cidrs: Sequence[str], *, proxied: bool, path: Path = RESOLV_CONF
) -> tuple[str, ...]:
    """Returns lines of a resolv.conf(5) for this host; none if the server is not on port 53.

    *proxied*: a node proxy leads the Service's address to *listen*. A second server is one that
    *path* names now: a resolver asks it when the first one does not answer, so names of others
    outlast the plane.
    """
    host = reachable(listen[0])
    server = (
        service_address(cidrs)
        if proxied and host
        else (host or listen[0])
        if listen[1] == _PORT
        else ""
    )
    if not server:
        return ()
    try:
        before = parse_resolv_conf(path.read_text(errors="replace"))
    except OSError:
        before = None
    others = (
        [other.host for other in before.servers if other.host not in (server, host)]
        if before is not None
        else []
    )
    servers = [f"nameserver {address}" for address in (server, *others[:1])]
    return (
        *servers,
        f"search {' '.join(f'{part}{DOMAIN}' for part in ('default.svc.', 'svc.', ''))}",
    )


async def write_service(client: Client, cidrs: Sequence[str], listening: tuple[str, int]) -> None:
    """Creates ``kube-system/kube-dns`` if it is absent, and creates or updates its slice."""
    host, port = reachable(listening[0]), listening[1]
    if not host:
        _log.warning(
            "kube-dns has no endpoint: other hosts cannot reach a loopback address; listen on "
            "another one",
            address=listening[0],
        )
    ports = [{"name": name, "protocol": protocol, "port": _PORT} for name, protocol in _PORTS]
    service: Document = {
        "metadata": {"name": SERVICE, "namespace": NAMESPACE, "labels": _LABELS},
        "spec": {"clusterIP": service_address(cidrs), "ports": ports},
    }
    family = "IPv6" if ":" in (host or cidrs[0]) else "IPv4"
    endpoint_slice: Document = {
        "metadata": {
            "name": f"{SERVICE}-sliceplane",
            "namespace": NAMESPACE,
            "labels": {
                LABEL_SERVICE_NAME: SERVICE,
                "endpointslice.kubernetes.io/managed-by": "dns.sliceplane.dev",
            },
        },
        "addressType": family,
        "endpoints": [{"addresses": [host], "conditions": {"ready": True}}] if host else [],
        "ports": [{"name": name, "protocol": protocol, "port": port} for name, protocol in _PORTS],
    }
    await _put(client, Services, service, replace=False)
    await _put(client, EndpointSlices, endpoint_slice, replace=True)


async def _put(client: Client, resource: Resource, document: Document, *, replace: bool) -> None:
    """Creates the object, or updates an existing one if *replace*.  Raises ``StartError``."""
    name = document["metadata"]["name"]
    body = encode(document)
    create = Write(verb="create", resource=resource, namespace=NAMESPACE, body=body)
    try:
        try:
            await client.perform(create)
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise
            if replace:
                await _replace(client, resource, name, body, create)
    except StatusError as error:
        raise StartError(f"--dns: {NAMESPACE}/{name} cannot be written: {error}") from error


async def _replace(
    client: Client, resource: Resource, name: str, body: bytes, create: Write
) -> None:
    """Updates the object in place, so that rules for the name server stay; recreates it if its
    address family changed.
    """
    try:
        await client.perform(
            Write(verb="update", resource=resource, namespace=NAMESPACE, name=name, body=body)
        )
    except StatusError as error:
        if error.reason != "Invalid":
            raise
        await client.perform(
            Write(verb="delete", resource=resource, namespace=NAMESPACE, name=name)
        )
        await client.perform(create)
