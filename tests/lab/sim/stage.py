"""A simulation that follows a script: no chance but latency, no faults but those that the test
makes.
"""

from __future__ import annotations

from typing import Any

from sliceplane.api.meta import Document
from sliceplane.api.scheme import EndpointSlices, Nodes, Pods, Services
from sliceplane.lab.sim.faults import parse_faults
from sliceplane.lab.sim.process import Process
from sliceplane.lab.sim.simulation import Options, Simulation
from sliceplane.lab.sim.users import documents

ALONE = ("endpointslice", "garbage-collector")


class Stage:
    """A Service ``web`` in namespace default, Nodes bare-0 to bare-2 in zones a to c."""

    def __init__(self, *controllers: str, **service: Any) -> None:
        options = Options(
            seed=1,
            faults=parse_faults("none"),
            controllers=controllers or ALONE,
            workload="classic",
        )
        self.sim = Simulation(options)
        self.people = self.sim.workload
        self.server = self.sim.server
        for name in self.sim.options.controllers:
            self.sim.start(name)
        for which, zone in enumerate(("a", "b", "c")):
            self.must("create", Nodes, "", documents.node(f"bare-{which}", zone))
        ports = [{"name": "http", "port": 80, "targetPort": 8080}]
        spec = {"selector": {"app": "web"}, "ports": ports, **service}
        self.must("create", Services, "default", {"metadata": {"name": "web"}, "spec": spec})

    def must(self, *args: Any, **kwargs: Any) -> None:
        assert self.people.write(*args, **kwargs), f"refused: {args}"

    def pod(self, name: str, address: str, *, node: str = "bare-0", ready: bool = True) -> None:
        ports = [{"name": "web", "containerPort": 8080}]
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "i", "ports": ports}]}
        self.must(
            "create",
            Pods,
            "default",
            {"metadata": {"name": name, "labels": {"app": "web"}}, "spec": spec},
        )
        self.status(name, address, ready=ready)

    def status(self, name: str, address: str, *, ready: bool, phase: str = "Running") -> None:
        status = documents.pod_status([address], ready=ready, phase=phase)
        self.must("patch", Pods, "default", status, name, subresource="status")

    def pods(self, count: int) -> None:
        for which in range(count):
            self.pod(f"p-{which}", f"10.1.0.{which + 1}", node=f"bare-{which % 3}")

    def gone(self, name: str) -> None:
        self.must("delete", Pods, "default", {"gracePeriodSeconds": 0}, name)

    def service(self, change: Document) -> None:
        self.must("patch", Services, "default", change, "web")

    def process(self, name: str = "endpointslice") -> Process:
        found = self.sim.processes[name]
        assert isinstance(found, Process), f"{name} elects a leader"
        return found

    def wait(self, seconds: float) -> None:
        self.sim.scheduler.run_until(self.sim.scheduler.now + seconds)

    def rest(self) -> float:
        """Until nobody writes; every invariant is checked.  Gives how long it took."""
        took = self.sim.converge()
        self.sim.check()
        return took

    def slices(self) -> list[Document]:
        return self.server.documents(EndpointSlices, "default")

    def ready(self) -> list[str]:
        """Addresses that are told as ready."""
        found = [e for each in self.slices() for e in each["endpoints"] if e["conditions"]["ready"]]
        return sorted(address for each in found for address in each["addresses"])
