"""Children made from a pod template: the template's hash, and the documents of ReplicaSets and
Pods.

Templates are documents, not projections: whatever fields the user wrote must reach the Pod.
"""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

from sliceplane.api.apps import Deployment, ReplicaSet
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import Resource
from sliceplane.kit.names import GENERATED_ALPHABET

LABEL_TEMPLATE_HASH = "pod-template-hash"
HASH_LENGTH = 10


def template_hash(template: Document, collisions: int = 0) -> str:
    """Ten characters that change when anything in the template but its own hash label changes.

    *collisions* gives other ones to a Deployment that found the name of its set taken by another.
    """
    plain = copy.deepcopy(template)
    labels = plain.get("metadata", {}).get("labels")
    if isinstance(labels, dict):
        labels.pop(LABEL_TEMPLATE_HASH, None)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    if collisions:
        text += str(collisions)
    number = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
    digits = []
    for _ in range(HASH_LENGTH):
        number, index = divmod(number, len(GENERATED_ALPHABET))
        digits.append(GENERATED_ALPHABET[index])
    return "".join(digits)


class Fingerprints:
    """Equal ones: equal templates but for the hash label. Worked out once for each generation of an
    object.

    Owned by the controller of Deployments, which forgets objects that are gone.
    """

    def __init__(self) -> None:
        self._hash_by_uid: dict[str, tuple[int, str]] = {}  # uid -> generation, fingerprint

    def of(self, item: Deployment | ReplicaSet) -> str:
        meta = item.metadata
        cached = self._hash_by_uid.get(meta.uid)
        if cached is None or cached[0] != meta.generation:
            cached = self._hash_by_uid[meta.uid] = (
                meta.generation,
                template_hash(item.spec.template),
            )
        return cached[1]

    def forget(self, uid: str) -> None:
        self._hash_by_uid.pop(uid, None)

    def uids(self) -> set[str]:
        return set(self._hash_by_uid)


def owner_reference(owner: Object, resource: Resource) -> Document:
    """A controlling ownerReference to *owner*."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controller_uid(child: Object, owners: Resource | None = None) -> str:
    """Returns the uid of the controlling owner of *child*; "" if it has none, or one of another
    kind than *owners*.
    """
    owner = child.metadata.controller
    if owner is None:
        return ""
    is_kind = owners is None or (owner.kind, owner.api_version) == (owners.kind, owners.api_version)
    return owner.uid if is_kind else ""


def with_hash_label(labels: dict[str, str] | None, value: str) -> dict[str, str]:
    return {**(labels or {}), LABEL_TEMPLATE_HASH: value}


def pod_document(
    template: Document,
    owner: Object,
    resource: Resource,
    *,
    name: str = "",
    labels: dict[str, str] | None = None,
) -> Document:
    """A Pod as its owner creates it: the template's metadata and spec with *labels* added, and the
    owner.

    Without a *name* the server makes one from the owner's. As upstream: the prefix is there even
    with a name.
    """
    meta: dict[str, Any] = template.get("metadata") or {}
    metadata: Document = {
        **({"name": name} if name else {}),
        "generateName": f"{owner.metadata.name}-",
        "namespace": owner.metadata.namespace,
        "ownerReferences": [owner_reference(owner, resource)],
    }
    for member in ("labels", "annotations", "finalizers"):
        if meta.get(member):
            metadata[member] = meta[member]
    if labels:
        metadata["labels"] = {**metadata.get("labels", {}), **labels}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": template.get("spec") or {},
    }
