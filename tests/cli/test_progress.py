"""Reports on stderr of work that takes long: on a terminal one line, elsewhere lines of a command
that waits.
"""

from __future__ import annotations

import pytest

from sliceplane.cli import progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_a_command_that_waits_is_never_silent_for_more_than_two_seconds(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    silent_since = 0.0
    with progress.ProgressLine(plain=True) as tell:
        for step in range(1, 300):
            clock.now = step / 5
            tell("waiting")
            if capsys.readouterr().err:
                silent_since = clock.now
            assert clock.now - silent_since < 2.0
    assert silent_since > 50


def test_other_commands_write_no_progress_into_a_log(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.ProgressLine() as tell:
        clock.now = 100.0
        tell("working")
    assert capsys.readouterr().err == ""


def test_a_line_on_a_terminal_is_no_wider_than_it_and_goes(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
    with progress.ProgressLine(plain=True) as tell:
        clock.now = 3.0
        tell("x" * 100)
        shown = capsys.readouterr().err
    assert shown.startswith("\r3 s: xxx")
    assert len(shown) == 1 + 39
    assert capsys.readouterr().err == f"\r{' ' * 39}\r"
