"""The scenario: rolls out Services, a few at a time, and then loses a zone.

A rollout replaces a quarter of a Service's Pods at a time, as a Deployment does with its default
surge: new Pods are created and become ready, and as many old ones are deleted. The nodes of a lost
zone stop reading; after the grace period their Nodes are Unknown and their Pods are marked not
ready, one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Write
from sliceplane.api.scheme import Nodes, Pods
from sliceplane.lab.sim.network import named
from sliceplane.lab.sim.scale.cluster import (
    namespace_of,
    node_status,
    pod_address,
    pod_document,
    pod_name,
    pods_of,
)
from sliceplane.lab.sim.scale.front import ScaleNetwork
from sliceplane.lab.sim.scale.plan import ScalePlan, node_name
from sliceplane.lab.sim.scheduler import Scheduler
from sliceplane.lab.sim.server import request
from sliceplane.lab.sim.users.documents import pod_status
from sliceplane.server.store.watcher import nothing


class ScaleScenario:
    """Owned by one run. ``busy``: number of actions in progress."""

    def __init__(self, plan: ScalePlan, scheduler: Scheduler, network: ScaleNetwork) -> None:
        self._plan, self._scheduler, self._network = plan, scheduler, network
        #: numbers of the Pods of each Service, oldest first; all but the lost zone's are ready
        self.pods: dict[int, deque[int]] = {}
        self._next_pod = plan.pods
        self._to_roll: deque[int] = deque()
        self.busy = 0
        self.replaced = 0
        self.marked = 0
        self.refused: list[str] = []

    def pods_now(self, service: int) -> deque[int]:
        return self.pods.setdefault(service, deque(pods_of(self._plan, service)))

    def _send(self, write: Write, on_success: Callable[[], None] = nothing) -> None:
        self.busy += 1

        def on_answer(answer: bytes | StatusError) -> None:
            self.busy -= 1
            if isinstance(answer, StatusError):
                self.refused.append(f"{write.verb} {named(write)}: {answer}")
            else:
                on_success()

        self._network.send("people", write, on_answer)

    def _later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.busy += 1

        def do() -> None:
            self.busy -= 1
            callback()

        self._scheduler.after(delay_s, do)

    # Rollouts

    def roll_out(self) -> None:
        """Starts the rollouts one after the other, with Services spread over all of them."""
        plan = self._plan
        self._to_roll.extend(
            number * plan.services // plan.rolling for number in range(plan.rolling)
        )
        lanes = min(plan.at_once, plan.rolling)
        for lane in range(lanes):
            self._later(plan.ready_s * lane / lanes, self._next_service)

    def _next_service(self) -> None:
        if self._to_roll:
            service = self._to_roll.popleft()
            self._step(service, len(self.pods_now(service)))

    def _step(self, service: int, remaining: int) -> None:
        if not remaining:
            self._next_service()
            return
        pods = self.pods_now(service)
        count = min(remaining, max(1, len(pods) // 4))
        waiting = count

        def one_ready() -> None:
            nonlocal waiting
            waiting -= 1
            self._remove(service, pods.popleft())
            if not waiting:
                self._step(service, remaining - count)

        for _ in range(count):
            number = self._next_pod
            self._next_pod += 1
            pods.append(number)
            self._create(service, number, one_ready)

    def _create(self, service: int, number: int, ready: Callable[[], None]) -> None:
        document = pod_document(number, service, number % self._plan.nodes)
        create = request("create", Pods, namespace_of(service), document)
        run = lambda: self._send(_status_write(service, number, ready=True), ready)  # noqa: E731
        self._send(create, lambda: self._later(self._plan.ready_s, run))

    def _remove(self, service: int, number: int) -> None:
        self.replaced += 1
        namespace = namespace_of(service)
        delete = request("delete", Pods, namespace, name=pod_name(number))
        delete_now = lambda: self._send(  # noqa: E731
            request("delete", Pods, namespace, {"gracePeriodSeconds": 0}, name=pod_name(number))
        )
        self._send(delete, lambda: self._later(self._plan.termination_s, delete_now))

    # A zone

    def lose_zone(self, zone: int) -> None:
        """Marks its Nodes and then its Pods after the grace period, at the rate of the node
        life-cycle controller.
        """
        plan = self._plan
        on_node: dict[int, list[tuple[int, int]]] = {}
        for service in range(plan.services):
            for pod in self.pods_now(service):
                if pod % plan.nodes % plan.zones == zone:
                    on_node.setdefault(pod % plan.nodes, []).append((service, pod))
        at = plan.node_grace_s
        for node in range(zone, plan.nodes, plan.zones):
            self._later(at, lambda node=node: self._mark_node(node))  # type: ignore[misc]  # a default binds the loop's value
            at += 1 / plan.marks_per_s
            for service, pod in on_node.get(node, ()):
                self._later(at, lambda service=service, pod=pod: self._mark_pod(service, pod))  # type: ignore[misc]  # the same
                at += 1 / plan.marks_per_s

    def _mark_node(self, node: int) -> None:
        status = {"status": node_status(ready=False)}
        self._send(request("patch", Nodes, "", status, name=node_name(node), subresource="status"))

    def _mark_pod(self, service: int, pod: int) -> None:
        self.marked += 1
        self._send(_status_write(service, pod, ready=False))


def _status_write(service: int, pod: int, *, ready: bool) -> Write:
    """Returns the status write of the Pod's kubelet, or of the node life-cycle controller."""
    status = pod_status([pod_address(pod)], ready=ready)
    namespace = namespace_of(service)
    return request("patch", Pods, namespace, status, name=pod_name(pod), subresource="status")
