"""Children of a mirror receive the parent's history: no gap, no duplicate, in order, never from the
past.

The oracle is the fake server's own history: the state at each revision, computed from its list of
events.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import event as count
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.effort import machine
from tests.fakes.fake_api import FakeApi, Snapshot
from tests.watch.informer.conftest import Driver

from sliceplane.api import codec
from sliceplane.api.meta import Document
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import ConfigMaps
from sliceplane.kit.rng import Rng
from sliceplane.relay.earlier import CatchUp, WatchScope
from sliceplane.relay.mirror import ResourceMirror
from sliceplane.server.store.types import EventType, Record
from sliceplane.server.store.watcher import Interest, Watcher
from sliceplane.watch.reflector import Reflector

NAMES = st.sampled_from(["a", "b", "c", "d"])
#: longer than two idle limits and the longest back-off together
QUIET_S = 400.0
#: how a catch-up of the parent goes
ENDS = ["well", "well", "piecewise", "garbage", "repeats"]


class _Plain:
    """Frames are the bodies."""

    def event(self, kind: EventType, record: Record) -> bytes:
        return record.body

    def bookmark(self, revision: int, initial_events_end: bool) -> bytes:
        return b""


PLAIN = _Plain()


def wire(document: Document) -> bytes:
    """The fake server's object as a real one writes it: kind and apiVersion first."""
    head = {"kind": document["kind"], "apiVersion": document["apiVersion"]}
    return codec.encode({**head, **document, **head})


def is_red(record: Record) -> bool:
    return record.labels.get("colour") == "red"


@dataclass
class MirrorDriver(Driver):
    """The shell of an informer whose handlers are a mirror's."""

    mirror: ResourceMirror = field(default_factory=lambda: ResourceMirror(ConfigMaps, keep_s=120.0))

    def __post_init__(self) -> None:
        self.cache = self.mirror.cache  # type: ignore[assignment]
        self.reflector = Reflector(self.cache, Rng(self.seed))

    def collect(self) -> None:
        self.mirror.on_changes(self.reflector.take_changes())  # type: ignore[arg-type]
        mark = self.reflector.take_mark()
        if mark is not None:
            self.mirror.on_mark(mark)


class Child:
    """A client as client-go is: its state, its version, and its watch."""

    def __init__(self, *, selects: bool) -> None:
        self.selects = selects
        self.state: dict[str, bytes] = {}
        self.version = 0
        self.listing = True
        self.watcher: Watcher | None = None

    @property
    def interest(self) -> Interest:
        return Interest(
            resource=ConfigMaps.storage_key,
            encoder=PLAIN,
            matches=is_red if self.selects else None,
            selector="colour=red\n" if self.selects else "",
        )

    def subscribe(self, mirror: ResourceMirror) -> None:
        interest = self.interest
        if self.version > mirror.store.revision:
            self.start_over()  # as the server refuses versions of no history of its own
        if self.version:
            self.watcher = mirror.hub.subscribe(
                interest, now=0.0, since=self.version, bookmarks=True
            )
        else:
            self.watcher = mirror.hub.subscribe(interest, now=0.0, initial=True, bookmarks=True)

    def start_over(self) -> None:
        self.state.clear()
        self.version = 0
        self.listing = True

    def take(self, oracle: Oracle) -> None:
        watcher = self.watcher
        assert watcher is not None
        while watcher.pending:
            for item in watcher.take(64):
                self.on_item(item.type, item.revision, item.data, oracle)
        if watcher.error is not None:
            assert watcher.error.code == 410
            self.start_over()
        if watcher.closed:
            self.watcher = None

    def on_item(self, kind: str, revision: int, body: bytes, oracle: Oracle) -> None:
        if kind == "BOOKMARK":
            assert revision >= self.version, "a bookmark goes back"
            expected = oracle.state_at(revision, selects=self.selects)
            assert self.state == expected, f"at bookmark {revision}"
            self.version, self.listing = revision, False
            return
        metadata = codec.decode_document(body)["metadata"]
        path = metadata["name"]
        if self.listing:
            assert kind == "ADDED"
            assert path not in self.state
            self.state[path] = body
            return
        assert revision > self.version, f"{kind} of {path} at {revision} after {self.version}"
        self.version = revision
        assert metadata["resourceVersion"] == str(revision)
        oracle.check_body(kind, path, revision, body, selects=self.selects)
        assert (path in self.state) == (kind != "ADDED"), f"{kind} of {path}"
        if kind == "DELETED":
            del self.state[path]
        else:
            self.state[path] = body


class Oracle:
    """The plain truth of one fake server: its present timeline, event by event."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api

    def state_at(self, revision: int, *, selects: bool) -> dict[str, bytes]:
        state: dict[str, bytes] = {}
        for event in self.api.since(ConfigMaps, 0):
            if event.revision > revision:
                break
            name = event.document["metadata"]["name"]
            if event.kind == "DELETED":
                state.pop(name, None)
            else:
                state[name] = wire(event.document)
        return {name: body for name, body in state.items() if not selects or b"red" in body}

    def check_body(
        self, kind: str, name: str, revision: int, body: bytes, *, selects: bool
    ) -> None:
        event = next(one for one in self.api.since(ConfigMaps, 0) if one.revision == revision)
        assert event.document["metadata"]["name"] == name
        if event.kind == kind or not selects:
            assert wire(event.document) == body, "the parent's bytes"


class MirrorOfServer(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1 << 32))
    def begin(self, seed: int) -> None:
        self.seed = seed
        self.api = FakeApi()
        self.oracle = Oracle(self.api)
        self.driver = MirrorDriver(self.api, seed)
        self.mirror = self.driver.mirror
        self.children = [Child(selects=False), Child(selects=True), Child(selects=False)]
        self.backup: Snapshot | None = None
        self.driver.start()

    def children_take(self) -> None:
        for child in self.children:
            if child.watcher is not None:
                child.take(self.oracle)

    @rule(name=NAMES, colour=st.sampled_from(["red", "blue"]))
    def put(self, name: str, colour: str) -> None:
        self.api.put(ConfigMaps, "ns", name, {"metadata": {"labels": {"colour": colour}}})

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        if f"ns/{name}" in self.api.objects(ConfigMaps):
            self.api.remove(ConfigMaps, "ns", name)

    @rule(name=NAMES)
    def recreate(self, name: str) -> None:
        self.remove(name)
        self.put(name, "red")

    @rule(number=st.integers(0, 2))
    def subscribe(self, number: int) -> None:
        child = self.children[number]
        if child.watcher is None and self.mirror.filled:
            child.subscribe(self.mirror)

    @rule(number=st.integers(0, 2))
    def take(self, number: int) -> None:
        child = self.children[number]
        if child.watcher is not None:
            child.take(self.oracle)

    @rule(number=st.integers(0, 2))
    def break_off(self, number: int) -> None:
        """What the child did not take is lost; a state half read is no state."""
        child = self.children[number]
        if child.watcher is not None:
            self.mirror.hub.unsubscribe(child.watcher)
            child.watcher = None
            if child.listing:
                child.start_over()

    @rule(number=st.integers(0, 2), back=st.integers(0, 8))
    def comes_from_elsewhere(self, number: int, back: int) -> None:
        """A child moves here from a sibling, with the state of any version."""
        child = self.children[number]
        if child.watcher is None:
            child.version = max(self.api.revision - back, 1)
            child.state = self.oracle.state_at(child.version, selects=child.selects)
            child.listing = False

    @rule(number=st.integers(0, 2), back=st.integers(0, 12), ends=st.sampled_from(ENDS))
    def comes_from_before(self, number: int, back: int, ends: str) -> None:
        """A child resumes, maybe from before the history, after the parent was asked for that."""
        child = self.children[number]
        if child.watcher is not None or not self.mirror.filled:
            return
        self.comes_from_elsewhere(number, back)
        scope = WatchScope(selector="colour=red\n" if child.selects else "")
        earlier = self.mirror.earlier
        asked = earlier.lacks(scope, child.version)
        if asked:
            earlier.want(scope, child.version)
            earlier.finish(scope, self.catch_up(scope, ends))
        fetched = asked and earlier.find(child.interest, child.version) is not None
        child.subscribe(self.mirror)
        assert child.watcher is not None
        count(f"catch-up {ends}: {asked=} {fetched=}")
        if fetched:
            assert child.watcher.error is None

    def catch_up(self, scope: WatchScope, ends: str) -> CatchUp:
        """Feeds what the parent sends, in one watch or in several."""
        run = self.mirror.earlier.begin(scope)
        for _ in range(30):
            selection = Selection(ConfigMaps, label_selector=scope.selector.strip())
            at = self.driver.now
            stream = self.api.watch(selection, str(run.version), now=at, timeout_s=3.0)
            messages = stream.pull(at)
            if ends == "repeats":
                stream.repeat()
            messages += stream.pull(at + 1.5)
            if ends == "piecewise":
                messages = messages[:1]
            for kind, body in messages:
                run.on_message(kind, body[:-3] if ends == "garbage" else body)
                if run.is_over:
                    return run
        return run

    @rule()
    def progress(self) -> None:
        """Another watch of the parent saw the same events, and a bookmark."""
        if self.mirror.filled and self.mirror.store.revision <= self.api.revision:
            seen = self.mirror.store.revision
            for event in self.api.since(ConfigMaps, seen):
                seen = event.revision
            self.mirror.on_progress(seen, self.api.revision)

    @rule()
    def settle(self) -> None:
        self.driver.settle()

    @rule(seconds=st.sampled_from([0.1, 5.0, 61.0, 130.0]))
    def wait(self, seconds: float) -> None:
        self.driver.advance(seconds)
        self.mirror.on_tick(self.driver.now)

    @rule()
    def cut(self) -> None:
        self.api.cut_all(None)

    @rule()
    def restart_relay(self) -> None:
        """A relay that is killed remembers nothing; its children do."""
        for number in range(3):
            self.break_off(number)
        self.driver = MirrorDriver(self.api, self.seed, now=self.driver.now)
        self.mirror = self.driver.mirror
        self.driver.start()

    @rule()
    def forget(self) -> None:
        """The parent's history is lost while the relay has no watch."""
        self.api.restart()

    @rule()
    def repeat(self) -> None:
        if self.driver.stream is not None:
            self.driver.stream.repeat()

    @rule()
    def back_up(self) -> None:
        self.backup = self.api.snapshot()

    @rule()
    def restore(self) -> None:
        """It must be noticed before the revisions have caught up; children that are away meanwhile
        cannot tell, as behind any server.
        """
        if self.backup is None or self.backup.revision == self.api.revision:
            return
        self.driver.advance(0.0)
        self.children_take()
        for child in self.children:
            if child.watcher is None:
                child.start_over()
        goes_back = self.mirror.store.revision > self.backup.revision
        self.api.restore(self.backup)
        self.driver.advance(QUIET_S)
        for child in self.children:
            if goes_back and child.watcher is not None:
                # The whole other timeline is over: what waits is dropped with its 410.
                assert child.watcher.closed
                child.take(self.oracle)

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "mirror"):
            self.mirror.check()
            self.mirror.store.check()

    def teardown(self) -> None:
        if not hasattr(self, "mirror"):
            return
        self.driver.advance(QUIET_S)
        assert self.mirror.store.revision == self.api.revision
        for child in self.children:
            if child.watcher is None:
                child.subscribe(self.mirror)
        self.children_take()
        for child in self.children:
            if child.watcher is None:
                child.subscribe(self.mirror)
                self.children_take()
            newest = self.oracle.state_at(self.api.revision, selects=child.selects)
            assert child.state == newest


@pytest.fixture(scope="module", autouse=True)
def _restore_settings() -> None:
    MirrorOfServer.TestCase.settings = machine(400)


TestMirrorOfServer = MirrorOfServer.TestCase
