"""``deprecatedTopology`` of a v1 slice kept in an annotation (KEP-0752, 1.21 draft: "Converting Topology").

The annotation ``endpointslice.kubernetes.io/v1beta1-topology`` is a JSON object from the index of an endpoint to its
map, ``{"0":{"rack":"a"},"7":{"rack":"b"}}``; endpoints without a map are left out.  Endpoints have no names, so the
index is all that ties a map to its endpoint, and code that moves endpoints must write the annotation anew: see
``realign``.

All annotations of an object together may have ``ANNOTATIONS_BYTES_MAX``, and a full slice can hold eight times as much
topology.  What does not fit is dropped key by key, each from every endpoint at once: keys of our own making first, the
one that takes most room before the others, then the region, and the host name last, which ``nodeName`` mostly says too.
The zone is never in here: it has a field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from sliceplane.api import codec
from sliceplane.api.discovery import LABEL_HOSTNAME
from sliceplane.api.meta import Document

TOPOLOGY_ANNOTATION = "endpointslice.kubernetes.io/v1beta1-topology"
#: keys and values of all annotations of one object (apimachinery's limit)
ANNOTATIONS_BYTES_MAX = 256 * 1024
#: standard keys, in the order in which they are dropped, after all others
_STANDARD_KEYS = ("topology.kubernetes.io/region", LABEL_HOSTNAME)

Topologies = dict[int, dict[str, str]]

_decoder = msgspec.json.Decoder(dict[str, dict[str, str]])


def lift(document: Document) -> Document:
    """The slice with its annotation read back into ``deprecatedTopology``; where both have a key, the field counts.

    An annotation that cannot be read stays an annotation.  Entries beyond the last endpoint are passed over.
    """
    topologies = _read(document)
    if topologies is None:
        return document
    endpoints = []
    for index, endpoint in enumerate(document.get("endpoints") or []):
        merged = {**topologies.get(index, {}), **(endpoint.get("deprecatedTopology") or {})}
        endpoints.append({**endpoint, "deprecatedTopology": dict(sorted(merged.items()))} if merged else endpoint)
    out = _with_annotation(document, "")
    if endpoints:
        out["endpoints"] = endpoints
    return out


def stow(document: Document) -> Document:
    """The slice with its ``deprecatedTopology`` moved into the annotation, as far as there is room.

    An annotation of that name that is there already is replaced if it can be read, for ``lift`` would have read it; one
    that cannot be read gives way only to something to write.
    """
    document = lift(document)
    topologies = {
        index: topology
        for index, endpoint in enumerate(document.get("endpoints") or [])
        if (topology := endpoint.get("deprecatedTopology"))
    }
    if not topologies:
        return document
    others = (document.get("metadata") or {}).get("annotations") or {}
    taken = sum(_size(name) + _size(text) for name, text in others.items() if name != TOPOLOGY_ANNOTATION)
    out = _with_annotation(document, encode(topologies, ANNOTATIONS_BYTES_MAX - taken - len(TOPOLOGY_ANNOTATION)))
    out["endpoints"] = [
        {name: value for name, value in endpoint.items() if name != "deprecatedTopology"}
        for endpoint in document["endpoints"]
    ]
    return out


def realign(new: Document, old: Document) -> Document:
    """*new* with the annotation it carries over from *old* made to fit its endpoints.

    For clients of v1, who know nothing of the annotation: an endpoint is taken for the old one with the same addresses,
    node, host name and target, in order where there are several, and an endpoint that was not there before has no
    topology.  An annotation that the client changed is the client's.
    """
    topologies = _read(old)
    before = old.get("endpoints") or []
    after = new.get("endpoints") or []
    if topologies is None or before == after or _annotation(new) != _annotation(old):
        return new
    places: dict[bytes, list[int]] = {}
    for index in reversed(range(len(before))):
        places.setdefault(_identity(before[index]), []).append(index)
    moved: Topologies = {}
    for index, endpoint in enumerate(after):
        indexes = places.get(_identity(endpoint))
        if indexes:
            topology = topologies.get(indexes.pop())
            if topology:
                moved[index] = topology
    return _with_annotation(new, _text(moved) if moved else "")


def encode(topologies: Topologies, room_bytes: int) -> str:
    """The annotation's text, of at most *room_bytes* in UTF-8; "" if nothing fits."""
    kept = {index: dict(topology) for index, topology in sorted(topologies.items())}
    size = 1 + sum(_entry_size(index) + sum(map(_pair_size, topology.items())) for index, topology in kept.items())
    where: dict[str, list[int]] = {}
    for index, topology in kept.items():
        for key in topology:
            where.setdefault(key, []).append(index)
    for key in _drop_order(kept):
        if size <= room_bytes:
            break
        for index in where[key]:
            size -= _pair_size((key, kept[index].pop(key)))
            if not kept[index]:
                del kept[index]
                size -= _entry_size(index)
    text = _text(kept) if kept else ""
    assert len(text.encode()) == (size if kept else 0), f"{len(text.encode())} bytes were counted as {size}"
    return text


def _drop_order(topologies: Topologies) -> Iterator[str]:
    room: dict[str, int] = {}
    for topology in topologies.values():
        for pair in topology.items():
            room[pair[0]] = room.get(pair[0], 0) + _pair_size(pair)
    yield from sorted(room.keys() - set(_STANDARD_KEYS), key=lambda key: (-room[key], key))
    yield from (key for key in _STANDARD_KEYS if key in room)


def _entry_size(index: int) -> int:
    """Bytes of ``"7":{}`` and the comma or brace after it, less the comma that the last pair inside does not have."""
    return len(str(index)) + 5


def _pair_size(pair: tuple[str, str]) -> int:
    """Bytes of ``"key":"value",``."""
    return len(codec.encode(pair[0])) + len(codec.encode(pair[1])) + 2


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _text(topologies: Topologies) -> str:
    ordered = {str(index): dict(sorted(topology.items())) for index, topology in sorted(topologies.items())}
    return codec.encode(ordered).decode()


def _identity(endpoint: Document) -> bytes:
    return codec.encode([endpoint.get(name) for name in ("addresses", "nodeName", "hostname", "targetRef")])


def _annotation(document: Document) -> Any:
    return ((document.get("metadata") or {}).get("annotations") or {}).get(TOPOLOGY_ANNOTATION)


def _read(document: Document) -> Topologies | None:
    """What the annotation says; ``None`` if there is none, or it is not ours."""
    text = _annotation(document)
    if not isinstance(text, str):
        return None
    try:
        decoded = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    if not all(index == "0" or (index.isascii() and index.isdigit() and index[0] != "0") for index in decoded):
        return None
    return {int(index): topology for index, topology in decoded.items() if len(index) < 10}


def _with_annotation(document: Document, text: str) -> Document:
    """A copy whose annotation is *text*; without it for ""."""
    metadata = dict(document.get("metadata") or {})
    annotations = {
        name: value for name, value in (metadata.get("annotations") or {}).items() if name != TOPOLOGY_ANNOTATION
    }
    if text:
        annotations[TOPOLOGY_ANNOTATION] = text
    metadata.pop("annotations", None)
    if annotations:
        metadata["annotations"] = dict(sorted(annotations.items()))
    return {**document, "metadata": metadata}
