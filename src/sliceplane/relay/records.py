"""Objects of a parent as records of a store: the parent's bytes, version and selectable fields."""

from __future__ import annotations

import msgspec

from sliceplane.api import codec
from sliceplane.api.meta import Object
from sliceplane.api.scheme import Resource
from sliceplane.kit.integers import NotAnInteger, parse_uint64
from sliceplane.server.registry.documents import selectable, starts_as
from sliceplane.server.store.types import Key, Record

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Mirrored(Object, frozen=True, kw_only=True):
    """An object of the parent: its metadata, and the record that children are served from."""

    record: Record


def mirrored(resource: Resource, body: bytes) -> Mirrored:
    """Decodes an object as the parent sent it.  Raises ``msgspec.DecodeError``."""
    head = codec.decode(body, Object)
    metadata = head.metadata
    if head.kind not in ("", resource.kind):
        raise msgspec.ValidationError(f"a {head.kind} among the {resource.plural}")
    try:
        revision = parse_uint64(metadata.resource_version)
    except NotAnInteger as error:
        raise msgspec.ValidationError(f"resourceVersion: {error}") from error
    fields = selectable(resource, codec.decode_document(body)) if resource.selectable_fields else {}
    record = Record(
        key=Key(resource.storage_key, metadata.namespace, metadata.name),
        revision=revision,
        created=revision,
        uid=metadata.uid,
        body=body if starts_as(resource, body) else _with_head(resource, body),
        labels=metadata.labels or {},
        fields=fields,
        owners=tuple(owner.uid for owner in metadata.owner_references or ()),
    )
    return Mirrored(
        kind=resource.kind, api_version=resource.api_version, metadata=metadata, record=record
    )


def _with_head(resource: Resource, body: bytes) -> bytes:
    """Returns *body*, an item of a list, as a watch sends it: kind and apiVersion come first."""
    members = _members.decode(body)
    rest = [
        b"%b:%b" % (codec.encode(name), bytes(value))
        for name, value in members.items()
        if name not in ("kind", "apiVersion")
    ]
    head = f'{{"kind":"{resource.kind}","apiVersion":"{resource.api_version}",'.encode()
    return head + b",".join(rest) + b"}"
