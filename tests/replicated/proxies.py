"""TCP between members and servers, in the hands of the test: each link can be made silent, or
refused.

A link that is silent keeps its connections and loses what is sent, as a cut cable does; one end
waits, nobody is told. Links between members are told apart by the header ``X-Server-From`` of
etcd's requests to its peers: all others come to a member by one address.
"""

from __future__ import annotations

import asyncio
import re

from tests.replicated.relay import Relay, pump

_FROM = re.compile(rb"x-server-from: *([0-9a-f]+)", re.IGNORECASE)


class Link(Relay):
    """A listening port that leads to another.  ``cut`` from everybody, or ``cut_from`` some
    members.
    """

    def __init__(self, target: int) -> None:
        super().__init__()
        self.target = target
        self.cut = False
        #: what is asked gets there, the answers are lost
        self.deaf = False
        #: ids of members, as etcd writes them in requests
        self.cut_from: set[bytes] = set()
        #: pieces that did not get through
        self.lost = 0

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(65536)
        found = _FROM.search(first)
        sender = found.group(1) if found else b""
        back, there = await asyncio.open_connection("127.0.0.1", self.target)
        there.write(b"" if self._loses(sender) else first)
        pumps = [
            asyncio.create_task(pump(reader, there, lambda: self._loses(sender))),
            asyncio.create_task(pump(back, writer, lambda: self._loses(sender, answer=True))),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            there.transport.abort()
            for each in pumps:
                each.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def _loses(self, sender: bytes, *, answer: bool = False) -> bool:
        loses = self.cut or sender in self.cut_from or (answer and self.deaf)
        self.lost += loses
        return loses
