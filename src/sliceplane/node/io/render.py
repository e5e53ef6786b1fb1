"""The first rules that a node proxy would write on a node, as text, without writing them; the
objects come from files or from a server.
"""

from __future__ import annotations

import difflib
import json
import reprlib
from collections.abc import Iterable
from typing import Any, Final, Literal

from sliceplane.api import codec
from sliceplane.api.core import Node, Service, ServiceCIDR
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.gates import Gates
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import (
    EndpointSlices,
    Nodes,
    Resource,
    ServiceCIDRs,
    Services,
    is_done_without,
)
from sliceplane.consume.selections import common_selector
from sliceplane.kit.io.manifests import BadDocument, manifest_documents
from sliceplane.kit.ip import Family
from sliceplane.node.configuration.fields import DEFAULT_MODE, Mode
from sliceplane.node.plane import NodePlaneConfig
from sliceplane.node.snapshot import NodeObjects, feed, snapshot
from sliceplane.watch.io.base import Client

RenderMode = Mode | Literal["ipvs", "kernelspace"]

_KINDS: Final[dict[str, tuple[Resource, type[Any]]]] = {
    "Service": (Services, Service),
    "EndpointSlice": (EndpointSlices, EndpointSlice),
    "Node": (Nodes, Node),
    "ServiceCIDR": (ServiceCIDRs, ServiceCIDR),
}
#: kinds of Kubernetes with similar names
_NEIGHBOURS: Final = (
    "APIService",
    "ServiceAccount",
    "ServiceMonitor",
    "ServiceEntry",
    "ServiceExport",
    "VirtualService",
)


class RenderError(Exception):
    """A file is invalid; ``str()`` is a sentence for the user."""


def render(mode: RenderMode, family: Family, config: NodePlaneConfig, objects: NodeObjects) -> str:
    """Renders the rules; the same objects result in the same bytes."""
    from sliceplane.node.io.kernel.modes import PLANES

    # Modes that are only rendered need a node's model without rules; any back end's plane has it.
    plane = PLANES[DEFAULT_MODE if mode == "ipvs" or mode == "kernelspace" else mode](  # noqa: PLR1714
        family, config
    )
    feed(plane, objects)
    match mode:
        case "ipvs":
            from sliceplane.node.ipvs.render import render as render_ipvs

            return render_ipvs(snapshot(plane)).render()
        case "kernelspace":
            from sliceplane.node.hns.render import render as render_hns

            return json.dumps(render_hns(snapshot(plane)), indent=2) + "\n"
    transaction = plane.take_transaction(0.0)
    assert transaction is not None, "a first write is never empty"
    return str(transaction.render())


def objects_of(files: Iterable[tuple[str, bytes]], node_name: str) -> NodeObjects:
    """Reads objects from the contents of files (name, bytes): YAML or JSON, several documents, Lists.
    Other kinds are ignored (a manifest has Deployments, too). A misspelt kind, or files without any
    object for a proxy, are an error. If two objects have the same name, the later wins. Raises
    ``RenderError``.
    """
    by_key: dict[tuple[str, str], Any] = {}
    passed: dict[str, str] = {}
    for name, raw in files:
        for document in _documents(name, raw):
            kind = document.get("kind")
            if kind not in _KINDS:
                passed[_spelt(name, kind)] = name
                continue
            try:
                decoded = codec.decode(codec.encode(document), _KINDS[kind][1])
            except ValueError as error:
                raise RenderError(f"{name}: a {kind} cannot be read: {error}") from error
            by_key[kind, decoded.metadata.key] = decoded
    if passed and not by_key:
        raise RenderError(
            f"there is no {', '.join(_KINDS)} in {', '.join(sorted(set(passed.values())))}, only "
            f"{', '.join(sorted(passed))}"
        )
    return _objects([by_key[key] for key in sorted(by_key)], node_name)


def _spelt(name: str, kind: Any) -> str:
    """Returns *kind*, which a proxy does not use.  Raises ``RenderError`` if it seems to be a misspelt
    one that a proxy uses.
    """
    text = str(kind)
    near = difflib.get_close_matches(text, _KINDS, n=1, cutoff=0.75)
    if near and text not in _NEIGHBOURS:
        raise RenderError(f"{name}: there is no kind {text!r}; did you mean {near[0]!r}?")
    return text


async def objects_from(client: Client, node_name: str) -> NodeObjects:
    """Lists the objects that a node proxy reads.  Raises ``StatusError`` and ``Unreachable``."""
    selectors = {EndpointSlices.key: common_selector(Gates())}
    objects: list[Any] = []
    for resource, projection in _KINDS.values():
        try:
            page = await client.list(
                Selection(resource, label_selector=selectors.get(resource.key, ""))
            )
        except StatusError as error:
            if is_done_without(resource, error):
                continue
            raise
        objects += [codec.decode(item, projection) for item in page.items]
    return _objects(objects, node_name)


def _objects(objects: list[Any], node_name: str) -> NodeObjects:
    """Sorts *objects* by kind.  Raises ``RenderError`` if there are Nodes, but not *node_name*: the
    rules would be those of no node.
    """
    names = sorted(subject.metadata.name for subject in objects if isinstance(subject, Node))
    if names and node_name not in names:
        listed = f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
        raise RenderError(
            f"there is no Node {node_name}: name one with --hostname-override, of {listed}"
        )
    nodes = [
        subject
        for subject in objects
        if isinstance(subject, Node) and subject.metadata.name == node_name
    ]
    return NodeObjects(
        services=tuple([subject for subject in objects if isinstance(subject, Service)]),
        slices=tuple([subject for subject in objects if isinstance(subject, EndpointSlice)]),
        node=nodes[0] if nodes else None,
        service_cidrs=tuple([subject for subject in objects if isinstance(subject, ServiceCIDR)]),
    )


def _documents(name: str, raw: bytes) -> Iterable[dict[str, Any]]:
    try:
        documents = manifest_documents(raw)
    except BadDocument as error:
        raise RenderError(f"{name} is neither YAML nor JSON: {error}") from error
    if not documents:
        raise RenderError(f"{name} is empty")
    for document in documents:
        if not isinstance(document, dict):
            raise RenderError(f"{name} has something that is no object: {_excerpt(document)}")
        items = document.get("items")
        if isinstance(items, list):
            kind = str(document.get("kind", "")).removesuffix("List")
            yield from (
                {"kind": kind, **item} if kind else item for item in items if isinstance(item, dict)
            )
        else:
            if not document.get("kind"):
                raise RenderError(f"{name} has something without a kind: {_excerpt(document)}")
            yield document


def _excerpt(document: Any) -> str:
    """Returns the beginning of *document*, without a rendering of all of it."""
    return (document if isinstance(document, str) else reprlib.repr(document))[:40]
