"""POST pods/NAME/binding: a Pod is given its node, once (pkg/registry/core/pod/storage/storage.go, BindingREST).

The node's zone and region labels are copied to the Pod, as upstream does since 1.35, so that what runs in
the Pod can learn where it is.
"""

from __future__ import annotations

from sliceplane.api import codec
from sliceplane.api.errors import bad_request, conflict, invalid, not_supported, required
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Nodes, Pods
from sliceplane.kit.times import format_time
from sliceplane.registry.core import Core
from sliceplane.registry.documents import document_of, normalised
from sliceplane.registry.types import Body, Context, Outcome, Target, WriteOptions
from sliceplane.store.types import Key

_TOPOLOGY_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")


def bind(core: Core, ctx: Context, target: Target, body: Body, options: WriteOptions) -> Outcome:
    """Raises StatusError: 400, 404, 409 (being deleted, bound already, other uid), 422."""
    record = core.latest(target)
    try:
        wanted = normalised(body.document)
    except ValueError as error:
        raise bad_request(f'Binding in version "v1" cannot be handled as a Binding: {error}') from error
    head = wanted.get("metadata", {})
    node = _node(target, wanted)
    pod = document_of(record)
    if head.get("uid") and head["uid"] != record.uid:
        why = f"Precondition failed: UID in precondition: {head['uid']}, UID in object meta: {record.uid}"
        raise conflict("pods/binding", "", target.name, why)
    if pod["metadata"].get("deletionTimestamp"):
        why = f"pod {target.name} is being deleted, cannot be assigned to a host"
        raise conflict("pods/binding", "", target.name, why)
    bound = pod.get("spec", {}).get("nodeName")
    if bound:
        raise conflict("pods/binding", "", target.name, f'pod {target.name} is already assigned to node "{bound}"')
    answer = codec.encode({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
    if options.dry_run:
        return Outcome(code=201, body=answer)
    pod.setdefault("spec", {})["nodeName"] = node
    _copy_topology(core, pod, node)
    status = pod.setdefault("status", {})
    others = [condition for condition in status.get("conditions", ()) if condition.get("type") != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_time(ctx.now)}
    status["conditions"] = [*others, scheduled]
    pod["metadata"]["generation"] = pod["metadata"].get("generation", 0) + 1
    return Outcome(code=201, body=answer, revision=core.put(Pods, pod).revision)


def _node(target: Target, wanted: Document) -> str:
    """The name of the target node.  Raises a 400 or 422 StatusError."""
    if wanted.get("kind", "Binding") != "Binding":
        raise bad_request(f"expected input object type to be Binding, but {wanted['kind']}")
    aim = wanted.get("target", {})
    if not isinstance(aim, dict) or not isinstance(wanted.get("metadata", {}), dict):
        raise bad_request('Binding in version "v1" cannot be handled as a Binding: metadata and target are objects')
    errors = []
    if aim.get("kind", "") not in ("", "Node"):
        errors.append(not_supported("target.kind", aim["kind"], ("Node", "<empty>")))
    if not aim.get("name"):
        errors.append(required("target.name"))
    if errors:
        raise invalid("Binding", "", target.name, errors)
    return str(aim["name"])


def _copy_topology(core: Core, pod: Document, node: str) -> None:
    record = core.store.latest(Key(Nodes.storage_key, "", node))
    labels = {} if record is None else {name: record.labels[name] for name in _TOPOLOGY_LABELS if name in record.labels}
    if labels:
        head = pod["metadata"]
        head["labels"] = {**labels, **head.get("labels", {})}
