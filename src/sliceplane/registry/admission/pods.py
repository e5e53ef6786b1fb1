"""What every Pod gets besides what its author said: zone and region of its node, an account, a priority, tolerations.

As upstream's admission does it, in that order, with the two priority classes of the system built in.  An account is
named and neither looked up nor mounted: nothing here schedules or runs containers.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api import codec
from sliceplane.api.core import Node
from sliceplane.api.errors import forbidden
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Nodes, Pods, PriorityClasses
from sliceplane.registry.admission import limit_ranges
from sliceplane.store.mvcc import Store
from sliceplane.store.types import Key

TOPOLOGY_LABELS: Final = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
TOLERATION_S: Final = 300
PRIORITY_CLASSES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_DEFAULT_ACCOUNT: Final = "default"
_PREEMPTS: Final = "PreemptLowerPriority"
_BAD_NODES: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def complete(store: Store, document: Document) -> None:
    """Complete a new Pod, in place.  Raises a 403 StatusError: a LimitRange, or a priority that cannot be."""
    _label_topology(store, document)
    spec = document.get("spec", {})
    limit_ranges.admit_pod(store, document)
    account = spec.get("serviceAccountName") or _DEFAULT_ACCOUNT
    spec["serviceAccountName"] = spec["serviceAccount"] = account
    _settle_priority(store, document)
    missing = [key for key in _BAD_NODES if not _is_tolerated(spec, key)]
    if missing:
        spec["tolerations"] = [*spec.get("tolerations", ()), *map(_toleration, missing)]


def carry_over(new: Document, old: Document) -> None:
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
    """A Pod that already has a node takes over where that node is (KEP-4742), if the node says so."""
    node_name = document.get("spec", {}).get("nodeName")
    record = store.latest(Key(Nodes.storage_key, "", node_name)) if node_name else None
    if record is None:
        return
    labels = codec.decode(record.body, Node).metadata.labels or {}
    topology = {name: labels[name] for name in TOPOLOGY_LABELS if name in labels}
    if topology:
        head = document["metadata"]
        head["labels"] = {**head.get("labels", {}), **topology}


def _settle_priority(store: Store, document: Document) -> None:
    spec = document["spec"]
    name = spec.get("priorityClassName", "")
    why = ""
    record = store.latest(Key(PriorityClasses.storage_key, "", name)) if name else None
    settings = {} if record is None else codec.decode_document(record.body)
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
            f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec; "
            f"priority admission controller computed {policy} from the given PriorityClass name"
        )
    if why:
        raise forbidden(Pods.plural, Pods.group, document["metadata"].get("name", ""), why)
    spec["priority"] = computed
    spec["preemptionPolicy"] = policy


def _is_tolerated(spec: Document, key: str) -> bool:
    return any(
        toleration.get("key", "") in (key, "") and toleration.get("effect", "") in ("NoExecute", "")
        for toleration in spec.get("tolerations", ())
    )


def _toleration(key: str) -> Document:
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_S}
