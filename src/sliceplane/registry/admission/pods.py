"""A Pod that already has a node takes over where that node is: its zone and region labels (reference B6)."""

from __future__ import annotations

from sliceplane.api import codec
from sliceplane.api.core import Node
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Nodes, Pods, Resource
from sliceplane.store.mvcc import Store
from sliceplane.store.types import Key

TOPOLOGY_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")


def label_topology(store: Store, resource: Resource, document: Document) -> None:
    """Copy the labels into the new document, if its node exists and has them."""
    if resource is not Pods:
        return
    node_name = document.get("spec", {}).get("nodeName")
    record = store.latest(Key(Nodes.storage_key, "", node_name)) if node_name else None
    if record is None:
        return
    labels = codec.decode(record.body, Node).metadata.labels or {}
    found = {name: labels[name] for name in TOPOLOGY_LABELS if name in labels}
    if found:
        head = document["metadata"]
        head["labels"] = {**head.get("labels", {}), **found}
