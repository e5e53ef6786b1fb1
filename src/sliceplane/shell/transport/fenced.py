"""A client that writes only while its owner may: for work that belongs to a term of leadership.

A process that was stopped (SIGSTOP, a paused machine) wakes after its term, and its tasks may run before the one that
ends them does.  So each write looks at the clock itself, last before it is sent.  Reads are passed on.
"""

from __future__ import annotations

from collections.abc import Callable

from sliceplane.api.scheme import Resource
from sliceplane.shell.transport.base import Client, PatchType, Unreachable


class FencedClient:
    """A ``Client``.  *allowed* is asked before every write, which raises ``Unreachable`` where it says no."""

    def __init__(self, client: Client, allowed: Callable[[], bool]) -> None:
        self._client = client
        self._allowed = allowed
        self.get = client.get
        self.list = client.list
        self.watch = client.watch
        self.close = client.close

    def _pass(self) -> None:
        if not self._allowed():
            raise Unreachable("the term of leadership is over")

    async def create(
        self, resource: Resource, namespace: str, body: bytes, *, subresource: str = "", name: str = ""
    ) -> bytes:
        self._pass()
        return await self._client.create(resource, namespace, body, subresource=subresource, name=name)

    async def update(
        self, resource: Resource, namespace: str, name: str, body: bytes, *, subresource: str = ""
    ) -> bytes:
        self._pass()
        return await self._client.update(resource, namespace, name, body, subresource=subresource)

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: bytes,
        *,
        patch_type: PatchType,
        subresource: str = "",
    ) -> bytes:
        self._pass()
        return await self._client.patch(resource, namespace, name, body, patch_type=patch_type, subresource=subresource)

    async def delete(self, resource: Resource, namespace: str, name: str, options: bytes = b"") -> bytes:
        self._pass()
        return await self._client.delete(resource, namespace, name, options)
