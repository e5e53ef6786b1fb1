"""The history of the templates of StatefulSets and DaemonSets: a ControllerRevision for each,
numbered.

A revision is made before the first Pod of its template; its data is a strategic merge patch that
brings the template back, which is what ``kubectl rollout undo`` sends. A template that comes again
gets its revision back, with the highest number. Of revisions that no Pod and no status names the
oldest go, beyond ``revisionHistoryLimit``.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final

from sliceplane.api.apps import ControllerRevision, DaemonSet, StatefulSet
from sliceplane.api.codec import encode
from sliceplane.api.meta import Document, LabelSelector, Object
from sliceplane.api.scheme import ControllerRevisions, Resource
from sliceplane.emulation.claims import Claims
from sliceplane.emulation.templates import controller_uid, owner_reference, template_hash
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Write, deletion, object_patch

LABEL_REVISION: Final = "controller-revision-hash"
#: in a strategic merge patch: the object as it is here, and not merged
_DIRECTIVE: Final = {"$patch": "replace"}
Historied = StatefulSet | DaemonSet


def revision_name(owner: Historied) -> str:
    """Returns the name of the revision of the owner's template."""
    return f"{owner.metadata.name}-{template_hash(owner.spec.template)}"


class History:
    """Owned by the controller of *owners*, which tells of every owner and every revision."""

    def __init__(self, owners: Resource) -> None:
        self._owners = owners
        self._revisions: dict[
            str, dict[str, ControllerRevision]
        ] = {}  # owner uid -> name -> revision
        self._claims: Claims[ControllerRevision] = Claims(owners, ControllerRevisions)

    # -- what is there

    def on_owner(self, key: str, selector: LabelSelector | None) -> None:
        """*selector* ``None``: the owner is gone."""
        self._claims.on_owner(key, selector)

    def forget(self, uid: str) -> None:
        self._claims.forget(uid)

    def on_change(self, change: Change[Object]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Takes a change of a revision. Returns uids of its owners, and keys of those who may want
        it.
        """
        old, new = (
            one if isinstance(one, ControllerRevision) else None for one in (change.old, change.new)
        )
        uids: list[str] = []
        for revision in (old, new):
            uid = controller_uid(revision, self._owners) if revision is not None else ""
            if revision is None or not uid:
                continue
            uids.append(uid)
            revisions = self._revisions.setdefault(uid, {})
            if revision is new:
                revisions[revision.metadata.name] = revision
            else:
                revisions.pop(revision.metadata.name, None)
                if not revisions:
                    del self._revisions[uid]
        return tuple(dict.fromkeys(uids)), self._claims.on_child(old, new)

    def on_done(self, owner: Historied, done: Done) -> bool:
        """As ``Claims.on_done``."""
        return self._claims.on_done(owner, done)

    # -- what follows

    def templates(self, owner: Historied) -> dict[str, Document]:
        """Returns the templates by the names of their revisions: those that are kept, and the
        newest.
        """
        revisions = self._revisions.get(owner.metadata.uid, {})
        kept = {
            name: _template(revision) for name, revision in revisions.items() if _template(revision)
        }
        return {**kept, revision_name(owner): owner.spec.template}

    def plan(self, owner: Historied, in_use: Collection[str]) -> tuple[Write, ...]:
        """Returns the writes that correct the history; *in_use* are the names of revisions that
        Pods and the status name.
        """
        if owner.metadata.is_deleting:
            return ()
        revisions = self._revisions.get(owner.metadata.uid, {})
        claims = self._claims.plan(
            owner, [revisions[name] for name in sorted(revisions)], lambda _: True
        )
        return (
            claims
            or self._number(owner, revisions)
            or self._forget_oldest(owner, revisions, in_use)
        )

    def _number(
        self, owner: Historied, revisions: dict[str, ControllerRevision]
    ) -> tuple[Write, ...]:
        """The newest template has a revision, and it is the highest."""
        name = revision_name(owner)
        others = max(
            (one.revision for one in revisions.values() if one.metadata.name != name), default=0
        )
        existing = revisions.get(name)
        if existing is None:
            return (self._create(owner, name, others + 1),)
        if existing.revision > others:
            return ()
        return (object_patch(ControllerRevisions, existing.metadata, {"revision": others + 1}),)

    def _create(self, owner: Historied, name: str, number: int) -> Write:
        template = owner.spec.template
        labels: dict[str, str] = (template.get("metadata") or {}).get("labels") or {}
        hashed = name.removeprefix(f"{owner.metadata.name}-")
        body = {
            "apiVersion": ControllerRevisions.api_version,
            "kind": ControllerRevisions.kind,
            "metadata": {
                "name": name,
                "namespace": owner.metadata.namespace,
                "labels": {**labels, LABEL_REVISION: hashed},
                "annotations": owner.metadata.annotations or {},
                "ownerReferences": [owner_reference(owner, self._owners)],
            },
            "revision": number,
            "data": {"spec": {"template": _as_go_encodes({**_DIRECTIVE, **template})}},
        }
        return Write(
            verb="create",
            resource=ControllerRevisions,
            namespace=owner.metadata.namespace,
            body=encode(body),
        )

    def _forget_oldest(
        self, owner: Historied, revisions: dict[str, ControllerRevision], in_use: Collection[str]
    ) -> tuple[Write, ...]:
        limit = owner.spec.revision_history_limit
        if limit is None or limit < 0:
            return ()
        kept = {*in_use, revision_name(owner)}
        idle = sorted(
            (one for name, one in revisions.items() if name not in kept),
            key=lambda one: (one.revision, one.metadata.name),
        )
        return tuple(
            deletion(ControllerRevisions, one.metadata) for one in idle[: max(len(idle) - limit, 0)]
        )

    def check(self) -> None:
        self._claims.check()
        assert all(self._revisions.values()), "an owner without revisions is kept"


def _as_go_encodes(template: Document) -> Document:
    """Returns *template* with sorted keys and with the ``resources`` that Go writes for every
    container.

    As upstream: clients compare a revision's data with their own encoding byte by byte
    (``getPatch`` and ``EqualRevision`` of pkg/controller), whose maps are sorted.
    """
    spec = dict(template.get("spec") or {})
    for member in ("containers", "initContainers"):
        if spec.get(member):
            spec[member] = [{"resources": {}, **container} for container in spec[member]]
    ordered: Document = json.loads(json.dumps({**template, "spec": spec}, sort_keys=True))
    return ordered


def _template(revision: ControllerRevision) -> Document:
    """Returns the template of a revision; ``{}`` where somebody else wrote something else."""
    spec = (revision.data or {}).get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    if not isinstance(template, dict):
        return {}
    return {name: value for name, value in template.items() if name not in _DIRECTIVE}
