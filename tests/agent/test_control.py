"""The local socket of an agent takes any line, and answers each."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
from tests.waiting import eventually

from sliceplane.agent.io import control


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"[" * 20_000, "JSON that is nested too deeply"),
        (b"[1]", "a line of JSON that is no object"),
        (b"{", "Expecting property name"),
    ],
)
async def test_a_line_that_is_no_question_gets_an_error(
    line: bytes, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    server = await control.serve("vm", lambda question: {"asked": question})
    try:
        reader, writer = await asyncio.open_unix_connection(control.socket_path("vm"))
        writer.write(line + b"\n")
        assert why.encode() in await reader.readline()
        writer.close()
        assert await control.send_request("vm", {"a": 1}) == {"asked": {"a": 1}}
    finally:
        control.close("vm", server)


async def test_a_flood_leaves_nothing_for_the_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that end are freed at once: the collection of a thousand held an agent's loop for
    90 ms.
    """
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    server = await control.serve("vm", lambda question: {"asked": question})
    gc.collect()
    gc.disable()
    try:
        for number in range(20):
            reader, writer = await asyncio.open_unix_connection(control.socket_path("vm"))
            writer.write(b'{"a": 1}\nmore' if number % 2 else b"x" * 200_000)
            assert (await reader.read() == b'{"asked": {"a": 1}}\n') == bool(number % 2)
            writer.close()
        await eventually(
            lambda: not [each for each in gc.get_objects() if isinstance(each, control._Connection)]
        )
    finally:
        gc.enable()
        control.close("vm", server)
