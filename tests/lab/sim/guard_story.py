"""One seed of a mass removal that no Pod told: what a Service shows meanwhile, commit by commit.

Pods are as they are (``alive``), whatever the API says of them. In some stories what the API server
says is wrong for good, and a hold is asked for: it is restored from a copy without Pods, or marks
all Pods of Nodes that fell silent. In the others it is wrong once, and a second look tells: part of
a list, a watch that deletes everything, a list without Nodes. Meanwhile users delete Pods and new
ones come.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from sliceplane.api.codec import encode
from sliceplane.api.meta import Document
from sliceplane.api.requests import Selection, Verb, Write
from sliceplane.api.scheme import ConfigMaps, Namespaces, Nodes, Pods, Resource, Services
from sliceplane.consume.removal_hold import RETAIN_S
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.checks.removals import RETAINED_MAX_S, Removals
from sliceplane.lab.sim.faults import parse_faults
from sliceplane.lab.sim.process import Process
from sliceplane.lab.sim.simulation import Options, Simulation
from sliceplane.lab.sim.streams import SimulatedInformer
from sliceplane.server.registry.types import ListOutcome
from sliceplane.slices.removing.guard import ANNOTATION_MASS_REMOVAL, GATHER_S, RETAIN_VALUE
from sliceplane.slices.removing.losses import CONFIRM_BOUND_S

STORIES = (
    "restored from an empty copy",
    "all Nodes silent",
    "half a list",
    "a list without most Pods of one Service",
    "a watch deletes everything",
    "a list without Nodes",
)
#: in these a fresh list says what is wrong for as long as it is
LASTING = 2
#: how long what was told may stay in a slice
TOLD_S = 1.0
NODES = 3
OTHERS = 60


class GuardStory:
    """Raises ``lab.sim.checks.steady.Broken`` where an invariant does not hold. *hold*: the Service
    or Namespace asks for it.
    """

    def __init__(self, seed: int, *, hold: bool = True) -> None:
        self.rng = Rng(seed)
        self.number = seed % len(STORIES)
        self.story = STORIES[self.number]
        self.lines: list[str] = []
        self.sim = Simulation(
            Options(
                seed=seed,
                steps=0,
                faults=parse_faults("none"),
                controllers=("endpointslice",),
                workload="classic",
            ),
            sink=self.lines.append,
        )
        self.hold = hold
        self.alive: dict[str, str] = {}
        self._made = 0
        self.removals = Removals(
            self.sim.server,
            self.sim.scheduler,
            reported_s=TOLD_S,
            inferred_s=(RETAINED_MAX_S if hold else CONFIRM_BOUND_S) + TOLD_S,
        )
        self.sim.server.listeners.append(self.removals.on_commit)

    # Writing

    def _write(
        self, verb: Verb, resource: Resource, name: str, body: Document, subresource: str = ""
    ) -> None:
        namespace = "default" if resource.namespaced else ""
        whole = (
            {"apiVersion": resource.api_version, "kind": resource.kind, **body}
            if verb == "create"
            else body
        )
        at = name if verb != "create" else ""
        self.sim.server.execute(
            Write(
                verb=verb,
                resource=resource,
                namespace=namespace,
                name=at,
                subresource=subresource,
                body=encode(whole) if whole else b"",
            )
        )

    def _status(self, name: str, address: str, *, ready: bool, containers: bool) -> None:
        conditions = [
            {"type": "Ready", "status": str(ready)},
            {"type": "ContainersReady", "status": str(containers)},
        ]
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": conditions,
        }
        self._write("patch", Pods, name, {"status": status}, "status")

    def _create(self, name: str, app: str, node: int, address: str) -> None:
        spec = {"nodeName": f"node-{node % NODES}", "containers": [{"name": "main", "image": app}]}
        self._write(
            "create", Pods, name, {"metadata": {"name": name, "labels": {"app": app}}, "spec": spec}
        )
        self._status(name, address, ready=True, containers=True)

    def _new_pod(self, address: str = "") -> str:
        self._made += 1
        name = f"web-{self._made}"
        at = address or f"10.0.{self._made // 200}.{1 + self._made % 200}"
        self._create(name, "web", self._made, at)
        self.alive[name] = at
        return name

    def _dies(self, name: str) -> str:
        """Its address."""
        self.removals.alive.discard(name)
        return self.alive.pop(name)

    def _delete(self, name: str) -> None:
        """By its user; it is over when this returns."""
        self._dies(name)
        self._write("delete", Pods, name, {"gracePeriodSeconds": 0})
        self._within(TOLD_S, lambda: name not in self.published(), f"{name} was deleted and stayed")

    def _fail_probe(self, name: str) -> None:
        """Its own containers say that they are not ready."""
        self._status(name, self._dies(name), ready=False, containers=False)
        self._within(
            TOLD_S,
            lambda: name not in self.published(),
            f"{name} said that it is not ready and stayed",
        )

    # What slices show

    def published(self) -> set[str]:
        return {name for name, _, _ in self.removals.published() if name.startswith("web-")}

    def _within(self, seconds: float, holds: Callable[[], bool], what: str) -> None:
        scheduler = self.sim.scheduler
        until = scheduler.now + seconds
        while not holds():
            if scheduler.now > until:
                self.removals.check()
                raise AssertionError(what)
            scheduler.run_until(scheduler.now + 0.05)

    def wait(self, seconds: float) -> None:
        scheduler = self.sim.scheduler
        until = scheduler.now + seconds
        while scheduler.now < until:
            scheduler.run_until(min(scheduler.now + 20.0, until))
            self.removals.check()

    # The story

    def begin(self) -> None:
        """A Service whose endpoints have stood for two minutes."""
        for number in range(NODES):
            self._write("create", Nodes, "", {"metadata": {"name": f"node-{number}"}})
        annotations = {}
        if self.hold and self.rng.below(2):
            self._write(
                "patch",
                Namespaces,
                "default",
                {"metadata": {"annotations": {ANNOTATION_MASS_REMOVAL: RETAIN_VALUE}}},
            )
        elif self.hold:
            annotations = {ANNOTATION_MASS_REMOVAL: RETAIN_VALUE}
        spec = {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]}
        self._write(
            "create",
            Services,
            "web",
            {"metadata": {"name": "web", "annotations": annotations}, "spec": spec},
        )
        if self.number == 3:
            for number in range(OTHERS):  # more than are lost: the list is not one that lacks most
                self._create(f"other-{number}", "other", number, f"10.9.0.{1 + number}")
        for _ in range(4 + self.rng.below(20)):
            self._new_pod()
        self.sim.start("endpointslice")
        self.wait(130.0 + self.rng.uniform(0.0, 60.0))
        assert self.published() == self.alive.keys(), "the story begins with all that is alive"

    def silence(self) -> None:
        """All Nodes, at once."""
        for name, address in sorted(self.alive.items()):
            self._status(name, address, ready=False, containers=True)

    def run(self) -> None:
        self.begin()
        self.removals.alive = set(self.alive)
        if self.number == 1:
            self._nodes_fall_silent()
        elif self.number == 4:
            self._watch_deletes_everything()
        else:
            self._list_is_wrong()

    def _meanwhile(self, *, deletes: bool) -> None:
        """What is told, and what comes, passes at once."""
        for leave in (self._delete, self._fail_probe):
            if deletes and len(self.alive) > 1:
                leave(sorted(self.alive)[self.rng.below(len(self.alive))])
        self.wait(self.rng.uniform(0.0, 20.0))
        name = self._new_pod()
        self._within(TOLD_S, lambda: name in self.published(), f"{name} is ready and was not added")

    def _nodes_fall_silent(self) -> None:
        began = self.sim.scheduler.now
        silent = sorted(self.alive)
        for name in silent:
            self._status(name, self.alive[name], ready=False, containers=True)
            self.wait(self.rng.uniform(0.0, 0.9 * GATHER_S / len(silent)))
        self._meanwhile(deletes=True)
        silent = [name for name in silent if name in self.alive]
        if self.rng.below(2):
            self.wait(self.rng.uniform(0.0, RETAIN_S - 60.0))
            for name in silent:
                self._status(name, self.alive[name], ready=True, containers=True)
            self.wait(RETAINED_MAX_S)
            self.removals.check_alive()
            return
        if len(silent) > 1:
            taken = silent.pop()
            heir = self._new_pod(self._dies(taken))
            self._within(
                TOLD_S,
                lambda: taken not in self.published(),
                f"{taken} has the address of {heir} and stayed",
            )
        self.wait(began + RETAIN_S - 1.0 - self.sim.scheduler.now)
        self.removals.check_alive()
        self.removals.alive.clear()
        self.wait(RETAINED_MAX_S)

    def _list_is_wrong(self) -> None:
        server = self.sim.server
        whole = server.page
        wrong = [True]
        lacking = Nodes if self.number == 5 else Pods

        def page(selection: Selection, limit: int, continue_token: str) -> ListOutcome:
            outcome = whole(selection, limit, continue_token)
            if selection.resource is not lacking or not wrong[0]:
                return outcome
            wrong[0] = self.number < LASTING
            kept = (len(outcome.records) - 1) // 2
            records = outcome.records[:kept] if self.number == 2 else ()
            if self.number == 3:
                mine = [record for record in outcome.records if record.key.name.startswith("web-")]
                lost = mine[: len(mine) // 2 + 1 + self.rng.below(len(mine) // 2)]
                records = tuple(record for record in outcome.records if record not in lost)
            return replace(outcome, records=records)

        server.page = page  # type: ignore[method-assign]  # a server that answers wrongly
        self._relist()
        self._meanwhile(deletes=self.number >= LASTING)
        self.wait(self.rng.uniform(5.0, RETAIN_S - 60.0))
        wrong[0] = False
        self._relist()
        self.wait(RETAINED_MAX_S)
        self.removals.check_alive()

    def _watch_deletes_everything(self) -> None:
        """The server's own state is whole."""
        informer = self._informer(Pods)
        for held in list(informer.reflector.cache):
            meta = replace(held.metadata, resource_version=informer.reflector.resource_version)
            informer.reflector.on_watch_event(
                "DELETED", encode(replace(held, metadata=meta)), self.sim.scheduler.now
            )
        informer._apply_actions()
        self.wait(0.2)
        self._meanwhile(deletes=True)
        self.wait(RETAINED_MAX_S)
        self.removals.check_alive()

    # Its only process

    def _process(self) -> Process:
        process = self.sim.processes["endpointslice"]
        assert isinstance(process, Process), f"{process} is one of several"
        return process

    def _informer(self, resource: Resource) -> SimulatedInformer:
        return next(
            each for each in self._process()._informers if each.selection.resource is resource
        )

    def _relist(self) -> None:
        self._process().cut_watches()
        self._write("create", ConfigMaps, "", {"metadata": {"generateName": "passes-"}})
        self.sim.server.forget_history()
        self.wait(15.0)  # two back-offs, and a list in doubt
