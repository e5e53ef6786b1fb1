"""The same histories with subsets: approaches change at run time, slices are relabelled, nothing is
ever missing.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from tests.controllers.test_endpointslice_convergence import MAX, Plane, find
from tests.effort import machine
from tests.slices.fake_cluster import make_node, make_pod, replace

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Service
from sliceplane.api.discovery import LABEL_FOR_REGION, LABEL_FOR_ZONE, EndpointSlice
from sliceplane.controllers.endpointslice import EndpointSliceConfig
from sliceplane.slices import oracle
from sliceplane.slices.subsets import ANNOTATION_SUBSETTING, APPROACHES
from sliceplane.slices.writes import SlicePlan
from sliceplane.watch.controller.base import Job

Shown = set[tuple[oracle.PortSet, tuple[str, ...], str]]


def shown(observed: EndpointSlice) -> Shown:
    ports = oracle.port_set(observed.ports or ())
    found: Shown = set()
    for each in observed.endpoints or ():
        target = "" if each.target_ref is None else each.target_ref.name
        found.add((ports, (*sorted(each.addresses), each.hostname or ""), target))
    return found


class SubsetPlane(Plane):
    def __init__(self) -> None:
        self.subsetting = "Original"
        self.defragment = False
        super().__init__()

    def config(self) -> EndpointSliceConfig:
        return EndpointSliceConfig(
            max_endpoints_per_slice=MAX,
            find_heuristic=find,
            subsetting=APPROACHES[self.subsetting],
            defragment=self.defragment,
            defragment_writes_per_minute=3,
        )

    @rule(approach=st.sampled_from(sorted(APPROACHES)), defragment=st.booleans())
    def other_flags(self, approach: str, defragment: bool) -> None:
        self.subsetting, self.defragment = approach, defragment
        self.restart()

    @rule()
    def quiet_for_a_while(self) -> None:
        self.now += 60.0

    @rule(
        name=st.sampled_from(("web", "api")),
        approach=st.sampled_from((*sorted(APPROACHES), None, "Odd")),
    )
    def annotate(self, name: str, approach: str | None) -> None:
        found = self.cluster.objects.get(("services", "shop", name))
        if isinstance(found, Service):
            kept = {
                k: v
                for k, v in (found.metadata.annotations or {}).items()
                if k != ANNOTATION_SUBSETTING
            }
            annotations = kept | ({ANNOTATION_SUBSETTING: approach} if approach else {})
            self.cluster.put(
                replace(found, metadata=replace(found.metadata, annotations=annotations or None))
            )

    @rule(first=st.integers(0, 8), count=st.integers(6, 14), apart=st.sampled_from((1, 2, 3)))
    def pods_of_all_zones(self, first: int, count: int, apart: int) -> None:
        for which, zone in enumerate("abc"):
            self.cluster.put(make_node(f"n{which}", zone))
        for which in range(first, first + count):
            self.cluster.put(make_pod(f"p-{which}", node=f"n{which % apart}"))

    @rule(swapped=st.permutations(("a", "b", "c")))
    def zones_change_places(self, swapped: list[str]) -> None:
        for which, zone in enumerate(swapped):
            self.cluster.put(make_node(f"n{which}", zone))

    @precondition(lambda self: self.ours())
    @rule(
        which=st.integers(0, 9),
        label=st.sampled_from((LABEL_FOR_ZONE, LABEL_FOR_ZONE, LABEL_FOR_REGION)),
        zone=st.sampled_from(("", "a", "b", "x")),
    )
    def relabel(self, which: int, label: str, zone: str) -> None:
        each = self.ours()[which % len(self.ours())]
        labels = {k: v for k, v in (each.metadata.labels or {}).items() if k != label}
        labels |= {label: zone} if zone else {}
        self.cluster.put(replace(each, metadata=replace(each.metadata, labels=labels)))

    def judge(self, job: Job) -> None:
        assert isinstance(job.token, SlicePlan), f"{job.token!r}"
        if not job.token.saves:  # packing alone would have nothing to write then
            super().judge(job)
        if not self.cluster.pending:
            self.nothing_is_missing_between(job)

    def teardown(self) -> None:
        super().teardown()
        if self.defragment:
            self.no_slice_is_one_too_many()

    def no_slice_is_one_too_many(self) -> None:
        groups: dict[bytes, list[int]] = {}
        for each in self.ours():
            labels = sorted((each.metadata.labels or {}).items())
            key = encode([labels, each.address_type, sorted(oracle.port_set(each.ports or ()))])
            groups.setdefault(key, []).append(len(each.endpoints or ()))
        for key, fills in groups.items():
            service = self.cluster.objects.get(("services", "shop", "web"))
            if isinstance(service, Service) and oracle.is_active(service) and b'"web"' in key:
                assert len(fills) == max(-(-sum(fills) // MAX), 1), f"{key!r} has slices of {fills}"

    def nothing_is_missing_between(self, job: Job) -> None:
        """What is shown before all writes and after all of them is shown after each."""
        name = job.key.partition("/")[2]
        live = [
            s
            for s in self.ours()
            if (s.metadata.labels or {}).get("kubernetes.io/service-name") == name
        ]
        states = {each.metadata.name: shown(each) for each in live}
        steps = [set().union(*states.values())]
        for number, write in enumerate(job.writes):
            if write.verb == "delete":
                states.pop(write.name, None)
            else:
                states[write.name or f"new {number}"] = shown(decode(write.body, EndpointSlice))
            steps.append(set().union(*states.values()))
        for number, step in enumerate(steps):
            missing = (steps[0] & steps[-1]) - step
            assert not missing, f"{missing} not shown after write {number} of {len(job.writes)}"


TestSubsetPlane = SubsetPlane.TestCase
TestSubsetPlane.settings = machine(100)
