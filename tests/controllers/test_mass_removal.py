"""What is read before many endpoints go that no Pod told, how often, and what a Namespace has a say
in.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.slices.fake_cluster import FakeCluster, make_node, make_pod, make_service

from sliceplane.api.core import Condition, Namespace
from sliceplane.api.errors import internal
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import Namespaces, Nodes, Pods
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.controllers.mass_removal import CONFIRM_KEY
from sliceplane.slices.removing.guard import ANNOTATION_MASS_REMOVAL, GATHER_S
from sliceplane.slices.removing.losses import CONFIRM_BOUND_S
from sliceplane.watch.controller.base import Job

COUNT = 10


class Plane:
    """Services ``web-0``, ``web-1``, ..., each with ten Pods of its own that have stood for three
    minutes.
    """

    def __init__(
        self, services: int = 1, *, flag: bool = False, service: str = "", namespace: str = ""
    ) -> None:
        self.cluster = FakeCluster()
        self.cluster.put(
            Namespace(metadata=ObjectMeta(name="shop", annotations=_asking(namespace))), Namespaces
        )
        self.cluster.put(make_node("n0", "a"))
        for number in range(services):
            app = {"app": f"web-{number}"}
            self.cluster.put(
                make_service(f"web-{number}", selector=app, annotations=_asking(service))
            )
            for pod in range(COUNT):
                self.cluster.put(make_pod(f"web-{number * COUNT + pod}", labels=app))
        self.controller = EndpointSliceController(EndpointSliceConfig(hold_mass_removals=flag))
        self.now = 6000.0
        self.cluster.start(self.controller, self.now)
        self.reads: list[str] = []
        self.settle()
        self.now += 180.0

    def settle(self, *, refuse: bool = False) -> None:
        """All that follows at this moment.  *refuse*: nothing can be read."""
        while True:
            self.cluster.deliver(self.controller, self.now)
            work = self.controller.take_work(self.now, 10)
            for job in work.jobs:
                if job.key == CONFIRM_KEY:
                    self.reads += [
                        f"{read.verb} {read.resource.plural} {read.label_selector}"
                        for read in job.writes
                    ]
                fails = refuse and job.key == CONFIRM_KEY
                done = self.cluster.run(
                    job, fail_at=0 if fails else None, error=internal("no list can be had")
                )
                self.controller.on_done(done, self.now)
            self.controller.check()
            if not work.jobs and not self.cluster.pending:
                return

    def wait(self, seconds: float, *, refuse: bool = False) -> None:
        for _ in range(round(seconds)):
            self.now += 1.0
            self.settle(refuse=refuse)

    def silence(self, *numbers: int) -> None:
        """The Nodes of these Pods fall silent."""
        for number in numbers:
            labels = {"app": f"web-{number // COUNT}"}
            pod = make_pod(f"web-{number}", labels=labels, ready=False)
            contained = Condition(type="ContainersReady", status="True")
            conditions = (*(pod.status.conditions or ()), contained)
            self.cluster.put(replace(pod, status=replace(pod.status, conditions=conditions)))

    def ready(self) -> int:
        return sum(endpoint.conditions.ready is True for endpoint in self.cluster.endpoints())


def _asking(value: str) -> dict[str, str] | None:
    return {ANNOTATION_MASS_REMOVAL: value} if value else None


def test_what_a_list_confirms_goes_at_once() -> None:
    plane = Plane()
    plane.silence(*range(COUNT))
    plane.settle()
    assert plane.ready() == 0
    assert plane.reads == ["get namespaces ", "list pods app=web-0"]


def test_a_few_are_not_worth_a_list() -> None:
    plane = Plane(service="no")
    plane.silence(0, 1, 2)
    plane.settle()
    assert (plane.ready(), plane.reads) == (COUNT - 3, [])


def test_many_services_of_a_namespace_cost_one_list() -> None:
    plane = Plane(20)
    plane.silence(*range(20 * COUNT))
    plane.settle()
    assert plane.ready() == 0
    assert plane.reads.count("list pods ") <= 2, plane.reads
    assert len(plane.reads) <= 6, plane.reads


def test_what_is_told_goes_while_others_are_in_doubt() -> None:
    plane = Plane(service="no")
    plane.silence(*range(1, COUNT))
    plane.cluster.remove(Pods, "shop", "web-0")
    plane.cluster.put(make_pod("web-1", labels={"app": "web-0"}, terminating=True))
    plane.settle(refuse=True)
    assert plane.ready() == COUNT - 1, (
        "one that says that it goes has gone; the other was deleted by force, among many"
    )
    plane.wait(1.0)
    assert plane.ready() == 0


def test_forced_deletions_are_confirmed_and_never_held() -> None:
    plane = Plane(flag=True)
    for number in range(COUNT):
        plane.cluster.remove(Pods, "shop", f"web-{number}")
    plane.settle()
    assert (plane.ready(), plane.reads) == (0, ["list pods app=web-0"])


def test_a_deleted_node_is_read_too() -> None:
    plane = Plane(flag=True)
    plane.cluster.remove(Nodes, "", "n0")
    plane.settle()
    assert (plane.ready(), plane.reads) == (0, ["list pods app=web-0", "list nodes "])


def test_what_cannot_be_read_goes_after_the_bound() -> None:
    plane = Plane()
    plane.silence(*range(COUNT))
    plane.settle(refuse=True)
    plane.wait(CONFIRM_BOUND_S - 1.0, refuse=True)
    assert plane.ready() == COUNT
    assert len(plane.reads) <= 2 + 2 * CONFIRM_BOUND_S
    plane.wait(2.0, refuse=True)
    assert plane.ready() == 0


@pytest.mark.parametrize(
    ("flag", "namespace", "service", "holds"),
    [
        (False, "", "", False),
        (True, "", "", True),
        (False, "hold", "", True),
        (True, "no", "", False),
        (True, "hold", "no", False),
        (False, "no", "hold", True),
        (False, "", "hold", True),
    ],
)
def test_the_service_says_first_then_its_namespace_then_the_flag(
    flag: bool, namespace: str, service: str, holds: bool
) -> None:
    plane = Plane(flag=flag, service=service, namespace=namespace)
    plane.silence(0, 1, 2)
    plane.settle()
    plane.wait(GATHER_S - 5.0)
    assert plane.ready() == (COUNT if holds else COUNT - 3), (
        "those that fall silent first wait where holding is asked for"
    )
    plane.silence(*range(3, COUNT))
    plane.settle()
    plane.wait(60.0)
    assert plane.ready() == (COUNT if holds else 0)


def test_a_namespace_that_cannot_be_read_says_nothing() -> None:
    plane = Plane(flag=True)
    plane.silence(0)
    plane.settle(refuse=True)
    assert plane.ready() == COUNT
    plane.wait(GATHER_S + 1.0)
    assert plane.ready() == COUNT - 1, "it waited for others, as the flag asks"


def test_a_cache_that_is_wrong_is_listed_anew() -> None:
    """The cache lacks Pods that the server has."""
    plane = Plane(service="no")
    kept = dict(plane.cluster.objects)
    for number in range(COUNT):
        plane.cluster.remove(Pods, "shop", f"web-{number}")
    plane.cluster.objects = kept
    relisted = []
    for _ in range(3):
        plane.cluster.deliver(plane.controller, plane.now)
        for _ in range(4):
            work = plane.controller.take_work(plane.now, 10)
            relisted += [selection.resource for selection in work.relist]
            for job in work.jobs:
                answer(plane, job)
        assert plane.ready() == COUNT
        plane.now += 1.0
    assert relisted == [Pods]
    plane.cluster.relist(plane.controller, plane.now)
    plane.settle()
    assert plane.ready() == COUNT


def answer(plane: Plane, job: Job) -> None:
    plane.controller.on_done(plane.cluster.run(job), plane.now)
