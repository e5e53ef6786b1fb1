"""The I/O of ``sliceplane trace``: reads the objects that the query needs, and nothing else.

All Services and Nodes are listed (no API server has an index of the claims to an address), Pods by
address, slices by Service. Only ``get`` and ``list`` reach the server. A list that is forbidden
becomes a note in the answer, unless the answer depends on it.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final, TypeVar, cast

from msgspec.structs import replace

from sliceplane.api import codec
from sliceplane.api.core import Endpoints, Node, Pod, Service, ServiceCIDR
from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.findings.wording import no_such
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import (
    EndpointSlices,
    EndpointsObjects,
    Nodes,
    Pods,
    Resource,
    ServiceCIDRs,
    Services,
    is_done_without,
)
from sliceplane.consume.model import ServiceKey
from sliceplane.consume.selections import reads_slices
from sliceplane.consume.slicecache import slices_of
from sliceplane.diagnose.io.lists import list_objects
from sliceplane.diagnose.trace import xds
from sliceplane.diagnose.trace.answer import TraceAnswer, XdsTraceAnswer
from sliceplane.diagnose.trace.cluster import TracedCluster
from sliceplane.diagnose.trace.explain import explain
from sliceplane.diagnose.trace.inquiry import Inquiry, TracedProxy
from sliceplane.diagnose.trace.question import (
    OUTSIDE,
    OUTSIDE_ADDRESSES,
    AddressTarget,
    NamedSource,
    NameTarget,
    Question,
    Unanswerable,
    family_of,
    parse_source,
    parse_to,
)
from sliceplane.diagnose.trace.route import POD_INTERFACE
from sliceplane.diagnose.trace.xds import XdsQuestion
from sliceplane.kit.ip import Family, parse_strict
from sliceplane.node.context import RulesConfig
from sliceplane.watch.io.base import Reader

CONCURRENT_SERVICES: Final = 8

T = TypeVar("T", bound=Object)


def usual_proxy() -> TracedProxy:
    """A proxy whose flags are the defaults of ``sliceplane trace``."""
    return TracedProxy(
        RulesConfig(pod_bridge_interface=POD_INTERFACE, pod_interface_name_prefix=POD_INTERFACE)
    )


async def question_of(
    client: Reader, source: str, target: str, *, protocol: str | None, node: str, namespace: str
) -> Question:
    """Returns the query for the values of ``--from`` and ``--to``; raises as ``trace`` does.

    *source* "" is this machine if it is a Node, else a client outside.
    """
    to = parse_to(target, namespace)
    source = source or await _usual_source(client)
    if source == OUTSIDE:
        sender = OUTSIDE_ADDRESSES[await _family(client, to) or "IPv4"]
    else:
        named = parse_source(source, namespace)
        sender = (
            named
            if isinstance(named, str)
            else await address_of(client, named, await _family(client, to))
        )
    return Question(sender, to, cast("Any", protocol.upper()) if protocol else None, node.lower())


async def _usual_source(client: Reader) -> str:
    """Returns this machine as a Node, else ``outside``: also where Nodes may not be read."""
    name = socket.gethostname().lower()
    try:
        await client.get(Nodes, "", name)
    except StatusError as error:
        if error.code not in (400, 403, 404):
            raise
        return OUTSIDE
    return f"node/{name}"


async def _family(client: Reader, to: AddressTarget | NameTarget) -> Family | None:
    """Returns the family of a packet to *to*: the first family of a Service; ``None``: there is no
    such Service.
    """
    if isinstance(to, AddressTarget):
        return family_of(to.ip)
    try:
        service = codec.decode(await client.get(Services, to.namespace, to.name), Service)
    except StatusError as error:
        if error.code != 404:
            raise
        return None
    return next(
        (family_of(ip) for ip in service.spec.cluster_ips or () if parse_strict(ip) is not None),
        None,
    )


async def trace(client: Reader, question: Question, settings: TracedProxy) -> TraceAnswer:
    """Raises ``diagnose.trace.question.Unanswerable``, ``StatusError`` and
    ``watch.io.base.Unreachable``.
    """
    unread: list[str] = []
    services, nodes, pods, ranges = await asyncio.gather(
        list_objects(client, Selection(Services), Service),
        list_objects(client, Selection(Nodes), Node),
        _pods(client, question, unread),
        _allowed(client, ServiceCIDRs, ServiceCIDR, unread),
    )
    cluster = TracedCluster(services, nodes, pods, ranges, tuple(unread))
    if _may_be_a_pod(question, cluster):
        cluster = replace(cluster, pods=await list_objects(client, Selection(Pods), Pod))
    inquiry = Inquiry(question, cluster, settings)
    slots = asyncio.Semaphore(CONCURRENT_SERVICES)

    async def read(key: ServiceKey) -> None:
        async with slots:
            inquiry.on_slices(key, await _slices(client, key, settings))

    while pending := inquiry.pending_services():
        async with asyncio.TaskGroup() as group:
            for key in pending:
                group.create_task(read(key))
    return explain(inquiry)


async def xds_question_of(
    client: Reader, location: str, target: str, *, namespace: str, domain: str
) -> XdsQuestion:
    """Returns the query for the values of ``--client`` (``NODE``, ``pod/POD``, ``zone/ZONE``, or
    nothing) and ``--to``; raises as ``trace`` does.
    """
    kind, _, name = location.rpartition("/")
    if kind not in ("", "node", "pod", "zone") or bool(kind) > bool(name):
        raise Unanswerable(
            f"--client {location!r} is neither [node/]NODE nor pod/POD nor zone/ZONE"
        )
    if kind != "pod":
        arguments = {"zone": name} if kind == "zone" else {"node": name.lower()}
        return xds.question_of(target, namespace, (domain,), **arguments)
    try:
        pod = codec.decode(await client.get(Pods, namespace, name), Pod)
    except StatusError as error:
        if error.code != 404:
            raise
        raise Unanswerable(f"--client: there is no Pod {namespace}/{name}") from error
    if not pod.spec.node_name:
        raise Unanswerable(f"--client: Pod {namespace}/{name} is on no node yet")
    return xds.question_of(target, namespace, (domain,), node=pod.spec.node_name)


async def trace_xds(client: Reader, question: XdsQuestion) -> XdsTraceAnswer:
    """Raises as ``trace`` does."""
    namespace, name = question.service
    selector = f"{LABEL_SERVICE_NAME}={name}"
    services, slices, nodes = await asyncio.gather(
        list_objects(client, Selection(Services, namespace), Service),
        list_objects(client, Selection(EndpointSlices, namespace, selector), EndpointSlice),
        _nodes(client),
    )
    service = next((listed for listed in services if listed.metadata.name == name), None)
    if service is None:
        names = [listed.metadata.key for listed in services]
        raise Unanswerable(no_such("Service", str(question.service), names))
    return xds.explain_xds(question, service, slices, nodes)


async def _nodes(client: Reader) -> tuple[Node, ...] | None:
    """Returns the Nodes; ``None`` if listing them is forbidden."""
    try:
        return await list_objects(client, Selection(Nodes), Node)
    except StatusError as error:
        if error.code != 403:
            raise
        return None


async def address_of(client: Reader, source: NamedSource, family: Family | None) -> str:
    """Returns the address that *source* sends from: of *family*, else its first. Raises
    ``Unanswerable``.
    """
    try:
        if source.namespace:
            pod = codec.decode(await client.get(Pods, source.namespace, source.name), Pod)
            addresses = list(pod.status.ips) if pod.status else []
        else:
            node = codec.decode(await client.get(Nodes, "", source.name), Node)
            addresses = [
                entry.address
                for entry in (node.status.addresses or ())
                if entry.type == "InternalIP"
            ]
    except StatusError as error:
        if error.code != 404:
            raise
        raise Unanswerable(f"--from: there is no {source}") from error
    fitting = [ip for ip in addresses if family is None or family_of(ip) == family]
    if not fitting:
        raise Unanswerable(
            f"--from: {source} has no {family or 'IP'} address"
            + (f", only {addresses[0]}" if addresses else "")
        )
    return fitting[0]


async def _slices(
    client: Reader, key: ServiceKey, settings: TracedProxy
) -> tuple[EndpointSlice, ...]:
    if reads_slices(settings.gates):
        selector = f"{LABEL_SERVICE_NAME}={key.name}"
        return await list_objects(
            client, Selection(EndpointSlices, key.namespace, selector), EndpointSlice
        )
    try:
        body = await client.get(EndpointsObjects, *key)
    except StatusError as error:
        if error.code != 404:
            raise
        return ()
    return tuple(slices_of(codec.decode(body, Endpoints)).values())


async def _pods(client: Reader, question: Question, unread: list[str]) -> tuple[Pod, ...]:
    """Returns the Pods whose first address is in the query; a server can select Pods only by their
    first address.
    """
    pods: list[Pod] = []
    addresses = (
        question.source,
        *((question.to.ip,) if isinstance(question.to, AddressTarget) else ()),
    )
    for ip in addresses:
        pods += await _allowed(client, Pods, Pod, unread, field_selector=f"status.podIP={ip}")
    return tuple(pods)


def _may_be_a_pod(question: Question, cluster: TracedCluster) -> bool:
    """Returns True if all Pods must be searched for the sender: no Pod has its address as the first
    of two.
    """
    is_resolved = (
        cluster.pod_of(question.source) is not None or cluster.node_of(question.source) is not None
    )
    may_read = not any(sentence.startswith(Pods.plural) for sentence in cluster.unread)
    return may_read and not is_resolved and not question.node


async def _allowed(
    client: Reader,
    resource: Resource,
    kind: type[T],
    unread: list[str],
    *,
    field_selector: str = "",
) -> tuple[T, ...]:
    try:
        return await list_objects(client, Selection(resource, field_selector=field_selector), kind)
    except StatusError as error:
        pods_forbidden = resource is Pods and error.code == 403
        if not pods_forbidden and not is_done_without(resource, error):
            raise
        sentence = f"{resource.plural}, the server answers {error.code}"
        if sentence not in unread:
            unread.append(sentence)
        return ()
