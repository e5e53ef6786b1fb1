"""Own writes against a server that answers late, and a cache that is late, repeats itself and loses
events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort

from sliceplane.api.codec import decode, encode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object, ObjectMeta, is_newer, is_older, revision_of
from sliceplane.watch.controller.own_writes import (
    PENDING_TIMEOUT_S,
    STALE_PLANS,
    Observation,
    OwnWrites,
    PendingWrites,
    PlannedWrite,
)

NAMES = ("a", "b")


class Told(NamedTuple):
    """One thing that the controller was told of an object."""

    source: Literal["shown", "gone", "created", "updated", "deleted", "missing", "adopted"]
    name: str
    uid: str
    version: int = 0


def believed(history: list[Told]) -> dict[str, tuple[str, int]]:
    """The oracle: name -> (uid, version), worked out anew from all that was ever told."""
    holder: dict[str, str] = {}
    newest: dict[str, int] = {}
    dead: set[str] = set()
    for told in history:
        if told.source in ("gone", "deleted", "missing"):
            # A server without it had it once: events from before its end may still be on their way,
            # and count anew.
            if told.source == "missing":
                newest.pop(told.uid, None)
            elif told.source == "gone" or holder.get(told.name) == told.uid:
                dead.add(told.uid)
            if holder.get(told.name) == told.uid:
                del holder[told.name]
            continue
        if told.source == "adopted":
            newest[told.uid] = told.version
            continue
        newest[told.uid] = max(told.version, newest.get(told.uid, 0))
        if told.uid not in dead and (
            told.source == "shown" or (told.source == "created" and told.name not in holder)
        ):
            before = holder.get(told.name)
            if before not in (None, told.uid):
                newest.pop(
                    before, None
                )  # another took the name: what was known of this one is forgotten
            holder[told.name] = told.uid
    return {name: (uid, newest[uid]) for name, uid in holder.items()}


@dataclass
class World:
    """A server, a watch whose events wait to be delivered, and answers that wait as well."""

    own: OwnWrites[ObjectMeta] = field(init=False)
    pending: PendingWrites = field(default_factory=PendingWrites)
    server: dict[str, ObjectMeta] = field(default_factory=dict)
    cache: dict[str, ObjectMeta] = field(default_factory=dict)
    events: list[tuple[ObjectMeta, bool]] = field(default_factory=list)
    answers: list[tuple[PlannedWrite, bytes | StatusError]] = field(default_factory=list)
    history: list[Told] = field(default_factory=list)
    revision: int = 0
    now: float = 0.0

    def __post_init__(self) -> None:
        self.own = OwnWrites("n/s", self.pending, lambda meta: meta)

    # the server

    def put(self, name: str) -> ObjectMeta:
        self.revision += 1
        known = self.server.get(name)
        uid = f"{name}-{self.revision}" if known is None else known.uid
        generation = 1 if known is None else known.generation + self.revision % 2
        version = str(self.revision)
        meta = ObjectMeta(
            name=name, namespace="n", uid=uid, generation=generation, resource_version=version
        )
        self.server[name] = meta
        self.events.append((meta, True))
        return meta

    def remove(self, name: str) -> None:
        if name in self.server:
            self.events.append((self.server.pop(name), False))

    def perform(self, write: PlannedWrite) -> None:
        """The server acts at once; its answer waits."""
        known = self.server.get(write.name)
        answer: bytes | StatusError = b"{}"
        if write.verb == "create":
            answer = (
                StatusError(409, "AlreadyExists", "")
                if known is not None
                else self.answer(write.name)
            )
        elif known is None or known.uid != write.uid:
            answer = StatusError(404, "NotFound", "")
        elif write.verb == "delete":
            self.remove(write.name)
        elif known.resource_version != write.resource_version:
            answer = StatusError(409, "Conflict", "")
        else:
            answer = self.answer(write.name)
        self.answers.append((write, answer))

    def answer(self, name: str) -> bytes:
        return encode(Object(metadata=self.put(name)))

    # the controller

    def plan(self, verb: str, name: str) -> None:
        known = self.own.objects.get(name)
        if self.answers:
            return
        self.own.in_flight = True
        if known is None:
            self.perform(PlannedWrite(verb="create", namespace="n", name=name, body=b""))
        elif verb == "update":
            self.perform(PlannedWrite.update(known, b""))
        else:
            self.perform(PlannedWrite.delete(known))

    def hear_answer(self) -> None:
        if not self.answers:
            return
        write, answer = self.answers.pop()
        known = self.own.objects.get(write.name)
        if isinstance(answer, bytes):
            if write.verb == "delete":
                if known is not None and known.uid == write.uid:
                    self.history.append(Told("deleted", write.name, write.uid))
            else:
                meta = decode(answer, Object).metadata
                source: Literal["created", "updated"] = (
                    "created" if write.verb == "create" else "updated"
                )
                if source == "created" or (known is not None and known.uid == meta.uid):
                    self.history.append(Told(source, meta.name, meta.uid, meta.revision))
            self.own.succeeded(write, answer, lambda body: decode(body, Object).metadata, self.now)
        else:
            if answer.reason == "NotFound" and known is not None and known.uid == write.uid:
                self.history.append(Told("missing", write.name, write.uid))
            if self.own.failed(write, answer) and answer.reason == "Conflict":
                # Refused twice, and the cache showed an older version: taken for a server restored
                # from a copy.
                adopted = self.own.objects[write.name]
                assert known is not None
                assert adopted.revision < known.revision
                assert Told("shown", write.name, write.uid, adopted.revision) in self.history
                self.history.append(Told("adopted", write.name, write.uid, adopted.revision))
        self.own.on_plan_ended()

    # the cache

    def deliver(self, *, again: bool = False) -> None:
        if not self.events:
            return
        meta, there = self.events[0] if again else self.events.pop(0)
        self.show(meta) if there else self.lose(meta)

    def show(self, meta: ObjectMeta) -> None:
        before = self.cache.get(meta.name)
        if before is not None and before.uid != meta.uid:
            self.lose(before)
        self.cache[meta.name] = meta
        self.history.append(Told("shown", meta.name, meta.uid, meta.revision))
        self.own.on_observed(meta, lambda: meta)

    def lose(self, meta: ObjectMeta) -> None:
        self.cache.pop(meta.name, None)
        self.history.append(Told("gone", meta.name, meta.uid))
        self.own.on_gone(meta.name, meta.uid)

    def relist(self) -> None:
        """The watch broke: what came between is lost, the difference is not."""
        self.events.clear()
        for name in NAMES:
            before, after = self.cache.get(name), self.server.get(name)
            if after is not None and after != before:
                self.show(after)
            elif before is not None and after is None:
                self.lose(before)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                "put",
                "remove",
                "create",
                "update",
                "update",
                "delete",
                "answer",
                "answer",
                "deliver",
                "again",
                "relist",
            )
        ),
        st.sampled_from(NAMES),
    ),
    max_size=40,
)


@effort(400)
@given(STEPS)
def test_what_is_known_is_what_all_that_was_told_amounts_to(steps: list[tuple[str, str]]) -> None:
    world = World()
    for step, name in steps:
        match step:
            case "put" | "remove":
                getattr(world, step)(name)
            case "create" | "update" | "delete":
                world.plan(step, name)
            case "answer":
                world.hear_answer()
            case "deliver" | "again":
                world.deliver(again=step == "again")
            case _:
                world.relist()
        world.own.check()
        world.pending.check()
        known = {name: (meta.uid, meta.revision) for name, meta in world.own.objects.items()}
        assert known == believed(world.history)
    world.hear_answer()
    world.relist()
    world.now += PENDING_TIMEOUT_S
    world.own.drop_expired(world.now)
    assert world.own.objects == world.server, "in the end it is what the server has"
    assert world.own.deadline() is None
    assert bool(world.own) == bool(world.server)


def meta_at(version: str, generation: int = 0) -> ObjectMeta:
    return ObjectMeta(
        name="a", namespace="n", uid="u", resource_version=version, generation=generation
    )


def known_at(version: str) -> World:
    world = World()
    world.own.on_observed(meta_at(version), lambda: meta_at(version))
    return world


def refuse(world: World) -> bool:
    """An update of what is known meets a conflict."""
    return world.own.failed(
        PlannedWrite.update(world.own.objects["a"], b""), StatusError(409, "Conflict", "")
    )


def test_after_a_conflict_some_plans_wait_for_the_cache() -> None:
    world = known_at("5")
    refuse(world)
    assert [world.own.defer_plan() for _ in range(STALE_PLANS + 1)] == [True] * STALE_PLANS + [
        False
    ]
    refuse(world)
    world.own.on_observed(meta_at("6"), lambda: meta_at("6"))
    assert not world.own.is_waiting, "the cache has caught up"


def test_what_is_known_of_a_suspect_is_proven_before_other_writes() -> None:
    world = known_at("5")
    refuse(world)
    other = PlannedWrite(verb="update", namespace="ns", name="other", body=b"")
    own = PlannedWrite.update(world.own.objects["a"], b"own")

    def prove(meta: ObjectMeta) -> PlannedWrite:
        return PlannedWrite.update(meta, b"as it is")

    assert world.own.proofs((other,), prove) == [], "nothing is planned yet"
    assert [world.own.defer_plan() for _ in range(STALE_PLANS)] == [True] * STALE_PLANS
    (proof,) = world.own.proofs((other, own), prove)
    assert (proof.name, proof.resource_version, proof.body) == ("a", "5", b"as it is")
    assert world.own.proofs((), prove) == world.own.proofs((own, other), prove) == []
    assert world.own.succeeded(proof, b"", lambda _: meta_at("5"), 0.0) == "a"
    assert world.own.proofs((other,), prove) == []


def test_a_server_that_was_restored_from_a_copy_is_believed_when_it_refused_twice() -> None:
    world = known_at("900")
    assert world.own.on_observed(meta_at("40"), lambda: meta_at("40")) is Observation.OLD
    assert not refuse(world)
    assert refuse(world)
    assert world.own.objects == {"a": meta_at("40")}


def test_an_older_event_before_our_own_is_no_sign_of_a_copy() -> None:
    world = known_at("900")
    world.own.on_observed(meta_at("40"), lambda: meta_at("40"))
    assert world.own.on_observed(meta_at("900"), lambda: meta_at("900")) is Observation.ECHO
    assert not refuse(world)
    assert not refuse(world)
    assert world.own.objects == {"a": meta_at("900")}


def test_a_name_that_is_taken_is_waited_for() -> None:
    world = World()
    world.own.failed(
        PlannedWrite(verb="create", namespace="n", name="a", body=b""),
        StatusError(409, "AlreadyExists", ""),
    )
    assert world.own.is_waiting
    world.own.on_observed(meta_at("5"), lambda: meta_at("5"))
    assert not world.own.is_waiting


def test_an_answer_that_cannot_be_read_tells_nothing() -> None:
    world = known_at("5")
    write = PlannedWrite.update(world.own.objects["a"], b"")
    assert not world.own.succeeded(
        write, b"<html>", lambda body: decode(body, Object).metadata, 0.0
    )
    assert world.own.objects == {"a": meta_at("5")}


KEYS = ("k", "l")
WAITS = st.lists(
    st.tuples(
        st.sampled_from(("wait", "end", "shown", "gone", "forget", "tick")),
        st.sampled_from(KEYS),
        st.sampled_from("uvw"),
        st.integers(1, 6),
    ),
    max_size=30,
)


@effort(300)
@given(WAITS)
def test_a_key_waits_for_what_was_not_shown(steps: list[tuple[str, str, str, int]]) -> None:
    """The oracle is a plain list of what is awaited, searched from end to end."""
    pending, now = PendingWrites(10.0), 0.0
    awaited: list[tuple[str, str, float, float]] = []  # key, uid, version, deadline
    for step, key, uid, version in steps:
        match step:
            case "wait" | "end":
                awaited = [entry for entry in awaited if entry[1] != uid]
                awaited.append((key, uid, version if step == "wait" else float("inf"), now + 10.0))
                pending.wait(key, uid, version, now) if step == "wait" else pending.wait_for_end(
                    key, uid, now
                )
            case "shown":
                behind = any(entry[1] == uid and version < entry[2] for entry in awaited)
                assert pending.on_observed(uid, str(version)) is not behind
                awaited = [entry for entry in awaited if entry[1] != uid or version < entry[2]]
            case "gone":
                pending.resolve(uid)
                awaited = [entry for entry in awaited if entry[1] != uid]
            case "forget":
                pending.forget(key)
                awaited = [entry for entry in awaited if entry[0] != key]
            case _:
                now += version
                for name in KEYS:
                    lost = {entry[1] for entry in awaited if entry[0] == name and entry[3] <= now}
                    assert set(pending.drop_expired(name, now)) == lost
                awaited = [entry for entry in awaited if entry[3] > now]
        pending.check()
        for name in KEYS:
            assert pending.deadline(name) == min(
                (entry[3] for entry in awaited if entry[0] == name), default=None
            )


def test_versions_are_numbers_and_where_they_are_not_the_generation_decides() -> None:
    assert [revision_of(text) for text in ("12", "", "x", "-1", "²", "9" * 5000)] == [
        12,
        0,
        0,
        0,
        0,
        0,
    ]
    assert is_older("9", "10")
    assert not any(
        is_older(*pair) for pair in (("10", "9"), ("9", "9"), ("x", "9"), ("9", "y"), ("", "9"))
    )
    assert is_newer(meta_at("10"), meta_at("9", generation=3)), (
        "after a restore generations may be smaller"
    )
    assert not is_newer(meta_at("9", generation=3), meta_at("10"))
    assert not is_newer(meta_at("x", generation=2), meta_at("x"))
    assert is_newer(meta_at("y"), meta_at("x"))
    assert not is_newer(meta_at("y", generation=1), meta_at("x", generation=2))
