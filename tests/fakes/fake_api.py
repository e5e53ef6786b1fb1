"""An API server as a value: lists with pages, watches, writes with conflicts, and every way in
which they go wrong.

Deterministic and without I/O: a test (or a simulator) says what happens and when. It has the
semantics that clients rely on (kubernetes.io, "Kubernetes API Concepts"): one revision for all
resources; pages of one list are of one revision; a watch gives what came strictly after its
version, or 410 if that is forgotten; bookmarks; DELETED with the deletion's own revision; 409 for
stale updates. It validates nothing, and patches are merge patches.

Faults on demand: ``compact`` (410 for old versions and tokens), ``restart`` (history forgotten,
streams cut), ``restore`` (back to a snapshot, revisions included), ``fail`` (the next requests get
an error), and on a ``FakeWatch`` ``cut``, ``go_silent``, ``repeat`` and ``lag_s``.

    api = FakeApi()
    api.put(Pods, "default", "a", {"status": {"podIP": "10.0.0.1"}})
    page = api.list(Selection(Pods), limit=500)
    stream = api.watch(Selection(Pods), page.resource_version, now=0.0)
    api.remove(Pods, "default", "a")
    [(kind, body)] = stream.pull(now=0.1)     # DELETED
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.fake_watch import FakeWatch, Happened, Predicate

from sliceplane.api import codec
from sliceplane.api.errors import (
    STALE_WRITE,
    StatusError,
    already_exists,
    conflict,
    expired,
    not_found,
)
from sliceplane.api.meta import Document, revision_of
from sliceplane.api.requests import ListPage, Selection, Write
from sliceplane.api.scheme import Resource
from sliceplane.api.selectors import parse_fields, parse_labels

_CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result."
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A backup: everything that ``FakeApi.restore`` brings back."""

    revision: int
    objects: Mapping[tuple[str, str], Document]
    history: tuple[Happened, ...]


@dataclass(slots=True)
class _Fault:
    verbs: tuple[str, ...]
    error: StatusError
    left: int


@dataclass(slots=True)
class FakeApi:
    """Owned by one test.  Objects are documents; callers get bytes, so no caller can change what is
    stored.
    """

    revision: int = 100
    #: watches and tokens from before this revision are 410
    oldest: int = 0
    #: (verb, Resource.key, path) of every request, in order
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    watches: list[FakeWatch] = field(default_factory=list)
    _objects: dict[tuple[str, str], Document] = field(default_factory=dict)
    _history: list[Happened] = field(default_factory=list)
    #: the state behind each list that is read in pages
    _paged: dict[tuple[str, int], tuple[Document, ...]] = field(default_factory=dict)
    _faults: list[_Fault] = field(default_factory=list)
    _uids: int = 0

    # What the world does to the server

    def put(
        self, resource: Resource, namespace: str, name: str, content: Document | None = None
    ) -> Document:
        """Create the object, or replace all but its identity."""
        old = self._objects.get((resource.key, _path(namespace, name)))
        document = dict(content or {})
        metadata = {**document.get("metadata", {}), "name": name}
        if namespace:
            metadata["namespace"] = namespace
        if old is None:
            self._uids += 1
        metadata["uid"] = old["metadata"]["uid"] if old is not None else f"uid-{self._uids}"
        document["metadata"] = metadata
        return self._commit(resource, "ADDED" if old is None else "MODIFIED", document)

    def remove(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete an object that exists."""
        self._commit(resource, "DELETED", self._objects[resource.key, _path(namespace, name)])

    def compact(self, revision: int | None = None) -> None:
        """Forget the history up to *revision* (default: all of it), and the lists that are being
        paged.
        """
        self.oldest = max(self.oldest, self.revision if revision is None else revision)
        self._paged.clear()

    def restart(self, error: StatusError | None = None) -> None:
        """Forget the history and cut every stream, silently or with *error*."""
        self.compact()
        self.cut_all(error)

    def cut_all(self, error: StatusError | None = None) -> None:
        for watch in self.watches:
            watch.cut(error)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.revision, dict(self._objects), tuple(self._history))

    def restore(self, backup: Snapshot) -> None:
        """Go back to *backup*; streams are cut, and revisions are used again."""
        self.revision = backup.revision
        self.oldest = min(self.oldest, backup.revision)
        self._objects = dict(backup.objects)
        self._history[:] = backup.history
        self._paged.clear()
        self.cut_all()

    def fail(self, error: StatusError, *verbs: str, times: int = 1) -> None:
        """The next *times* requests with one of *verbs* (none given: any) are answered with
        *error*.
        """
        self._faults.append(_Fault(verbs, error, times))

    def recover(self) -> None:
        """Take back every ``fail`` that has not happened yet."""
        self._faults.clear()

    # What clients ask

    def list(
        self, selection: Selection, *, limit: int | None = None, continue_token: str = ""
    ) -> ListPage:
        """Items lack kind and apiVersion, as a real server's do.  Raises the 410 of an expired
        continue token.
        """
        resource = selection.resource
        self._request("list", resource, selection.namespace)
        revision, after = self.revision, ""
        if continue_token:
            number, _, after = continue_token.partition(":")
            revision = int(number)
            if (resource.key, revision) not in self._paged:
                raise expired(_CONTINUE_EXPIRED)
            documents = self._paged[resource.key, revision]
        else:
            documents = self._present(resource)
        matches = _predicate(selection)
        page = [
            document for document in documents if matches(document) and _path_of(document) > after
        ]
        token = ""
        if limit and len(page) > limit:
            page = page[:limit]
            token = f"{revision}:{_path_of(page[-1])}"
            self._paged[resource.key, revision] = documents
        items = tuple(codec.encode(_without_kind(document)) for document in page)
        return ListPage(items, str(revision), token)

    def watch(
        self, selection: Selection, resource_version: str, *, now: float, timeout_s: float = 1800.0
    ) -> FakeWatch:
        """A stream; too old a version ends it with an ERROR event, as real servers do."""
        self._request("watch", selection.resource, selection.namespace)
        since = revision_of(resource_version)
        matches = _predicate(selection)
        stream = FakeWatch(
            selection.resource, matches, since, self, now=now, ends_at=now + timeout_s
        )
        if since < self.oldest:
            stream.refuse(expired(f"too old resource version: {since} ({self.oldest})"))
        self.watches = [*(watch for watch in self.watches if not watch.ended), stream]
        return stream

    def perform(self, write: Write) -> bytes:
        """A write, or a ``get``.  A patch is a merge patch; a delete gives the deleted object."""
        resource, namespace = write.resource, write.namespace
        if write.verb == "create":
            return self._create(resource, namespace, codec.decode_document(write.body))
        self._request(write.verb, resource, _path(namespace, write.name))
        old = self._existing(resource, namespace, write.name)
        if write.verb == "get":
            return codec.encode(old)
        if write.verb == "delete":
            return codec.encode(self._commit(resource, "DELETED", old))
        change = codec.decode_document(write.body)
        unconditional = ("", "0") if write.verb == "update" else ("",)
        version = change.get("metadata", {}).get("resourceVersion", "")
        if version not in (*unconditional, old["metadata"]["resourceVersion"]):
            raise conflict(resource.plural, resource.group, write.name, STALE_WRITE)
        new = change if write.verb == "update" else _merge(old, change)
        return codec.encode(self.put(resource, namespace, write.name, new))

    def _create(self, resource: Resource, namespace: str, document: Document) -> bytes:
        metadata = document.setdefault("metadata", {})
        name = metadata.get("name") or f"{metadata.get('generateName', '')}{self._uids + 1:05d}"
        self._request("create", resource, _path(namespace, name))
        if (resource.key, _path(namespace, name)) in self._objects:
            raise already_exists(resource.plural, resource.group, name)
        return codec.encode(self.put(resource, namespace, name, document))

    # What tests look at

    def objects(self, resource: Resource) -> dict[str, tuple[str, str]]:
        """``namespace/name`` -> (uid, resourceVersion) of what exists."""
        return {
            _path_of(document): (
                document["metadata"]["uid"],
                document["metadata"]["resourceVersion"],
            )
            for document in self._present(resource)
        }

    def since(self, resource: Resource, revision: int) -> tuple[Happened, ...]:
        """What happened after *revision*.  For ``FakeWatch``."""
        return tuple(
            event
            for event in self._history
            if event.revision > revision and event.resource == resource.key
        )

    def _present(self, resource: Resource) -> tuple[Document, ...]:
        return tuple(
            document
            for (key, _), document in sorted(self._objects.items(), key=_order)
            if key == resource.key
        )

    def _existing(self, resource: Resource, namespace: str, name: str) -> Document:
        document = self._objects.get((resource.key, _path(namespace, name)))
        if document is None:
            raise not_found(resource.plural, resource.group, name)
        return document

    def _commit(self, resource: Resource, kind: str, document: Document) -> Document:
        self.revision += 1
        metadata = {**document["metadata"], "resourceVersion": str(self.revision)}
        stored = {
            **document,
            "kind": resource.kind,
            "apiVersion": resource.api_version,
            "metadata": metadata,
        }
        key = (resource.key, _path_of(stored))
        previous = self._objects.pop(key, None)
        if kind != "DELETED":
            self._objects[key] = stored
        self._history.append(Happened(self.revision, resource.key, kind, stored, previous))
        return stored

    def _request(self, verb: str, resource: Resource, path: str) -> None:
        self.requests.append((verb, resource.key, path))
        for fault in self._faults:
            if fault.left > 0 and (not fault.verbs or verb in fault.verbs):
                fault.left -= 1
                raise fault.error


def _order(entry: tuple[tuple[str, str], Document]) -> tuple[str, str]:
    return entry[0]


def _path(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def _path_of(document: Document) -> str:
    metadata = document["metadata"]
    return _path(metadata.get("namespace", ""), metadata["name"])


def _predicate(selection: Selection) -> Predicate:
    resource, namespace = selection.resource, selection.namespace
    labels = parse_labels(selection.label_selector)
    fields = parse_fields(selection.field_selector, resource)

    def matches(document: Document) -> bool:
        metadata = document["metadata"]
        if namespace and metadata.get("namespace", "") != namespace:
            return False
        values = {path: str(_value_at(document, path)) for _, path in resource.selectable_fields}
        return labels.matches(metadata.get("labels") or {}) and fields.matches(
            metadata["name"], metadata.get("namespace", ""), values
        )

    return matches


def _value_at(document: Document, path: str) -> Any:
    """The member at ``a.b.c``; "" where there is none."""
    value: Any = document
    for step in path.split("."):
        value = value.get(step, "") if isinstance(value, dict) else ""
    return value


def _without_kind(document: Document) -> Document:
    return {
        member: value for member, value in document.items() if member not in ("kind", "apiVersion")
    }


def _merge(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for member, value in patch.items():
        if value is None:
            merged.pop(member, None)
        else:
            merged[member] = _merge(merged.get(member), value)
    return merged
