"""The reverse mirror: EndpointSlices in, Endpoints out, for readers that are left when the Endpoints controller is off.

It makes Endpoints for every Service that has a selector, or slices that nobody mirrored; they are labelled as its own
and as not to be mirrored (they would come back as slices).  **It never touches an object without its label.**  Where
somebody else's Endpoints are, that is how it stays, until they are deleted or handed over:
``kubectl label --overwrite endpoints NAME endpoints.kubernetes.io/managed-by=reverse-mirror.sliceplane.dev``.  Whoever
takes the label away has the object back.

An object goes with its Service, when its Service becomes an ExternalName, and when the last slice of a Service without
selector goes.  With ``cleanup`` all of them go, and none is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.core import Endpoints, Service
from sliceplane.api.discovery import (
    ANNOTATION_OVER_CAPACITY,
    ANNOTATION_TRIGGER_TIME,
    LABEL_ENDPOINTS_MANAGED_BY,
    LABEL_HEADLESS,
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    LABEL_SKIP_MIRROR,
    MANAGED_BY_MIRRORING,
    MANAGED_BY_REVERSE_MIRROR,
    EndpointSlice,
)
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Services
from sliceplane.controllers.base import ControllerInfo, Done, Watched, Write
from sliceplane.controllers.expectations import Expectations
from sliceplane.controllers.keyed import KeyedController
from sliceplane.endpoints.shape import primary_family
from sliceplane.informer.changes import Change
from sliceplane.kit.ip import Family
from sliceplane.kit.times import format_nano_time
from sliceplane.slices.reverse_mirror import Rendered, ReverseSource, text_of, view_of
from sliceplane.slices.trigger import parse_nanoseconds

NAME: Final = "reverse-mirror-controller"
TRUNCATED: Final = "truncated"


@dataclass(frozen=True, slots=True)
class _Shape:
    """What matters of a Service.  ``family`` None: it does not say."""

    selecting: bool
    external: bool
    family: Family | None
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Stored:
    """An object of ours, as the cache shows it; *digest* stands for its subsets."""

    meta: ObjectMeta
    digest: bytes


class ReverseMirrorController(KeyedController):
    """Jobs are keyed ``namespace/name`` of the Service, and of its Endpoints."""

    def __init__(self, *, cleanup: bool = False) -> None:
        super().__init__(
            ControllerInfo(
                name=NAME,
                aliases=("reverse-mirror",),
                watches=(Watched(Services), Watched(EndpointSlices), Watched(EndpointsObjects)),
            )
        )
        self._cleanup = cleanup
        self._services: dict[str, _Shape] = {}
        self._sources: dict[str, ReverseSource] = {}
        self._objects: dict[str, _Stored] = {}
        #: keys of Endpoints that are somebody else's
        self._foreign: set[str] = set()
        #: the oldest trigger time, in nanoseconds, of what is not written yet; and of what is being written
        self._triggers: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        self._expectations = Expectations()

    # -- events -----------------------------------------------------------------------------------------

    def on_change(self, change: Change[Object], now: float) -> None:
        match change.object:
            case Service() as service:
                key = service.metadata.key
                if change.new is None:
                    self._services.pop(key, None)
                else:
                    self._services[key] = _shape_of(service)
                self.enqueue(key, now)
            case EndpointSlice():
                self._on_slice(change, now)
            case Endpoints() as endpoints:
                self._expectations.observe(change)
                self._on_endpoints(endpoints, gone=change.new is None, now=now)
            case unexpected:
                raise AssertionError(f"{change.resource} is not watched: {unexpected!r}")

    def _on_slice(self, change: Change[Object], now: float) -> None:
        before, after = _service_of(change.old), _service_of(change.new)
        if before is not None and before != after:
            self._put(before, change.object.metadata.name, None, now)
        if after is None or not isinstance(change.new, EndpointSlice):
            return
        if self._put(after, change.new.metadata.name, change.new, now) and self._synced:
            self._note_trigger(after, change)

    def _put(self, key: str, name: str, found: EndpointSlice | None, now: float) -> bool:
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = ReverseSource()
        changed = source.put(name, None if found is None else view_of(found))
        if not source:
            del self._sources[key]
        if changed:
            self.enqueue(key, now)
        return changed

    def _note_trigger(self, key: str, change: Change[Object]) -> None:
        assert change.new is not None, f"{key}: nothing triggered anything"
        text = (change.new.metadata.annotations or {}).get(ANNOTATION_TRIGGER_TIME)
        known = change.old is not None and (change.old.metadata.annotations or {}).get(ANNOTATION_TRIGGER_TIME) == text
        time = 0 if known else parse_nanoseconds(text)
        if time:
            self._triggers[key] = min(time, self._triggers.get(key, time))

    def _on_endpoints(self, found: Endpoints, *, gone: bool, now: float) -> None:
        key = found.metadata.key
        self._objects.pop(key, None)
        self._foreign.discard(key)
        if not gone:
            if (found.metadata.labels or {}).get(LABEL_ENDPOINTS_MANAGED_BY) == MANAGED_BY_REVERSE_MIRROR:
                self._objects[key] = _Stored(found.metadata, _digest(text_of(found.subsets)))
            else:
                self._foreign.add(key)
        self.enqueue(key, now)

    # -- work -------------------------------------------------------------------------------------------

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        again = self._expectations.pending(key, now)
        if again is not None:
            self.enqueue_after(key, again - now, now)
            return ()
        if key in self._foreign:
            self._triggers.pop(key, None)
            return ()
        stored = self._objects.get(key)
        if stored is not None and stored.meta.deletion_timestamp is not None:
            return ()
        shape = self._services.get(key)
        if shape is None or not self._is_wanted(key, shape):
            self._triggers.pop(key, None)
            return () if stored is None else (_delete(stored.meta),)
        rendered = self._rendered(key, shape)
        if stored is not None and _is_as_wanted(stored, shape, rendered):
            self._triggers.pop(key, None)
            return ()
        trigger = self._triggers.pop(key, 0)
        if trigger:
            self._sent[key] = trigger
        return (_write(key, shape, rendered, trigger, stored),)

    def _is_wanted(self, key: str, shape: _Shape) -> bool:
        return not self._cleanup and not shape.external and (shape.selecting or key in self._sources)

    def _rendered(self, key: str, shape: _Shape) -> Rendered:
        source = self._sources.get(key) or ReverseSource()
        chosen: Family = "IPv6" if source.families == {"IPv6"} else "IPv4"
        return source.render(shape.family or chosen)

    def finished(self, done: Done, now: float) -> None:
        key = done.job.key
        sent = self._sent.pop(key, 0)
        if done.error is not None and sent:
            self._triggers[key] = min(sent, self._triggers.get(key, sent))
        self.expect_results(self._expectations, done, now)

    def check(self) -> None:
        super().check()
        self._expectations.check()
        assert not self._foreign & self._objects.keys(), "an object is ours and somebody else's"
        for key, source in self._sources.items():
            assert source, f"{key} has no slices and was not dropped"
            source.check()


def _service_of(found: Object | None) -> str | None:
    """The key that a slice counts for; ``None``: for none, or it came from Endpoints itself."""
    if found is None:
        return None
    labels = found.metadata.labels or {}
    name = labels.get(LABEL_SERVICE_NAME, "")
    if not name or labels.get(LABEL_MANAGED_BY) == MANAGED_BY_MIRRORING:
        return None
    return f"{found.metadata.namespace}/{name}"


def _shape_of(service: Service) -> _Shape:
    spec = service.spec
    labels = {key: value for key, value in (service.metadata.labels or {}).items() if key != LABEL_HEADLESS}
    labels[LABEL_ENDPOINTS_MANAGED_BY] = MANAGED_BY_REVERSE_MIRROR
    labels[LABEL_SKIP_MIRROR] = "true"
    if spec.cluster_ip in ("", "None"):
        labels[LABEL_HEADLESS] = ""
    return _Shape(
        selecting=bool(spec.selector),
        external=spec.type == "ExternalName",
        family=primary_family(service),
        labels=dict(sorted(labels.items())),
    )


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=16).digest()


def _is_as_wanted(stored: _Stored, shape: _Shape, rendered: Rendered) -> bool:
    capacity = (stored.meta.annotations or {}).get(ANNOTATION_OVER_CAPACITY)
    return (
        stored.digest == _digest(rendered.text)
        and stored.meta.labels == shape.labels
        and capacity == (TRUNCATED if rendered.truncated else None)
    )


def _write(key: str, shape: _Shape, rendered: Rendered, trigger: int, stored: _Stored | None) -> Write:
    namespace, _, name = key.partition("/")
    known = ObjectMeta(name=name, namespace=namespace) if stored is None else stored.meta
    ours = (ANNOTATION_OVER_CAPACITY, ANNOTATION_TRIGGER_TIME)
    annotations = {each: value for each, value in (known.annotations or {}).items() if each not in ours}
    if rendered.truncated:
        annotations[ANNOTATION_OVER_CAPACITY] = TRUNCATED
    if trigger:
        annotations[ANNOTATION_TRIGGER_TIME] = format_nano_time(trigger)
    meta = msgspec.structs.replace(known, labels=shape.labels, annotations=annotations or None)
    body = b'{"apiVersion":"v1","kind":"Endpoints","metadata":%s,"subsets":%s}' % (encode(meta), rendered.text)
    if stored is None:
        # AlreadyExists: somebody was first, and the cache will say who; NotFound: the namespace is gone.
        tolerated = ("AlreadyExists", "NotFound")
        return Write(verb="create", resource=EndpointsObjects, namespace=namespace, body=body, tolerate=tolerated)
    # It carries uid and version: an object that changed hands meanwhile, or is gone, refuses it.
    return Write(verb="update", resource=EndpointsObjects, namespace=namespace, name=name, body=body)


def _delete(meta: ObjectMeta) -> Write:
    """Only this version: with the next one it may be somebody else's."""
    preconditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
    return Write(
        verb="delete",
        resource=EndpointsObjects,
        namespace=meta.namespace,
        name=meta.name,
        body=encode(options),
        tolerate=("NotFound",),
    )
