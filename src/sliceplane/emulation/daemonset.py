"""DaemonSets -> Pods: one on every emulated Node that fits, replaced within ``maxUnavailable`` or
``maxSurge``.

A Node fits if the template's node selector and affinity want it and its taints are tolerated
(``eligibility``); of the taints that a Node can have of itself every Pod of a DaemonSet tolerates
those that ``pkg/controller/daemon/util/daemonset_util.go`` lists. A Pod is bound to its Node by an
affinity to the Node's name, which the emulated scheduler obeys.

A plan first gives each Node its Pods (``_DaemonSetPlan.sync_nodes``); only when
nothing is to be done there does a rollout take its next step (``_DaemonSetPlan.roll``). A Node
whose Pod is missing or not available counts as unavailable.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

import msgspec

from sliceplane.api.apps import DaemonSet
from sliceplane.api.codec import encode
from sliceplane.api.core import Node, Pod, PodSpec, Toleration
from sliceplane.api.meta import Document, LabelSelector, Object
from sliceplane.api.scheme import DaemonSets, Nodes, Pods
from sliceplane.emulation.deployments.rollout import resolve
from sliceplane.emulation.eligibility import NODE_NAME_FIELD, is_selected, repels, target_node
from sliceplane.emulation.history import LABEL_REVISION, History
from sliceplane.emulation.nodes import LABEL_EMULATED
from sliceplane.emulation.owner import CREATES_PER_JOB_MAX, OwnerController, status_write
from sliceplane.emulation.templates import pod_document, template_hash
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Selection, Write, deletion

_NO_EXECUTE: Final = ("not-ready", "unreachable")
#: members of the status that are shown even if they are zero
_ALWAYS: Final = (
    "desiredNumberScheduled",
    "currentNumberScheduled",
    "numberMisscheduled",
    "numberReady",
    "observedGeneration",
)
_NO_SCHEDULE: Final = ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")


class DaemonSetController(OwnerController[DaemonSet, Pod]):
    def __init__(self) -> None:
        history = History(DaemonSets)
        super().__init__(
            DaemonSets, Pods, "daemonset-controller", Selection(Nodes), history=history
        )
        self._nodes: dict[str, Node] = {}

    def selector_of(self, owner: DaemonSet) -> LabelSelector:
        return owner.spec.selector

    def is_live(self, child: Pod) -> bool:
        return child.is_active

    def revisions_in_use(self, owner: DaemonSet, children: list[Pod]) -> set[str]:
        return {
            f"{owner.metadata.name}-{(pod.metadata.labels or {}).get(LABEL_REVISION, '')}"
            for pod in children
        }

    def on_other(self, change: Change[Object], now: float) -> None:
        name = change.object.metadata.name
        before = self._nodes.pop(name, None)
        if isinstance(change.new, Node) and LABEL_EMULATED in (change.new.metadata.labels or {}):
            self._nodes[name] = change.new
        after = self._nodes.get(name)
        if _decisive(before) != _decisive(after):
            for key in sorted(self._owners):
                self.enqueue(key, now)

    def decide(self, owner: DaemonSet, children: list[Pod], now: float) -> tuple[Write, ...]:
        placed: dict[str, list[Pod]] = {}
        for pod in sorted(
            children, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name)
        ):
            placed.setdefault(target_node(pod.spec), []).append(pod)
        available = self.available(owner, children, owner.spec.min_ready_seconds, now)
        plan = _DaemonSetPlan(owner, self._nodes, placed, available)
        writes: tuple[Write, ...] = ()
        if not owner.metadata.is_deleting and not self.refusal_under_backoff(owner, now):
            writes = (plan.sync_nodes() or plan.roll())[:CREATES_PER_JOB_MAX]
        return writes + plan.status()


class _DaemonSetPlan:
    """One look at a DaemonSet, the Nodes and its Pods by Node, oldest first."""

    def __init__(
        self,
        owner: DaemonSet,
        nodes: dict[str, Node],
        placed: dict[str, list[Pod]],
        available: set[str],
    ) -> None:
        self._owner = owner
        self._placed = placed
        self._available = available
        self._revision = template_hash(owner.spec.template)
        template: Document = owner.spec.template.get("spec") or {}
        spec = msgspec.convert(template, PodSpec)
        self._tolerations: list[Document] = [*(template.get("tolerations") or ())]
        self._tolerations += [
            added for added in _own_tolerations(spec) if added not in self._tolerations
        ]
        tolerations = tuple(
            msgspec.convert(toleration, Toleration) for toleration in self._tolerations
        )
        eligible = [
            node
            for node in nodes.values()
            if spec.node_name in ("", node.metadata.name) and is_selected(spec, node)
        ]
        #: where a Pod should be, and where one that is there may go on
        self._fits = sorted(
            node.metadata.name
            for node in eligible
            if not repels(node, tolerations, ("NoSchedule", "NoExecute"))
        )
        self._stays = {
            node.metadata.name for node in eligible if not repels(node, tolerations, ("NoExecute",))
        }
        rolling = owner.spec.update_strategy.rolling_update if self._rolls else None
        self._surge = resolve(rolling.max_surge if rolling else None, "0", len(self._fits), up=True)
        unavailable = resolve(
            rolling.max_unavailable if rolling else None, "1", len(self._fits), up=True
        )
        self._unavailable_max = unavailable if unavailable or self._surge else 1

    @property
    def _rolls(self) -> bool:
        return self._owner.spec.update_strategy.type == "RollingUpdate"

    def sync_nodes(self) -> tuple[Write, ...]:
        """Returns deletions of Pods that have ended, are too many or are on the wrong Node; then
        creations of the missing ones.
        """
        deletions: list[Write] = []
        for node, pods in sorted(self._placed.items()):
            kept = self._kept(pods) if node in self._stays else ()
            gone = (
                pod
                for pod in pods
                if not pod.metadata.is_deleting and (pod.has_ended or pod not in kept)
            )
            deletions += [deletion(Pods, pod.metadata) for pod in gone]
        missing = (node for node in self._fits if node not in self._placed)
        # No more are made than one job takes: there may be as many as there are Nodes.
        return (*deletions, *map(self._create, islice(missing, CREATES_PER_JOB_MAX)))

    def _kept(self, pods: list[Pod]) -> tuple[Pod, ...]:
        """The oldest that runs; of a surge also the oldest of the other kind."""
        running = [pod for pod in pods if not pod.metadata.is_deleting and not pod.has_ended]
        if not self._surge:
            return tuple(running[:1])
        newest = [pod for pod in running if self._is_new(pod)]
        older = [pod for pod in running if not self._is_new(pod)]
        return (*newest[:1], *older[:1])

    def roll(self) -> tuple[Write, ...]:
        if not self._rolls:
            return ()
        return self._roll_with_surge() if self._surge else self._roll_without_surge()

    def _roll_without_surge(self) -> tuple[Write, ...]:
        broken: list[Pod] = []
        sound: list[Pod] = []
        unavailable = 0
        for pod in map(self._only, self._fits):
            is_available = pod is not None and self._is_available(pod)
            unavailable += not is_available
            if pod is not None and not self._is_new(pod):
                (sound if is_available else broken).append(pod)
        room = max(self._unavailable_max - unavailable, 0)
        return tuple(deletion(Pods, pod.metadata) for pod in (*broken, *sound[:room]))

    def _roll_with_surge(self) -> tuple[Write, ...]:
        room = self._surge
        waiting: list[str] = []
        writes: list[Write] = []
        for node in self._fits:
            pods = [pod for pod in self._placed.get(node, ()) if not pod.metadata.is_deleting]
            newest = next((pod for pod in pods if self._is_new(pod)), None)
            older = next((pod for pod in pods if not self._is_new(pod)), None)
            if older is None:
                continue
            if newest is None and not self._is_available(older):
                writes.append(self._create(node))
            elif newest is None:
                waiting.append(node)
            elif self._is_available(newest):
                writes.append(deletion(Pods, older.metadata))
            else:
                room -= 1
        return (*writes, *(self._create(node) for node in waiting[: max(room, 0)]))

    def _only(self, node: str) -> Pod | None:
        """The Pod of *node*, ``None`` if it is going or there is none."""
        return next(
            (pod for pod in self._placed.get(node, ()) if not pod.metadata.is_deleting), None
        )

    def _is_new(self, pod: Pod) -> bool:
        return (pod.metadata.labels or {}).get(LABEL_REVISION) == self._revision

    def _is_available(self, pod: Pod) -> bool:
        return pod.metadata.uid in self._available

    def _create(self, node: str) -> Write:
        labels = {LABEL_REVISION: self._revision}
        document = pod_document(self._owner.spec.template, self._owner, DaemonSets, labels=labels)
        spec: dict[str, Any] = {**document["spec"], "tolerations": self._tolerations}
        spec["affinity"] = _bound_to(spec.get("affinity") or {}, node)
        body = encode({**document, "spec": spec})
        return Write(
            verb="create", resource=Pods, namespace=self._owner.metadata.namespace, body=body
        )

    def status(self) -> tuple[Write, ...]:
        oldest = [self._placed[node][0] for node in self._fits if node in self._placed]
        available = sum(self._is_available(pod) for pod in oldest)
        counts = {
            "desiredNumberScheduled": len(self._fits),
            "currentNumberScheduled": len(oldest),
            "numberMisscheduled": len(self._placed.keys() - set(self._fits)),
            "numberReady": sum(pod.is_ready for pod in oldest),
            "updatedNumberScheduled": sum(map(self._is_new, oldest)),
            "numberAvailable": available,
            "numberUnavailable": len(self._fits) - available,
            "observedGeneration": self._owner.metadata.generation,
        }
        return status_write(DaemonSets, self._owner, counts, always=_ALWAYS)


def _decisive(node: Node | None) -> tuple[Any, ...] | None:
    return None if node is None else (node.metadata.labels, node.spec.taints)


def _own_tolerations(spec: PodSpec) -> Iterable[Document]:
    repelling = [(name, "NoExecute") for name in _NO_EXECUTE] + [
        (name, "NoSchedule") for name in _NO_SCHEDULE
    ]
    repelling += [("network-unavailable", "NoSchedule")] if spec.host_network else []
    for name, effect in repelling:
        yield {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": effect}


def _bound_to(affinity: Document, node: str) -> Document:
    """*affinity* whose required terms are replaced by one that names *node*."""
    term = {"matchFields": [{"key": NODE_NAME_FIELD, "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {**affinity, "nodeAffinity": {**(affinity.get("nodeAffinity") or {}), **required}}
