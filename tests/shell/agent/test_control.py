"""The local socket of an agent takes any line, and answers each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

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
        assert await control.ask("vm", {"a": 1}) == {"asked": {"a": 1}}
    finally:
        control.close("vm", server)
