"""StatefulSets -> Pods with names that stay: NAME-0, NAME-1, ... made and replaced in the order of
their numbers.

A plan goes over the Pods once: those that should be there upwards, those beyond the desired number
downwards, then, for a rolling update, those of an older template downwards to the partition. With
``OrderedReady`` it stops at the first Pod that has to be waited for; with ``Parallel`` only the
rolling update does.

Pods below the partition keep the template of ``status.currentRevision``, a ControllerRevision
(``history``). If that was deleted, such a Pod is made of the newest template.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sliceplane.api.apps import StatefulSet
from sliceplane.api.codec import encode
from sliceplane.api.core import Pod
from sliceplane.api.meta import Document, LabelSelector
from sliceplane.api.scheme import Pods, StatefulSets
from sliceplane.emulation.history import LABEL_REVISION, History, revision_name
from sliceplane.emulation.owner import CREATES_PER_JOB_MAX, OwnerController, status_write
from sliceplane.emulation.templates import pod_document
from sliceplane.watch.controller.base import Write, deletion, object_patch

LABEL_POD_NAME: Final = "statefulset.kubernetes.io/pod-name"
LABEL_POD_INDEX: Final = "apps.kubernetes.io/pod-index"
_ORDINAL: Final = re.compile(r"(.*)-(0|[1-9][0-9]{0,9})")
_ALWAYS: Final = ("replicas", "availableReplicas", "collisionCount")


def ordinal_of(owner: StatefulSet, pod: Pod) -> int | None:
    """The Pod's number in the set, ``None`` if its name is not one that the set gives."""
    match = _ORDINAL.fullmatch(pod.metadata.name)
    return int(match[2]) if match is not None and match[1] == owner.metadata.name else None


class StatefulSetController(OwnerController[StatefulSet, Pod]):
    def __init__(self) -> None:
        self._kept = History(StatefulSets)
        super().__init__(StatefulSets, Pods, "statefulset-controller", history=self._kept)

    def selector_of(self, owner: StatefulSet) -> LabelSelector:
        return owner.spec.selector

    def is_live(self, child: Pod) -> bool:
        return child.is_active

    def may_adopt(self, owner: StatefulSet, child: Pod) -> bool:
        return child.is_active and ordinal_of(owner, child) is not None

    def event_text(self, owner: StatefulSet, verb: str, child: str, error: str) -> str:
        outcome = f"failed error: {error}" if error else "successful"
        return f"{verb.title()} Pod {child} in StatefulSet {owner.metadata.name} {outcome}"

    def revisions_in_use(self, owner: StatefulSet, children: list[Pod]) -> set[str]:
        return {
            owner.status.current_revision,
            owner.status.update_revision,
            *map(_revision_of, children),
        }

    def decide(self, owner: StatefulSet, children: list[Pod], now: float) -> tuple[Write, ...]:
        available = self.available(owner, children, owner.spec.min_ready_seconds, now)
        plan = _StatefulSetPlan(owner, children, self._kept.templates(owner), available)
        writes: tuple[Write, ...] = ()
        if not owner.metadata.is_deleting and not self.refusal_under_backoff(owner, now):
            writes = tuple(plan.writes())[:CREATES_PER_JOB_MAX]
        return writes + plan.status()


class _StatefulSetPlan:
    """One look at a StatefulSet and its Pods."""

    def __init__(
        self,
        owner: StatefulSet,
        pods: list[Pod],
        templates: dict[str, Document],
        available: set[str],
    ) -> None:
        self._owner = owner
        self._pods = pods
        self._templates = templates
        self._available = available
        self._newest = revision_name(owner)
        self._current = owner.status.current_revision or self._newest
        self._first = owner.spec.ordinals.start
        self._replicas = owner.spec.desired_replicas
        by_ordinal = {
            ordinal: pod for pod in pods if (ordinal := ordinal_of(owner, pod)) is not None
        }
        self._desired: dict[int, Pod | None] = {
            ordinal: by_ordinal.pop(ordinal, None)
            for ordinal in range(self._first, self._first + self._replicas)
        }
        self._condemned = [by_ordinal[ordinal] for ordinal in sorted(by_ordinal, reverse=True)]

    @property
    def _partition(self) -> int:
        rolling = self._owner.spec.update_strategy.rolling_update
        return self._first + (rolling.partition if rolling is not None else 0)

    @property
    def _rolls(self) -> bool:
        return self._owner.spec.update_strategy.type == "RollingUpdate"

    def writes(self) -> list[Write]:
        writes: list[Write] = []
        ordered = self._owner.spec.pod_management_policy != "Parallel"
        for ordinal, pod in self._desired.items():
            write = self._repair(ordinal, pod)
            writes += [write] if write is not None else []
            if ordered and (pod is None or not self._is_available(pod)):
                return writes
        first_unavailable = next((pod for pod in self._unavailable()), None)
        for pod in self._condemned:
            if (
                ordered
                and not self._is_available(pod)
                and (pod.metadata.is_deleting or pod is not first_unavailable)
            ):
                return writes
            if not pod.metadata.is_deleting:
                writes.append(deletion(Pods, pod.metadata))
                if ordered:
                    return writes
        return writes + (self._roll() if self._rolls else [])

    def _unavailable(self) -> list[Pod]:
        pods = [*self._desired.values(), *reversed(self._condemned)]
        return [pod for pod in pods if pod is not None and not self._is_available(pod)]

    def _repair(self, ordinal: int, pod: Pod | None) -> Write | None:
        """Returns the write that makes the Pod of this number exist, run and have its labels."""
        if pod is None:
            return self._create(ordinal)
        if pod.metadata.is_deleting:
            return None
        if pod.has_ended:
            return deletion(Pods, pod.metadata)
        labels = _identity(pod.metadata.name, ordinal)
        if labels.items() <= (pod.metadata.labels or {}).items():
            return None
        return object_patch(Pods, pod.metadata, {"metadata": {"labels": labels}})

    def _roll(self) -> list[Write]:
        """The Pod of the highest number whose template is older goes, when all above it are
        available.
        """
        for ordinal, pod in sorted(self._desired.items(), reverse=True):
            if ordinal < self._partition or pod is None:
                break
            if (
                not pod.metadata.is_deleting
                and not pod.has_ended
                and _revision_of(pod) != self._newest
            ):
                return [deletion(Pods, pod.metadata)]
            if not self._is_available(pod):
                break
        return []

    def _create(self, ordinal: int) -> Write:
        owner = self._owner
        revision = self._newest
        rolling = owner.spec.update_strategy.rolling_update
        kept = (
            self._partition if rolling is not None else self._first + owner.status.current_replicas
        )
        if self._rolls and ordinal < kept and self._current in self._templates:
            revision = self._current
        name = f"{owner.metadata.name}-{ordinal}"
        labels = {**_identity(name, ordinal), LABEL_REVISION: revision}
        document = pod_document(
            self._templates[revision], owner, StatefulSets, name=name, labels=labels
        )
        spec: dict[str, Any] = {**document["spec"], "hostname": name}
        if owner.spec.service_name:
            spec["subdomain"] = owner.spec.service_name
        claims = [claim.metadata.name for claim in owner.spec.volume_claim_templates or ()]
        if claims:
            own = [
                {"name": claim, "persistentVolumeClaim": {"claimName": f"{claim}-{name}"}}
                for claim in claims
            ]
            spec["volumes"] = [
                *own,
                *(volume for volume in spec.get("volumes") or () if volume["name"] not in claims),
            ]
        body = encode({**document, "spec": spec})
        return Write(verb="create", resource=Pods, namespace=owner.metadata.namespace, body=body)

    def _is_available(self, pod: Pod) -> bool:
        return not pod.metadata.is_deleting and pod.metadata.uid in self._available

    def status(self) -> tuple[Write, ...]:
        owner = self._owner
        staying = [_revision_of(pod) for pod in self._pods if not pod.metadata.is_deleting]
        status: Document = {
            "observedGeneration": owner.metadata.generation,
            "replicas": len(self._pods),
            "readyReplicas": sum(
                pod.status.phase == "Running" and pod.is_ready for pod in self._pods
            ),
            "availableReplicas": sum(pod.metadata.uid in self._available for pod in self._pods),
            "currentReplicas": staying.count(self._current),
            "updatedReplicas": staying.count(self._newest),
            "currentRevision": self._current,
            "updateRevision": self._newest,
            "collisionCount": 0,
        }
        if self._rolls and all(
            status[member] == self._replicas
            for member in ("updatedReplicas", "readyReplicas", "replicas")
        ):
            status["currentReplicas"] = status["updatedReplicas"]
            status["currentRevision"] = self._newest
        return status_write(
            StatefulSets,
            owner,
            status,
            always=_ALWAYS,
            is_complete=owner.status.collision_count is not None,
        )


def _identity(name: str, ordinal: int) -> dict[str, str]:
    return {LABEL_POD_NAME: name, LABEL_POD_INDEX: str(ordinal)}


def _revision_of(pod: Pod) -> str:
    return (pod.metadata.labels or {}).get(LABEL_REVISION, "")
