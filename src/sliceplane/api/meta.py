"""Metadata as readers see it, and the base of every projection.

A projection is frozen; its lists are tuples; its dictionaries are shared with the cache and
therefore **must not be changed**. Absent and null members take the default; members that a
projection does not name are skipped while decoding, never copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

import msgspec

from sliceplane.kit.integers import NotAnInteger, parse_uint64


class Projection(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True, gc=False
):
    """Base of all projections: camelCase on the wire, defaults left out when encoded."""


class OwnerReference(Projection, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Projection, frozen=True, kw_only=True):
    """metav1.ObjectMeta without managedFields and selfLink.  Times stay text (``kit.times`` parses
    them).
    """

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None
    finalizers: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        """``namespace/name``, or the name alone where there is no namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def revision(self) -> int:
        """``resource_version`` as a number; 0 if it is none."""
        return revision_of(self.resource_version)

    @property
    def is_deleting(self) -> bool:
        """Returns True if the object was deleted and waits for finalizers or its grace period."""
        return self.deletion_timestamp is not None

    @property
    def controller(self) -> OwnerReference | None:
        """The reference to the controlling owner."""
        return next((one for one in self.owner_references or () if one.controller), None)


def revision_of(resource_version: str) -> int:
    """A resourceVersion as a number, which orders the versions of one resource (KEP-5504); 0 for
    one that is none.
    """
    try:
        return parse_uint64(resource_version)
    except NotAnInteger:
        return 0


def is_older(version: str, than: str) -> bool:
    """False where nothing tells: two versions that are no numbers are the same or they are not."""
    return 0 < revision_of(version) < revision_of(than)


def is_newer(newer: ObjectMeta, older: ObjectMeta) -> bool:
    """Returns True if *newer* is a later version than *older* of the same object.

    If a version is not a number, the generation decides, which nearly every write raises; equal
    generations count as newer.
    """
    if newer.resource_version == older.resource_version:
        return False
    newer_revision = revision_of(newer.resource_version)
    older_revision = revision_of(older.resource_version)
    if newer_revision and older_revision:
        return newer_revision > older_revision
    return newer.generation >= older.generation


class ObjectReference(Projection, frozen=True, kw_only=True):
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    resource_version: str = ""
    field_path: str = ""


class LabelSelectorRequirement(Projection, frozen=True, kw_only=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class LabelSelector(Projection, frozen=True, kw_only=True):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[LabelSelectorRequirement, ...] | None = None


class Condition(Projection, frozen=True, kw_only=True):
    """The common part of every kind's conditions."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_update_time: str | None = None


class ObservedCondition(Condition, frozen=True, kw_only=True):
    """A condition that names the generation that it describes."""

    observed_generation: int | None = None


K = TypeVar("K", bound=Condition)


def find_condition(conditions: Iterable[K] | None, kind: str) -> K | None:
    """Returns the condition of the type *kind*. A plain loop: the slice engine calls this for each
    version of each Pod, and a generator costs it half as much again.
    """
    for condition in conditions or ():
        if condition.type == kind:
            return condition
    return None


class Object(Projection, frozen=True, kw_only=True):
    """The members of every kind. Specific projections add the members that their readers use."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


IntOrString = Annotated[int | str, msgspec.Meta(description="a number, or a name")]
Document = dict[str, Any]
