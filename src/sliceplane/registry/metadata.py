"""Which members of ``metadata`` the server owns, and what it writes there (Kubernetes API conventions,
Metadata).

The functions change the document that they are given; callers own it.
"""

from __future__ import annotations

from typing import Any

from sliceplane.api.errors import StatusError, bad_request, show
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource
from sliceplane.kit.integers import NotAnInteger, parse_uint64
from sliceplane.kit.names import GENERATED_ALPHABET, GENERATED_BASE_MAX, GENERATED_SUFFIX_LENGTH
from sliceplane.kit.rng import Rng
from sliceplane.kit.times import format_time, parse_time
from sliceplane.registry.types import Target

_SERVER_OWNED_ON_CREATE = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
#: members that a client may leave out of an update; changing them is refused by validation
_KEPT_ON_UPDATE = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


def match_namespace(target: Target, metadata: Document) -> None:
    """The body's namespace must be the URL's, or nothing; a cluster-scoped object has none."""
    if not target.resource.namespaced:
        metadata.pop("namespace", None)
        return
    if metadata.get("namespace") or target.namespace:
        namespace = metadata.setdefault("namespace", target.namespace) or target.namespace
        if namespace != target.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        metadata["namespace"] = namespace


def match_name(target: Target, metadata: Document) -> None:
    """A PUT's body must carry the URL's name."""
    name = metadata.get("name")
    if not name:
        raise bad_request(
            f"the name of the object ({target.name} based on URL) was undeterminable: name must be provided"
        )
    if name != target.name:
        raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({target.name})")


def prepare_create(resource: Resource, metadata: Document, rng: Rng, now: float) -> None:
    """Identity and birth of a new object.  ``generateName`` is left to the caller."""
    for name in _SERVER_OWNED_ON_CREATE:
        metadata.pop(name, None)
    metadata["uid"] = rng.uuid()
    metadata["creationTimestamp"] = format_time(now)
    if resource.generation != "none":
        metadata["generation"] = 1


def generated_name(prefix: str, rng: Rng) -> str:
    return prefix[:GENERATED_BASE_MAX] + rng.text(GENERATED_SUFFIX_LENGTH, GENERATED_ALPHABET)


def prepare_update(resource: Resource, new: Document, old: Document) -> None:
    """Carry over what an update cannot change, and count the generation."""
    metadata = new["metadata"]
    before = old["metadata"]
    for name in _KEPT_ON_UPDATE:
        if not metadata.get(name) and name in before:
            metadata[name] = before[name]
    metadata["resourceVersion"] = before["resourceVersion"]
    metadata.pop("generation", None)
    generation = before.get("generation", 0) + _generation_step(resource, new, old)
    if generation:
        metadata["generation"] = generation


def _generation_step(resource: Resource, new: Document, old: Document) -> int:
    if resource.generation == "none":
        return 0
    if resource.generation != "content":
        return int(new.get(resource.generation, {}) != old.get(resource.generation, {}))
    return int(
        outside_metadata(new) != outside_metadata(old)
        or new["metadata"].get("labels", {}) != old["metadata"].get("labels", {})
    )


def outside_metadata(document: Document) -> Document:
    return {name: value for name, value in document.items() if name not in ("kind", "apiVersion", "metadata")}


def mark_deleted(metadata: Document, now: float, grace_s: int | None) -> None:
    """Set deletionTimestamp to ``now + grace_s`` if there is none; the first time counts as a generation."""
    if "deletionTimestamp" not in metadata:
        metadata["deletionTimestamp"] = format_time(now + (grace_s or 0))
        if metadata.get("generation"):
            metadata["generation"] += 1
    if grace_s is not None:
        metadata["deletionGracePeriodSeconds"] = grace_s


def shorten_grace(metadata: Document, grace_s: int) -> None:
    """Move an announced deletion to an earlier moment."""
    started = parse_time(metadata["deletionTimestamp"]) - metadata["deletionGracePeriodSeconds"]
    metadata["deletionTimestamp"] = format_time(started + grace_s)
    metadata["deletionGracePeriodSeconds"] = grace_s


def parse_resource_version(value: Any) -> int:
    """A body's resourceVersion; "" and "0" are 0.  As upstream: a 500 without reason if it is not a number."""
    text = str(value or "0")
    try:
        return parse_uint64(text)
    except NotAnInteger as error:
        raise StatusError(500, "", f"strconv.ParseUint: parsing {show(text)}: {error.why}") from error
