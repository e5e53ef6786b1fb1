"""Other forms of stored objects: older versions of a kind to the stored one (the hub) and back, and
views under other names.

Promises: the input is never changed; equal documents in, equal documents out; nothing is lost on
the way to the hub and back but what is said here. Never: validates. A value that is wrong comes out
as wrong as it went in.

**EndpointSlice v1beta1** (``pkg/apis/discovery/v1beta1/conversion.go``) differs from v1 in
``endpoints`` alone. It has one map, ``topology``; v1 has ``zone`` and ``nodeName`` for the two
entries that every client used, and ``deprecatedTopology`` for the rest. To v1, the zone leaves the
map for ``zone``, and a host name that ``nodeName`` has too leaves it for nothing. To v1beta1, the
map is the rest with the zone and, unless the rest names a host of its own, the node's name. So
v1beta1 reads back with ``kubernetes.io/hostname`` in every endpoint that has a ``nodeName``.
``addressType`` is not looked at: ``IP``, which the first versions had and which validation refuses,
passes both ways.

**An annotation** can hold ``deprecatedTopology`` (KEP-0752, 1.21 draft: "Converting Topology"); it
is read wherever it is found and written when an operator asks for it. It is a JSON object from the
index of an endpoint to its map, ``{"0":{"rack":"a"},"7":{"rack":"b"}}``. Endpoints have no names,
so the index is all that ties a map to its endpoint, and what moves endpoints must write the
annotation anew (``realign``). All annotations together may have ``ANNOTATIONS_BYTES_MAX``. What
does not fit is dropped key by key, each from every endpoint at once: keys of our own making first,
the one that takes most room before the others, then the region, and the host name last, which
``nodeName`` mostly says too.

**A view** is a resource whose ``storage`` names another one: events.k8s.io/v1 Event is core/v1
Event under other names (KEP-383). The registry, the store and all rules know the stored form alone;
both directions only rename.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from sliceplane.api import codec
from sliceplane.api.codec import decode_document, encode
from sliceplane.api.discovery import LABEL_HOSTNAME, LABEL_ZONE
from sliceplane.api.meta import Document
from sliceplane.api.scheme import EventsV1, Resource, stored_form

HUB_VERSION = "discovery.k8s.io/v1"
OLD_VERSION = "discovery.k8s.io/v1beta1"
TOPOLOGY_ANNOTATION = "endpointslice.kubernetes.io/v1beta1-topology"
#: keys and values of all annotations of one object (apimachinery's limit)
ANNOTATIONS_BYTES_MAX = 256 * 1024
#: standard keys, in the order in which they are dropped, after all others
_STANDARD_KEYS = ("topology.kubernetes.io/region", LABEL_HOSTNAME)
Topologies = dict[int, dict[str, str]]
_decoder = msgspec.json.Decoder(dict[str, dict[str, str]])
#: member of the stored form, member of the view
_EVENT_NAMES: Final = (
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
)
_TO_VIEW: Final = dict(_EVENT_NAMES)
_TO_STORED: Final = {view: stored for stored, view in _EVENT_NAMES}
#: printed empty by core/v1, left out when empty by events.k8s.io/v1
_OMIT_EMPTY: Final = ("reportingController", "reportingInstance")


def to_hub(document: Document) -> Document:
    """The v1 form of a v1beta1 slice; new where it differs, shared where it does not."""
    return _respelt(document, HUB_VERSION, _endpoint_to_hub)


def from_hub(document: Document) -> Document:
    """The v1beta1 form of a v1 slice; new where it differs, shared where it does not."""
    return _respelt(document, OLD_VERSION, _endpoint_from_hub)


def _respelt(
    document: Document, version: str, endpoint: Callable[[Document], Document]
) -> Document:
    out = dict(document)
    if "apiVersion" in out:
        out["apiVersion"] = version
    if out.get("endpoints"):
        out["endpoints"] = [endpoint(item) for item in out["endpoints"]]
    return out


def _endpoint_to_hub(endpoint: Document) -> Document:
    out = {name: value for name, value in endpoint.items() if name != "topology"}
    rest: dict[str, str] = dict(endpoint.get("topology") or {})
    zone = rest.pop(LABEL_ZONE, None)
    if zone is not None:
        out["zone"] = zone
    if LABEL_HOSTNAME in rest and rest[LABEL_HOSTNAME] == out.get("nodeName"):
        del rest[LABEL_HOSTNAME]
    if rest:
        out["deprecatedTopology"] = dict(sorted(rest.items()))
    return out


def _endpoint_from_hub(endpoint: Document) -> Document:
    out = {
        name: value
        for name, value in endpoint.items()
        if name not in ("deprecatedTopology", "zone")
    }
    topology: dict[str, str] = dict(endpoint.get("deprecatedTopology") or {})
    if endpoint.get("zone") is not None:
        topology[LABEL_ZONE] = endpoint["zone"]
    if endpoint.get("nodeName") is not None and not topology.get(LABEL_HOSTNAME):
        topology[LABEL_HOSTNAME] = endpoint["nodeName"]
    if topology:
        out["topology"] = dict(sorted(topology.items()))
    return out


def lift(document: Document) -> Document:
    """The slice with its annotation read back into ``deprecatedTopology``; where both have a key,
    the field counts.

    An annotation that cannot be read stays an annotation. Entries beyond the last endpoint are
    passed over.
    """
    topologies = _read(document)
    if topologies is None:
        return document
    endpoints = []
    for index, endpoint in enumerate(document.get("endpoints") or []):
        merged = {**topologies.get(index, {}), **(endpoint.get("deprecatedTopology") or {})}
        endpoints.append(
            {**endpoint, "deprecatedTopology": dict(sorted(merged.items()))} if merged else endpoint
        )
    out = _with_annotation(document, "")
    if endpoints:
        out["endpoints"] = endpoints
    return out


def stow(document: Document) -> Document:
    """The slice with its ``deprecatedTopology`` moved into the annotation, as far as there is room.

    An annotation of that name that is there already is replaced if it can be read, for ``lift``
    would have read it; one that cannot be read gives way only to something to write.
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
    taken = sum(
        _size(name) + _size(text) for name, text in others.items() if name != TOPOLOGY_ANNOTATION
    )
    out = _with_annotation(
        document,
        annotation_text(topologies, ANNOTATIONS_BYTES_MAX - taken - len(TOPOLOGY_ANNOTATION)),
    )
    out["endpoints"] = [
        {name: value for name, value in endpoint.items() if name != "deprecatedTopology"}
        for endpoint in document["endpoints"]
    ]
    return out


def realign(new: Document, old: Document) -> Document:
    """*new* with the annotation it carries over from *old* made to fit its endpoints.

    For clients of v1, who know nothing of the annotation: an endpoint is taken for the old one with
    the same addresses, node, host name and target, in order where there are several, and an
    endpoint that was not there before has no topology. An annotation that the client changed is the
    client's.
    """
    topologies = _read(old)
    before = old.get("endpoints") or []
    after = new.get("endpoints") or []
    if topologies is None or before == after or _annotation(new) != _annotation(old):
        return new
    indexes_by_identity: dict[bytes, list[int]] = {}
    for index in reversed(range(len(before))):
        indexes_by_identity.setdefault(_identity(before[index]), []).append(index)
    moved: Topologies = {}
    for index, endpoint in enumerate(after):
        indexes = indexes_by_identity.get(_identity(endpoint))
        if indexes:
            topology = topologies.get(indexes.pop())
            if topology:
                moved[index] = topology
    return _with_annotation(new, _text(moved) if moved else "")


def annotation_text(topologies: Topologies, room_bytes: int) -> str:
    """The annotation's text, of at most *room_bytes* in UTF-8; "" if nothing fits."""
    kept = {index: dict(topology) for index, topology in sorted(topologies.items())}
    size = 1 + sum(
        _entry_size(index) + sum(map(_pair_size, topology.items()))
        for index, topology in kept.items()
    )
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
    assert len(text.encode()) == (size if kept else 0), (
        f"{len(text.encode())} bytes were counted as {size}"
    )
    return text


def _drop_order(topologies: Topologies) -> Iterator[str]:
    room: dict[str, int] = {}
    for topology in topologies.values():
        for pair in topology.items():
            room[pair[0]] = room.get(pair[0], 0) + _pair_size(pair)
    yield from sorted(room.keys() - set(_STANDARD_KEYS), key=lambda key: (-room[key], key))
    yield from (key for key in _STANDARD_KEYS if key in room)


def _entry_size(index: int) -> int:
    """Bytes of ``"7":{}`` and the comma or brace after it, less the comma that the last pair inside
    does not have.
    """
    return len(str(index)) + 5


def _pair_size(pair: tuple[str, str]) -> int:
    """Bytes of ``"key":"value",``."""
    return len(codec.encode(pair[0])) + len(codec.encode(pair[1])) + 2


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _text(topologies: Topologies) -> str:
    ordered = {
        str(index): dict(sorted(topology.items())) for index, topology in sorted(topologies.items())
    }
    return codec.encode(ordered).decode()


def _identity(endpoint: Document) -> bytes:
    return codec.encode(
        [endpoint.get(name) for name in ("addresses", "nodeName", "hostname", "targetRef")]
    )


def _annotation(document: Document) -> Any:
    return ((document.get("metadata") or {}).get("annotations") or {}).get(TOPOLOGY_ANNOTATION)


def _read(document: Document) -> Topologies | None:
    """Returns the content of the annotation; ``None`` if there is none, or it is not ours."""
    text = _annotation(document)
    if not isinstance(text, str):
        return None
    try:
        decoded = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    if not all(
        index == "0" or (index.isascii() and index.isdigit() and index[0] != "0")
        for index in decoded
    ):
        return None
    return {int(index): topology for index, topology in decoded.items() if len(index) < 10}


def _with_annotation(document: Document, text: str) -> Document:
    """A copy whose annotation is *text*; without it for ""."""
    metadata = dict(document.get("metadata") or {})
    annotations = {
        name: value
        for name, value in (metadata.get("annotations") or {}).items()
        if name != TOPOLOGY_ANNOTATION
    }
    if text:
        annotations[TOPOLOGY_ANNOTATION] = text
    metadata.pop("annotations", None)
    if annotations:
        metadata["annotations"] = dict(sorted(annotations.items()))
    return {**document, "metadata": metadata}


def to_stored(resource: Resource, document: Document) -> Document:
    """A document of *resource* as it is stored."""
    if not resource.is_view:
        return document
    _must_be_event(resource)
    return _renamed(document, _TO_STORED, stored_form(resource))


def from_stored(resource: Resource, document: Document) -> Document:
    """Returns a stored document in the form of *resource*."""
    if not resource.is_view:
        return document
    _must_be_event(resource)
    converted = _renamed(document, _TO_VIEW, resource)
    return {
        name: value for name, value in converted.items() if value != "" or name not in _OMIT_EMPTY
    }


def renamed_members(source: Resource, aim: Resource) -> dict[str, str]:
    """Returns the names in *aim* of top-level members of *source*, where they differ; both show the
    same objects.
    """
    if source.is_view == aim.is_view:
        return {}
    return _TO_VIEW if aim.is_view else _TO_STORED


def body_from_stored(resource: Resource, body: bytes) -> bytes:
    """Returns a stored body in the form of *resource*; any other body (a list, a Status) as it is."""
    if not resource.is_view:
        return body
    stored = stored_form(resource)
    if not body.startswith(
        f'{{"kind":"{stored.kind}","apiVersion":"{stored.api_version}",'.encode()
    ):
        return body
    return encode(from_stored(resource, decode_document(body)))


def _renamed(document: Document, names: dict[str, str], resource: Resource) -> Document:
    """A shallow copy with other names for members and the kind and version of *resource*."""
    result = {names.get(name, name): value for name, value in document.items()}
    if "kind" in result:
        result["kind"] = resource.kind
    if "apiVersion" in result:
        result["apiVersion"] = resource.api_version
    return result


def _must_be_event(resource: Resource) -> None:
    assert resource is EventsV1, f"there is no way to store {resource.key} as {resource.storage}"
