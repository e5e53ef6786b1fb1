"""How a program comes to a client, to resources that are not in the table of the scheme, and to
objects as they are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sliceplane.api import codec
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import Resource
from sliceplane.watch.io.http.client import HttpClient


@asynccontextmanager
async def connect(
    path: str | Path | None = None, *, context: str | None = None
) -> AsyncIterator[HttpClient]:
    """A client, closed at the end.  Nothing is sent before the first request.

    *path* is a kubeconfig. Without one: the files of ``KUBECONFIG``, merged; else the service
    account if this is a pod; else ``~/.kube/config``; else the plane that ``sliceplane up`` runs
    for this user. Raises ``KubeconfigError``.
    """
    from sliceplane.watch.io import kubeconfig  # programs with a Connection need none

    client = HttpClient(kubeconfig.load_or_running(path, context=context))
    try:
        yield client
    finally:
        await client.close()


def custom_resource(
    api_version: str, plural: str, kind: str, *, namespaced: bool = True
) -> Resource:
    """A resource that we have no table entry for: *api_version* is ``group/version``, or ``v1`` of
    the core.
    """
    group, _, version = api_version.rpartition("/")
    if not version or not plural or not kind:
        raise ValueError(f"no resource: {api_version!r}, {plural!r}, {kind!r}")
    return Resource(group=group, version=version, kind=kind, plural=plural, namespaced=namespaced)


class RawObject(Object, frozen=True, kw_only=True):
    """Any object as the server sent it: metadata decoded, the rest as bytes.

    ``body`` is its JSON; an item of a list lacks kind and apiVersion there, but not here.
    """

    body: bytes = b""

    def document(self) -> Document:
        """All of it as dictionaries, decoded anew at each call; yours to change."""
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            **codec.decode_document(self.body),
        }


def load_raw(body: bytes) -> RawObject:
    """Raises ``msgspec.DecodeError``."""
    head = codec.decode(body, Object)
    return RawObject(
        api_version=head.api_version, kind=head.kind, metadata=head.metadata, body=body
    )
