"""The I/O of ``sliceplane drift``: reads Leases and lists, and the pages of node proxies that can
be reached.

All but the pages needs only the right to list, on any cluster. Objects at the version that a node
reports come from lists at exactly that version (kubernetes.io, "Kubernetes API Concepts", "Resource
versions"), which servers answer for the last minutes.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from sliceplane.api import codec
from sliceplane.api.core import Lease, Node, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.findings.wording import lasting
from sliceplane.api.meta import Object, Projection, revision_of
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Leases, Nodes, Resource, Services
from sliceplane.consume.drain.relayed import RELAY, flatten
from sliceplane.consume.progress import BEHIND_S, LABEL_COMPONENT, LEASE_NAMESPACE
from sliceplane.consume.selections import list_selections_of_service
from sliceplane.consume.served import rule_differences
from sliceplane.diagnose.drift.answer import Drift
from sliceplane.diagnose.drift.envoy import (
    RECHECK_DELAY_S,
    EnvoyDrift,
    NoAdminPages,
    compare_envoy,
    confirm_differences,
    read_envoy,
)
from sliceplane.diagnose.drift.facts import (
    CONSUMER_WORDINGS,
    DriftFacts,
    Listed,
    ProxyPages,
    listed,
    report_of_lease,
)
from sliceplane.diagnose.drift.judge import judge, past_versions_to_read
from sliceplane.diagnose.drift.relays import relay_tree
from sliceplane.diagnose.explain.objects import FullSlice
from sliceplane.diagnose.io.kernel import read_kernel
from sliceplane.diagnose.io.lists import list_objects, list_pages, list_whole
from sliceplane.kit.io.interfaces import addresses_of
from sliceplane.kit.ip import parse_strict
from sliceplane.kit.times import time_or_zero
from sliceplane.watch.io.base import Reader, Unreachable
from sliceplane.watch.io.connection import Connection, Fixed
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.xds.catalog import catalog_of

#: past versions that are listed: nodes of a quiet cluster report few
PAST_MAX: Final = 16
#: nodes whose pages are read
PROXIES_QUERIED_MAX: Final = 16
PAGE_TIMEOUT_S: Final = 2.0
RULES_TIMEOUT_S: Final = 60.0
ADMIN_TIMEOUT_S: Final = 30.0
#: a page of a node proxy, or of Envoy: versions of 100,000 slices
PAGE_BYTES_MAX: Final = 64 << 20
_KINDS: Final[dict[str, tuple[Resource, type[Object]]]] = {
    EndpointSlices.plural: (EndpointSlices, EndpointSlice),
    Services.plural: (Services, Service),
}
T = TypeVar("T", bound=Object)


class _Entry(Projection, frozen=True, kw_only=True):
    time: str | None = None


class _Metadata(Projection, frozen=True, kw_only=True):
    creation_timestamp: str | None = None
    managed_fields: tuple[_Entry, ...] | None = None


class _Written(Projection, frozen=True, kw_only=True):
    metadata: _Metadata = _Metadata()


_written = msgspec.json.Decoder(_Written)


async def read_drift(
    client: Reader,
    clock: Callable[[], float],
    *,
    node: str = "",
    service: str = "",
    deep: bool = False,
    port: int,
) -> Drift:
    """*node*: only this one, and its pages are read from *port*; *deep*: its proxy compares its
    rules with the kernel. *service*: ``namespace/name``. Raises ``StatusError`` and
    ``watch.io.base.Unreachable``.
    """
    unread: list[str] = []
    kinds = ",".join((*CONSUMER_WORDINGS, RELAY))
    bodies = await list_whole(
        client,
        Selection(Leases, LEASE_NAMESPACE, f"{LABEL_COMPONENT} in ({kinds})"),
    )
    leases = [codec.decode(body, Lease) for body in bodies]
    reports = [report_of_lease(lease) for lease in flatten(leases)]
    nodes = await _nodes(client, unread)
    consumers = tuple(item for item in reports if node in ("", item.node, item.owner))
    # Only reports are compared with objects.
    now_of = {
        plural: await _objects(client, plural, None) if consumers else (0, ()) for plural in _KINDS
    }
    now = clock()
    facts = DriftFacts(
        now=now,
        consumers=consumers,
        nodes=nodes,
        now_of=now_of,
        unread=tuple(unread),
        relays=() if node or service else relay_tree(leases, now),
        node=node,
        service=service,
    )
    facts = replace(facts, past=await _past(client, facts))
    drift = judge(facts)
    proxies = {item.title for item in facts.consumers if item.is_proxy}
    lost = [row.node for row in drift.rows if row.state == "lost an event" and row.node in proxies]
    names = ([item.node for item in facts.consumers if item.is_proxy] if node else lost)[
        :PROXIES_QUERIED_MAX
    ]
    if names:
        reads = [
            _read_proxy(client, name, _address(name, nodes), port, deep=deep) for name in names
        ]
        pages = dict(zip(names, await asyncio.gather(*reads), strict=True))
        drift = judge(replace(facts, pages=pages))
    return drift


async def read_envoy_drift(client: Reader, admin: str) -> EnvoyDrift:
    """*admin*: the URL of an Envoy's admin pages.  Raises ``NoAdminPages``, and as ``read_drift``
    does.
    """
    first = await _compare_envoy(client, admin)
    if not first.differs:
        return first
    await asyncio.sleep(RECHECK_DELAY_S)
    return confirm_differences(first, await _compare_envoy(client, admin))


async def _compare_envoy(client: Reader, admin: str) -> EnvoyDrift:
    info, clusters = [
        await _admin_page(admin, path) for path in ("/server_info", "/clusters?format=json")
    ]
    services = await list_objects(client, Selection(Services), Service)
    slices = await list_objects(client, Selection(EndpointSlices), EndpointSlice)
    nodes = await _nodes(client, [])
    return compare_envoy(
        read_envoy(info, clusters), catalog_of(services, slices, nodes or (), "drift")
    )


async def _admin_page(admin: str, path: str) -> dict[str, Any]:
    """Raises ``NoAdminPages``."""
    if not admin.startswith(("http://", "https://")):
        raise NoAdminPages(f"{admin}: admin pages have a URL such as http://127.0.0.1:9901")
    try:
        return await _page(admin, path, ADMIN_TIMEOUT_S)
    except (Unreachable, StatusError, TimeoutError, ValueError) as error:
        raise NoAdminPages(f"{admin.rstrip('/')}{path}: {_reason(error)}") from error


async def _nodes(client: Reader, unread: list[str]) -> tuple[Node, ...] | None:
    try:
        return await list_objects(client, Selection(Nodes), Node)
    except StatusError as error:
        if error.code != 403:
            raise
        unread.append("nodes that never reported (no right to list nodes)")
        return None


async def _objects(
    client: Reader, plural: str, version: int | None
) -> tuple[int, tuple[Listed, ...]]:
    """Returns the version of the list, and its objects; at *version* exactly, if given."""
    resource, kind = _KINDS[plural]
    items: list[Listed] = []
    listed_at = 0
    async for page in list_pages(
        client, Selection(resource), None if version is None else str(version)
    ):
        items += [listed(codec.decode(body, kind), _written_at(body)) for body in page.items]
        listed_at = listed_at or revision_of(page.resource_version)
    return listed_at, tuple(items)


def _written_at(body: bytes) -> float:
    metadata = _written.decode(body).metadata
    times = [entry.time for entry in metadata.managed_fields or () if entry.time]
    return time_or_zero(max(times, default=""))


async def _past(
    client: Reader, facts: DriftFacts
) -> dict[tuple[str, int], tuple[Listed, ...] | str]:
    past: dict[tuple[str, int], tuple[Listed, ...] | str] = {}
    for number, (plural, version) in enumerate(past_versions_to_read(facts)):
        if number >= PAST_MAX:
            past[plural, version] = f"nodes report more than {PAST_MAX} versions; --node checks one"
            continue
        try:
            past[plural, version] = (await _objects(client, plural, version))[1]
        except StatusError as error:
            if error.code not in (400, 410, 504):
                raise
            past[plural, version] = f"the server has no {plural} of version {version} any more"
    return past


def _address(name: str, nodes: tuple[Node, ...] | None) -> str:
    of = [node for node in nodes or () if node.metadata.name == name]
    addresses = [
        entry.address
        for node in of
        for entry in node.status.addresses or ()
        if entry.type == "InternalIP"
    ]
    # The server sent it: connect only to an IP address, and resolve no names.
    return addresses[0] if addresses and parse_strict(addresses[0]) is not None else ""


async def _read_proxy(
    client: Reader, name: str, address: str, port: int, *, deep: bool
) -> ProxyPages:
    import socket

    own = await addresses_of("") or ()
    is_local = address in own or name == socket.gethostname()
    pages = await _read_proxy_pages("127.0.0.1" if is_local else address, port, deep=deep)
    if not deep or pages.rules is not None:
        return pages
    if not is_local:
        return replace(
            pages, rules_why=pages.rules_why or "this machine is another one: run it on the node"
        )
    try:
        differences = await _compare_local_rules(client)
        if differences:
            await asyncio.sleep(RECHECK_DELAY_S)  # a change under way is not in both reads
            second = await _compare_local_rules(client)
            differences = {phrase: second[phrase] for phrase in differences if phrase in second}
    except _NotRead as error:
        return replace(pages, rules_why=str(error))
    old = tuple(phrase for phrase, age_s in differences.items() if age_s >= BEHIND_S)
    if differences and not old:
        phrase, age_s = next(iter(differences.items()))
        why = (
            f"too young to judge: {phrase} ({lasting(age_s)} old; judged after {lasting(BEHIND_S)})"
        )
        return replace(pages, rules_why=why)
    return replace(pages, rules=old, rules_why="")


class _NotRead(Exception):
    """The rules of this machine's kernel cannot be read; the text has the reason."""


async def _compare_local_rules(client: Reader) -> dict[str, float]:
    """Returns where the kernel of this machine differs from the slices of all Services, with the
    seconds since the last write of these slices. Raises ``_NotRead``, and as ``read_drift`` does.
    """
    kernel = await read_kernel()
    if kernel.rules is None:
        raise _NotRead(
            next(
                (text for text in kernel.unread if "rules" in text),
                "the kernel's rules cannot be read",
            )
        )
    services = await list_objects(client, Selection(Services), Service)
    rules = dict(kernel.rules)
    by_service: dict[str, list[FullSlice]] = defaultdict(list)
    for item in await list_objects(client, Selection(EndpointSlices), FullSlice):
        by_service[listed(item).service].append(item)
    now = time.time()
    differences: dict[str, float] = {}
    for service in filter(list_selections_of_service, services):
        slices = by_service[service.metadata.key]
        age_s = now - max((item.written_at for item in slices), default=0.0)
        for phrase in rule_differences(service, slices, rules):
            differences[f"{service.metadata.key}: the kernel {phrase}"] = max(0.0, age_s)
    return differences


async def _read_proxy_pages(host: str, port: int, *, deep: bool) -> ProxyPages:
    if not host:
        return ProxyPages(why="its address is not known", is_deep=deep)
    proxy = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    try:
        objects = {
            f"{plural}/{selection}": versions
            for plural in _KINDS
            for selection, versions in (
                await _page(proxy, f"/versions/{plural}", PAGE_TIMEOUT_S)
            ).items()
        }
    except StatusError as error:
        missing = (
            "there are no such pages: an older release, or a metrics address that is no loopback "
            "one"
        )
        return ProxyPages(why=f"{proxy}: {missing if error.code == 404 else error}", is_deep=deep)
    except (Unreachable, TimeoutError, ValueError) as error:
        return ProxyPages(why=f"{proxy}: {_reason(error)}", is_deep=deep)
    if not deep:
        return ProxyPages(objects=objects, rules_why="--deep asks the proxy to compare them")
    try:
        answer = await _page(proxy, "/rules", RULES_TIMEOUT_S)
    except (StatusError, Unreachable, TimeoutError, ValueError) as error:
        return ProxyPages(objects=objects, rules_why=_reason(error), is_deep=True)
    if "problem" in answer:
        return ProxyPages(objects=objects, rules_why=answer["problem"], is_deep=True)
    return ProxyPages(objects=objects, rules=tuple(answer["differences"]), is_deep=True)


async def _page(server: str, path: str, timeout_s: float) -> dict[str, Any]:
    """Returns a page of a server that is queried without credentials and without a proxy. Raises
    ``StatusError``, ``Unreachable``, ``TimeoutError`` and ``ValueError``.
    """
    tls = ssl.create_default_context() if server.startswith("https://") else None
    async with (
        asyncio.timeout(timeout_s),
        HttpClient(
            Connection(server=server.rstrip("/"), ssl_context=tls, credentials=Fixed()),
            read_only=True,
        ) as client,
    ):
        body = await client.page(path, bytes_max=PAGE_BYTES_MAX)
    try:
        document: dict[str, Any] = codec.decode_document(body)
    except codec.UNREADABLE as error:
        raise ValueError(f"the page cannot be read: {error}") from error
    return document


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
