"""No answer from a server: one short sentence for people, whatever the library's own error looks
like.
"""

from __future__ import annotations

import socket
import ssl

import pytest
from tests.ports import free_port
from tests.server.serving import Server

from sliceplane.api.requests import Selection
from sliceplane.api.scheme import Services
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.connection import Connection, Fixed
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.http.replies import why_no_answer


async def told(server: str, context: ssl.SSLContext | None = None) -> str:
    client = HttpClient(Connection(server=server, ssl_context=context, credentials=Fixed()))
    try:
        with pytest.raises(Unreachable) as error:
            await client.list(Selection(Services))
    finally:
        await client.close()
    return str(error.value)


async def test_nobody_listens() -> None:
    port = free_port()
    assert await told(f"http://127.0.0.1:{port}") == f"http://127.0.0.1:{port}: connection refused"


async def test_a_certificate_of_somebody_unknown(plane_server: Server) -> None:
    url = plane_server.plane.url
    assert await told(url, ssl.create_default_context()) == (
        f"{url}: the server's certificate is not accepted: self-signed certificate in certificate "
        "chain"
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(113, "Connect call failed ('10.0.0.1', 443)"), "no route to host"),
        (ConnectionResetError(), "ConnectionResetError"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "no TLS there: "),
        (TimeoutError(), "timed out"),
        (
            socket.gaierror(-2, "Name or service not known"),
            "the name is not known: name or service not known",
        ),
        (ValueError("what else there is"), "what else there is"),
    ],
)
def test_in_words(error: Exception, text: str) -> None:
    assert why_no_answer(error).startswith(text)
