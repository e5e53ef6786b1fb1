"""``--log-format`` and colours: lines for programs and for people, whatever a stranger put into
them.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.kit.io.logs.lines import (
    KEYS,
    LINE_CHARACTERS_MAX,
    as_json,
    fit_text,
    painted,
    plain_text,
)

HEAD = {
    "timestamp": "2026-11-21T12:50:16.980482Z",
    "level": "warning",
    "component": "auth",
    "event": "a line",
}
_ESCAPE = re.compile("\x1b\\[[0-9;]*m")
_VALUES = st.one_of(
    st.text(), st.integers(), st.floats(allow_nan=False), st.booleans(), st.none(), st.binary()
)


@given(st.dictionaries(st.text(min_size=1), _VALUES))
def test_whatever_is_logged_is_one_json_object_in_one_line(values: dict[str, object]) -> None:
    line = as_json({**HEAD, **values})
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029]", line)
    assert line.splitlines() == [line]
    told = json.loads(line)
    assert list(told)[:4] == list(KEYS)
    assert set(told) == {*HEAD, *values}


@pytest.mark.parametrize(
    "values",
    [
        {"path": "x" * 100_000, "code": 404},
        {f"key{number}": "y" * 1000 for number in range(100)},
        {"path": "\x1b" * 40_000},
        {"deep": [["z" * 50_000]]},
    ],
)
def test_a_line_of_json_that_is_too_long_can_still_be_read(values: dict[str, object]) -> None:
    line = as_json({**HEAD, **values})
    assert len(line) <= LINE_CHARACTERS_MAX
    told = json.loads(line)
    assert {key: told[key] for key in KEYS} == HEAD
    assert told["cut"] > 0
    assert told.get("code", 404) == 404


def test_colours_are_ours_alone() -> None:
    for event in (
        "a line",
        'quoted \\"\x1b[31m',
        "x\nlevel=error",
        "level=error component=x event=y",
    ):
        line = fit_text(
            f'timestamp=2026-11-21T12:50:16Z level=warning component=auth event="{event}" '
            "path=/\x1b[2J\n"
        )
        assert _ESCAPE.sub("", painted(line)) == line
        assert "\x1b[2J" not in painted(line)
    foreign = "Traceback (most recent call last):\n"
    assert painted(foreign) == foreign


def test_a_plain_line_is_logfmt() -> None:
    assert plain_text({**HEAD, "limit": 7, "told": 'a "b"'}) == (
        'timestamp=2026-11-21T12:50:16.980482Z level=warning component=auth event="a line" '
        'limit=7 told="a \\"b\\""'
    )


_WRITER = """
import logging, sys
from sliceplane.cli.logs import Logs
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.logs.output import drain
Logs("info", sys.argv[1], colour=sys.argv[2] == "colour").begin()
log = get_logger("plane")
log.debug("not wanted")
log.info("certificates renewed", names=["localhost"], path="/srv/a b")
try:
    raise ValueError("first\\nsecond")
except ValueError as error:
    log.error("a bug", exc_info=error)
logging.getLogger("asyncio").warning("a library")
drain(5)
"""


def written(form: str, colour: str = "plain", *, terminal: bool = False, **environment: str) -> str:
    """What a process writes to stderr, a pipe or a terminal."""
    reading, writing = pty.openpty() if terminal else os.pipe()
    try:
        subprocess.run(
            [sys.executable, "-c", _WRITER, form, colour],
            stderr=writing,
            check=True,
            timeout=120,
            env={
                "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
                "PATH": os.environ["PATH"],
                "TERM": "xterm",
                **environment,
            },
        )
        return os.read(reading, 100_000).decode().replace("\r\n", "\n")
    finally:
        os.close(reading)
        os.close(writing)


def test_json_has_a_line_for_each_event_a_traceback_and_libraries_included() -> None:
    lines = [json.loads(line) for line in written("json", terminal=True).splitlines()]
    assert [(line["level"], line["component"], line["event"]) for line in lines] == [
        ("info", "plane", "certificates renewed"),
        ("error", "plane", "a bug"),
        ("warning", "asyncio", "a library"),
    ]
    assert all(list(line)[:4] == list(KEYS) for line in lines)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", line["timestamp"]) for line in lines)
    assert lines[0]["names"] == ["localhost"]
    assert "ValueError: first\nsecond" in lines[1]["exception"]


def test_text_is_coloured_on_a_terminal_unless_a_person_says_no() -> None:
    coloured = written("text", "colour", terminal=True)
    assert "\x1b[32mlevel=info\x1b[0m" in coloured
    assert "\x1b[31;1mlevel=error\x1b[0m" in coloured
    plain = [
        written("text", "colour"),
        written("text", "plain", terminal=True),
        written("text", "colour", terminal=True, NO_COLOR="1"),
        written("text", "colour", terminal=True, TERM="dumb"),
    ]
    for text in plain:
        assert "\x1b" not in text
        assert re.sub(r"timestamp=\S+", "", _ESCAPE.sub("", coloured)) == re.sub(
            r"timestamp=\S+", "", text
        )


def test_what_was_lost_is_told_in_json_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sliceplane.kit.io.logs import output as log_output

    monkeypatch.setattr(log_output, "_json", True)
    monkeypatch.setattr(log_output, "_stderr", fresh := log_output._Stderr())
    with open("/dev/full", "w") as full, (tmp_path / "log").open("w") as sound:
        monkeypatch.setattr(sys, "stderr", full)
        fresh.write("{}\n")
        assert fresh.drain(5)
        monkeypatch.setattr(sys, "stderr", sound)
        fresh.write("{}\n")
        assert fresh.drain(5)
    first, _ = (tmp_path / "log").read_text().splitlines()
    told = json.loads(first)
    assert list(told) == [*KEYS, "lines"]
    assert told["lines"] == 1
