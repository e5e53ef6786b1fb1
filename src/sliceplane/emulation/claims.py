"""Adoption and release: which children belong to an owner that selects them by label.

A child has at most one controlling owner, named by uid in its ownerReferences; names alone mean
nothing. An owner

- *adopts* a child without one that its selector matches, unless either is being deleted;
- *releases* a child of its own that its selector does not match any more, unless it is being
  deleted itself: then the child is the garbage collector's.

**A cache is not believed before an adoption.**  An owner that was deleted with its children
orphaned must not take them back, so the server itself is asked for the owner first
(kubernetes/kubernetes#42639), once for all that is there to adopt. A claim that the server refused
is not tried again before the child has changed.

No look-up scans a namespace: selectors are filed under one of their label pairs, children without
an owner under each of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from sliceplane.api.codec import decode, encode
from sliceplane.api.meta import Document, LabelSelector, Object
from sliceplane.api.scheme import Resource
from sliceplane.api.selectors import from_label_selector
from sliceplane.api.selectors.labels import LabelRequirements
from sliceplane.emulation.templates import LABEL_TEMPLATE_HASH, controller_uid, owner_reference
from sliceplane.watch.controller.base import Done, Write

C = TypeVar("C", bound=Object)
#: namespace and label pair; "" and "" is every label
_LabelKey = tuple[str, str, str]
_MISSED = ("NotFound", "Conflict", "Invalid")


class Claims(Generic[C]):
    """Owned by the controller of *owners*, which tells of every owner and every child."""

    def __init__(self, owners: Resource, children: Resource) -> None:
        self._owners = owners
        self._children = children
        self._selectors: dict[
            str, tuple[_LabelKey, LabelRequirements]
        ] = {}  # owner key -> where it is filed, selector
        self._filed: dict[_LabelKey, set[str]] = {}  # -> owner keys
        self._orphans: dict[str, C] = {}  # child key -> child without a controlling owner
        self._orphans_at: dict[_LabelKey, set[str]] = {}
        self._alive: set[str] = set()  # uids of owners that the server confirmed, until they adopt
        self._refused: dict[
            str, str
        ] = {}  # child uid -> its version when the server refused a claim

    # -- what is there

    def on_owner(self, key: str, selector: LabelSelector | None) -> None:
        """*selector* ``None``: the owner is gone."""
        before = self._selectors.pop(key, None)
        if before is not None:
            _discard(self._filed, before[0], key)
        if selector is None or not (selector.match_labels or selector.match_expressions):
            return  # an empty one would match everything; the server takes none
        namespace = key.partition("/")[0]
        pairs = sorted(
            (selector.match_labels or {}).items(),
            key=lambda pair: (pair[0] != LABEL_TEMPLATE_HASH, pair),
        )
        label_key = (namespace, *pairs[0]) if pairs else (namespace, "", "")
        self._selectors[key] = label_key, from_label_selector(selector)
        self._filed.setdefault(label_key, set()).add(key)

    def on_child(self, old: C | None, new: C | None) -> tuple[str, ...]:
        """Keys of the owners that may want the child as it is now."""
        if old is not None:
            self._orphans.pop(old.metadata.key, None)
            for label_key in _label_keys(old):
                _discard(self._orphans_at, label_key, old.metadata.key)
            if new is None or new.metadata.uid != old.metadata.uid:
                self._refused.pop(old.metadata.uid, None)
        if new is None or controller_uid(new):
            return ()
        self._orphans[new.metadata.key] = new
        labels = new.metadata.labels
        adoptable: list[str] = []
        for label_key in _label_keys(new):
            self._orphans_at.setdefault(label_key, set()).add(new.metadata.key)
            adoptable += [
                key
                for key in self._filed.get(label_key, ())
                if self._selectors[key][1].matches(labels)
            ]
        return tuple(sorted(adoptable))

    # -- what follows

    def plan(
        self, owner: Object, owned: Iterable[C], may_adopt: Callable[[C], bool]
    ) -> tuple[Write, ...]:
        """Releases and adoptions, or the question that has to come before an adoption."""
        meta = owner.metadata
        if meta.is_deleting or meta.key not in self._selectors:
            return ()
        label_key, selector = self._selectors[meta.key]
        strays = [
            child
            for child in owned
            if not selector.matches(child.metadata.labels) and not self._in_vain(child)
        ]
        writes = [self._reference(child, {"$patch": "delete", "uid": meta.uid}) for child in strays]
        orphans = [self._orphans[key] for key in sorted(self._orphans_at.get(label_key, ()))]
        adoptable = [
            child
            for child in orphans
            if selector.matches(child.metadata.labels)
            and not child.metadata.is_deleting
            and may_adopt(child)
            and not self._in_vain(child)
        ]
        if adoptable and meta.uid not in self._alive:
            liveness_check = Write(
                verb="get",
                resource=self._owners,
                namespace=meta.namespace,
                name=meta.name,
                tolerate=("NotFound",),
            )
            return (*writes, liveness_check)
        self._alive.discard(meta.uid)
        reference = owner_reference(owner, self._owners)
        return (*writes, *(self._reference(child, reference) for child in adoptable))

    def on_done(self, owner: Object, done: Done) -> bool:
        """Notes the answers to a plan of ours; True if the owner must be planned again for them."""
        again = False
        for write, result in zip(done.job.writes, done.results, strict=False):
            if write.verb == "get" and write.resource is self._owners and result:
                fresh = decode(result, Object).metadata
                if fresh.uid == owner.metadata.uid and not fresh.is_deleting:
                    self._alive.add(fresh.uid)
                    again = True
            elif (
                write.verb == "patch"
                and write.resource is self._children
                and write.tolerate == _MISSED
                and not result
            ):
                child = decode(write.body, Object).metadata
                self._refused[child.uid] = child.resource_version
                again = True
        return again

    def forget(self, uid: str) -> None:
        """The owner with this uid is gone."""
        self._alive.discard(uid)

    def _in_vain(self, child: C) -> bool:
        return self._refused.get(child.metadata.uid) == child.metadata.resource_version

    def _reference(self, child: C, change: Document) -> Write:
        meta = child.metadata
        identity = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        return Write(
            verb="patch",
            resource=self._children,
            namespace=meta.namespace,
            name=meta.name,
            body=encode({"metadata": {**identity, "ownerReferences": [change]}}),
            patch_type="strategic",
            tolerate=_MISSED,
        )

    def check(self) -> None:
        filed = {key: label_key for label_key, keys in self._filed.items() for key in keys}
        assert filed == {key: label_key for key, (label_key, _) in self._selectors.items()}, (
            f"{filed} != {self._selectors}"
        )
        placed: dict[str, set[_LabelKey]] = {}
        for label_key, keys in self._orphans_at.items():
            for key in keys:
                placed.setdefault(key, set()).add(label_key)
        assert placed == {key: set(_label_keys(child)) for key, child in self._orphans.items()}, (
            "orphans by label"
        )
        assert not any(controller_uid(child) for child in self._orphans.values()), (
            "an orphan has an owner"
        )


def _label_keys(child: Object) -> list[_LabelKey]:
    namespace = child.metadata.namespace
    return [
        (namespace, "", ""),
        *((namespace, *pair) for pair in sorted((child.metadata.labels or {}).items())),
    ]


def _discard(index: dict[_LabelKey, set[str]], label_key: _LabelKey, key: str) -> None:
    keys = index.get(label_key)
    if keys is not None:
        keys.discard(key)
        if not keys:
            del index[label_key]
