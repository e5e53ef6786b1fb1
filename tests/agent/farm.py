"""Agents, the judge and a server on virtual time; what happens to them is the test's to say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.lab.sim.stage import Stage

from sliceplane.agent.controller import AgentController
from sliceplane.agent.endpoints_controller import ExternalEndpointsController
from sliceplane.agent.tenure import AgentConfig, LeaseTerms
from sliceplane.api.core import Lease
from sliceplane.api.errors import StatusError, unreachable
from sliceplane.api.meta import Document
from sliceplane.api.scheme import EndpointSlices, Leases, Roles, Services
from sliceplane.consume.agents.checks import CheckSpec
from sliceplane.consume.agents.registration import (
    ANNOTATION_CIDRS,
    ANNOTATION_SERVICES,
    LABEL_AGENT,
    AgentPort,
    Registration,
)
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.network import Answer, Network
from sliceplane.lab.sim.process import Process

TCP = CheckSpec(kind="tcp", period_s=2.0)


class Link(Network):
    """A network of one process: ``up`` is whether it reaches the server."""

    def __init__(self, network: Network) -> None:
        self.__dict__.update(network.__dict__)
        self.up = True
        #: writes that found no way
        self.refused = 0

    def send(self, actor: str, write: Any, answer: Answer) -> None:
        if self.up:
            super().send(actor, write, answer)
        else:
            self.refused += 1
            self.scheduler.after(0.001, lambda: answer(unreachable("no way")))

    def refusal(self) -> StatusError | None:
        return super().refusal() if self.up else unreachable("no way")


class Agent(Process):
    """One start of an agent, and its process: ``well`` is what its checks find."""

    controller: AgentController

    def __init__(
        self, farm: Farm, config: AgentConfig, registrations: tuple[Registration, ...], link: Link
    ) -> None:
        self.link = link
        self.well = True
        super().__init__(
            f"agent-{config.name}-{config.start}",
            lambda: AgentController(
                config, registrations, Rng(len(config.start)), farm.stage.sim.scheduler.now
            ),
            link,
            Rng(hash_of(config.identity)),
        )
        self._scheduler.after(0.1, self._probe)

    def _probe(self) -> None:
        if self.alive:
            self._receive(self._take_probes)
            self._scheduler.after(0.1, self._probe)

    def _take_probes(self) -> None:
        for probe in self.controller.take_probes(self._scheduler.now):
            self.controller.on_result(probe, self.well, "", self._scheduler.now)
        self._schedule_work()

    def tell(self, say: Callable[[AgentController, float], object]) -> None:
        say(self.controller, self._scheduler.now)
        self._schedule_work()


def hash_of(text: str) -> int:
    return sum(byte << (8 * (index % 7)) for index, byte in enumerate(text.encode()))


class Farm:
    """A Service ``web`` without a selector, a judge, and agents that a test makes."""

    def __init__(self, **judge: Any) -> None:
        self.stage = Stage("garbage-collector", selector=None)
        self.sim = self.stage.sim
        self._judge_options = judge
        self._judges = 0
        self.judge_link = Link(self.sim.network)
        self.judge = self.new_judge()

    def new_judge(self) -> Process:
        """Another leader, who knows nothing."""
        if self._judges:
            self.judge.kill()
        self._judges += 1
        self.judge = Process(
            f"judge#{self._judges}",
            lambda: ExternalEndpointsController(**self._judge_options),
            self.judge_link,
            Rng(self._judges),
        )
        self.judge.start()
        return self.judge

    def registration(self, name: str, address: str, **more: Any) -> Registration:
        wanted = {"service": "web", "checks": (TCP,), "ports": (AgentPort("http", 8080),), **more}
        return Registration(agent=name, namespace="default", addresses=(address,), **wanted)

    def agent(
        self, name: str, address: str, *, start: str = "1", host: str = "", **more: Any
    ) -> Agent:
        terms = LeaseTerms(takeover=more.pop("takeover", False))
        config = AgentConfig(name=name, host=host or f"host-{name}", start=start, terms=terms)
        agent = Agent(
            self, config, (self.registration(name, address, **more),), Link(self.sim.network)
        )
        agent.start()
        return agent

    def grant(
        self, name: str, *services: str, cidrs: str | None = None, namespace: str = "default"
    ) -> None:
        """The Role of an agent, as ``sliceplane agent grant`` makes it."""
        annotations = {ANNOTATION_SERVICES: ",".join(services or ("web",))}
        if cidrs is not None:
            annotations[ANNOTATION_CIDRS] = cidrs
        head = {"name": f"agent-{name}", "labels": {LABEL_AGENT: name}, "annotations": annotations}
        self.stage.must("create", Roles, namespace, {"metadata": head})

    def wait(self, seconds: float) -> None:
        """Every half second all cores check themselves."""
        end = self.sim.scheduler.now + seconds
        while self.sim.scheduler.now < end:
            self.sim.scheduler.run_until(min(end, self.sim.scheduler.now + 0.5))
            self.judge.check()

    def wait_until(self, holds: Callable[[], bool], at_most_s: float) -> float:
        """How long it took."""
        began = self.sim.scheduler.now
        while not holds():
            assert self.sim.scheduler.now < began + at_most_s, (
                f"not within {at_most_s} s: {self.slices()}"
            )
            self.sim.scheduler.run_until(self.sim.scheduler.now + 0.05)
        return self.sim.scheduler.now - began

    def slices(self) -> list[Document]:
        return self.sim.server.documents(EndpointSlices, "default")

    def conditions(self, address: str) -> Document | None:
        for stored in self.slices():
            for endpoint in stored["endpoints"]:
                if address in endpoint["addresses"]:
                    return dict(endpoint["conditions"])
        return None

    def conditions_of(self, name: str) -> Document:
        """Of the one endpoint of the slice *name*."""
        (stored,) = (stored for stored in self.slices() if stored["metadata"]["name"] == name)
        return dict(stored["endpoints"][0]["conditions"])

    def is_ready(self, address: str) -> bool:
        conditions = self.conditions(address)
        return conditions is not None and conditions["ready"]

    def ready(self) -> int:
        return sum(
            endpoint["conditions"]["ready"]
            for stored in self.slices()
            for endpoint in stored["endpoints"]
        )

    def leases(self) -> list[str]:
        return [lease["metadata"]["name"] for lease in self.sim.server.documents(Leases, "default")]

    def annotations(self, address: str) -> dict[str, str]:
        for stored in self.slices():
            if any(address in endpoint["addresses"] for endpoint in stored["endpoints"]):
                return stored["metadata"]["annotations"]
        return {}

    def service(self) -> Document:
        (service,) = self.sim.server.documents(Services, "default")
        return service


__all__ = ["TCP", "Agent", "Farm", "Lease", "Link"]
