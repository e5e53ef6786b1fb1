"""Scheduler and kubelet in one, for emulated Nodes only.

The life of a Pod here: bound to a node (fewest Pods of its owner in the zone, then fewest on the
node), started (addresses, phase Running), ready, and after a deletion removed when its grace
period, bounded by the configuration, has passed. While it terminates it stays as it was: a
terminating Pod that still serves is what consumers must cope with.

Whether a Pod's containers are ready is the configured default unless the Pod carries the annotation
``emulation.sliceplane.dev/ready``: the program that runs the real thing behind a Pod's address says
so there. The Pod itself is ready when its readiness gates are met, too (``pod_status``).
"""

from __future__ import annotations

from msgspec.structs import replace

from sliceplane.api.codec import encode
from sliceplane.api.core import Node, Pod, Taint
from sliceplane.api.discovery import LABEL_ZONE
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import Nodes, Pods
from sliceplane.emulation.eligibility import (
    UNSCHEDULABLE,
    eviction_delay_s,
    is_selected,
    repels,
    tolerates,
)
from sliceplane.emulation.nodes import (
    ANNOTATION_READY,
    EmulatedNode,
    EmulationConfig,
    node_document,
    node_status,
)
from sliceplane.emulation.placement import HostPort, Placement, PodAddresses, host_ports
from sliceplane.emulation.pod_status import (
    debuggers_status,
    image_fault,
    overdue_status,
    readiness,
    ready_status,
    started_status,
    waiting_status,
)
from sliceplane.emulation.templates import controller_uid
from sliceplane.kit.times import parse_time
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import (
    ControllerInfo,
    Done,
    Selection,
    Write,
    deletion,
    object_patch,
)
from sliceplane.watch.controller.keyed import KeyedController

COMPONENT = "sliceplane-emulation"
#: of what has no time
_LONG_AGO = "1970-01-01T00:00:00Z"
TAINT_NOT_READY = "node.kubernetes.io/not-ready"


class KubeletController(KeyedController):
    """Keys are ``node/NAME`` and ``pod/NAMESPACE/NAME``."""

    def __init__(self, config: EmulationConfig) -> None:
        watches = (Selection(Nodes), Selection(Pods))
        super().__init__(ControllerInfo("kubelet-emulation", watches, component=COMPONENT))
        self._config = config
        self._emulated = {node.name: node for node in config.nodes}
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, Pod] = {}
        self._waiting: set[str] = set()  # Pods that no node could take
        self._without_address: set[str] = (
            set()
        )  # bound by others to a node that has no address left
        self._placement = Placement(config.nodes)
        self._first_observed: dict[
            tuple[str, bool], float
        ] = {}  # (pod uid, is terminating) -> time of its first event in that state
        self._addresses = PodAddresses(config.nodes)
        self._tainted: dict[
            str, dict[Taint, float]
        ] = {}  # node -> its taints that evict -> when we first saw them

    def on_synced(self, now: float) -> None:
        super().on_synced(now)
        for name in self._emulated:
            self.enqueue(f"node/{name}", now)

    def on_change(self, change: Change[Object], now: float) -> None:
        self._expectations.observe(change)
        if change.resource == Nodes.key:
            name = change.object.metadata.name
            if isinstance(change.new, Node):
                self._note_taints(change.new, now)
                self._nodes[name] = change.new
                if name in self._emulated:
                    self._follow_zone(name, (change.new.metadata.labels or {}).get(LABEL_ZONE, ""))
                    self.enqueue(f"node/{name}", now)
                self._try_waiting(now)
            else:
                self._nodes.pop(name, None)
                self._tainted.pop(name, None)
            return
        key = f"pod/{change.object.metadata.key}"
        old = change.old
        new = change.new
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._release(old.metadata.uid, now)
            for terminating in (False, True):
                self._first_observed.pop((old.metadata.uid, terminating), None)
        if isinstance(new, Pod):
            self._pods[key] = new
            self._first_observed.setdefault((new.metadata.uid, new.metadata.is_deleting), now)
            self._update_addresses_and_placement(new, now)
            self.enqueue(key, now)
        else:
            self._pods.pop(key, None)
            self._waiting.discard(key)
            self._without_address.discard(key)
            self._expectations.forget(key)

    def _note_taints(self, node: Node, now: float) -> None:
        name = node.metadata.name
        before = self._tainted.get(name, {})
        taints = {
            taint: before.get(taint, now)
            for taint in node.spec.taints or ()
            if taint.effect == "NoExecute"
        }
        if taints != before and name in self._emulated:
            self._tainted[name] = taints
            for key, pod in self._pods.items():
                if pod.spec.node_name == name:
                    self.enqueue(key, now)

    def _evicted_at(self, node: Node, pod: Pod) -> float | None:
        """Returns when the taints of its node evict the Pod; ``None``: never."""
        noticed = self._tainted.get(node.metadata.name, {})
        delays = (
            (eviction_delay_s(pod.spec.tolerations or (), taint), since)
            for taint, since in noticed.items()
        )
        return min((since + delay for delay, since in delays if delay is not None), default=None)

    def _follow_zone(self, name: str, zone: str) -> None:
        """Records a zone, so that Pods spread over the zones of Nodes as under a scheduler."""
        if zone != self._emulated[name].zone:
            self._emulated[name] = replace(self._emulated[name], zone=zone)
            self._placement.rezone(self._emulated[name])

    def _try_waiting(self, now: float) -> None:
        for key in sorted(self._waiting | self._without_address):
            self.enqueue(key, now)

    def _release(self, uid: str, now: float) -> None:
        """Frees the Pod's addresses and ports, and tries the Pods that wait for a node."""
        self._addresses.release(uid)
        self._placement.drop(uid)
        self._try_waiting(now)

    def _update_addresses_and_placement(self, pod: Pod, now: float) -> None:
        """Updates addresses and placement from the Pod's status."""
        uid = pod.metadata.uid
        if pod.has_ended:
            self._release(uid, now)
            return
        self._addresses.record(uid, pod.status.ips)
        node = self._emulated.get(pod.spec.node_name)
        if node is not None:
            self._placement.put(uid, node, controller_uid(pod), host_ports(pod))

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        if key.startswith("node/"):
            return self._register(self._emulated[key.removeprefix("node/")], now)
        pod = self._pods.get(key)
        if pod is None or pod.has_ended:
            return ()
        if self.waits_for_cache(key, now):
            return ()
        if not pod.spec.node_name:
            return self._bind(key, pod)
        if pod.spec.node_name not in self._emulated:
            return ()
        if pod.metadata.is_deleting:
            return self._terminate(key, pod, now)
        node = self._nodes.get(pod.spec.node_name)
        due = None if node is None else self._evicted_at(node, pod)
        if due is not None:
            if now >= due:
                self.report(
                    Pods,
                    pod,
                    "Normal",
                    "TaintManagerEviction",
                    f"Marking for deletion Pod {pod.metadata.key}",
                    action="Evicting",
                )
                return (deletion(Pods, pod.metadata),)
            self.enqueue_after(key, due - now, now)
        return self._run(key, pod, now)

    def _register(self, node: EmulatedNode, now: float) -> tuple[Write, ...]:
        """Create the Node, make it ready, then take away the taint that the server gives to new
        Nodes.
        """
        present = self._nodes.get(node.name)
        status = Write(
            verb="patch",
            resource=Nodes,
            name=node.name,
            subresource="status",
            patch_type="strategic",
            body=encode({"status": node_status(node, now)}),
        )
        if present is None:
            body = encode(node_document(node))
            return (
                Write(verb="create", resource=Nodes, body=body, tolerate=("AlreadyExists",)),
                status,
            )
        if not present.is_ready:
            return (status,)
        return _without_taint(present)

    def _fits(self, name: str, pod: Pod, ports: frozenset[HostPort]) -> bool:
        present = self._nodes.get(name)
        if present is None or (
            present.spec.unschedulable and not tolerates(pod.spec.tolerations or (), UNSCHEDULABLE)
        ):
            return False
        if repels(present, pod.spec.tolerations or (), ("NoSchedule", "NoExecute")):
            return False
        if not self._placement.has_ports(name, ports):
            return False
        return self._placement.load_of(name) < self._addresses.room(name) and is_selected(
            pod.spec, present
        )

    def _bind(self, key: str, pod: Pod) -> tuple[Write, ...]:
        uid = pod.metadata.uid
        if pod.metadata.is_deleting or self._placement.node_of(uid):
            return ()  # leaving, or decided and not yet shown by the cache
        ports = host_ports(pod)
        chosen = self._placement.choose(
            controller_uid(pod), lambda name: self._fits(name, pod, ports)
        )
        if chosen is None:
            if key not in self._waiting:
                why = (
                    "none is schedulable, has the labels asked for, tolerated taints, free ports "
                    "and a Pod address left"
                )
                self.report(
                    Pods,
                    pod,
                    "Warning",
                    "FailedScheduling",
                    f"0/{len(self._emulated)} emulated nodes fit: {why}",
                    action="Scheduling",
                )
            self._waiting.add(key)
            return ()
        self._waiting.discard(key)
        self._placement.put(uid, chosen, controller_uid(pod), ports)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.metadata.name, "uid": uid},
            "target": {"kind": "Node", "name": chosen.name},
        }
        write = Write(
            verb="create",
            resource=Pods,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            subresource="binding",
            body=encode(binding),
            tolerate=("NotFound", "Conflict"),
        )
        return (write,)

    def _terminate(self, key: str, pod: Pod, now: float) -> tuple[Write, ...]:
        assert pod.metadata.deletion_timestamp is not None, key
        grace_s = pod.metadata.deletion_grace_period_seconds or 0
        requested_at = parse_time(pod.metadata.deletion_timestamp) - grace_s
        due = self._capped_time(pod, requested_at) + min(self._config.termination_s, grace_s)
        if now < due:
            self.enqueue_after(key, due - now, now)
            return ()
        return (deletion(Pods, pod.metadata, gracePeriodSeconds=0),)

    def _capped_time(self, pod: Pod, server_time: float) -> float:
        """Returns *server_time*, at most the time of the event that brought it.

        The clock of the machine may have been set since, and a Pod must not wait an hour for that.
        """
        return min(server_time, self._first_observed[pod.metadata.uid, pod.metadata.is_deleting])

    def _run(self, key: str, pod: Pod, now: float) -> tuple[Write, ...]:
        if not pod.status.pod_ips or pod.status.phase != "Running":
            created_at = parse_time(pod.metadata.creation_timestamp or _LONG_AGO)
            due = self._capped_time(pod, created_at) + self._config.start_s
            if now < due:
                self.enqueue_after(key, due - now, now)
                return ()
            addresses = self._addresses.assign(pod.metadata.uid, pod.spec.node_name)
            if not addresses:
                if key not in self._without_address:
                    self._without_address.add(key)
                    why = f"node {pod.spec.node_name} has no Pod address left"
                    self.report(
                        Pods, pod, "Warning", "FailedCreatePodSandBox", why, action="Starting"
                    )
                return ()
            self._without_address.discard(key)
            return self._start(pod, addresses, now)
        if pod.spec.active_deadline_seconds is not None:
            until = parse_time(
                pod.status.start_time or pod.metadata.creation_timestamp or _LONG_AGO
            )
            until += pod.spec.active_deadline_seconds
            if now >= until:
                return (_status(pod, overdue_status(pod, now)),)
            self.enqueue_after(key, until - now, now)
        debuggers = debuggers_status(pod, now)
        if debuggers is not None:
            return (_status(pod, debuggers),)
        is_desired_ready = self._is_desired_ready(pod)
        containers = pod.condition("ContainersReady")
        due = parse_time(pod.status.start_time or _LONG_AGO) + self._config.ready_s
        if is_desired_ready and now < due and (containers is None or containers.status != "True"):
            self.enqueue_after(key, due - now, now)
            return ()
        state = readiness(pod, containers=is_desired_ready)
        return () if state.is_reported_by(pod) else (_status(pod, ready_status(pod, state, now)),)

    def _start(self, pod: Pod, addresses: tuple[str, ...], now: float) -> tuple[Write, ...]:
        hosts = self._emulated[pod.spec.node_name].addresses
        fault = next(
            filter(None, (image_fault(container.image) for container in pod.spec.containers or ())),
            None,
        )
        if fault is not None:
            waiting = waiting_status(pod, addresses, hosts, now)
            if waiting is None:
                return ()
            self.report(
                Pods,
                pod,
                "Warning",
                "Failed",
                f"Error: {fault['reason']}: {fault['message']}",
                action="Pulling",
            )
            return (_status(pod, waiting),)
        state = readiness(pod, containers=self._is_desired_ready(pod) and not self._config.ready_s)
        self.report(Pods, pod, "Normal", "Started", "Container started", action="Starting")
        return (_status(pod, started_status(pod, addresses, hosts, state, now)),)

    def _is_desired_ready(self, pod: Pod) -> bool:
        readiness = (pod.metadata.annotations or {}).get(ANNOTATION_READY)
        return self._config.ready_by_default if readiness is None else readiness == "true"

    def finished(self, done: Done, now: float) -> None:
        if done.job.writes[0].subresource != "binding":
            self._expectations.expect(done, now)
            return
        # The answer to a binding is a Status without a version; the placement stands in for it
        # until the cache shows the node. A binding that failed is taken back.
        pod = self._pods.get(done.job.key)
        if pod is None:
            return
        if done.error is None and done.results[0]:
            node = self._placement.node_of(pod.metadata.uid)
            self.report(
                Pods,
                pod,
                "Normal",
                "Scheduled",
                f"Successfully assigned {pod.metadata.key} to {node}",
                action="Binding",
            )
        elif not pod.spec.node_name:
            self._placement.drop(pod.metadata.uid)

    def check(self) -> None:
        super().check()
        self._addresses.check()
        self._placement.check()
        assert self._waiting <= set(self._pods), f"{self._waiting} not in the cache"


def _without_taint(node: Node) -> tuple[Write, ...]:
    taints = node.spec.taints or ()
    kept = tuple(taint for taint in taints if taint.key != TAINT_NOT_READY)
    if kept == taints:
        return ()
    return (object_patch(Nodes, node.metadata, {"spec": {"taints": kept or None}}),)


def _status(pod: Pod, status: Document) -> Write:
    return object_patch(Pods, pod.metadata, {"status": status}, "status", "strategic")
