"""The target Pods of ``sliceplane drain``: one by its name, those of a Deployment, or those on a
Node.
"""

from __future__ import annotations

from typing import Final, Literal

from sliceplane.api.apps import Deployment
from sliceplane.api.codec import decode
from sliceplane.api.core import Node, Pod
from sliceplane.api.errors import StatusError
from sliceplane.api.findings.wording import no_such
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import Deployments, Nodes, Pods, Resource
from sliceplane.api.selectors.labels import from_label_selector
from sliceplane.diagnose.io.lists import list_objects
from sliceplane.watch.io.base import Reader

TargetKind = Literal["pod", "deployment", "node"]
_KINDS: Final[dict[TargetKind, tuple[Resource, type[Object]]]] = {
    "pod": (Pods, Pod),
    "deployment": (Deployments, Deployment),
    "node": (Nodes, Node),
}


class NoTarget(Exception):
    """No object has this name; the text has similar names."""


async def find_pods(client: Reader, kind: TargetKind, namespace: str, name: str) -> list[Pod]:
    """Returns the target Pods that may be endpoints, by key. Those of a Node are from all
    namespaces, except Pods of DaemonSets, which stay.

    Raises ``NoTarget``, ``StatusError`` and ``watch.io.base.Unreachable``.
    """
    resource, decoded = _KINDS[kind]
    try:
        body = await client.get(resource, "" if kind == "node" else namespace, name)
    except StatusError as error:
        if error.code != 404:
            raise
        raise NoTarget(await _near(client, kind, namespace, name)) from error
    target = decode(body, decoded)
    if isinstance(target, Pod):
        return [target]
    if isinstance(target, Deployment):
        selection = Selection(Pods, namespace, str(from_label_selector(target.spec.selector)))
    else:
        selection = Selection(Pods, field_selector=f"spec.nodeName={name}")
    pods = await list_objects(client, selection, Pod)
    return sorted((pod for pod in pods if _is_drainable(pod)), key=lambda pod: pod.metadata.key)


def _is_drainable(pod: Pod) -> bool:
    owners = [owner.kind for owner in pod.metadata.owner_references or () if owner.controller]
    return "DaemonSet" not in owners and not pod.has_ended


async def _near(client: Reader, kind: TargetKind, namespace: str, name: str) -> str:
    resource, _ = _KINDS[kind]
    space = "" if kind == "node" else namespace
    key = f"{space}/{name}" if space else name
    try:
        objects = await list_objects(client, Selection(resource, space), Object)
    except StatusError:
        return f"there is no {resource.kind} {key}"
    return no_such(resource.kind, key, [item.metadata.key for item in objects])
