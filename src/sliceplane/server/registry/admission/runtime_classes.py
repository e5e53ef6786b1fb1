"""What the RuntimeClass of a new Pod asks for (kubernetes.io, Runtime Class;
``plugin/pkg/admission/runtimeclass``).

It must exist, its overhead becomes the Pod's, and so do its node selector and its tolerations. A
Pod may not name an overhead of its own.
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
    """Complete a new Pod, in place.  Raises the 403 ``StatusError``."""
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
    given = spec.get("tolerations", [])
    more = [
        toleration for toleration in scheduling.get("tolerations", ()) if toleration not in given
    ]
    if more:
        spec["tolerations"] = [*given, *more]


def _rejected(document: Document, why: str) -> StatusError:
    return refused(Pods, document, f"pod rejected: {why}")


def _set_overhead(document: Document, wanted: dict[str, str]) -> None:
    given = document["spec"].get("overhead", {})
    same = given.keys() == wanted.keys() and all(
        amount(given[name]) == amount(wanted[name]) for name in wanted
    )
    if given and not same:
        raise _rejected(document, "Pod's Overhead doesn't match RuntimeClass's defined Overhead")
    if wanted and not given:
        document["spec"]["overhead"] = dict(wanted)


def _select_nodes(document: Document, wanted: dict[str, str]) -> None:
    given = document["spec"].get("nodeSelector", {})
    for key in sorted(wanted):
        if given.get(key, wanted[key]) != wanted[key]:
            why = (
                f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted[key]}; "
                f"pod.spec.nodeSelector[{key}] = {given[key]}"
            )
            raise refused(Pods, document, why)
    if wanted:
        document["spec"]["nodeSelector"] = {**given, **wanted}
