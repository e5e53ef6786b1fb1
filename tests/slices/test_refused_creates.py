"""A quota refuses new slices, and a Service was made anew: what is gone leaves the old one's slices
all the same.
"""

from __future__ import annotations

from msgspec.structs import replace
from tests.slices.fake_cluster import make_node, make_pod, make_service

from sliceplane.api.codec import decode, encode
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.slices.engine import SliceEngine
from sliceplane.slices.service import IMMEDIATELY
from sliceplane.slices.writes import SlicePlan

KEY = "shop/web"
FULL = StatusError(403, "Forbidden", "exceeded quota")


def stored(engine: SliceEngine, write_body: bytes, version: str) -> EndpointSlice:
    made = decode(write_body, EndpointSlice)
    name = made.metadata.name or "old"
    shown = replace(
        made, metadata=replace(made.metadata, name=name, uid=name, resource_version=version)
    )
    engine.on_slice(None, shown)
    return shown


def refused(engine: SliceEngine, plan: SlicePlan) -> None:
    """Creates are; updates, which come before the first, are done."""
    answers: list[bytes] = []
    for write in plan.writes:
        if write.verb == "create":
            engine.finish(KEY, plan, answers, FULL, 1.0)
            return
        made = decode(write.body, EndpointSlice)
        answers.append(encode(replace(made, metadata=replace(made.metadata, resource_version="9"))))
    engine.finish(KEY, plan, answers, None, 1.0)


def scene() -> tuple[SliceEngine, list[object]]:
    engine = SliceEngine(100)
    engine.on_node(None, make_node("n0"))
    pods = [make_pod(f"p-{number}") for number in range(3)]
    for pod in pods:
        engine.on_pod(None, pod)
    first = make_service()
    engine.on_service(first)
    (write,) = engine.plan(KEY, 0.0).writes
    engine = SliceEngine(100)
    engine.on_node(None, make_node("n0"))
    for pod in pods:
        engine.on_pod(None, pod)
    stored(engine, write.body, "5")
    engine.on_service(replace(first, metadata=replace(first.metadata, uid="another")))
    return engine, list(pods)


def names(body: bytes) -> list[str]:
    return sorted(
        each.target_ref.name
        for each in decode(body, EndpointSlice).endpoints or ()
        if each.target_ref
    )


def test_seed_101971_what_is_gone_leaves_a_slice_that_waits_for_a_refused_one() -> None:
    engine, pods = scene()
    plan = engine.plan(KEY, 1.0)
    assert [write.verb for write in plan.writes] == ["create", "delete"], "make before break"
    refused(engine, plan)
    engine.on_pod(pods[1], None)
    plan = engine.plan(KEY, 2.0)
    assert [write.verb for write in plan.writes] == ["update", "create"]
    assert names(plan.writes[0].body) == ["p-0", "p-2"], (
        "those that are alive stay until they are elsewhere"
    )
    refused(engine, plan)
    plan = engine.plan(KEY, 3.0)
    assert [write.verb for write in plan.writes] == ["create", "delete"], "written once"
    refused(engine, plan)
    engine.on_pod(pods[0], None)
    engine.on_pod(pods[2], None)
    plan = engine.plan(KEY, 4.0)
    assert plan.writes[0].verb == "delete", "nobody is left, and the quota has room again"
    engine.check()


def test_when_there_is_room_again_the_old_slice_goes_at_once() -> None:
    engine, pods = scene()
    refused(engine, engine.plan(KEY, 1.0))
    engine.on_pod(pods[1], None)
    plan = engine.plan(KEY, 2.0)
    update, create = plan.writes
    made = decode(create.body, EndpointSlice)
    answers = [
        encode(
            replace(
                known, metadata=replace(known.metadata, name=name, uid=name, resource_version="9")
            )
        )
        for known, name in ((decode(update.body, EndpointSlice), "old"), (made, "new"))
    ]
    engine.finish(KEY, plan, answers, None, 2.0)
    assert engine.deadline(KEY) == IMMEDIATELY
    (gone,) = engine.plan(KEY, 2.0).writes
    assert (gone.verb, gone.name) == ("delete", "old")
