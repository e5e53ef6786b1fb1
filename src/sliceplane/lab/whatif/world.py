"""The run: production server, controllers and workloads on virtual time, a simulated kubelet, and
watchers.

Everything is instant except start and termination of Pods, and batch periods. Changes of one burst
reach a controller together. Kubelets are simulated only for Pods that the run creates; Pods of the
state stay unchanged until they are deleted.

``audience`` counts the events that each commit of a slice sends to all watchers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from statistics import median
from typing import Any, Final

import msgspec
from msgspec import convert

from sliceplane.api.core import Node, Pod, Service, Taint, Toleration
from sliceplane.api.discovery import LABEL_HOSTNAME, LABEL_ZONE
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.requests import Write
from sliceplane.api.scheme import Deployments, Nodes, Pods, Services
from sliceplane.api.selectors.distribution import ANNOTATION_TOPOLOGY_MODE
from sliceplane.controllers.endpointslice import EndpointSliceController
from sliceplane.diagnose.explain.checks.zones import is_working
from sliceplane.emulation.deployments.controller import DeploymentController
from sliceplane.emulation.eligibility import tolerates
from sliceplane.emulation.kubelet import KubeletController
from sliceplane.emulation.nodes import LABEL_EMULATED, TERMINATION_S, EmulatedNode, EmulationConfig
from sliceplane.emulation.placement import Placement
from sliceplane.emulation.replicaset import ReplicaSetController
from sliceplane.emulation.statefulset import StatefulSetController
from sliceplane.kit.times import format_time, parse_time
from sliceplane.lab.sim.cluster import START, BurstPace, Cluster
from sliceplane.lab.whatif.audience import SliceAudience, SliceEvent
from sliceplane.lab.whatif.changes import NONE, Changes, Running
from sliceplane.lab.whatif.named import objects_named
from sliceplane.lab.whatif.state import ClusterState, ServiceWorkload, WhatIfError
from sliceplane.server.store.types import StoreEvent
from sliceplane.watch.controller.base import Controller

#: annotation of a Pod template: a new value starts a rollout, as ``kubectl rollout restart`` does
ANNOTATION_RESTARTED: Final = "kubectl.kubernetes.io/restartedAt"
#: field manager of the controllers: managedFields count in the bytes that watchers receive
FIELD_MANAGER: Final = "kube-controller-manager"
#: taint of a silent Node, one Node every ten seconds (node-eviction-rate); Pods without a
#: toleration of their own are deleted after five minutes (kubernetes.io, "Nodes", "Rate limits on
#: eviction"; "Taint based Evictions")
_TAINT: Final = Taint(key="node.kubernetes.io/unreachable", effect="NoExecute")
_TAINT_EVERY_S: Final = 10.0
_TOLERATED_S: Final = 300.0
#: seconds without a write after which a run has converged; and after which it is abandoned
_REST_S: Final = 900.0
_RUN_MAX_S: Final = 7 * 86_400.0
#: seconds after a change within which the controller checks its slices again
_SOON_S: Final = 2.0
#: larger than any grace period of a Pod
_GRACE_MAX_S: Final = 86_400.0


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which a change may happen: the pace of controllers; ``delay_s``: seconds from the
    question to the change; ``zone_offset``: rotates the order of zones, of which a Pod takes the
    first eligible one.
    """

    pace: BurstPace = BurstPace()
    delay_s: float = 0.0
    zone_offset: int | None = None


class SimulatedKubelet(KubeletController):
    """The emulated kubelet and scheduler on the state's Nodes. *recorded_pods*: uids of the Pods of
    the state.
    """

    def __init__(
        self, config: EmulationConfig, recorded_pods: frozenset[str], zones_first: Sequence[str]
    ) -> None:
        super().__init__(config)
        self._recorded_pods = recorded_pods
        self._placement = Placement(config.nodes, zones_first)

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        if key.startswith("node/"):
            return ()  # Nodes stay as in the state
        pod = self._pods.get(key)
        if (
            pod is not None
            and pod.metadata.uid in self._recorded_pods
            and pod.metadata.deletion_timestamp is None
        ):
            return ()
        return super().plan(key, now)


class WhatIfWorld:
    """The world of one question. *others*: watchers that read all slices, besides the Nodes'
    proxies.
    """

    def __init__(
        self,
        state: ClusterState,
        service: Service,
        running: Running,
        others: int = 0,
        *,
        report: Callable[[str], None] | None = None,
        way: Way | None = None,
    ) -> None:
        self._report = report
        self._way = way or Way()
        #: (time, namespace, name) of Pods to delete because their Node is lost
        self._evictions: list[tuple[float, str, str]] = []
        self._recorded_pods = frozenset(pod.metadata.uid for pod in state.pods())
        self.audience = SliceAudience(others)
        self._service = service
        #: Pods that are created or deleted before any change
        self.pending_pods = 0
        self.running = running
        pods = [pod for pod in state.pods(service.metadata.namespace) if _is_selected(pod, service)]
        self.ready_delay_s = (
            _usual_delay(pods) if running.ready_delay_s is None else running.ready_delay_s
        )
        self.cluster = Cluster(
            seed=_seed(state),
            records=state.records,
            revision=state.revision,
            began=max(_times(state), default=START),
            field_manager=FIELD_MANAGER,
            pace=self._way.pace,
        )
        for resource, namespace, document in objects_named(state):
            self.cluster.create(resource, document, namespace)
        self.cluster.listeners.append(self._on_commit)
        self._start()

    @property
    def state(self) -> ClusterState:
        store = self.cluster.store
        records = tuple(
            record
            for resource in store.resources()
            for record in store.list(resource, namespace="").records
        )
        return ClusterState(records, store.revision, "", self.cluster.now)

    # -- time

    def converge(self, until: float | None = None) -> None:
        """Runs until everything has converged, or until the time *until*."""
        began = self.cluster.now
        end = began + _RUN_MAX_S if until is None else until
        while self.cluster.now <= end:
            writes = len(self.cluster.writes)
            try:
                self.cluster.converge(limit_s=min(_REST_S, end - self.cluster.now))
            except AssertionError as error:
                raise WhatIfError(f"the controllers come to no rest: {error}") from error
            if until is None and len(self.cluster.writes) == writes:
                return
            if self.cluster.now == end:
                return
            self.cluster.now = min(self.cluster.now + _REST_S, end)
        if until is None:
            raise WhatIfError(
                f"after {_RUN_MAX_S / 86_400:.0f} days of virtual time the controllers still write"
            )

    def finish_pending(self) -> None:
        """Runs until writes that are due before any change are done. If all Pods are ready and none
        terminates that takes no time, so their ages do not change.
        """
        namespace = self._service.metadata.namespace
        pods = [
            pod
            for pod in self.state.pods(namespace)
            if _is_selected(pod, self._service) and not pod.has_ended
        ]
        if all(pod.is_ready and pod.is_active for pod in pods):
            self.converge(self.cluster.now + max(_SOON_S, self.running.batch_period_s))
        else:
            self.converge()
        self.pending_pods = sum(
            write.resource is Pods and write.verb in ("create", "delete") and not write.subresource
            for _, write in self.cluster.writes
        )

    @property
    def next_eviction(self) -> float | None:
        return self._evictions[0][0] if self._evictions else None

    def evict(self) -> float:
        """Deletes the Pods of lost Nodes, each at its time, and converges. Returns when the last
        one was deleted.
        """
        at = self.cluster.now
        for at, namespace, name in self._evictions:
            self.converge(at)
            self.cluster.delete(Pods, name, namespace)
        self._evictions.clear()
        self.converge()
        return at

    def _start(self) -> None:
        """Starts new controllers."""
        self.audience.by_zone = self.running.subsetting.by_zone
        self.audience.restart(self.state.nodes)
        delay = self.ready_delay_s
        nodes = tuple(
            _emulated(number, node)
            for number, node in enumerate(self.state.nodes)
            if is_working(node)
        )
        config = EmulationConfig(nodes=nodes, ready_s=delay, termination_s=self._termination_s())
        controllers: tuple[Controller, ...] = (
            EndpointSliceController(self.running.config),
            DeploymentController(),
            ReplicaSetController(),
            StatefulSetController(),
            SimulatedKubelet(config, self._recorded_pods, self._zones_first(nodes)),
        )
        self.cluster.replace(*controllers)

    def _termination_s(self) -> float:
        if self.running.termination_s is not None:
            return self.running.termination_s
        emulated = [LABEL_EMULATED in (node.metadata.labels or {}) for node in self.state.nodes]
        return TERMINATION_S if emulated and all(emulated) else _GRACE_MAX_S

    def _zones_first(self, nodes: Sequence[EmulatedNode]) -> tuple[str, ...]:
        offset = self._way.zone_offset
        if offset is None:
            return ()
        zones = sorted({node.zone for node in nodes})
        return tuple(zones[(at + offset) % len(zones)] for at in range(len(zones)))

    @property
    def events(self) -> list[SliceEvent]:
        return self.audience.events

    def _on_commit(self, event: StoreEvent) -> None:
        if self._report is not None:
            self._report(f"{len(self.cluster.writes):,} writes of controllers until now")
        self.audience.on_commit(event, self.cluster.now)

    # -- changes

    def apply(self, changes: Changes) -> None:
        """Applies *changes*. Raises ``WhatIfError`` if the server would refuse them."""
        try:
            self._apply(changes)
        except StatusError as error:
            raise WhatIfError(f"the server would refuse that: {error}") from error

    def _apply(self, changes: Changes) -> None:
        before = self.running
        self.running = changes.running_after(before)
        self.audience.by_zone = self.running.subsetting.by_zone
        if self.running.ready_delay_s is not None:
            self.ready_delay_s = self.running.ready_delay_s
        if changes.zones_lost:
            self._lose(changes.zones_lost)
        for zone, number in changes.zones_added:
            self._add(zone, number)
        for name, zone in changes.node_zones:
            self.cluster.patch(Nodes, name, {"metadata": {"labels": {LABEL_ZONE: zone or None}}})
        if changes.zones_lost or changes.zones_added or self.running != before:
            self._start()
        self._patch_service(changes)
        for workload, replicas in changes.replicas:
            self._patch(workload, {"replicas": replicas})
        for workload in changes.rollouts:
            self._roll_out(workload, dict(changes.strategy))

    def _lose(self, zones: Collection[str]) -> None:
        """Writes the state that the node lifecycle controller would write: the Nodes are Unknown,
        their Pods are not ready. The times of evictions are stored; if no Node remains, there are
        none.
        """
        self.converge(self.cluster.now + self.running.node_grace_s)
        now = self.cluster.now
        stamp = format_time(now)
        nodes = self.state.nodes
        lost = sorted(
            node.metadata.name
            for node in nodes
            if (node.metadata.labels or {}).get(LABEL_ZONE) in zones
        )
        for name in lost:
            unknown = {
                "type": "Ready",
                "status": "Unknown",
                "reason": "NodeStatusUnknown",
                "lastTransitionTime": stamp,
            }
            self.cluster.patch(
                Nodes, name, {"status": {"conditions": [unknown]}}, subresource="status"
            )
        tainted = {name: now + number * _TAINT_EVERY_S for number, name in enumerate(lost)}
        for pod in self.state.pods():
            if pod.spec.node_name not in tainted or not pod.is_active:
                continue
            namespace = pod.metadata.namespace
            document = self.cluster.get(Pods, pod.metadata.name, namespace)
            tolerated_s = _tolerated_s(document)
            if tolerated_s is not None and len(lost) < len(nodes):
                self._evictions.append(
                    (tainted[pod.spec.node_name] + tolerated_s, namespace, pod.metadata.name)
                )
            if pod.is_ready:
                conditions = document["status"]["conditions"]
                for condition in conditions:
                    if condition["type"] == "Ready":
                        condition |= {"status": "False", "lastTransitionTime": stamp}
                change = {"status": {"conditions": conditions}}
                self.cluster.patch(
                    Pods, pod.metadata.name, change, namespace=namespace, subresource="status"
                )
        self._evictions.sort()

    def _add(self, zone: str, number: int) -> None:
        """Adds Nodes that are copies of the first working one."""
        like = next((node for node in self.state.nodes if is_working(node)), self.state.nodes[0])
        document = self.cluster.get(Nodes, like.metadata.name)
        for index in range(1, number + 1):
            name = f"what-if-{zone}-{index}".lower()
            labels = {
                **document["metadata"].get("labels", {}),
                LABEL_ZONE: zone,
                LABEL_HOSTNAME: name,
            }
            self.cluster.create(Nodes, {"metadata": {"name": name, "labels": labels}})
            self.cluster.patch(Nodes, name, {"spec": {"taints": None}})
            status = document.get("status") or {}
            self.cluster.patch(Nodes, name, {"status": status}, subresource="status")

    def _patch_service(self, changes: Changes) -> None:
        change: Document = {}
        if changes.traffic_distribution:
            value = changes.traffic_distribution
            change["spec"] = {"trafficDistribution": None if value == NONE else value}
        if changes.topology_mode:
            value = changes.topology_mode
            change["metadata"] = {
                "annotations": {ANNOTATION_TOPOLOGY_MODE: None if value == NONE else value}
            }
        if change:
            meta = self._service.metadata
            self.cluster.patch(Services, meta.name, change, namespace=meta.namespace)

    def _patch(self, workload: ServiceWorkload, spec: Document) -> None:
        namespace = self._service.metadata.namespace
        self.cluster.patch(workload.resource, workload.name, {"spec": spec}, namespace=namespace)

    def _roll_out(self, workload: ServiceWorkload, strategy: dict[str, Any]) -> None:
        stamp = {"metadata": {"annotations": {ANNOTATION_RESTARTED: format_time(self.cluster.now)}}}
        spec: Document = {"template": stamp}
        if strategy:
            if workload.resource is not Deployments:
                raise WhatIfError(
                    f"{workload} has no max-surge and max-unavailable here: a Deployment has"
                )
            spec["strategy"] = {"type": "RollingUpdate", "rollingUpdate": strategy}
        self._patch(workload, spec)


def _tolerated_s(pod: Document) -> float | None:
    """Returns for how long the Pod stays on an unreachable Node; ``None``: as long as the Node
    exists.
    """
    matching = [
        toleration
        for toleration in pod["spec"].get("tolerations") or ()
        if tolerates([convert(toleration, Toleration)], _TAINT)
    ]
    seconds = [
        toleration["tolerationSeconds"]
        for toleration in matching
        if "tolerationSeconds" in toleration
    ]
    if not matching:
        return _TOLERATED_S
    return float(max(0, min(seconds))) if seconds else None


def _seed(state: ClusterState) -> int:
    """Returns the seed of uids and suffixes of names: equal for equal states, and different from
    the seed of the recorded objects.
    """
    digest = hashlib.blake2b(b"what-if", digest_size=8)
    for record in state.records:
        digest.update(record.uid.encode())
    return int.from_bytes(digest.digest(), "big")


def _is_selected(pod: Pod, service: Service) -> bool:
    selector = service.spec.selector or {}
    return bool(selector) and selector.items() <= (pod.metadata.labels or {}).items()


def _usual_delay(pods: list[Pod]) -> float:
    """Returns the median time from a Pod's start until it was ready; 0 if no Pod has these times."""
    delays: list[float] = []
    for pod in pods:
        ready = pod.condition("Ready")
        if (
            pod.is_ready
            and ready is not None
            and ready.last_transition_time
            and pod.status.start_time
        ):
            delays.append(
                max(0.0, parse_time(ready.last_transition_time) - parse_time(pod.status.start_time))
            )
    return median(delays) if delays else 0.0


def _times(state: ClusterState) -> Iterator[float]:
    """Yields the time of the read and the times of the objects: the run begins after all of them.
    The age of a Pod decides whether it is deleted before others.
    """
    if state.read_at:
        yield state.read_at
    for pod in state.pods():
        for text in (
            pod.metadata.creation_timestamp,
            pod.metadata.deletion_timestamp,
            pod.status.start_time,
        ):
            if text:
                yield parse_time(text) + 1


def _emulated(number: int, node: Node) -> EmulatedNode:
    """Returns the emulated Node; if the state has no Pod CIDR, it uses one of our own range."""
    cidrs = node.spec.pod_cidrs or ((node.spec.pod_cidr,) if node.spec.pod_cidr else ())
    ours = (f"100.{64 + (number >> 8)}.{number & 255}.0/24", f"fd00:64:{number:x}::/64")
    labels = node.metadata.labels or {}
    addresses = [
        address.address for address in node.status.addresses or () if address.type == "InternalIP"
    ]
    return EmulatedNode(
        name=node.metadata.name,
        zone=labels.get(LABEL_ZONE, ""),
        pod_cidrs=cidrs or ours,
        addresses=tuple(addresses) or ("192.0.2.1",),
    )
