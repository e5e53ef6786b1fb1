"""A Deployment's ReplicaSets as documents: made, resized, numbered, forgotten.

Each set remembers in annotations which revision it is (and was: ``revision-history``), how many
Pods the Deployment wanted when it was last resized and how many it might have had, so that whoever
restarts knows as much. Annotations of the Deployment, ``kubernetes.io/change-cause`` among them,
are copied to the newest set: ``kubectl rollout history`` reads them there.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from sliceplane.api.apps import Deployment, ReplicaSet
from sliceplane.api.codec import encode
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import Deployments, ReplicaSets
from sliceplane.emulation.deployments.rollout import Counts, limits
from sliceplane.emulation.templates import owner_reference, with_hash_label
from sliceplane.kit.integers import NotAnInteger, parse_uint64
from sliceplane.watch.controller.base import Write, deletion, object_patch

REVISION: Final = "deployment.kubernetes.io/revision"
REVISION_HISTORY: Final = "deployment.kubernetes.io/revision-history"
DESIRED: Final = "deployment.kubernetes.io/desired-replicas"
LARGEST: Final = "deployment.kubernetes.io/max-replicas"
_NOT_COPIED: Final = (
    "kubectl.kubernetes.io/last-applied-configuration",
    "deprecated.deployment.rollback.to",
    REVISION,
    REVISION_HISTORY,
    DESIRED,
    LARGEST,
)
_HISTORY_CHARACTERS_MAX: Final = 2000
#: as a limit of the history it means that there is none
_INT32_MAX: Final = 2**31 - 1


class Step(msgspec.Struct, frozen=True):
    """One write of a rollout, and what an Event says once it is done."""

    write: Write
    note: str = ""


def number_in(item: Object, annotation: str) -> int | None:
    try:
        return parse_uint64((item.metadata.annotations or {}).get(annotation, ""))
    except NotAnInteger:
        return None


def revision_of(item: Object) -> int:
    return number_in(item, REVISION) or 0


def counts(item: ReplicaSet, fallback: int = 0) -> Counts:
    """*fallback*: how many Pods the Deployment has, if the set does not remember how many it might
    have had.
    """
    largest = number_in(item, LARGEST) or fallback
    return Counts(
        item.metadata.name, item.spec.desired_replicas, item.status.available_replicas, largest
    )


def _sizes(deployment: Deployment) -> dict[str, str]:
    replicas = deployment.spec.desired_replicas
    surge, _ = limits(deployment.spec.strategy, replicas)
    return {DESIRED: str(replicas), LARGEST: str(replicas + surge)}


def resize(deployment: Deployment, item: ReplicaSet, replicas: int) -> tuple[Step, ...]:
    """Resizes the set and records the Deployment's size on it; returns nothing if both are so."""
    annotations = _sizes(deployment)
    annotated = item.metadata.annotations or {}
    before = item.spec.desired_replicas
    if before == replicas and annotations.items() <= annotated.items():
        return ()
    change: Document = {"metadata": {"annotations": annotations}}
    if before == replicas:
        return (Step(object_patch(ReplicaSets, item.metadata, change)),)
    direction = "up" if replicas > before else "down"
    note = f"Scaled {direction} replica set {item.metadata.name} from {before} to {replicas}"
    return (
        Step(
            object_patch(ReplicaSets, item.metadata, {**change, "spec": {"replicas": replicas}}),
            note,
        ),
    )


def keep_current(
    deployment: Deployment, newest: ReplicaSet, older: list[ReplicaSet]
) -> tuple[Step, ...]:
    """The newest set has the highest revision, the Deployment's annotations and its
    ``minReadySeconds``.
    """
    annotated = newest.metadata.annotations or {}
    annotations = {
        key: value for key, value in _copied(deployment).items() if annotated.get(key) != value
    }
    revision = 1 + max((revision_of(item) for item in older), default=0)
    if revision_of(newest) < revision:
        annotations[REVISION] = str(revision)
        if REVISION in annotated:  # it was current before: a rollout was undone
            annotations[REVISION_HISTORY] = _history(
                annotated.get(REVISION_HISTORY, ""), annotated[REVISION]
            )
    change: Document = {"metadata": {"annotations": annotations}} if annotations else {}
    if newest.spec.min_ready_seconds != deployment.spec.min_ready_seconds:
        change["spec"] = {"minReadySeconds": deployment.spec.min_ready_seconds}
    return (Step(object_patch(ReplicaSets, newest.metadata, change)),) if change else ()


def _history(earlier: str, revision: str) -> str:
    revisions = [*(part for part in earlier.split(",") if part), revision]
    while len(",".join(revisions)) > _HISTORY_CHARACTERS_MAX and len(revisions) > 1:
        del revisions[0]
    return ",".join(revisions)


def _copied(deployment: Deployment) -> dict[str, str]:
    annotations = deployment.metadata.annotations or {}
    return {key: value for key, value in annotations.items() if key not in _NOT_COPIED}


def forget_history(deployment: Deployment, older: list[ReplicaSet]) -> tuple[Step, ...]:
    """Deletes idle sets beyond the limit, those of the lowest revisions first."""
    limit = deployment.spec.revision_history_limit
    if limit is None or limit == _INT32_MAX:
        return ()
    kept = sorted((item for item in older if not item.metadata.is_deleting), key=revision_of)
    idle = (item for item in kept[: max(len(kept) - limit, 0)] if _is_idle(item))
    return tuple(Step(deletion(ReplicaSets, item.metadata)) for item in idle)


def _is_idle(item: ReplicaSet) -> bool:
    is_observed = item.status.observed_generation >= item.metadata.generation
    return is_observed and not item.spec.desired_replicas and not item.status.replicas


def create(deployment: Deployment, older: list[ReplicaSet], hashed: str, replicas: int) -> Step:
    """The set of the Deployment's template, whose hash is *hashed*."""
    template: dict[str, Any] = deployment.spec.template
    metadata: Document = template.get("metadata") or {}
    labels = with_hash_label(metadata.get("labels"), hashed)
    revision = 1 + max((revision_of(item) for item in older), default=0)
    selector: Document = {
        "matchLabels": with_hash_label(deployment.spec.selector.match_labels, hashed)
    }
    if deployment.spec.selector.match_expressions:
        selector["matchExpressions"] = deployment.spec.selector.match_expressions
    name = f"{deployment.metadata.name}-{hashed}"
    body = {
        "apiVersion": ReplicaSets.api_version,
        "kind": ReplicaSets.kind,
        "metadata": {
            "name": name,
            "namespace": deployment.metadata.namespace,
            "labels": labels,
            "annotations": {**_copied(deployment), **_sizes(deployment), REVISION: str(revision)},
            "ownerReferences": [owner_reference(deployment, Deployments)],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": deployment.spec.min_ready_seconds,
            "selector": selector,
            "template": {**template, "metadata": {**metadata, "labels": labels}},
        },
    }
    write = Write(
        verb="create",
        resource=ReplicaSets,
        namespace=deployment.metadata.namespace,
        body=encode(body),
    )
    return Step(write, f"Scaled up replica set {name} from 0 to {replicas}" if replicas else "")
