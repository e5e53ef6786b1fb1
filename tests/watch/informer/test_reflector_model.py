"""After any history of changes and faults, once quiet, cache, handlers and server agree; each death
is told once.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.effort import machine
from tests.fakes.fake_api import FakeApi, Snapshot

from sliceplane.api.errors import StatusError, internal, too_large_resource_version, unreachable
from sliceplane.api.scheme import ConfigMaps

NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f", "g", "h"])
ERRORS = st.sampled_from(
    [
        unreachable("connection refused"),
        internal("boom"),
        StatusError(500, "", "strconv.ParseUint"),
        StatusError(410, "Gone", "gone"),
        StatusError(410, "Expired", "expired"),
        StatusError(429, "TooManyRequests", "slow down", retry_after_s=7),
        StatusError(503, "ServiceUnavailable", "starting"),
        too_large_resource_version(1000, 100),
    ]
)
#: longer than two idle limits and the longest back-off together
QUIET_S = 400.0


class ReflectorAgainstServer(RuleBasedStateMachine):
    driver_class: Any = None

    @initialize(seed=st.integers(0, 1 << 32), objects=st.integers(0, 8))
    def begin(self, seed: int, objects: int) -> None:
        self.api = FakeApi()
        for number in range(objects):
            self.api.put(ConfigMaps, "ns", "abcdefgh"[number])
        self.driver = self.driver_class(self.api, seed)
        self.backup: Snapshot | None = None
        self.driver.start()

    @rule(name=NAMES)
    def put(self, name: str) -> None:
        self.api.put(ConfigMaps, "ns", name)

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        if f"ns/{name}" in self.api.objects(ConfigMaps):
            self.api.remove(ConfigMaps, "ns", name)

    @rule(name=NAMES)
    def recreate(self, name: str) -> None:
        self.remove(name)
        self.put(name)

    @rule()
    def settle(self) -> None:
        self.driver.settle()

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 61.0, 100.0, 700.0]))
    def wait(self, seconds: float) -> None:
        self.driver.advance(seconds)

    @rule()
    def compact(self) -> None:
        self.api.compact()

    @rule(error=st.none() | ERRORS)
    def restart(self, error: StatusError | None) -> None:
        self.api.restart(error)

    @rule(error=st.none() | ERRORS)
    def cut(self, error: StatusError | None) -> None:
        self.api.cut_all(error)

    @rule()
    def half_open(self) -> None:
        if self.driver.stream is not None:
            self.driver.stream.go_silent()

    @rule()
    def repeat(self) -> None:
        if self.driver.stream is not None:
            self.driver.stream.repeat()

    @rule(seconds=st.sampled_from([0.0, 3.0, 70.0]))
    def lag(self, seconds: float) -> None:
        if self.driver.stream is not None:
            self.driver.stream.lag_s = seconds

    @rule(error=ERRORS, verb=st.sampled_from(["list", "watch"]), times=st.integers(1, 3))
    def fail(self, error: StatusError, verb: str, times: int) -> None:
        self.api.fail(error, verb, times=times)

    @rule(act=st.sampled_from(["compact", "put", "restart", "nothing"]))
    def during_the_next_list(self, act: str) -> None:
        def between() -> None:
            self.driver.between_pages = None
            if act == "compact":
                self.api.compact()
            elif act == "put":
                self.api.put(ConfigMaps, "ns", "a")
            elif act == "restart":
                self.api.restart()

        self.driver.between_pages = between

    @rule()
    def back_up(self) -> None:
        self.backup = self.api.snapshot()

    @rule()
    def restore(self) -> None:
        """It must be noticed before the revisions have caught up: afterwards no client could
        tell.
        """
        if self.backup is not None:
            self.api.restore(self.backup)
            self.api.recover()
            self.driver.advance(QUIET_S)

    @rule()
    def becomes_quiet(self) -> None:
        self.api.recover()
        self.driver.advance(QUIET_S)
        self.driver.assert_current()

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "driver"):
            self.driver.reflector.check()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.becomes_quiet()
        assert self.driver.reflector.staleness(self.driver.now) < 125


@pytest.fixture(scope="module", autouse=True)
def _restore_settings() -> None:
    ReflectorAgainstServer.TestCase.settings = machine(200)


@pytest.fixture(autouse=True)
def _driver_class(make_driver: Any) -> None:
    ReflectorAgainstServer.driver_class = make_driver


TestReflectorAgainstServer = ReflectorAgainstServer.TestCase
