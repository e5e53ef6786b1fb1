"""Operations of a test on the objects of its plane: coroutines in the plane's loop, without
sockets.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from sliceplane.api import codec
from sliceplane.api.core import Pod
from sliceplane.api.discovery import LABEL_MANAGED_BY, LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import RESOURCES, EndpointSlices, Leases, Pods, Resource, by_kind
from sliceplane.consume.balancing.merge import PortChoice
from sliceplane.consume.balancing.model import Endpoint
from sliceplane.consume.balancing.view import BalancedService
from sliceplane.consume.usable import Locality
from sliceplane.emulation.nodes import ANNOTATION_READY
from sliceplane.emulation.pod_status import readiness, ready_status
from sliceplane.kit.io.files import MANIFEST_BYTES_MAX, read_text
from sliceplane.kit.io.manifests import manifest_documents
from sliceplane.kit.ip import parse_strict
from sliceplane.server.io.plane import ServerPlane
from sliceplane.server.store.hub import BOOKMARK_PERIOD_S
from sliceplane.watch.cache import Change

Document = dict[str, Any]
#: YAML, a file of it, a document, or several
Source = str | Path | Mapping[str, Any] | Iterable[Mapping[str, Any]]

MANAGER = "sliceplane.testing"
_DEFAULT = "default"


class Objects:
    """See the module. Created and used in the loop of a running plane."""

    def __init__(self, plane: ServerPlane, *, emulates: bool) -> None:
        self._plane = plane
        self._emulates = emulates
        self._client = plane.client("system:admin", field_manager=MANAGER)

    async def apply(self, documents: tuple[Document, ...], namespace: str) -> list[Document]:
        """Applies each document server-side, including its status if it has one."""
        applied = []
        for document in documents:
            resource = _resource_of(document)
            body = {**document}
            where = _namespace(resource, document.get("metadata") or {}, namespace)
            name = str((document.get("metadata") or {}).get("name") or "")
            if not name:
                raise ValueError(f"a {resource.kind} has no metadata.name")
            status = body.pop("status", None) if resource.has_status else None
            answer = await self._client.patch(
                resource, where, name, codec.encode(body), patch_type="apply"
            )
            if status:
                patch = codec.encode({"status": status})
                answer = await self._client.patch(
                    resource, where, name, patch, patch_type="merge", subresource="status"
                )
            applied.append(codec.decode_document(answer))
        return applied

    async def get(self, kind: str, name: str, namespace: str) -> Document:
        resource = _named(kind)
        body = await self._client.get(resource, namespace if resource.namespaced else "", name)
        return codec.decode_document(body)

    async def list(self, kind: str, namespace: str, label_selector: str) -> list[Document]:
        resource = _named(kind)
        selection = Selection(resource, namespace if resource.namespaced else "", label_selector)
        page = await self._client.list(selection)
        return [codec.decode_document(body) for body in page.items]

    async def delete(self, kind: str, name: str, namespace: str) -> None:
        resource = _named(kind)
        await self._client.delete(resource, namespace if resource.namespaced else "", name)

    async def endpoints(
        self, service: str, namespace: str, port: str | int | None
    ) -> tuple[Endpoint, ...]:
        """Returns the endpoints that an ``EndpointView`` would have by now."""
        page = await self._client.list(
            Selection(EndpointSlices, namespace, f"{LABEL_SERVICE_NAME}={service}")
        )
        view = BalancedService(
            PortChoice(port), family=None, location=Locality(), honour_hints=False
        )
        slices = (codec.decode(body, EndpointSlice) for body in page.items)
        view.on_changes(Change(EndpointSlices.key, None, item) for item in slices)
        if view.problem:
            raise ValueError(f"Service {namespace}/{service}: {view.problem}")
        return view.endpoints

    async def set_endpoints(
        self, service: str, addresses: Iterable[str], namespace: str, port_name: str
    ) -> None:
        """Sets exactly these endpoints, each in its own slice because addresses may have different
        ports. Unchanged slices are not written.
        """
        desired = {_slice_name(service, address): address for address in addresses}
        selector = f"{LABEL_SERVICE_NAME}={service},{LABEL_MANAGED_BY}={MANAGER}"
        page = await self._client.list(Selection(EndpointSlices, namespace, selector))
        present = {codec.decode(body, EndpointSlice).metadata.name for body in page.items}
        documents = [
            _slice(service, name, address, port_name) for name, address in sorted(desired.items())
        ]
        await self.apply(
            tuple(
                document for document in documents if document["metadata"]["name"] not in present
            ),
            namespace,
        )
        for name in sorted(present - desired.keys()):
            await self._client.delete(EndpointSlices, namespace, name)

    async def set_ready(self, name: str, ready: bool, namespace: str) -> None:
        """Writes the Pod's readiness, and the annotation for an emulated kubelet, which would
        otherwise overwrite it.
        """
        if self._emulates:
            annotation = {"metadata": {"annotations": {ANNOTATION_READY: str(ready).lower()}}}
            await self._client.patch(
                Pods, namespace, name, codec.encode(annotation), patch_type="merge"
            )
        pod = codec.decode(await self._client.get(Pods, namespace, name), Pod)
        conditions = readiness(pod, containers=ready)
        status = codec.encode({"status": ready_status(pod, conditions, self._plane.clock())})
        await self._client.patch(
            Pods, namespace, name, status, patch_type="strategic", subresource="status"
        )

    async def send_bookmarks(self) -> int:
        """Sends the bookmarks that are due within their period, and returns their number."""
        hub = self._plane.hub
        before = hub.bookmarked.value
        hub.on_tick(asyncio.get_running_loop().time() + BOOKMARK_PERIOD_S)
        return int(hub.bookmarked.value - before)

    async def forget_history(self) -> None:
        """Compacts the history so that no client can resume from a version that it may have."""
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": MANAGER},
            "spec": {"holderIdentity": str(self._plane.store.revision)},
        }
        # A client may be at the newest revision, so a newer one is needed.
        await self._client.patch(
            Leases, "kube-system", MANAGER, codec.encode(lease), patch_type="apply"
        )
        revision = self._plane.store.revision
        self._plane.committer.tick(math.inf)
        while self._plane.store.compacted < revision:
            await asyncio.sleep(0.001)

    async def wait_ready(self) -> None:
        """Waits until every controller is synced, and Pods can be created."""
        while (
            any(why for _, why in self._plane.health.results("readyz"))
            or not await self._has_account()
        ):
            await asyncio.sleep(0.002)

    async def _has_account(self) -> bool:
        """Returns True if the namespace has its ServiceAccount, which a controller creates and Pods
        use by default.
        """
        try:
            await self.get("ServiceAccount", _DEFAULT, _DEFAULT)
        except StatusError as error:
            if error.code != 404:
                raise
            return False
        return True


def documents_of(source: Source) -> tuple[Document, ...]:
    """Returns the documents of *source*; items of a ``List`` are returned separately. Raises
    ``ValueError`` for anything that is no Kubernetes object.
    """
    if isinstance(source, Path):
        source = read_text(source, MANIFEST_BYTES_MAX)
    loaded: Iterable[Any]
    if isinstance(source, str):
        loaded = manifest_documents(source.encode())
    else:
        loaded = (source,) if isinstance(source, Mapping) else source
    documents: list[Document] = []
    for document in loaded:
        if document is None:
            continue  # an empty YAML document
        if not isinstance(document, Mapping) or not document.get("kind"):
            raise ValueError(
                f"this is no object of Kubernetes, it has no kind: {str(document)[:100]!r}"
            )
        items = document.get("items")
        documents += (
            documents_of(items)
            if document["kind"] == "List" and items is not None
            else (dict(document),)
        )
    return tuple(documents)


def _resource_of(document: Document) -> Resource:
    version = str(document.get("apiVersion", ""))
    kind = str(document["kind"])
    resource = by_kind(version, kind)
    if resource is None:
        raise ValueError(
            f"there is no kind {kind!r} in {version!r} here: see docs/api.md for those that are "
            "served"
        )
    return resource


def _named(kind: str) -> Resource:
    """Returns the resource as kubectl names it: ``pods``, ``pod`` or ``Pod``."""
    for resource in RESOURCES:
        if kind in (resource.kind, resource.plural, resource.singular):
            return resource
    raise ValueError(f"there is no kind {kind!r} here: see docs/api.md for those that are served")


def _namespace(resource: Resource, metadata: Mapping[str, Any], otherwise: str) -> str:
    return str(metadata.get("namespace") or otherwise) if resource.namespaced else ""


def _parts(address: str) -> tuple[str, int]:
    """Splits ``10.0.0.1:80`` or ``[fd00::1]:80`` into host and port."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdigit() or parse_strict(host) is None:
        raise ValueError(f"expected an address like 10.0.0.1:80 or [fd00::1]:80, got {address!r}")
    return host, int(port)


def _slice_name(service: str, address: str) -> str:
    host, port = _parts(address)
    return f"{service}-{int(ip_address(host)):x}-{port}"


def _slice(service: str, name: str, address: str, port_name: str) -> Document:
    host, port = _parts(address)
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "labels": {LABEL_SERVICE_NAME: service, LABEL_MANAGED_BY: MANAGER},
        },
        "addressType": "IPv6" if ":" in host else "IPv4",
        "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
        "ports": [{"name": port_name, "port": port}],
    }
