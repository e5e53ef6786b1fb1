"""Small clusters from a seed, for which ``explain`` is asked what a real connection finds out.

A world is a namespace with Pods (each behind an address of ``ADDRESSES``, where a process listens
or not), Services of several kinds, and faults: in the objects, in the processes, in the kernel, and
changes that a stopped proxy does not see. The same seed makes the same world.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

Doc = dict[str, Any]
#: where Pods may be; one Pod each
ADDRESSES: Final = tuple(f"10.244.1.{number}" for number in range(1, 7))
NODES: Final = ("node-1", "node-2")
#: where the proxy of a world is
HERE: Final = NODES[0]
APPS: Final = ("cart", "shop", "mail")
#: of containers, by the name of the port
PORTS: Final = {"http": 8080, "admin": 9090}
#: nothing listens there
UNUSED_PORT: Final = 7777
UNUSED_NAME: Final = "htpp"
SLICE_LABEL: Final = "kubernetes.io/service-name"

PodState = Literal["ready", "unready", "terminating", "leaving", "ended", "pending"]
#: ``mute``: no process listens; ``elsewhere``: one listens at another port
Process = Literal["listens", "mute", "elsewhere"]
#: what somebody takes out of the kernel by hand; ``leftover``: an earlier proxy's rules are there
Damage = Literal["none", "element", "rule", "container", "chain", "table", "leftover"]
#: ``stopped``: before the changes (SIGSTOP); ``dead``: it ended before them; ``absent``: and its
#: rules went with it
Proxy = Literal["runs", "stopped", "dead", "absent"]


@dataclass(frozen=True)
class PodPlan:
    name: str
    app: str
    address: str
    node: str
    state: PodState
    process: Process

    @property
    def listens(self) -> tuple[int, ...]:
        """Ports of its process."""
        if self.state in ("ended", "pending") or self.process == "mute":
            return ()
        return tuple(PORTS.values()) if self.process == "listens" else (UNUSED_PORT + 1,)


@dataclass(frozen=True)
class Change:
    """Of the API while the proxy does not look. ``verb``: create, delete, status, or patch."""

    verb: Literal["create", "delete", "status", "patch"]
    document: Doc


@dataclass(frozen=True)
class Question:
    """A port of a Service. ``headless``: clients get addresses from DNS, and no proxy is asked."""

    service: str
    port: int
    headless: bool = False


@dataclass(frozen=True)
class WorldPlan:
    seed: int
    pods: tuple[PodPlan, ...]
    #: without the Pods
    documents: tuple[Doc, ...]
    changes: tuple[Change, ...]
    proxy: Proxy
    damage: Damage
    questions: tuple[Question, ...]
    #: what was planted, for people
    faults: tuple[str, ...]

    @property
    def namespace(self) -> str:
        return f"w{self.seed}"

    def listening(self) -> dict[str, tuple[int, ...]]:
        """Ports by address."""
        return {pod.address: pod.listens for pod in self.pods}


def make_world(seed: int) -> WorldPlan:
    return _Maker(seed).world()


def pod_documents(plan: PodPlan, namespace: str, stamp: str) -> tuple[Doc, Doc]:
    """Returns the Pod, and the Pod with its status. *stamp*: RFC 3339, since when it is so."""
    ports = [{"name": name, "containerPort": number} for name, number in PORTS.items()]
    container = {"name": "main", "image": "example/web:1", "ports": ports}
    pod: Doc = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": plan.name, "namespace": namespace, "labels": {"app": plan.app}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 3600},
    }
    if plan.state == "pending":
        return pod, {**pod, "status": {"phase": "Pending"}}
    pod["spec"]["nodeName"] = plan.node
    is_ready = plan.state in ("ready", "terminating")
    phase = "Succeeded" if plan.state == "ended" else "Running"
    conditions = [
        {"type": kind, "status": str(value), "lastTransitionTime": stamp}
        for kind, value in (
            ("PodScheduled", True),
            ("Initialized", True),
            ("ContainersReady", is_ready),
            ("Ready", is_ready),
        )
    ]
    state = (
        {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": stamp}}
        if plan.state == "ended"
        else {"running": {"startedAt": stamp}}
    )
    container_status = {
        "name": "main",
        "image": "example/web:1",
        "imageID": "",
        "restartCount": 0,
        "ready": is_ready,
        "state": state,
    }
    status = {
        "phase": phase,
        "conditions": conditions,
        "startTime": stamp,
        "podIP": plan.address,
        "podIPs": [{"ip": plan.address}],
        "containerStatuses": [container_status],
    }
    return pod, {**pod, "status": status}


class _Maker:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = random.Random(f"world {seed}")
        self._faults: list[str] = []
        self._documents: list[Doc] = []
        self._questions: list[Question] = []

    def world(self) -> WorldPlan:
        pods = tuple(self._pods())
        for number in range(self._random.randint(4, 6)):
            self._service(number)
        proxy, changes = self._while_away(pods)
        damage: Damage = "none"
        if proxy != "absent" and self._random.random() < 0.35:
            damage = self._random.choice(("element", "rule", "container", "chain", "table"))
            self._faults.append(f"{damage} deleted")
        elif proxy == "runs" and random.Random(f"leftover {self._seed}").random() < 0.1:
            damage = "leftover"
        return WorldPlan(
            self._seed,
            pods,
            tuple(self._documents),
            changes,
            proxy,
            damage,
            tuple(self._questions),
            tuple(self._faults),
        )

    def _pods(self) -> Iterable[PodPlan]:
        addresses = self._random.sample(ADDRESSES, self._random.randint(3, len(ADDRESSES)))
        states: tuple[PodState, ...] = ("unready", "terminating", "leaving", "ended", "pending")
        for number, address in enumerate(addresses):
            app = APPS[number % len(APPS)] if number < len(APPS) else self._random.choice(APPS)
            state: PodState = "ready"
            process: Process = "listens"
            if self._random.random() < 0.25:
                state = self._random.choice(states)
            elif self._random.random() < 0.12:
                process = self._random.choice(("mute", "elsewhere"))
            name = f"{app}-{number}"
            if (state, process) != ("ready", "listens"):
                self._faults.append(f"{name} {state if state != 'ready' else process}")
            yield PodPlan(name, app, address, self._random.choice(NODES), state, process)

    def _service(self, number: int) -> None:
        kinds = (
            *("plain", "named", "two", "same", "sticky", "local", "early", "zonal", "nodeport"),
            *("headless", "manual"),
        )
        kind = self._random.choice(kinds)
        name = f"{kind}-{number}"
        app = self._random.choice(APPS)
        spec: Doc = {
            "selector": {"app": app},
            "ports": [{"name": "http", "port": 80, "targetPort": PORTS["http"]}],
        }
        match kind:
            case "named":
                spec["ports"][0]["targetPort"] = "http"
            case "two":
                spec["ports"].append({"name": "admin", "port": 81, "targetPort": "admin"})
            case "same":
                spec["ports"].append({"name": "again", "port": 81, "targetPort": PORTS["http"]})
            case "sticky":
                spec["sessionAffinity"] = "ClientIP"
            case "local":
                spec["internalTrafficPolicy"] = "Local"
            case "early":
                spec["publishNotReadyAddresses"] = True
            case "zonal":
                spec["trafficDistribution"] = "PreferClose"
            case "nodeport":
                spec["type"] = "NodePort"
            case "headless":
                spec["clusterIP"] = "None"
                spec["ports"][0]["port"] = PORTS["http"]
            case "manual":
                del spec["selector"]
        if self._random.random() < 0.3:
            self._spoil(name, spec)
        self._documents.append(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "spec": spec,
                "metadata": {"name": name, "namespace": f"w{self._seed}"},
            }
        )
        if kind == "manual":
            self._documents.append(self._slice(name))
        is_headless = kind == "headless"
        self._questions += [Question(name, port["port"], is_headless) for port in spec["ports"]]
        if self._random.random() < 0.15 and not is_headless:
            self._questions.append(Question(name, 8443))

    def _spoil(self, name: str, spec: Doc) -> None:
        """A fault of one Service, as a person makes it."""
        port = self._random.choice(spec["ports"])
        fault = self._random.choice(("selector", "name", "number"))
        match fault:
            case "selector" if "selector" in spec:
                spec["selector"] = {"app": spec["selector"]["app"] + "s"}
            case "name":
                port["targetPort"] = UNUSED_NAME
            case "number":
                port["targetPort"] = UNUSED_PORT
            case _:
                return
        self._faults.append(f"{name} {fault} wrong")

    def _slice(self, name: str) -> Doc:
        """A slice written by hand: of processes outside, ready or not, or with a fault."""
        addresses = self._random.sample(ADDRESSES, self._random.randint(1, 2))
        port: Doc = {"name": "http", "port": PORTS["http"], "protocol": "TCP"}
        conditions: Doc = {"ready": True}
        if self._random.random() < 0.4:
            fault = self._random.choice(("port name", "port number", "unready", "unset", "label"))
            self._faults.append(f"{name} slice {fault}")
            match fault:
                case "port name":
                    port["name"] = "web"
                case "port number":
                    port["port"] = UNUSED_PORT
                case "unready":
                    conditions = {"ready": False}
                case "unset":
                    conditions = {}
        else:
            fault = ""
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{name}-by-hand",
                "namespace": f"w{self._seed}",
                "labels": {} if fault == "label" else {SLICE_LABEL: name},
            },
            "addressType": "IPv4",
            "ports": [port],
            "endpoints": [{"addresses": [each], "conditions": conditions} for each in addresses],
        }

    def _while_away(self, pods: tuple[PodPlan, ...]) -> tuple[Proxy, tuple[Change, ...]]:
        """The state of the proxy, and the changes that it does not see."""
        if self._random.random() >= 0.3:
            return "runs", ()
        proxy: Proxy = self._random.choice(("stopped", "dead", "absent"))
        self._faults.append(f"proxy {proxy}")
        served = [
            each["metadata"]["name"]
            for each in self._documents
            if each["kind"] == "Service" and each["spec"].get("clusterIP") != "None"
        ]
        changes: list[Change] = []
        for number in range(self._random.randint(1, 2)):
            what = self._random.choice(("pod", "target", "new", "service"))
            self._faults.append(f"then {what} changed")
            match what:
                case "pod":
                    changes.append(Change("status", {"name": self._random.choice(pods).name}))
                case "target" if served:
                    target = self._random.choice((PORTS["admin"], PORTS["http"]))
                    changes.append(self._first_port(served, "targetPort", target))
                case "new":
                    changes.append(Change("create", self._late_service(number)))
                case "service" if served:
                    changes.append(self._first_port(served, "port", 82))
                    self._questions.append(Question(changes[-1].document["name"], 82))
        return proxy, tuple(changes)

    def _first_port(self, names: list[str], field: str, value: int) -> Change:
        """Another value of the first port of a Service."""
        path = f"/spec/ports/0/{field}"
        patch = [{"op": "replace", "path": path, "value": value}]
        return Change("patch", {"name": self._random.choice(names), "patch": patch})

    def _late_service(self, number: int) -> Doc:
        name = f"late-{number}"
        self._questions.append(Question(name, 80))
        ports = [{"name": "http", "port": 80, "targetPort": PORTS["http"]}]
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": f"w{self._seed}"},
            "spec": {"selector": {"app": self._random.choice(APPS)}, "ports": ports},
        }
