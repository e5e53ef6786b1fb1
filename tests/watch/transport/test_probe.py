"""A probe of a Pod's port, as a controller asks for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sliceplane.api.codec import encode
from sliceplane.api.requests import NOT_REFUSED, PortProbe, Write
from sliceplane.api.scheme import Pods
from sliceplane.watch.io.base import send


def probe(ip: str, port: int) -> Write:
    return Write(
        verb="probe",
        resource=Pods,
        namespace="shop",
        name="web-0",
        body=encode(PortProbe(ip, port)),
    )


@pytest.mark.asyncio
async def test_a_port_that_is_closed_has_no_answer_and_one_that_is_open_has() -> None:
    """127.0.0.2 is this machine, and nothing listens there."""
    nobody: Any = None
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await send(nobody, probe("127.0.0.1", port)) == NOT_REFUSED
        assert await send(nobody, probe("127.0.0.2", port)) == b""
