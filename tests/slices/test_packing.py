"""Packing by example; that it never writes more than full packing is a property test elsewhere."""

from __future__ import annotations

from tests.slices.fake_cluster import make_pod

from sliceplane.api.core import ServicePort
from sliceplane.api.meta import ObjectMeta
from sliceplane.slices.content import PortResolver, Stored
from sliceplane.slices.facts import PodFacts
from sliceplane.slices.packing.packer import SlicePacker
from sliceplane.slices.packing.packplan import PackPlan
from sliceplane.slices.packing.placement import Desired

LABELS = {"l": "1"}
RESOLVER = PortResolver(
    (ServicePort(name="a", port=80), ServicePort(name="b", port=81, target_port="http"))
)
GROUP = RESOLVER.group_of(PodFacts(make_pod("p-1")))
OTHER = RESOLVER.group_of(PodFacts(make_pod("p-1", port=9)))


class Bench:
    """A packer of slices with at most four endpoints."""

    def __init__(self) -> None:
        self.packer = SlicePacker(RESOLVER, 4)

    def want(self, *pods: str, body: bytes = b"{}", group: object = GROUP) -> None:
        assert group is GROUP or group is OTHER
        for pod in pods:
            self.packer.set_desired(
                pod, Desired(GROUP if group is GROUP else OTHER, f"{pod} ip", body)
            )

    def hold(
        self, name: str, *pods: str, group: object = GROUP, labels: dict[str, str] = LABELS
    ) -> None:
        ports = GROUP.ports if group is GROUP else OTHER.ports if group is OTHER else ()
        meta = ObjectMeta(name=name, uid=name, labels=labels)
        self.packer.attach(Stored(meta, "IPv4", ports, {f"{pod} ip": b"{}" for pod in pods}))

    def plan(self) -> tuple[list[str], dict[str, str], list[str]]:
        self.packer.check()
        plan: PackPlan = self.packer.plan(LABELS)
        self.packer.check()

        def show(content: dict[str, bytes]) -> str:
            return " ".join(identity.split(" ")[0] for identity in content)

        creates = [show(each.content) for each in plan.creates]
        return (
            creates,
            {u.slice.name: show(u.content) for u in plan.updates},
            [s.name for s in plan.deletes],
        )


def test_new_endpoints_fill_new_slices() -> None:
    bench = Bench()
    bench.want("a", "b", "c", "d", "e")
    assert bench.plan() == (["a b c d", "e"], {}, [])


def test_nothing_to_do_is_nothing_done() -> None:
    bench = Bench()
    bench.want("a", "b")
    bench.hold("s1", "a", "b")
    assert bench.plan() == ([], {}, [])


def test_a_change_that_is_taken_back_is_no_change() -> None:
    bench = Bench()
    bench.want("a", "b")
    bench.hold("s1", "a", "b")
    bench.plan()
    bench.want("a", body=b"{1}")
    bench.packer.set_desired("b", None)
    bench.want("b")
    bench.want("a")
    assert bench.plan() == ([], {}, [])


def test_leftovers_fill_slices_that_are_written_anyway_fullest_first() -> None:
    bench = Bench()
    bench.want("a", "b", "c", "d", "n1", "n2")
    bench.hold("s1", "a", "gone")
    bench.hold("s2", "b", "c", "d", "lost")
    assert bench.plan() == ([], {"s1": "a n2", "s2": "b c d n1"}, [])


def test_leftovers_go_whole_into_the_fullest_slice_with_room_for_all() -> None:
    bench = Bench()
    bench.want("a", "b", "c", "d", "e", "n1", "n2")
    bench.hold("s1", "a")
    bench.hold("s2", "b", "c")
    bench.hold("s3", "d", "e", "x")
    bench.packer.detach("s3")
    bench.hold("s3", "d", "e")
    assert bench.plan() == ([], {"s3": "d e n1 n2"}, [])
    bench.want("n3")
    assert bench.plan() == ([], {"s1": "a n1 n2 n3"}, [])
    bench.want("n4")
    assert bench.plan() == (["n1 n2 n3 n4"], {}, [])


def test_a_slice_over_the_maximum_is_left_so() -> None:
    bench = Bench()
    bench.want("a", "b", "c", "d", "e", "f")
    bench.hold("s1", "a", "b", "c", "d", "e")
    assert bench.plan() == (["f"], {}, [])


def test_an_emptied_slice_goes_or_is_used_again() -> None:
    bench = Bench()
    bench.want("a")
    bench.hold("s1", "a")
    bench.hold("s2", "gone")
    assert bench.plan() == ([], {}, ["s2"])
    bench.want("b", group=OTHER)
    assert bench.plan() == ([], {"s2": "b"}, [])


def test_scale_to_zero_and_back_is_two_updates_of_one_slice() -> None:
    bench = Bench()
    bench.want("a")
    bench.hold("s1", "a")
    bench.packer.set_desired("a", None)
    assert bench.plan() == ([], {"s1": ""}, [])
    bench.hold("s1", group=None)
    assert bench.plan() == ([], {}, [])
    bench.want("a")
    assert bench.plan() == ([], {"s1": "a"}, [])


def test_a_service_without_endpoints_has_one_placeholder() -> None:
    bench = Bench()
    assert bench.plan() == ([""], {}, [])
    bench.hold("s1", group=None)
    bench.hold("s2", group=None)
    assert bench.plan() == ([], {}, ["s2"])
    bench.packer.detach("s2")
    bench.packer.detach("s1")
    bench.hold("s1", group=None, labels={})
    assert bench.plan() == ([], {"s1": ""}, [])


def test_a_duplicate_stays_in_the_slice_with_the_least_name() -> None:
    bench = Bench()
    bench.want("a", "b", "c")
    bench.hold("s2", "a", "b")
    bench.hold("s1", "a", "c")
    assert bench.plan() == ([], {"s2": "b"}, [])
    bench.packer.detach("s1")
    bench.hold("s1", "c")
    assert bench.plan() == ([], {}, [])


def test_a_pod_without_address_keeps_its_empty_group_alive() -> None:
    bench = Bench()
    bench.packer.set_desired("a", Desired(GROUP, "", b""))
    bench.hold("s1")
    assert bench.plan() == ([], {}, [])
    bench.packer.set_desired("a", None)
    assert bench.plan() == ([], {"s1": ""}, [])  # now the placeholder, without ports


def test_labels_alone_are_worth_a_write() -> None:
    bench = Bench()
    bench.want("a")
    bench.hold("s1", "a", labels={"l": "1", "foreign": "2"})
    assert bench.plan() == ([], {"s1": "a"}, [])
