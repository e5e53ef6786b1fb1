"""Subresources with objects of another kind: ``binding`` of Pods, ``scale`` of workloads.

POST pods/NAME/binding assigns a Pod to a node, once (pkg/registry/core/pod/storage/storage.go,
BindingREST). The node's zone and region labels are copied to the Pod, as upstream does since 1.35,
so that a program in the Pod can read its topology. As upstream: the Pod's generation does not
change, annotations of the Binding are copied, and a Pod with scheduling gates is refused.

autoscaling/v1 Scale is a view of spec.replicas: its name, uid and resourceVersion are those of the
object, so that optimistic concurrency works with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import msgspec.structs

from sliceplane.api import codec
from sliceplane.api.errors import (
    bad_request,
    conflict,
    invalid,
    invalid_value,
    not_supported,
    required,
)
from sliceplane.api.meta import Document, LabelSelector
from sliceplane.api.scheme import Nodes, Pods, ReplicationControllers
from sliceplane.api.selectors import from_label_selector
from sliceplane.server.documents import fields, schema
from sliceplane.server.registry import metadata
from sliceplane.server.registry.core import Core, WriteCall
from sliceplane.server.registry.decoding import decoded, decoded_as
from sliceplane.server.registry.documents import document_of, normalised, set_condition
from sliceplane.server.registry.types import Body, Outcome, PatchType, Target
from sliceplane.server.registry.verbs import managed_fields
from sliceplane.server.registry.verbs.apply import (
    check_configuration,
    check_type,
    conflict_error,
    decode_configuration,
)
from sliceplane.server.registry.verbs.update import apply_patch, check_version, replace
from sliceplane.server.store.types import Key, Record

_TOPOLOGY_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
_GROUP: Final = "autoscaling"
_VERSION: Final = f"{_GROUP}/v1"
_KIND: Final = "Scale"


def bind(call: WriteCall, body: Body) -> Outcome:
    """Raises StatusError: 400, 404, 409 (being deleted, already bound, other uid), 422."""
    core, ctx, target, options = call
    record = core.latest(target)
    try:
        binding = normalised(body.document)
    except ValueError as error:
        raise bad_request(
            f'Binding in version "v1" cannot be handled as a Binding: {error}'
        ) from error
    head = binding.get("metadata", {})
    node = _node(target, binding)
    pod = document_of(record)
    if head.get("uid") and head["uid"] != record.uid:
        why = (
            f"Precondition failed: UID in precondition: {head['uid']}, UID in object meta: "
            f"{record.uid}"
        )
        raise conflict("pods/binding", "", target.name, why)
    if pod["metadata"].get("deletionTimestamp"):
        why = f"pod {target.name} is being deleted, cannot be assigned to a host"
        raise conflict("pods/binding", "", target.name, why)
    spec = pod.setdefault("spec", {})
    if spec.get("nodeName"):
        why = f'pod {target.name} is already assigned to node "{spec["nodeName"]}"'
        raise conflict("pods/binding", "", target.name, why)
    if spec.get("schedulingGates"):
        raise conflict(
            "pods/binding",
            "",
            target.name,
            f"pod {target.name} has non-empty .spec.schedulingGates",
        )
    answer = codec.encode(
        {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
    )
    if options.dry_run:
        return Outcome(code=201, body=answer)
    spec["nodeName"] = node
    pod.get("status", {}).pop("nominatedNodeName", None)
    if head.get("annotations"):
        pod["metadata"]["annotations"] = {
            **pod["metadata"].get("annotations", {}),
            **head["annotations"],
        }
    _copy_topology(core, pod, node)
    set_condition(pod, {"type": "PodScheduled", "status": "True"}, ctx.now)
    return Outcome(code=201, body=answer, revision=core.put(Pods, pod).revision)


def bind_named(call: WriteCall, body: Body) -> Outcome:
    """Binds the Pod that a Binding names (POST bindings).  Raises as ``bind``."""
    head = body.document.get("metadata")
    name = head.get("name") if isinstance(head, dict) else None
    pod = Target(
        resource=Pods, namespace=call.target.namespace, name=str(name or ""), subresource="binding"
    )
    return bind(call._replace(target=pod), body)


def _node(target: Target, binding: Document) -> str:
    """Returns the name of the target node.  Raises a 400 or 422 StatusError."""
    if binding.get("kind", "Binding") != "Binding":
        raise bad_request(f"expected input object type to be Binding, but {binding['kind']}")
    aim = binding.get("target", {})
    if not isinstance(aim, dict) or not isinstance(binding.get("metadata", {}), dict):
        raise bad_request(
            'Binding in version "v1" cannot be handled as a Binding: metadata and target are '
            "objects"
        )
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
    labels = (
        {}
        if record is None
        else {name: record.labels[name] for name in _TOPOLOGY_LABELS if name in record.labels}
    )
    if labels:
        head = pod["metadata"]
        head["labels"] = {**head.get("labels", {}), **labels}


def scale_of(document: Document) -> Document:
    """Returns the Scale of a workload."""
    head = document["metadata"]
    spec = document.get("spec", {})
    status = document.get("status", {})
    members = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    scale_status: Document = {"replicas": status.get("replicas", 0)}
    selector = spec.get("selector", {})
    if document["kind"] == ReplicationControllers.kind:
        selector = {"matchLabels": selector}
    requirements = str(from_label_selector(msgspec.convert(selector, LabelSelector)))
    if requirements:
        scale_status["selector"] = requirements
    replicas = spec.get("replicas", 0)
    return {
        "kind": _KIND,
        "apiVersion": _VERSION,
        "metadata": {name: head[name] for name in members if name in head},
        "spec": {"replicas": replicas} if replicas else {},
        "status": scale_status,
    }


def get_scale(record: Record) -> Record:
    """Returns the record with the Scale as its body."""
    return msgspec.structs.replace(record, body=codec.encode(scale_of(document_of(record))))


def update_scale(call: WriteCall, body: Body) -> Outcome:
    """Handles a PUT of a Scale.  Raises StatusError: 400, 404, 409, 422."""
    record = call.core.latest(call.target)
    return _set_replicas(call, record, decoded_as(_VERSION, _KIND, body.document))


def patch_scale(call: WriteCall, patch_type: PatchType, body: bytes) -> Outcome:
    """Handles a PATCH of a Scale, as JSON or merge patch; a strategic one is a merge patch, as a
    Scale has no lists.
    """
    record = call.core.latest(call.target)
    if patch_type == "apply":
        return _apply_scale(call, record, body)
    how: PatchType = "merge" if patch_type == "strategic" else patch_type
    patched = apply_patch(call.target.resource, how, scale_of(document_of(record)), body)
    return _set_replicas(call, record, decoded_as(_VERSION, _KIND, patched.document))


def _set_replicas(call: WriteCall, record: Record, scale: Document) -> Outcome:
    target = call.target
    head = scale.get("metadata", {})
    replicas: int = scale.get("spec", {}).get("replicas", 0)
    metadata.match_name(target, head)
    metadata.match_namespace(target, head)
    _check_replicas(target, replicas)
    check_version(target, head, record, conditional=False)
    new = document_of(record)
    new["spec"]["replicas"] = replicas
    managed_fields.on_update(call, new, document_of(record))
    return _replaced(call, new, record)


def _apply_scale(call: WriteCall, record: Record, body: bytes) -> Outcome:
    """Applies a Scale: the one field of the object that it shows."""
    target = call.target
    config, warnings = decode_configuration(body, call.options)
    check_type(config, _VERSION, _KIND)
    check_configuration(schema.shape_of(_VERSION, _KIND), config)
    head = config.get("metadata", {})
    metadata.match_name(target, {"name": target.name, **head})
    metadata.match_namespace(target, dict(head))
    check_version(target, head, record, conditional=False)
    resource = target.resource
    applied: Document = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": target.name},
    }
    if "replicas" in config.get("spec", {}):
        applied["spec"] = {"replicas": config["spec"]["replicas"]}
    try:
        new = managed_fields.on_apply(call, document_of(record), applied, force=call.options.force)
    except fields.Conflicts as refused:
        raise conflict_error(refused.conflicts, _VERSION) from refused
    _check_replicas(target, new["spec"].get("replicas", 0))
    return _replaced(call, decoded(resource, new), record, warnings)


def _check_replicas(target: Target, replicas: int) -> None:
    if replicas < 0:
        error = invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid(_KIND, _GROUP, target.name, [error])


def _replaced(
    call: WriteCall, new: Document, record: Record, warnings: tuple[str, ...] = ()
) -> Outcome:
    """Replaces *record* by *new*, which has its managedFields; answers with a Scale."""
    whole = call._replace(target=msgspec.structs.replace(call.target, subresource=""))
    outcome = replace(whole, new, record, warnings=warnings, tracked=True)
    return msgspec.structs.replace(
        outcome, body=codec.encode(scale_of(codec.decode_document(outcome.body)))
    )


class ViewVerbs(NamedTuple):
    """The verbs of a subresource that is a view of the resource's objects."""

    get: Callable[[Record], Record]
    update: Callable[[WriteCall, Body], Outcome]
    patch: Callable[[WriteCall, PatchType, bytes], Outcome]


SCALE: Final = ViewVerbs(get_scale, update_scale, patch_scale)
