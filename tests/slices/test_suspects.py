"""A slice whose known version met a conflict is proven before anything is concluded from it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.slices.fake_cluster import make_node, make_pod, make_service

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Pod
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import conflict
from sliceplane.slices.engine import SliceEngine
from sliceplane.slices.service import IMMEDIATELY
from sliceplane.slices.writes import SliceWrite
from sliceplane.watch.controller.own_writes import STALE_PLANS

KEY = "shop/web"
CONFLICT = conflict("endpointslices", "discovery.k8s.io", "a", "the object has been modified")


def engine_of(pods: list[Pod], most: int) -> SliceEngine:
    engine = SliceEngine(most)
    engine.on_node(None, make_node("n0"))
    for pod in pods:
        engine.on_pod(None, pod)
    engine.on_service(make_service())
    return engine


class Scene:
    """Slice a has p-0 and p-1, slice z has p-2; two endpoints at most are in one."""

    def __init__(self) -> None:
        self.pods = [make_pod(f"p-{number}") for number in range(3)]
        (write,) = engine_of(self.pods, 100).plan(KEY, 0.0).writes
        self.whole = decode(write.body, EndpointSlice)
        self.engine = engine_of(self.pods, 2)
        self.a = self.show("a", "11", 0, 1)
        self.z = self.show("z", "12", 2)
        assert self.engine.plan(KEY, 1.0).writes == ()

    def show(
        self, name: str, version: str, *pods: int, before: EndpointSlice | None = None
    ) -> EndpointSlice:
        """The watch tells of it."""
        meta = replace(
            self.whole.metadata, name=name, uid=name, generate_name="", resource_version=version
        )
        wanted = {f"p-{number}" for number in pods}
        endpoints = [
            each
            for each in self.whole.endpoints or ()
            if each.target_ref and each.target_ref.name in wanted
        ]
        made = replace(
            self.whole, metadata=replace(meta, annotations=None), endpoints=tuple(endpoints)
        )
        self.engine.on_slice(before, made)
        return made

    def turn(self, number: int, *, ready: bool) -> None:
        old: Pod = self.pods[number]
        made = make_pod(f"p-{number}", ready=ready)
        version = str(int(old.metadata.resource_version or 0) + 1)
        new = self.pods[number] = replace(
            made, metadata=replace(made.metadata, resource_version=version)
        )
        self.engine.on_pod(old, new)

    def refuse(self) -> None:
        """A write of a meets a conflict, and the cache does not explain it while plans wait."""
        self.turn(0, ready=False)
        plan = self.engine.plan(KEY, 2.0)
        assert [write.name for write in plan.writes] == ["a"]
        self.engine.finish(KEY, plan, (), CONFLICT, 2.0)
        assert [self.engine.plan(KEY, 3.0).stale for _ in range(STALE_PLANS)] == [
            True
        ] * STALE_PLANS


def answer(write: SliceWrite, version: str) -> bytes:
    made = decode(write.body, EndpointSlice)
    return encode(replace(made, metadata=replace(made.metadata, resource_version=version)))


@pytest.mark.parametrize("turned_back", [False, True])
def test_seed_100376_an_endpoint_is_not_taken_out_because_a_suspect_is_believed_to_have_it(
    turned_back: bool,
) -> None:
    """A request was performed twice, and the answer to the second time came, a conflict. p-1 is in
    slice z, and slice a is believed to have it, too: what takes it out of z comes after a write of
    a.
    """
    scene = Scene()
    scene.refuse()
    if turned_back:
        scene.turn(0, ready=True)
    scene.show("z", "14", 2, 1, before=scene.z)
    plan = scene.engine.plan(KEY, 9.0)
    assert plan.writes[0].name == "a"
    assert plan.writes[0].resource_version == scene.a.metadata.resource_version
    scene.engine.finish(KEY, plan, (), CONFLICT, 9.0)
    assert scene.engine.plan(KEY, 10.0).stale, (
        "nothing but that was written, and the cache is waited for again"
    )


def test_a_suspect_that_proves_itself_is_none_any_more() -> None:
    scene = Scene()
    scene.refuse()
    scene.turn(0, ready=True)
    scene.show("z", "14", 2, 1, before=scene.z)
    plan = scene.engine.plan(KEY, 9.0)
    (proof,) = plan.writes
    assert decode(proof.body, EndpointSlice).endpoints == scene.a.endpoints, "it changes nothing"
    assert plan.families == (), "nor does a metric count it"
    scene.engine.finish(KEY, plan, (answer(proof, proof.resource_version),), None, 9.0)
    assert scene.engine.deadline(KEY) == IMMEDIATELY
    plan = scene.engine.plan(KEY, 9.0)
    (rest,) = plan.writes
    assert rest.name == "z", "the same endpoint is in both"
    scene.engine.finish(KEY, plan, (answer(rest, "99"),), None, 9.0)
    assert scene.engine.plan(KEY, 10.0).writes == ()
    scene.turn(0, ready=False)
    assert [write.name for write in scene.engine.plan(KEY, 11.0).writes] == ["a"]
