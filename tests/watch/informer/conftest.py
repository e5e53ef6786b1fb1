"""A driver that plays the shell: it connects a reflector to a fake API server, one request at a
time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from tests.fakes.fake_api import FakeApi
from tests.fakes.fake_watch import FakeWatch

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import ConfigMaps
from sliceplane.kit.rng import Rng
from sliceplane.watch.actions import Action, Phase, StartList, StartWatch, StopWatch
from sliceplane.watch.cache import Cache, Change
from sliceplane.watch.reflector import Reflector


@dataclass
class Driver:
    """Performs actions at once.  ``view`` is what a handler makes of the changes; ``deleted``
    counts uids.
    """

    api: FakeApi
    seed: int = 1
    now: float = 1000.0
    #: pages are this small, so that few objects make several
    page_limit: int = 3
    view: dict[str, Object] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    changes: list[Change[Object]] = field(default_factory=list)
    actions: list[tuple[float, Action]] = field(default_factory=list)
    #: called between two pages
    between_pages: Callable[[], None] | None = None
    stream: FakeWatch | None = None
    pending: StartList | None = None

    def __post_init__(self) -> None:
        self.cache: Cache[Object] = Cache(ConfigMaps, Object)
        self.reflector: Reflector[Object] = Reflector(self.cache, Rng(self.seed))

    def start(self) -> None:
        self.reflector.start(self.now)
        self.settle()

    def settle(self) -> None:
        """Perform what is due now, and pull once."""
        self.perform()
        while self.stream is not None and self.reflector.phase is Phase.WATCHING:
            stream = self.stream
            messages = stream.pull(self.now)
            for kind, body in messages:
                self.reflector.on_watch_event(kind, body, self.now)
                self.collect()
                if self.reflector.phase is not Phase.WATCHING:
                    break
            else:
                if stream.ended:
                    self.stream = None
                    self.reflector.on_watch_ended(self.now, stream.error)
            self.perform()
            if not messages and self.stream is stream:
                return

    def perform(self) -> None:
        self.collect()
        while actions := self.reflector.take_actions():
            for action in actions:
                self.actions.append((self.now, action))
                match action:
                    case StartList():
                        self.list(action)
                    case StartWatch(version):
                        self.watch(version, action.timeout_s)
                    case StopWatch():
                        self.stream = None
                self.collect()
            self.reflector.check()

    def list(self, action: StartList) -> None:
        if action.continue_token and self.between_pages is not None:
            self.between_pages()
        try:
            limit = min(action.limit, self.page_limit) if action.limit else 0
            page = self.api.list(
                Selection(self.cache.resource), limit=limit, continue_token=action.continue_token
            )
        except StatusError as error:
            self.reflector.on_list_failed(error, self.now)
            return
        self.reflector.on_page(page.items, page.resource_version, page.continue_token, self.now)

    def watch(self, version: str, timeout_s: int) -> None:
        assert self.stream is None, "one stream at a time"
        try:
            self.stream = self.api.watch(
                Selection(self.cache.resource), version, now=self.now, timeout_s=timeout_s
            )
        except StatusError as error:
            self.reflector.on_watch_ended(self.now, error)
            return
        self.reflector.on_watch_opened(self.now)

    def collect(self) -> None:
        for change in self.reflector.take_changes():
            self.changes.append(change)
            key = change.object.metadata.key
            assert self.view.get(key) == change.old, (
                f"{key}: {self.view.get(key)} is not {change.old}"
            )
            if change.new is None:
                self.deleted.append(self.view.pop(key).metadata.uid)
            else:
                assert change.old is None or change.old.metadata.uid == change.new.metadata.uid, (
                    "delete, then add"
                )
                self.view[key] = change.new

    def advance(self, seconds: float) -> None:
        """Let time pass, stopping wherever something is due."""
        end = self.now + seconds
        self.settle()
        while True:
            due = self.reflector.next_deadline()
            arrives = self.stream.next_at() if self.stream is not None else float("inf")
            step = min(end, due if due is not None else end, arrives)
            self.now = max(self.now, step)
            self.reflector.on_deadline(self.now)
            self.settle()
            if self.now >= end:
                return

    def taken(self, kind: type[Action]) -> list[float]:
        """When actions of *kind* were asked for."""
        return [when for when, action in self.actions if isinstance(action, kind)]

    def assert_current(self) -> None:
        held = {
            key: (item.metadata.uid, item.metadata.resource_version)
            for key, item in self.view.items()
        }
        assert held == self.api.objects(self.cache.resource)
        assert [item.metadata.key for item in self.cache] == sorted(self.view)


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def make_driver() -> type[Driver]:
    return Driver


@pytest.fixture
def driver(api: FakeApi) -> Driver:
    return Driver(api)
