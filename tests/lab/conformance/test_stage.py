"""The stage with real consumers: ours pass, wrong ones are caught with a history as short as it
goes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.waiting import eventually, until

from sliceplane.lab.conformance.cases import BY_NAME, CASES
from sliceplane.lab.conformance.consumers.consumer import (
    FollowedService,
    FollowingConsumer,
    JudgedConsumer,
)
from sliceplane.lab.conformance.consumers.name_server import NameServerConsumer
from sliceplane.lab.conformance.consumers.program import ProgramConsumer
from sliceplane.lab.conformance.consumers.view import ViewConsumer
from sliceplane.lab.conformance.model import Belief, State
from sliceplane.lab.conformance.stage import SilentConsumer, run
from sliceplane.lab.conformance.steps import CHECK, EXPIRE, Case
from sliceplane.lab.conformance.verdict import CaseVerdict, ConsumerReport, strip_particulars
from sliceplane.lab.testing.faults import Faults

pytestmark = pytest.mark.timeout(300)

#: one of each sort, and one with troubles that are over soon
SOME = (
    "moves-and-is-never-missing",
    "all-terminate",
    "numbers-differ-by-slice",
    "hints-half-there",
    "two-gaps",
)
#: a program that believes for ever what it believed at first
LOOKS_ONCE = """
import json, time
print("a line that is no belief", flush=True)
print(json.dumps(["10.1.0.1:8080", "10.1.0.2:8080"]), flush=True)
time.sleep(600)
"""


async def judged(
    consumer: JudgedConsumer, *names: str | Case, shrink: bool = True
) -> list[CaseVerdict]:
    verdicts: list[CaseVerdict] = []
    cases = [BY_NAME[name] if isinstance(name, str) else name for name in names]
    await run(consumer, cases, verdicts.append, shrink=shrink)
    return verdicts


async def test_our_view_passes_one_of_each_sort() -> None:
    verdicts = await judged(ViewConsumer(), *SOME)
    assert [(verdict.case.name, verdict.outcome, verdict.why) for verdict in verdicts] == [
        (name, "passed", "") for name in SOME
    ]


def test_what_it_started_ends_with_it(tmp_path: Path) -> None:
    """SIGTERM ends the program of the case that is under way, too."""
    told = tmp_path / "pid"
    program = tmp_path / "program.py"
    program.write_text(
        f"import os, time\nopen({str(told)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    command = [
        sys.executable,
        "-m",
        "sliceplane",
        "conformance",
        "--run",
        f"program:{sys.executable} {program}",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as kit:
        pid = int(until(lambda: told.exists() and told.read_text()))
        kit.terminate()
        _, said = kit.communicate(timeout=120)
    assert (kit.returncode, said.splitlines()[-1]) == (2, "Error: interrupted")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
async def test_our_view_passes_every_case() -> None:
    verdicts = await judged(ViewConsumer(), *BY_NAME)
    others = [verdict for verdict in verdicts if verdict.outcome != "passed"]
    assert {(verdict.outcome, verdict.case.needs) for verdict in others} == {
        ("not asked", frozenset({"local"}))
    }


async def test_our_name_server_passes() -> None:
    ours = f"{sys.executable} -m sliceplane dns --listen 127.0.0.1:{{port}} --zone-answers=false"
    consumer = NameServerConsumer(ours, name="dns", patience_s=60.0)
    verdicts = await judged(
        consumer, "slice-made-anew-in-a-gap", "six-beside-four", "port-without-a-name"
    )
    assert [(verdict.outcome, verdict.why) for verdict in verdicts] == [
        ("passed", ""),
        ("passed", ""),
        ("not asked", "dns is not asked about: unnamed-port"),
    ]


async def test_a_program_that_looks_once_is_caught_and_what_comes_after_is_not_told(
    tmp_path: Path,
) -> None:
    program = tmp_path / "once.py"
    program.write_text(LOOKS_ONCE)
    consumer = ProgramConsumer(f"{sys.executable} {program}", patience_s=4.0)
    (verdict,) = await judged(consumer, "becomes-unready", shrink=False)
    assert verdict.outcome == "failed"
    assert verdict.history[-1] == "check"
    assert len(verdict.history) == 2, "the list alone is wrong: no other step is needed"


async def test_a_history_is_made_as_short_as_it_goes() -> None:
    consumer = Stubborn(frozenset({"10.1.0.1:8080", "10.1.0.2:8080"}))
    (verdict,) = await judged(consumer, "flaps-and-ends-unready")
    assert verdict.outcome == "failed"
    assert verdict.history[1:] == (
        (
            "write EndpointSlice a: 10.1.0.1 ready=true, 10.1.0.2 ready=false serving=false "
            "terminating=false"
        ),
        "check",
    )


async def test_a_program_that_ends_and_told_nothing_is_no_consumer() -> None:
    consumer = ProgramConsumer(
        f"{sys.executable} -c 'raise SystemExit(\"no such cluster\")'", patience_s=120.0
    )
    with pytest.raises(SilentConsumer, match="it ended: exit code 1 / no such cluster, though"):
        await judged(consumer, "only-an-empty-slice", shrink=False)


async def test_a_program_that_tells_nothing_is_no_consumer() -> None:
    consumer = Stubborn(None, other_line="10.1.0.1")
    with pytest.raises(
        SilentConsumer,
        match=r"it told no belief, .* API server: 0; the last line it printed: 10.1.0.1",
    ):
        await judged(consumer, "only-an-empty-slice", shrink=False)


@pytest.mark.parametrize("line", ["'10.1.0.1'", "'[' * 3_000_000", "'[' * 100_000"])
async def test_rubbish_that_is_printed_is_shown_and_not_believed(line: str) -> None:
    program = (
        f"import os, time\nprint({line}, flush=True)\nprint(chr(27), flush=True)\ntime.sleep(600)"
    )
    consumer = ProgramConsumer(f"{sys.executable} -c {shlex.quote(program)}", patience_s=2.0)
    asked = FollowedService(Path("none"), "x", "web", CASES[0].query)
    async with consumer.follow(asked) as follower:
        await eventually(lambda: follower.other_line)
    shown = follower.other_line
    assert follower.beliefs == []
    assert shown == "10.1.0.1" or (shown.startswith("[[[") and len(shown) < 210)


class Stubborn(ViewConsumer):
    """Believes the same for ever."""

    def __init__(self, belief: Belief | None, *, other_line: str = "") -> None:
        super().__init__()
        self.patience_s = 0.3
        self._belief = belief
        self._other_line = other_line

    @asynccontextmanager
    async def follow(self, asked: FollowedService) -> AsyncIterator[FollowingConsumer]:
        beliefs = FollowingConsumer()
        beliefs.other_line = self._other_line
        if self._belief is not None:
            beliefs.believe(self._belief)
        yield beliefs


class Late(Stubborn):
    """Tells its belief when the patience of a shorter history would be over."""

    @asynccontextmanager
    async def follow(self, asked: FollowedService) -> AsyncIterator[FollowingConsumer]:
        assert self._belief is not None
        beliefs = FollowingConsumer()
        asyncio.get_running_loop().call_later(self.patience_s / 2, beliefs.believe, self._belief)
        yield beliefs


async def test_who_begins_late_has_short_histories_too() -> None:
    (verdict,) = await judged(Late(frozenset({"10.1.0.9:8080"})), "flaps-and-ends-unready")
    assert (verdict.outcome, verdict.why[:13], len(verdict.history)) == (
        "failed",
        "after 0.3 s i",
        2,
    )


class Forgetful(ViewConsumer):
    """Right at every checkpoint; when it is told to it believes in nothing for a moment."""

    def __init__(self, right: Belief) -> None:
        super().__init__()
        self._right = right
        self.forgets = False

    @asynccontextmanager
    async def follow(self, asked: FollowedService) -> AsyncIterator[FollowingConsumer]:
        consumer = self

        class Momentary(FollowingConsumer):
            async def poll(self) -> None:
                if consumer.forgets:
                    consumer.forgets = False
                    self.believe(frozenset())
                self.believe(consumer._right)

        yield Momentary()


async def test_what_is_missing_for_a_while_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(BY_NAME["nothing-changed-in-a-gap"], steps=(CHECK, EXPIRE, CHECK))
    state = State()
    for step in case.setup:
        state = state.after(step)
    consumer = Forgetful(state.believed(case.query, frozenset()))
    monkeypatch.setattr(Faults, "expire", lambda _: setattr(consumer, "forgets", True))
    (verdict,) = await judged(consumer, case, shrink=False)
    assert (verdict.outcome, verdict.why[:18]) == ("failed", "lost 10.1.0.1:8080")


async def test_a_name_server_that_does_not_start_is_no_consumer() -> None:
    consumer = NameServerConsumer(
        f"{sys.executable} -c 'raise SystemExit(3)' {{port}}", patience_s=1.0
    )
    with pytest.raises(ChildProcessError, match="exit code 3"):
        await judged(consumer, CASES[0].name)


def test_a_shorter_history_must_fail_in_the_same_way() -> None:
    one = "after 20 s it still has 10.1.0.4:8080, 10.1.0.5:8080"
    assert strip_particulars(one) == strip_particulars(
        "after 20 s it still has [fd10::4]:8080 and 12 more"
    )
    assert strip_particulars(one) != strip_particulars("after 20 s it lacks 10.1.0.4:8080")


def test_the_patience_of_a_shorter_history_is_no_difference() -> None:
    assert strip_particulars("after 20 s it lacks 10.1.0.4:8080") == strip_particulars(
        "after 5 s it lacks 10.1.0.4:8080"
    )


def test_reports_are_for_people_and_programs() -> None:
    case = CASES[0]
    report = ConsumerReport(
        "mine",
        frozenset(),
        (CaseVerdict(case, "failed", "lacks 10.1.0.1:8080", ("write a", "check")),),
    )
    assert report.summary == "mine: 0 of 1 cases passed"
    assert "  1. write a" in report.text()
    assert case.cites[0] in report.markdown()
    assert json.loads(json.dumps(report.document()))["cases"][0]["history"] == ["write a", "check"]
