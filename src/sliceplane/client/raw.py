"""Objects as the server sent them: metadata decoded, the rest as bytes until somebody asks."""

from __future__ import annotations

from sliceplane.api import codec
from sliceplane.api.meta import Document, Object


class RawObject(Object, frozen=True, kw_only=True):
    """Any object.  ``body`` is its JSON; an item of a list lacks kind and apiVersion there, but not here."""

    body: bytes = b""

    def document(self) -> Document:
        """All of it as dictionaries, decoded anew at each call; yours to change."""
        return {"apiVersion": self.api_version, "kind": self.kind, **codec.decode_document(self.body)}


def load_raw(body: bytes) -> RawObject:
    """Raises ``msgspec.DecodeError``."""
    head = codec.decode(body, Object)
    return RawObject(api_version=head.api_version, kind=head.kind, metadata=head.metadata, body=body)
