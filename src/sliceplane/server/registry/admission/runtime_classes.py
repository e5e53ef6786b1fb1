"""Admission of a new Pod by its RuntimeClass (kubernetes.io, Runtime Class;
``plugin/pkg/admission/runtimeclass``).

The class must exist. Its overhead, node selector and tolerations are added to the Pod, which must
not have another overhead.
"""

from __future__ import annotations

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.quantity import amount
from sliceplane.api.scheme import Pods, RuntimeClasses
from sliceplane.server.registry.documents import document_of, refused
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key


def admit_pod(store: Store, document: Document) -> None:
    """Completes a new Pod, in place.  Raises the 403 ``StatusError``."""
    spec = document["spec"]
    name = spec.get("runtimeClassName")
    if not name:
        if spec.get("overhead"):
            raise _rejected(
                document, "Pod Overhead set without corresponding RuntimeClass defined Overhead"
            )
        return
    record = store.latest(Key(RuntimeClasses.storage_key, "", name))
    if record is None:
        raise _rejected(document, f'RuntimeClass "{name}" not found')
    settings = document_of(record)
    _set_overhead(document, settings.get("overhead", {}).get("podFixed", {}))
    scheduling = settings.get("scheduling", {})
    _select_nodes(document, scheduling.get("nodeSelector", {}))
    current = spec.get("tolerations", [])
    more = [
        toleration for toleration in scheduling.get("tolerations", ()) if toleration not in current
    ]
    if more:
        spec["tolerations"] = [*current, *more]


def _rejected(document: Document, why: str) -> StatusError:
    return refused(Pods, document, f"pod rejected: {why}")


def _set_overhead(document: Document, required: dict[str, str]) -> None:
    current = document["spec"].get("overhead", {})
    same = current.keys() == required.keys() and all(
        amount(current[name]) == amount(required[name]) for name in required
    )
    if current and not same:
        raise _rejected(document, "Pod's Overhead doesn't match RuntimeClass's defined Overhead")
    if required and not current:
        document["spec"]["overhead"] = dict(required)


def _select_nodes(document: Document, required: dict[str, str]) -> None:
    current = document["spec"].get("nodeSelector", {})
    for key in sorted(required):
        if current.get(key, required[key]) != required[key]:
            why = (
                f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {required[key]}; "
                f"pod.spec.nodeSelector[{key}] = {current[key]}"
            )
            raise refused(Pods, document, why)
    if required:
        document["spec"]["nodeSelector"] = {**current, **required}
