"""A long random history of one engine, compared after every step: the oracle at scale.

Two Services select overlapping Pods. A step changes one thing (a Pod, a Node, a Service, a slice by
another hand), or brings a fault (a write refused, an answer lost, a late echo, a restart); then the
engine syncs until it has nothing to write, and what the server holds must be what the oracle says,
in slices that are well packed.

``Upstream``, the packing of upstream, is told of each sync twice: over the very slices that the
server holds, where it must never write less, and with slices of its own through the whole history,
for the totals. After what the text does not cover (a foreign edit, a fault) the latter adopts the
server's slices.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import msgspec
from tests.slices.fake_cluster import make_node, make_pod, make_service
from tests.slices.upstream_packing import FRAME_BYTES, Upstream

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Node, Pod, Service, ServicePort
from sliceplane.api.discovery import EndpointSlice, SliceEndpoint
from sliceplane.api.errors import StatusError, conflict, internal, unreachable
from sliceplane.slices import oracle
from sliceplane.slices.engine import SliceEngine
from sliceplane.slices.writes import SliceWrite

MAX = 4
PODS = 14
NODES = 3
#: steps between two of the slow and complete checks
FULL_CHECK_STEPS = 250
FAMILIES: Final = ("IPv4", "IPv6")
KEYS: Final = ("shop/web", "shop/front")
SELECTORS: Final = {"shop/web": {"app": "web"}, "shop/front": {"tier": "front"}}
NUMERIC = (ServicePort(name="http", port=80, target_port=8080),)
NAMED = (
    ServicePort(name="http", port=80, target_port="http"),
    ServicePort(name="x", port=81, target_port="none"),
)
replace = msgspec.structs.replace

#: port set -> identity -> the endpoint's JSON
Groups = dict[oracle.PortSet, dict[str, bytes]]


def identity(endpoint: SliceEndpoint) -> str:
    target = endpoint.target_ref
    return (
        f"{target.name if target else ''} {' '.join(endpoint.addresses)} {endpoint.hostname or ''}"
    )


class History:
    """``step`` is one step; it raises ``AssertionError`` with the seed and the step in it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.steps = self.syncs = self.writes = self.sent_bytes = self.base_writes = (
            self.base_bytes
        ) = 0
        self.random = random.Random(seed)
        self.now = 1000.0
        self.revision = 0
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.services: dict[str, Service] = {}
        self.slices: dict[str, EndpointSlice] = {}
        #: slice name -> what it shows
        self.shown: dict[str, tuple[oracle.PortSet, dict[str, bytes]]] = {}
        self.echoes: list[tuple[EndpointSlice | None, EndpointSlice | None]] = []
        self.upstream: dict[tuple[str, str], Upstream] = {}
        self.tell_upstream = True
        #: lists that confirmed what was doubted
        self.asked = 0
        #: counts what endpoints are made of
        self.inputs, self.wanted_at = 0, -1
        self.groups: dict[tuple[str, str], Groups] = {}
        self.memory: dict[
            tuple[str, str, str], tuple[tuple[str, str, str], list[tuple[oracle.PortSet, Any]]]
        ] = {}
        self.traits_of: dict[str, tuple[list[str], dict[str, str]]] = {}
        self.fault: tuple[int, str] | None = None
        for which in range(NODES):
            self.nodes[f"n{which}"] = self.stamp(make_node(f"n{which}", "abc"[which]))
        for which in range(6):
            self.pods[f"p-{which}"] = self.stamp(make_pod(f"p-{which}", **self.pod_traits(which)))
        for key in KEYS:
            self.services[key] = self.stamp(
                make_service(key.partition("/")[2], selector=SELECTORS[key])
            )
        self.begin()
        self.sync()

    def stamp(self, new: Any, old: Any = None) -> Any:
        self.revision += 1
        meta = replace(
            new.metadata,
            resource_version=str(self.revision),
            generation=1 if old is None else old.metadata.generation + 1,
        )
        return replace(new, metadata=meta)

    def begin(self) -> None:
        """A process with empty hands lists everything."""
        self.engine = SliceEngine(MAX)
        self.echoes.clear()
        for found in self.slices.values():
            self.engine.on_slice(None, found)
        for pod in self.pods.values():
            self.engine.on_pod(None, pod)
        for service in self.services.values():
            self.engine.on_service(service)
        for node in self.nodes.values():
            self.engine.on_node(None, node)

    # -- one step

    def run(self, steps: int) -> None:
        for _ in range(steps):
            try:
                self.step()
            except Exception as error:
                raise AssertionError(f"seed {self.seed}, step {self.steps}: {error}") from error

    def step(self) -> None:
        self.steps += 1
        self.now += 1.0
        self.random.choices(ACTIONS, cum_weights=CUMULATIVE)[0](self)
        if self.random.random() < 0.1:
            return  # several changes, one sync
        self.sync()
        self.compare()

    def pod_traits(self, which: int) -> dict[str, Any]:
        pick = self.random.choice
        ips = (f"10.0.0.{which + 1}", f"fd00::{which + 1:x}")
        return {
            "labels": pick(
                (
                    {"app": "web"},
                    {"app": "web"},
                    {"app": "web", "tier": "front"},
                    {"tier": "front"},
                    {},
                )
            ),
            "node": pick(("n0", "n1", "n2", "n2", "lost")),
            "ips": pick((ips, ips, ips[:1], ips[1:], ())),
            "ready": self.random.random() < 0.8,
            "port": pick((8080, 8080, 8080, 9090)),
            "uid": f"u{pick('12')}-{which}",
            "hostname": pick(("", "", "", "h")),
            "subdomain": "web",
        }

    def put_pod(self, name: str, pod: Pod | None) -> None:
        self.inputs += 1
        old = self.pods.pop(name, None)
        if pod is not None:
            pod = self.pods[name] = self.stamp(pod, old)
        if old is not None and pod is not None and old.metadata.uid != pod.metadata.uid:
            self.engine.on_pod(old, None)
            old = None
        if old is not None or pod is not None:
            self.engine.on_pod(old, pod)

    def pod_turns(self) -> None:
        name = self.any(self.pods)
        if name:
            pod = self.pods[name]
            (ready,) = pod.status.conditions or ()
            turned = replace(ready, status="False" if ready.status == "True" else "True")
            self.put_pod(name, replace(pod, status=replace(pod.status, conditions=(turned,))))

    def pod_comes(self) -> None:
        which = self.random.randrange(PODS)
        self.put_pod(f"p-{which}", make_pod(f"p-{which}", **self.pod_traits(which)))

    def pods_come(self) -> None:
        for which in range(self.random.randrange(PODS), PODS):
            if f"p-{which}" not in self.pods:
                self.put_pod(f"p-{which}", make_pod(f"p-{which}", ips=(f"10.0.0.{which + 1}",)))

    def pod_goes(self) -> None:
        self.put_pod(self.any(self.pods), None)

    def pods_go(self) -> None:
        for name in self.random.sample(sorted(self.pods), len(self.pods) // 2):
            self.put_pod(name, None)

    def pod_ends(self) -> None:
        name = self.any(self.pods)
        if name:
            pod = self.pods[name]
            if self.random.random() < 0.5:
                self.put_pod(name, replace(pod, status=replace(pod.status, phase="Failed")))
            else:
                gone = replace(pod.metadata, deletion_timestamp="2026-11-21T11:00:00Z")
                self.put_pod(name, replace(pod, metadata=gone))

    def node_changes(self) -> None:
        self.inputs += 1
        name = f"n{self.random.randrange(NODES)}"
        old = self.nodes.pop(name, None)
        if old is None or self.random.random() < 0.7:
            self.nodes[name] = self.stamp(
                make_node(name, self.random.choice(("a", "b", "c", ""))), old
            )
        self.engine.on_node(old, self.nodes.get(name))

    def service_changes(self) -> None:
        self.inputs += 1
        key = self.random.choice(KEYS)
        old = self.services[key]
        pick, spec = self.random.choice, old.spec
        match self.random.randrange(6):
            case 0:
                spec = replace(spec, ports=pick((NUMERIC, NUMERIC, NAMED, ())))
            case 1:
                spec = replace(
                    spec, ip_families=pick((("IPv4",), ("IPv6",), ("IPv4", "IPv6"), None))
                )
            case 2:
                spec = replace(
                    spec, publish_not_ready_addresses=not spec.publish_not_ready_addresses
                )
            case 3:
                spec = replace(
                    spec, traffic_distribution=pick((None, "PreferClose", "PreferSameNode"))
                )
            case 4:
                spec = replace(spec, cluster_ip=pick(("10.96.0.1", "None")))
        labels = (
            pick((None, {"team": "a"}, {"team": "b"})) if spec is old.spec else old.metadata.labels
        )
        self.services[key] = self.stamp(
            replace(old, spec=spec, metadata=replace(old.metadata, labels=labels)), old
        )
        self.engine.on_service(self.services[key])

    def any(self, names: dict[str, Any]) -> str:
        return self.random.choice(sorted(names)) if names else ""

    # -- other hands, and faults

    def foreign_edit(self) -> None:
        name = self.any(self.slices)
        if not name:
            return
        self.tell_upstream = False
        found = self.slices[name]
        match self.random.randrange(5):
            case 0:
                self.put_slice(name, replace(found, endpoints=(found.endpoints or ())[1:]))
            case 1:
                number = self.revision % 250 + 1
                stray = SliceEndpoint(
                    addresses=(
                        f"10.9.9.{number}" if found.address_type == "IPv4" else f"fd99::{number:x}",
                    )
                )
                self.put_slice(name, replace(found, endpoints=(*(found.endpoints or ()), stray)))
            case 2:
                self.put_slice(
                    name,
                    replace(found, metadata=replace(found.metadata, labels=labels_taken(found))),
                )
            case 3:
                self.put_slice(
                    name, replace(found, metadata=replace(found.metadata, owner_references=None))
                )
            case 4:
                self.put_slice(name, None)

    def restart(self) -> None:
        self.begin()

    def refused(self) -> None:
        self.pod_turns()
        self.fault = (
            self.random.randrange(3),
            self.random.choice(("refused", "conflict", "lost answer", "no answer")),
        )

    # -- the server

    def put_slice(self, name: str, new: EndpointSlice | None) -> EndpointSlice | None:
        old = self.slices.pop(name, None)
        self.shown.pop(name, None)
        if new is not None:
            new = self.slices[name] = self.stamp(new, old)
            endpoints = {identity(each): encode(each) for each in new.endpoints or ()}
            assert len(endpoints) == len(new.endpoints or ()), f"{name} lists an endpoint twice"
            self.shown[name] = (oracle.port_set(new.ports or ()), endpoints)
        self.echoes.append((old, new))
        return new

    def perform(self, write: SliceWrite) -> bytes:
        if write.verb == "create":
            new = decode(write.body, EndpointSlice)
            self.revision += 1
            name = f"{new.metadata.generate_name}{self.revision:09d}"
            meta = replace(new.metadata, name=name, uid=f"s{self.revision}", generate_name="")
            return encode(self.put_slice(name, replace(new, metadata=meta)))
        old = self.slices.get(write.name)
        stale = old is None or old.metadata.uid != write.uid
        if write.verb == "delete":
            if not stale:
                self.put_slice(write.name, None)
            return b"{}"
        if old is None or stale or old.metadata.resource_version != write.resource_version:
            raise conflict("endpointslices", "discovery.k8s.io", write.name, "modified")
        return encode(self.put_slice(write.name, decode(write.body, EndpointSlice)))

    # -- the host

    def hear(self, most: int) -> None:
        """The watch shows what it has not shown yet, up to *most*."""
        for old, new in self.echoes[:most]:
            self.engine.on_slice(old, new)
        del self.echoes[:most]

    def sync(self) -> None:
        self.syncs += 1
        clean = self.fault is None and self.tell_upstream
        if not clean:
            self.hear(self.random.randrange(4))
        counted, sent, asked = self.writes, self.sent_bytes, self.asked
        over = (
            {}
            if not clean
            else {(key, kind): self.adopted(key, kind) for key in KEYS for kind in FAMILIES}
        )
        for _ in range(12):
            wrote = [self.sync_one(key) for key in KEYS]
            heard = not self.echoes
            if any(wrote) and not clean and self.random.random() < 0.3:
                self.hear(self.random.randrange(3))
            else:
                self.hear(len(self.echoes))
            if heard and not any(wrote):
                break
        else:
            raise AssertionError("the engine does not come to rest")
        if clean:
            self.base_writes += self.writes - counted
            self.base_bytes += self.sent_bytes - sent
            self.compare_writes(
                over, self.writes - counted, self.sent_bytes - sent, self.asked - asked
            )
        for key in KEYS:
            self.sync_upstream(key, clean)
        self.tell_upstream, self.fault = True, None

    def sync_one(self, key: str) -> bool:
        """Whether there was something to do."""
        plan = self.engine.plan(key, self.now)
        if not plan.writes:
            return plan.stale or self.confirm(key)
        answers: list[bytes] = []
        error: StatusError | None = None
        for index, write in enumerate(plan.writes):
            try:
                if self.fault is not None and self.fault[0] == index:
                    how, self.fault = self.fault[1], None
                    self.tell_upstream = False
                    if how == "lost answer":
                        self.perform(write)
                    raise ERRORS[how]
                answers.append(self.perform(write))
                self.writes += 1
                if write.verb != "delete":
                    self.sent_bytes += FRAME_BYTES + sum(map(len, write.content.values()))
            except StatusError as failure:
                error = failure
                break
        if self.random.random() < 0.5:
            self.hear(len(self.echoes))  # the watch is faster than the answer
        self.engine.finish(key, plan, answers, error, self.now)
        return True

    def confirm(self, key: str) -> bool:
        """Many Pods that went without a word stay until a list says so, too.  Whether there was
        something to say.
        """
        question = self.engine.confirmation_query(key)
        if question is None or question.due > self.now:
            return False
        self.asked += 1
        self.engine.on_listed(key, self.pods, self.nodes, self.now)
        return True

    def adopted(self, key: str, kind: str) -> Upstream:
        """Upstream's packing over what the server holds now."""
        mine = sorted(name for name in self.slices if self.kind_of(name) == (key, kind))
        model = Upstream(MAX)
        model.adopt([(*self.shown[name], self.slices[name].metadata.labels or {}) for name in mine])
        return model

    def sync_model(self, model: Upstream, key: str, kind: str) -> None:
        types, labels = self.traits(key)
        if kind not in types:
            model.deletes += len(model.slices)
            model.slices = []
            return
        model.sync(self.wanted(key, kind), labels)

    def compare_writes(
        self, over: dict[tuple[str, str], Upstream], made: int, sent: int, asked: int
    ) -> None:
        """This sync, over the very same slices: never more writes, and with as many never more
        bytes.

        What else changed does not wait for a list that says whether Pods are gone, so each list
        that was *asked* for may cost each family of its Service a write that upstream, which
        believes at once, saves.
        """
        for (key, kind), model in over.items():
            self.sync_model(model, key, kind)
        most = sum(each.writes for each in over.values())
        most_asked = most + asked * len(FAMILIES)
        assert made <= most_asked, (
            f"{made} writes, upstream's packing makes {most}, and {asked} lists were asked for"
        )
        if made == most and not asked:
            most = sum(each.most_bytes for each in over.values())
            assert sent <= most, (
                f"{sent} bytes in {made} writes, upstream's packing sends {most} at most"
            )

    def sync_upstream(self, key: str, clean: bool) -> None:
        for kind in FAMILIES:
            model = self.upstream.setdefault((key, kind), Upstream(MAX))
            if clean:
                self.sync_model(model, key, kind)
            else:
                model.adopt(self.adopted(key, kind).taken())

    def kind_of(self, name: str) -> tuple[str, str]:
        found = self.slices[name]
        return (
            f"shop/{(found.metadata.labels or {}).get('kubernetes.io/service-name')}",
            found.address_type,
        )

    # -- comparing

    def wanted(self, key: str, kind: str) -> Groups:
        """What each Pod gives, as the oracle says; remembered for as long as nothing of it
        changes.
        """
        if self.wanted_at != self.inputs:
            self.wanted_at, self.groups = self.inputs, {}
        groups = self.groups.get((key, kind))
        if groups is None:
            groups = self.groups[key, kind] = {}
            stamp = self.services[key].metadata.resource_version
            for name, pod in self.pods.items():
                node = self.nodes.get(pod.spec.node_name)
                version = (
                    stamp,
                    pod.metadata.resource_version,
                    node.metadata.resource_version if node else "",
                )
                known = self.memory.get((key, kind, name))
                if known is None or known[0] != version:
                    known = self.memory[key, kind, name] = (
                        version,
                        self.given(self.services[key], kind, pod),
                    )
                for ports, endpoints in known[1]:
                    groups.setdefault(ports, {}).update(endpoints)
        return groups

    def given(
        self, service: Service, kind: str, pod: Pod
    ) -> list[tuple[oracle.PortSet, dict[str, bytes]]]:
        found = oracle.desired(service, kind, [pod], self.nodes)
        return [
            (ports, {identity(each): encode(each) for each in endpoints})
            for ports, endpoints in found.items()
        ]

    def traits(self, key: str) -> tuple[list[str], dict[str, str]]:
        """Address types and labels of a Service's slices."""
        service = self.services[key]
        known = self.traits_of.get(service.metadata.resource_version)
        if known is None:
            known = oracle.address_types(service), oracle.labels_of(service)
            self.traits_of[service.metadata.resource_version] = known
        return known

    def compare(self) -> None:
        by_kind: dict[tuple[str, str], list[str]] = {}
        for name in sorted(self.slices):
            by_kind.setdefault(self.kind_of(name), []).append(name)
        for key in KEYS:
            types, labels = self.traits(key)
            for kind in FAMILIES:
                names = by_kind.get((key, kind), [])
                if kind not in types:
                    assert not names, f"{key} keeps {names} of {kind}"
                    continue
                self.compare_slices(key, names, self.wanted(key, kind), labels)
        if self.steps % FULL_CHECK_STEPS == 0:
            self.engine.check()
            for service in self.services.values():
                oracle.check_converged(
                    service, self.pods.values(), self.nodes, self.slices.values(), MAX
                )

    def compare_slices(
        self, key: str, names: list[str], wanted: Groups, labels: dict[str, str]
    ) -> None:
        assert names, f"{key} has no slice, not even a placeholder"
        shown: Groups = {}
        count = 0
        for name in names:
            ports, endpoints = self.shown[name]
            assert len(endpoints) <= MAX, f"{name} has {len(endpoints)} endpoints"
            assert self.slices[name].metadata.labels == labels, (
                f"{name} has labels {self.slices[name].metadata.labels}"
            )
            assert ports in wanted or len(names) == 1, f"{key} keeps {name}"
            count += len(endpoints)
            if endpoints:
                shown.setdefault(ports, {}).update(endpoints)
        assert count == sum(map(len, shown.values())), f"{key} lists an endpoint twice"
        expected = {ports: endpoints for ports, endpoints in wanted.items() if endpoints}
        assert shown == expected, f"{key} shows {shown}, should {expected}"


def labels_taken(found: EndpointSlice) -> dict[str, str]:
    return {**(found.metadata.labels or {}), "taken": "yes"}


ERRORS: dict[str, StatusError] = {
    "refused": internal("no"),
    "conflict": conflict("endpointslices", "discovery.k8s.io", "x", "no"),
    "lost answer": unreachable("reset"),
    "no answer": unreachable("reset"),
}
_WEIGHTED: tuple[tuple[int, Callable[[History], None]], ...] = (
    (40, History.pod_turns),
    (18, History.pod_comes),
    (1, History.pods_come),
    (15, History.pod_goes),
    (1, History.pods_go),
    (5, History.pod_ends),
    (4, History.node_changes),
    (4, History.service_changes),
    (3, History.foreign_edit),
    (1, History.restart),
    (3, History.refused),
)
ACTIONS = [action for _, action in _WEIGHTED]
CUMULATIVE = [
    sum(weight for weight, _ in _WEIGHTED[: index + 1]) for index in range(len(_WEIGHTED))
]
