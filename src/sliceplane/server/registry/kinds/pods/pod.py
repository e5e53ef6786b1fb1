"""Pod: what is completed when one is created, and what may change later.

What Pods share with templates is in ``pod_spec``, and the Status column in ``pod_columns``.

Every Pod gets something besides what its author said: zone and region of its node, an account, a
priority, tolerations, what its RuntimeClass asks for. As upstream's admission does it, in that
order, with the two priority classes of the system built in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from sliceplane.api import codec
from sliceplane.api.core import Node, PodSpec
from sliceplane.api.errors import FieldErrors, forbidden_field, invalid_value
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Nodes, Pods, PriorityClasses
from sliceplane.server.documents import fields
from sliceplane.server.registry.admission import limit_ranges, runtime_classes, service_accounts
from sliceplane.server.registry.documents import document_of, refused
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.pods import pod_columns, pod_parts, pod_quota
from sliceplane.server.registry.kinds.pods.pod_spec import (
    default_pod,
    validate_new_pod,
    validate_pod_spec,
)
from sliceplane.server.registry.kinds.pods.priority_class import PRIORITY_CLASSES, default_class
from sliceplane.server.registry.types import Target
from sliceplane.server.registry.validation.addresses import ip_problems
from sliceplane.server.registry.validation.annotations import (
    check_annotation_update,
    check_pod_annotations,
)
from sliceplane.server.registry.validation.containers import check_image
from sliceplane.server.registry.validation.rules import Field, Rules, each, each_of_form
from sliceplane.server.registry.validation.scheduling import check_narrowed, check_tolerations
from sliceplane.server.registry.validation.security import id_field
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key

if TYPE_CHECKING:
    from sliceplane.server.registry.core import Core


TOPOLOGY_LABELS: Final = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
TOLERATION_S: Final = 300
_PREEMPTS: Final = "PreemptLowerPriority"
_BAD_NODES: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def _complete(core: Core, _target: Target, document: Document) -> None:
    """Complete a new Pod, in place.  Raises a 403 StatusError: a LimitRange, or a priority that
    cannot be.
    """
    _label_topology(core.store, document)
    spec = document.get("spec", {})
    limit_ranges.admit_pod(core.store, document)
    service_accounts.admit_pod(core.store, core.rng, document)
    _resolve_priority(core.store, document)
    missing = [key for key in _BAD_NODES if not _is_tolerated(spec, key)]
    if missing:
        spec["tolerations"] = [*spec.get("tolerations", ()), *map(_toleration, missing)]
    runtime_classes.admit_pod(core.store, document)
    merge_label_keys(document)


def merge_label_keys(document: Document) -> None:
    """Labels of the Pod whose keys a term names become part of the term's selector (KEP-3633,
    KEP-3243).
    """
    spec: Document = document["spec"]
    affinity: Document = spec.get("affinity", {})
    terms: list[Document] = list(spec.get("topologySpreadConstraints", ()))
    for member in ("podAffinity", "podAntiAffinity"):
        pod_affinity = affinity.get(member, {})
        preferred = pod_affinity.get("preferredDuringSchedulingIgnoredDuringExecution", ())
        terms += (term["podAffinityTerm"] for term in preferred if "podAffinityTerm" in term)
        terms += pod_affinity.get("requiredDuringSchedulingIgnoredDuringExecution", ())
    labels: dict[str, str] = document["metadata"].get("labels", {})
    for term in terms:
        if "labelSelector" not in term:
            continue
        added = [
            {"key": key, "operator": operator, "values": [labels[key]]}
            for member, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
            for key in term.get(member, ())
            if key in labels
        ]
        if added:
            selector = term["labelSelector"]
            selector["matchExpressions"] = [*selector.get("matchExpressions", ()), *added]


def _carry_over(_core: Core, _target: Target, new: Document, old: Document) -> None:
    """Before validation of an update: what was given at the start may be left out."""
    spec = new.get("spec", {})
    before = old.get("spec", {})
    for member in ("priority", "preemptionPolicy"):
        if spec.get(member) is None and member in before:
            spec[member] = before[member]
    kept = [
        _toleration(key)
        for key in _BAD_NODES
        if _toleration(key) in before.get("tolerations", ()) and not _is_tolerated(spec, key)
    ]
    if kept:
        spec["tolerations"] = [*spec.get("tolerations", ()), *kept]


def _label_topology(store: Store, document: Document) -> None:
    """A Pod that already has a node takes over where that node is (KEP-4742), if the node
    says so.
    """
    node_name = document.get("spec", {}).get("nodeName")
    record = store.latest(Key(Nodes.storage_key, "", node_name)) if node_name else None
    if record is None:
        return
    labels = codec.decode(record.body, Node).metadata.labels or {}
    topology = {name: labels[name] for name in TOPOLOGY_LABELS if name in labels}
    if topology:
        head = document["metadata"]
        head["labels"] = {**head.get("labels", {}), **topology}


def _resolve_priority(store: Store, document: Document) -> None:
    spec = document["spec"]
    name = spec.get("priorityClassName", "")
    why = ""
    record = store.latest(Key(PriorityClasses.storage_key, "", name)) if name else None
    settings = {} if record is None else document_of(record)
    if not name:
        settings = default_class(store) or {}
        if settings:
            spec["priorityClassName"] = settings["metadata"]["name"]
    computed = settings.get("value", PRIORITY_CLASSES.get(name, 0))
    policy = settings.get("preemptionPolicy", _PREEMPTS)
    if name and record is None and name not in PRIORITY_CLASSES:
        why = f"no PriorityClass with name {name} was found"
    elif spec.get("priority", computed) != computed:
        why = (
            f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
            f"priority admission controller computed {computed} from the given PriorityClass name"
        )
    elif spec.get("preemptionPolicy", policy) != policy:
        why = (
            f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be "
            "provided in pod spec; "
            f"priority admission controller computed {policy} from the given PriorityClass name"
        )
    if why:
        raise refused(Pods, document, why)
    spec["priority"] = computed
    spec["preemptionPolicy"] = policy


def _is_tolerated(spec: Document, key: str) -> bool:
    return any(
        toleration.get("key", "") in (key, "") and toleration.get("effect", "") in ("NoExecute", "")
        for toleration in spec.get("tolerations", ())
    )


def _toleration(key: str) -> Document:
    return {
        "key": key,
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": TOLERATION_S,
    }


_CONTAINER_LISTS = ("containers", "initContainers")
_MAY_CHANGE = (
    "pod updates may not change fields other than "
    "`spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
POD_GRACE_DEFAULT_S = 30
_IMAGE: Final = Rules(Field("image", required=True), check_image)


def _default(document: Document) -> None:
    spec = document.setdefault("spec", {})
    default_pod(spec)
    status = document.get("status", {})
    _agree(status, "podIP", "podIPs")
    _agree(status, "hostIP", "hostIPs")


def _agree(status: Document, single: str, plural: str) -> None:
    """``podIP`` is ``podIPs[0].ip``; a writer of one of them wrote both."""
    first = status.get(single)
    every = status.get(plural)
    if first and (not every or every[0].get("ip") != first):
        status[plural] = [{"ip": first}]
    elif every and not first and every[0].get("ip"):
        status[single] = every[0]["ip"]


def _first_status(pod: Document) -> Document:
    return {
        "phase": "Pending",
        "qosClass": pod_quota.qos_class(msgspec.convert(pod["spec"], PodSpec)),
    }


def _validate_status(new: Document, _old: Document) -> FieldErrors:
    status: Document = new.get("status", {})
    addresses = [entry.get("ip", "") for entry in status.get("podIPs", ())]
    return each_of_form("status.podIPs", addresses, ip_problems)


def _validate_update(new: Document, old: Document) -> FieldErrors:
    spec: Document = new["spec"]
    before: Document = old["spec"]
    annotations: dict[str, str] = new["metadata"].get("annotations", {})
    path = "metadata.annotations"
    of_annotations = check_pod_annotations(path, annotations, spec)
    unchanged = spec == before
    # What was accepted by an earlier release may stay.
    errors = [
        *of_annotations,
        *([] if unchanged else validate_pod_spec(spec, "spec", new["metadata"])),
    ]
    errors += check_annotation_update(path, annotations, old["metadata"].get("annotations", {}))
    errors += of_annotations
    if unchanged:
        return errors
    for member in _CONTAINER_LISTS:
        if len(spec.get(member, ())) != len(before.get(member, ())):
            return [
                *errors,
                forbidden_field(f"spec.{member}", "pod updates may not add or remove containers"),
            ]
        errors += each(f"spec.{member}", spec.get(member, ()), _IMAGE)
    deadline = _deadline(spec, before)
    if deadline and "activeDeadlineSeconds" in spec:
        return errors + deadline
    errors += deadline + _tolerations(spec, before) + _gates(spec, before)
    return errors + _immutable(spec, before)


def _deadline(spec: Document, before: Document) -> FieldErrors:
    """It may come, and come sooner."""
    path = "spec.activeDeadlineSeconds"
    had = before.get("activeDeadlineSeconds")
    if "activeDeadlineSeconds" not in spec:
        detail = "must not update from a positive integer to nil value"
        return [] if had is None else [invalid_value(path, None, detail)]
    errors = Rules(id_field("activeDeadlineSeconds"))("spec", spec)
    now_s = spec["activeDeadlineSeconds"]
    if errors or had is None or now_s <= had:
        return errors
    return [invalid_value(path, now_s, "must be less than or equal to previous value")]


def _tolerations(spec: Document, before: Document) -> FieldErrors:
    # Their members are scalars; the seconds may change.
    kept = {_without_seconds(toleration) for toleration in spec.get("tolerations", ())}
    if any(
        _without_seconds(toleration) not in kept for toleration in before.get("tolerations", ())
    ):
        detail = "existing toleration can not be modified except its tolerationSeconds"
        return [forbidden_field("spec.tolerations", detail)]
    return check_tolerations("spec.tolerations", spec.get("tolerations", []))


def _without_seconds(toleration: Document) -> frozenset[tuple[str, str]]:
    return frozenset(
        (name, value) for name, value in toleration.items() if name != "tolerationSeconds"
    )


def _gates(spec: Document, before: Document) -> FieldErrors:
    had = {gate.get("name", "") for gate in before.get("schedulingGates", ())}
    new = {
        gate.get("name", ""): index for index, gate in enumerate(spec.get("schedulingGates", ()))
    }
    return [
        forbidden_field(
            f"spec.schedulingGates[{new[name]}].name",
            f"only deletion is allowed, but found new scheduling gate '{name}'",
        )
        for name in new
        if name not in had
    ]


def _immutable(spec: Document, before: Document) -> FieldErrors:
    changeable = {"activeDeadlineSeconds", "tolerations", "schedulingGates"}
    if (
        before.get("terminationGracePeriodSeconds", 0) < 0
        and spec.get("terminationGracePeriodSeconds") == 1
    ):
        changeable.add("terminationGracePeriodSeconds")
    errors: FieldErrors = []
    affinity, affinity_before = spec.get("affinity", {}), before.get("affinity", {})
    if before.get("schedulingGates"):
        # Where the Pod may run can be narrowed until it is scheduled (KEP-3838).
        selector = spec.get("nodeSelector", {})
        if not before.get("nodeSelector", {}).items() <= selector.items():
            detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
            errors.append(invalid_value("spec.nodeSelector", selector, detail))
        errors += check_narrowed("spec.affinity", affinity, affinity_before)
        changeable |= {"nodeSelector"}
        others = [
            {name: part for name, part in value.items() if name != "nodeAffinity"}
            for value in (affinity, affinity_before)
        ]
        changeable |= {"affinity"} if others[0] == others[1] else set()
    changed = [
        f"spec.{member}"
        for member in sorted(spec.keys() | before.keys())
        if member not in changeable and _comparable(spec, member) != _comparable(before, member)
    ]
    return (
        [*errors, forbidden_field("spec", f"{_MAY_CHANGE}\nchanged: {', '.join(changed)}")]
        if changed
        else errors
    )


def _comparable(spec: Document, member: str) -> Any:
    """*member* without what may change inside it."""
    if member in _CONTAINER_LISTS:
        return [{**container, "image": ""} for container in spec.get(member, ())]
    return spec.get(member)


def _grace_s(pod: Document, requested_s: int | None) -> int:
    """Returns the requested grace, else the Pod's own; 0 if no kubelet has to stop it."""
    spec = pod.get("spec", {})
    status = pod.get("status", {})
    if not spec.get("nodeName") or status.get("phase") in pod_quota.DONE:
        return 0
    grace_s: int = (
        spec.get("terminationGracePeriodSeconds", POD_GRACE_DEFAULT_S)
        if requested_s is None
        else requested_s
    )
    return 1 if grace_s < 0 else grace_s


POD: Final = kind.Kind(
    resource=Pods,
    defaults=_default,
    prepare_create=_complete,
    prepare_update=_carry_over,
    rules=Rules(lambda _path, document: validate_new_pod(document)),
    update_rules=_validate_update,
    status=kind.Status(
        first=_first_status,
        validate=_validate_status,
        not_written=fields.of_paths(
            [
                ("f:spec",),
                ("f:metadata", "f:deletionTimestamp"),
                ("f:metadata", "f:ownerReferences"),
            ]
        ),
        kept=("ownerReferences",),
    ),
    parts=pod_parts.PARTS,
    deletion=kind.Deletion(
        grace=_grace_s,
        is_blocked=lambda pod: bool(pod["metadata"].get("deletionGracePeriodSeconds")),
    ),
    quota=kind.Quota(
        names=pod_quota.NAMES,
        counts=pod_quota.counts,
        usage=pod_quota.usage,
        traits=pod_quota.traits,
        missing=pod_quota.missing,
    ),
    granted=kind.edited("status"),
    columns=pod_columns.PRINTER,
)
