"""Work that belongs to a term of leadership writes nothing after the term."""

from __future__ import annotations

from typing import cast

import pytest

from sliceplane.api.requests import Selection, Verb, Write
from sliceplane.api.scheme import ConfigMaps
from sliceplane.watch.io.base import Client, FencedClient, Unreachable

VERBS: tuple[Verb, ...] = ("create", "update", "patch", "delete")


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
        for verb in VERBS:
            await client.perform(
                Write(verb=verb, resource=ConfigMaps, namespace="ns", name="n", body=b"{}")
            )

    await everything()
    assert book.calls == ["perform"] * 4
    term[0] = False
    for verb in VERBS:
        with pytest.raises(Unreachable, match="term of leadership is over"):
            await client.perform(
                Write(verb=verb, resource=ConfigMaps, namespace="ns", name="n", body=b"{}")
            )
    assert len(book.calls) == 4
    await client.get(ConfigMaps, "ns", "n")
    await client.list(Selection(ConfigMaps))
    assert book.calls[4:] == ["get", "list"]
