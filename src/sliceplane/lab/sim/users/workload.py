"""Users and machines that make random changes by weight: one action per step.

Actions read the server's state and write without faults; only controllers experience loss. A
refusal by the server (a selector on an ExternalName, for example) is a normal outcome and is
traced.

There are two kinds of Pods: those of Deployments, which the emulated kubelets run, and *bare* Pods
on Nodes of their own. This module writes the status of bare Pods, so a simulation of only the
EndpointSlice controller has Pods too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sliceplane.api.discovery import LABEL_MANAGED_BY, LABEL_ZONE
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.requests import Verb
from sliceplane.api.scheme import (
    Deployments,
    EndpointSlices,
    Namespaces,
    Nodes,
    Pods,
    Resource,
    ResourceQuotas,
    Services,
)
from sliceplane.emulation.nodes import ANNOTATION_READY, make_nodes, node_document
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.network import named, void
from sliceplane.lab.sim.roster import EMULATED_NODES, ZONES
from sliceplane.lab.sim.scheduler import Scheduler, Trace
from sliceplane.lab.sim.server import Server, described, request
from sliceplane.lab.sim.users import documents
from sliceplane.server.store.types import EventType, StoreEvent

NAMESPACES: Final = ("default", "shop", "lab")
POLICIES: Final = ("Background", "Foreground", "Orphan")
APPS: Final = ("web", "db")
BARE_NODES: Final = 3
BARE_PODS_MAX: Final = 24
REPLICAS_MAX: Final = 7
_FINISH_MIN_S: Final = 0.5
_FINISH_MAX_S: Final = 15.0


#: weight, action, whether it needs the controllers of Deployments
Action = tuple[int, Callable[["SimulatedWorkload"], None], bool]


@dataclass(slots=True)
class SimulatedWorkload:
    """Owned by one simulation, which calls ``begin`` once and ``step`` often."""

    scheduler: Scheduler
    server: Server
    trace: Trace
    rng: Rng
    #: Deployments make sense only with their controllers
    deployments: bool
    #: further actions besides those of this module
    more: tuple[Action, ...] = ()
    created: int = 0
    #: addresses of failed Pods, for reuse
    freed: list[str] = field(default_factory=list)
    #: Pods of a recording, as ``namespace/name``, whose Nodes are not simulated
    adopted: frozenset[str] = frozenset()
    steps: int = 0

    def begin(self) -> None:
        self.server.listeners.append(self._finish_terminating)
        for which in range(BARE_NODES):
            self.write(
                "create", Nodes, "", documents.node(f"bare-{which}", ZONES[which % len(ZONES)])
            )
        for name in NAMESPACES[1:]:
            self._open_namespace(name)
        for name in NAMESPACES:
            self.write("create", Services, name, documents.service("web", "web", self.rng))
            for _ in range(4):
                self._new_pod(name)
            if self.deployments:
                self.write(
                    "create", Deployments, name, documents.deployment("web", "web", 3, "image:1")
                )

    def step(self) -> None:
        self.steps += 1
        actions = [
            action for action in (*_ACTIONS, *self.more) if self.deployments or not action[2]
        ]
        at = self.rng.below(sum(weight for weight, _, _ in actions))
        for weight, action, _ in actions:
            at -= weight
            if at < 0:
                action(self)
                return

    # Writing

    def write(
        self,
        verb: Verb,
        resource: Resource,
        namespace: str,
        body: Document,
        name: str = "",
        *,
        subresource: str = "",
    ) -> bool:
        write = request(verb, resource, namespace, body, name=name, subresource=subresource)
        label = named(write, name or body.get("metadata", {}).get("name", ""))
        try:
            self.server.execute(write)
        except StatusError as error:
            self.trace.note(self.scheduler.now, "user", verb, label, described(error))
            return False
        self.trace.note(
            self.scheduler.now, "user", verb, label, "ok", revision=self.server.store.revision
        )
        return True

    def pick(self, resource: Resource, namespace: str = "") -> Document | None:
        return self.choose(self.server.documents(resource, namespace))

    def choose(self, documents: list[Document]) -> Document | None:
        return documents[self.rng.below(len(documents))] if documents else None

    def patch(
        self, resource: Resource, target: Document | None, change: Document, subresource: str = ""
    ) -> bool:
        """Patches *target*; does nothing if it is ``None``."""
        if target is None:
            return False
        meta = target["metadata"]
        return self.write(
            "patch",
            resource,
            meta.get("namespace", ""),
            change,
            meta["name"],
            subresource=subresource,
        )

    def delete(self, resource: Resource, target: Document | None, **options: object) -> bool:
        if target is None:
            return False
        meta = target["metadata"]
        return self.write("delete", resource, meta.get("namespace", ""), options, meta["name"])

    def somewhere(self) -> str:
        return NAMESPACES[self.rng.below(len(NAMESPACES))]

    # Pods

    def bare_pods(self) -> list[Document]:
        return [
            pod
            for pod in self.server.documents(Pods)
            if pod["metadata"]["name"].startswith("bare-")
        ]

    def _new_pod(self, namespace: str) -> None:
        self.created += 1
        name = f"bare-{self.created}"
        app = APPS[0 if self.rng.below(3) else 1]
        body = documents.bare_pod(name, app, f"bare-{self.rng.below(BARE_NODES)}", self.rng)
        if self.write("create", Pods, namespace, body):
            status = documents.pod_status(self._addresses(), ready=self.rng.below(4) > 0)
            self.write("patch", Pods, namespace, status, name, subresource="status")

    def _addresses(self) -> list[str]:
        if self.freed and self.rng.below(3) == 0:
            return [self.freed.pop()]
        four = f"10.99.{self.created // 250}.{self.created % 250 + 1}"
        return [four, f"fd99::{self.created:x}"] if self.rng.below(2) else [four]

    def add_pod(self) -> None:
        if len(self.bare_pods()) < BARE_PODS_MAX:
            self._new_pod(self.somewhere())

    def toggle_readiness(self) -> None:
        """Makes a bare Pod ready or not ready."""
        pod = self.choose(self.bare_pods())
        if pod is not None:
            addresses = [address["ip"] for address in pod["status"].get("podIPs", ())]
            self.patch(
                Pods, pod, documents.pod_status(addresses, ready=self.rng.below(2) == 0), "status"
            )

    def fail_pod(self) -> None:
        pod = self.choose(self.bare_pods())
        if pod is not None and pod["status"].get("phase") == "Running":
            addresses = [address["ip"] for address in pod["status"].get("podIPs", ())]
            if self.patch(
                Pods, pod, documents.pod_status(addresses, ready=False, phase="Failed"), "status"
            ):
                self.freed.extend(addresses[:1])

    def delete_pod(self) -> None:
        self.delete(
            Pods, self.pick(Pods), **({"gracePeriodSeconds": 0} if self.rng.below(3) == 0 else {})
        )

    def relabel_pod(self) -> None:
        labels = {"app": APPS[self.rng.below(2)], "tier": "front" if self.rng.below(2) else None}
        self.patch(Pods, self.choose(self.bare_pods()), {"metadata": {"labels": labels}})

    def annotate_readiness(self) -> None:
        """Sets or removes the readiness annotation of an emulated Pod."""
        readiness = ("true", "false", None)[self.rng.below(3)]
        self.patch(
            Pods, self.pick(Pods), {"metadata": {"annotations": {ANNOTATION_READY: readiness}}}
        )

    def _finish_terminating(self, event: StoreEvent) -> None:
        """Acts as the node agent of bare Pods: ends a deleted one after a while."""
        key = event.record.key
        if key.resource != Pods.storage_key or event.type is EventType.DELETED:
            return
        if not key.name.startswith("bare-") and key.path not in self.adopted:
            return
        if b'"deletionTimestamp"' in event.record.body and b'"deletionTimestamp"' not in (
            event.previous.body if event.previous is not None else b""
        ):
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": event.record.uid}}
            delay = self.rng.uniform(_FINISH_MIN_S, _FINISH_MAX_S)
            self.scheduler.after(
                delay, lambda: void(self.write("delete", Pods, key.namespace, options, key.name))
            )

    # Services, Deployments, namespaces, nodes, others

    def create_service(self) -> None:
        app = APPS[self.rng.below(2)]
        name = f"{app}{('', '-2')[self.rng.below(2)]}"
        self.write("create", Services, self.somewhere(), documents.service(name, app, self.rng))

    def edit_service(self) -> None:
        self.patch(
            Services,
            self.users_service(),
            documents.service_edit(APPS[self.rng.below(2)], self.rng),
        )

    def delete_service(self) -> None:
        self.delete(Services, self.users_service(), propagationPolicy=POLICIES[self.rng.below(3)])

    def users_service(self) -> Document | None:
        services = self.server.documents(Services)
        return self.choose(
            [service for service in services if service["metadata"]["name"] != "kubernetes"]
        )

    def create_deployment(self) -> None:
        app = APPS[self.rng.below(2)]
        body = documents.deployment(app, app, 1 + self.rng.below(REPLICAS_MAX), "image:1")
        self.write("create", Deployments, self.somewhere(), body)

    def scale_deployment(self) -> None:
        self.patch(
            Deployments,
            self.pick(Deployments),
            {"spec": {"replicas": self.rng.below(REPLICAS_MAX + 1)}},
        )

    def roll_deployment(self) -> None:
        image = "image:" + "1" * (1 + self.rng.below(4))
        self.patch(Deployments, self.pick(Deployments), documents.image_change(image))

    def delete_deployment(self) -> None:
        self.delete(
            Deployments, self.pick(Deployments), propagationPolicy=POLICIES[self.rng.below(3)]
        )

    def _open_namespace(self, name: str) -> None:
        if self.write("create", Namespaces, "", documents.namespace(name)) and name == "shop":
            hard = {"pods": "12", "services": "20", "count/endpointslices.discovery.k8s.io": "200"}
            self.write("create", ResourceQuotas, name, documents.quota(hard))

    def toggle_namespace(self) -> None:
        name = NAMESPACES[1 + self.rng.below(len(NAMESPACES) - 1)]
        namespace = self.server.find(Namespaces, "", name)
        if namespace is None:
            self._open_namespace(name)
        elif self.rng.below(2):
            self.delete(Namespaces, namespace)

    def move_node(self) -> None:
        """Changes a Node's zone, or removes its zone label for a while."""
        zone = (*ZONES, None)[self.rng.below(len(ZONES) + 1)]
        self.patch(Nodes, self.pick(Nodes), {"metadata": {"labels": {LABEL_ZONE: zone}}})

    def toggle_node(self) -> None:
        which = self.rng.below(BARE_NODES + (EMULATED_NODES if self.deployments else 0))
        if which < BARE_NODES:
            body = documents.node(f"bare-{which}", (*ZONES, None)[self.rng.below(len(ZONES) + 1)])
        else:
            body = node_document(make_nodes(EMULATED_NODES, ZONES)[which - BARE_NODES])
        node = self.server.find(Nodes, "", body["metadata"]["name"])
        if node is None:
            self.write(
                "create",
                Nodes,
                "",
                {key: body[key] for key in body if key not in ("apiVersion", "kind")},
            )
        else:
            self.delete(Nodes, node)

    def foreign_slice(self) -> None:
        slices = self.server.documents(EndpointSlices)
        theirs = [
            document for document in slices if document["metadata"]["name"].startswith("their")
        ]
        if theirs and self.rng.below(2):
            self.delete(EndpointSlices, self.choose(theirs))
            return
        service = self.users_service()
        which = 1 + self.rng.below(3)
        if service is not None:
            meta = service["metadata"]
            self.write(
                "create",
                EndpointSlices,
                meta["namespace"],
                documents.foreign_slice(meta["name"], which),
            )

    # As a fault

    def foreign_edit(self, which: int) -> None:
        """Lets another writer edit or delete a slice of ours."""
        ours = [
            document
            for document in self.server.documents(EndpointSlices)
            if document["metadata"].get("labels", {}).get(LABEL_MANAGED_BY)
            not in (None, documents.FOREIGN_MANAGER)
        ]
        if not ours:
            return
        chosen = ours[which % len(ours)]
        edits: tuple[Document, ...] = (
            {"endpoints": chosen["endpoints"][1:]},
            {
                "endpoints": [{"addresses": ["198.51.100.99"]}]
                if chosen["addressType"] == "IPv4"
                else []
            },
            {"metadata": {"labels": {"team": "intruder"}}},
            {"metadata": {"labels": {LABEL_MANAGED_BY: None}}},
            {"metadata": {"ownerReferences": None}},
            {"ports": []},
            {"metadata": {"annotations": {"theirs": f"{self.steps}"}}},
        )
        choice = (which // 64) % (len(edits) + 1)
        if choice == len(edits):
            self.delete(EndpointSlices, chosen)
        else:
            self.patch(EndpointSlices, chosen, edits[choice])


_ACTIONS: Final[tuple[Action, ...]] = (
    (12, SimulatedWorkload.add_pod, False),
    (20, SimulatedWorkload.toggle_readiness, False),
    (3, SimulatedWorkload.fail_pod, False),
    (10, SimulatedWorkload.delete_pod, False),
    (5, SimulatedWorkload.relabel_pod, False),
    (6, SimulatedWorkload.annotate_readiness, True),
    (5, SimulatedWorkload.create_service, False),
    (12, SimulatedWorkload.edit_service, False),
    (3, SimulatedWorkload.delete_service, False),
    (4, SimulatedWorkload.create_deployment, True),
    (10, SimulatedWorkload.scale_deployment, True),
    (6, SimulatedWorkload.roll_deployment, True),
    (2, SimulatedWorkload.delete_deployment, True),
    (2, SimulatedWorkload.toggle_namespace, False),
    (4, SimulatedWorkload.move_node, False),
    (4, SimulatedWorkload.toggle_node, False),
    (4, SimulatedWorkload.foreign_slice, False),
)
