"""One seed of a mass removal that no Pod told: what a Service shows meanwhile, commit by commit.

Pods are as they are (``alive``), whatever the API says of them; the API is restored from a copy without Pods, marks all
Pods of Nodes that fell silent, or answers once with part of a list.  Meanwhile users delete Pods and new ones come.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sliceplane.api.codec import decode, encode
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Document
from sliceplane.api.requests import Selection, Verb, Write
from sliceplane.api.scheme import ConfigMaps, EndpointSlices, Nodes, Pods, Resource, Services
from sliceplane.kit.rng import Rng
from sliceplane.registry.types import ListOutcome
from sliceplane.sim.faults import parse_faults
from sliceplane.sim.process import Process
from sliceplane.sim.simulation import Options, Simulation
from sliceplane.slices.guard import ANNOTATION_MASS_REMOVAL, GATHER_S, HOLD, HOLD_S, STEP_S
from sliceplane.store.types import StoreEvent

STORIES = ("restored from an empty copy", "all Nodes silent", "half a list")
#: how long what was told may stay in a slice
TOLD_S = 1.0
NODES = 3


class GuardStory:
    """``lost`` is how many endpoints were missing that were alive; ``overdue`` those held beyond the bound."""

    def __init__(self, seed: int, *, hold: bool = True) -> None:
        self.rng = Rng(seed)
        self.story = STORIES[seed % len(STORIES)]
        self.lines: list[str] = []
        self.sim = Simulation(
            Options(
                seed=seed, steps=0, faults=parse_faults("none"), controllers=("endpointslice",), workload="classic"
            ),
            sink=self.lines.append,
        )
        self.hold = hold
        self.alive: dict[str, str] = {}
        self.told: list[str] = []
        self.lost = 0
        self.slow: list[str] = []
        self.overdue: list[str] = []
        self._watched = False
        self._made = 0
        self.sim.server.listeners.append(self._on_commit)

    # Writing

    def _write(self, verb: Verb, resource: Resource, name: str, body: Document, subresource: str = "") -> None:
        namespace = "default" if resource is not Nodes else ""
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body} if verb == "create" else body
        at = name if verb != "create" else ""
        self.sim.server.perform(
            Write(
                verb=verb,
                resource=resource,
                namespace=namespace,
                name=at,
                subresource=subresource,
                body=encode(whole) if whole else b"",
            )
        )

    def _status(self, name: str, *, ready: bool, containers: bool) -> None:
        conditions = [
            {"type": "Ready", "status": str(ready)},
            {"type": "ContainersReady", "status": str(containers)},
        ]
        address = self.alive[name]
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
        self._write("patch", Pods, name, {"status": status}, "status")

    def _new_pod(self, address: str = "") -> str:
        self._made += 1
        name = f"web-{self._made}"
        self.alive[name] = address or f"10.0.{self._made // 200}.{1 + self._made % 200}"
        containers = [{"name": "main", "image": "web"}]
        node = f"node-{self._made % NODES}"
        body = {
            "metadata": {"name": name, "labels": {"app": "web"}},
            "spec": {"nodeName": node, "containers": containers},
        }
        self._write("create", Pods, name, body)
        self._status(name, ready=True, containers=True)
        return name

    def _delete(self, name: str) -> None:
        """By its user; it is over when this returns."""
        del self.alive[name]
        self._write("delete", Pods, name, {"gracePeriodSeconds": 0})
        self._within(TOLD_S, lambda: name not in self.published(), f"{name} was deleted and stayed")

    # What slices show

    def published(self) -> set[str]:
        shown: set[str] = set()
        for record in self.sim.server.records(EndpointSlices, "default"):
            for endpoint in decode(record.body, EndpointSlice).endpoints or ():
                if endpoint.conditions.ready and endpoint.target_ref is not None:
                    shown.add(endpoint.target_ref.name)
        return shown

    def _on_commit(self, event: StoreEvent) -> None:
        if self._watched and event.record.key.resource == EndpointSlices.storage_key:
            self.lost += len(self._known_alive - self.published() - (self._known_alive - self.alive.keys()))

    def _within(self, seconds: float, holds: Callable[[], bool], what: str) -> None:
        agenda = self.sim.agenda
        until = agenda.now + seconds
        while not holds():
            if agenda.now >= until:
                self.slow.append(what)
                return
            agenda.run_until(agenda.now + 0.05)

    def _pass(self, seconds: float) -> None:
        self.sim.agenda.run_until(self.sim.agenda.now + seconds)

    # The story

    def begin(self) -> None:
        """A Service whose endpoints have stood for two minutes."""
        for number in range(NODES):
            self._write("create", Nodes, "", {"metadata": {"name": f"node-{number}"}})
        annotations = {ANNOTATION_MASS_REMOVAL: HOLD} if self.hold else {}
        spec = {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]}
        self._write("create", Services, "web", {"metadata": {"name": "web", "annotations": annotations}, "spec": spec})
        for _ in range(4 + self.rng.below(20)):
            self._new_pod()
        self.sim.start("endpointslice")
        self._pass(130.0 + self.rng.uniform(0.0, 60.0))
        assert self.published() == self.alive.keys(), "the story begins with all that is alive"

    def silence(self) -> None:
        """All Nodes, at once."""
        for name in sorted(self.alive):
            self._status(name, ready=False, containers=True)

    def run(self) -> None:
        self.begin()
        self._known_alive = set(self.alive)
        self._watched = True
        if self.story == STORIES[1]:
            self._nodes_fall_silent()
        else:
            self._list_is_wrong(once=self.story == STORIES[2])
        self._watched = False

    def _meanwhile(self, *, deletes: bool) -> None:
        """What is told, and what comes, passes at once."""
        if deletes and len(self.alive) > 1:
            self._delete(sorted(self.alive)[self.rng.below(len(self.alive))])
        self._pass(self.rng.uniform(0.0, 20.0))
        name = self._new_pod()
        self._within(TOLD_S, lambda: name in self.published(), f"{name} is ready and was not added")

    def _nodes_fall_silent(self) -> None:
        began = self.sim.agenda.now
        silent = sorted(self.alive)
        for name in silent:
            self._status(name, ready=False, containers=True)
            self._pass(self.rng.uniform(0.0, 0.9 * GATHER_S / len(silent)))
        self._meanwhile(deletes=True)
        silent = [name for name in silent if name in self.alive]
        if self.rng.below(2):
            self._pass(self.rng.uniform(0.0, HOLD_S - 60.0))
            for name in silent:
                self._status(name, ready=True, containers=True)
            self._pass(HOLD_S + 12 * STEP_S)
            self.lost += len(self.alive.keys() - self.published())
            return
        if len(silent) > 1:
            taken = silent.pop()
            address = self.alive.pop(taken)
            heir = self._new_pod(address)
            self._within(TOLD_S, lambda: taken not in self.published(), f"{taken} has the address of {heir} and stayed")
        self._pass(began + HOLD_S - 1.0 - self.sim.agenda.now)
        self.lost += len(self.alive.keys() - self.published())
        self._watched = False
        self._pass(GATHER_S + 11 * STEP_S + 2.0)
        self.overdue = sorted(set(silent) & self.published())

    def _list_is_wrong(self, *, once: bool) -> None:
        server = self.sim.server
        whole = server.page
        wrong = [True]

        def page(selection: Selection, limit: int, continue_token: str) -> ListOutcome:
            outcome = whole(selection, limit, continue_token)
            if selection.resource is not Pods or not wrong[0]:
                return outcome
            wrong[0] = not once
            kept = (len(outcome.records) - 1) // 2 if once else 0
            return dataclasses.replace(outcome, records=outcome.records[:kept])

        server.page = page  # type: ignore[method-assign]  # a server that answers wrongly
        self._relist()
        self._meanwhile(deletes=once)
        self._pass(self.rng.uniform(5.0, HOLD_S - 60.0))
        wrong[0] = False
        self._relist()
        self._pass(HOLD_S + 12 * STEP_S)
        self.lost += len(self.alive.keys() - self.published())

    def _relist(self) -> None:
        process = self.sim.processes["endpointslice"]
        assert isinstance(process, Process), f"{process} is one of several"
        process.cut_watches()
        self._write("create", ConfigMaps, "", {"metadata": {"generateName": "passes-"}})
        self.sim.server.forget_history()
        self._pass(15.0)  # two back-offs, and a list in doubt
