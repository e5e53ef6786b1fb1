"""Work that belongs to a term of leadership writes nothing after the term."""

from __future__ import annotations

from typing import cast

import pytest

from sliceplane.api.scheme import ConfigMaps
from sliceplane.shell.transport.base import Client, Unreachable
from sliceplane.shell.transport.fenced import FencedClient


class Notebook:
    """A client that notes which of its methods were called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> object:
        async def call(*_: object, **__: object) -> bytes:
            self.calls.append(name)
            return b"{}"

        return call


async def test_writes_are_refused_after_the_term_and_reads_are_not() -> None:
    book = Notebook()
    term = [True]
    client: Client = FencedClient(cast("Client", book), lambda: term[0])

    async def everything() -> None:
        await client.create(ConfigMaps, "ns", b"{}")
        await client.update(ConfigMaps, "ns", "n", b"{}")
        await client.patch(ConfigMaps, "ns", "n", b"{}", patch_type="merge")
        await client.delete(ConfigMaps, "ns", "n")

    await everything()
    assert book.calls == ["create", "update", "patch", "delete"]
    term[0] = False
    for write in (
        lambda: client.create(ConfigMaps, "ns", b"{}"),
        lambda: client.update(ConfigMaps, "ns", "n", b"{}"),
        lambda: client.patch(ConfigMaps, "ns", "n", b"{}", patch_type="merge"),
        lambda: client.delete(ConfigMaps, "ns", "n"),
    ):
        with pytest.raises(Unreachable, match="term of leadership is over"):
            await write()
    assert len(book.calls) == 4
    await client.get(ConfigMaps, "ns", "n")
    await client.list(ConfigMaps)
    assert book.calls[4:] == ["get", "list"]
