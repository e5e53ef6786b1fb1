"""The reverse mirror: EndpointSlices in, Endpoints out, for readers of Endpoints when the Endpoints
controller is off.

It makes Endpoints for every Service with a selector, or with slices that are no mirror. They are
labelled as its own and as not to be mirrored, since they would come back as slices. **It never
changes an object without its label.** Endpoints of another writer stay until they are deleted or
handed over: ``kubectl label --overwrite endpoints NAME
endpoints.kubernetes.io/managed-by=reverse-mirror.sliceplane.dev``. A user who removes the label
takes the object back.

An object is deleted with its Service, when its Service becomes an ExternalName, and with the last
slice of a Service without a selector. With ``cleanup`` all of them are deleted, and none is made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from sliceplane.api.core import Endpoints, Service
from sliceplane.api.discovery import (
    ANNOTATION_TRIGGER_TIME,
    LABEL_ENDPOINTS_MANAGED_BY,
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    MANAGED_BY_MIRRORING,
    MANAGED_BY_REVERSE_MIRROR,
    EndpointSlice,
)
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Services
from sliceplane.controllers.service_syncs import to_write
from sliceplane.kit.ip import Family
from sliceplane.kit.times import parse_nanoseconds
from sliceplane.slices.endpoints.members import (
    EndpointsContent,
    content_of,
    create_endpoints,
    digest_of_subsets,
    update_endpoints,
)
from sliceplane.slices.endpoints.reverse import ReverseSource, read_content
from sliceplane.slices.endpoints.shape import EndpointsShape, Role, endpoints_shape
from sliceplane.slices.endpoints.subsets import Capacity, RenderedSubsets
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import ControllerInfo, Done, Selection, Write, deletion
from sliceplane.watch.controller.keyed import KeyedController

NAME: Final = "reverse-mirror-controller"


class _Stored(msgspec.Struct, frozen=True):
    """One of our objects in the cache; *digest* represents its subsets."""

    meta: ObjectMeta
    digest: bytes


class ReverseMirrorController(KeyedController):
    """The controller. Jobs are keyed ``namespace/name`` of the Service, and of its Endpoints."""

    def __init__(self, *, cleanup: bool = False) -> None:
        super().__init__(
            ControllerInfo(
                name=NAME,
                aliases=("reverse-mirror",),
                watches=(
                    Selection(Services),
                    Selection(EndpointSlices),
                    Selection(EndpointsObjects),
                ),
            )
        )
        self._cleanup = cleanup
        self._services: dict[str, EndpointsShape] = {}
        self._sources: dict[str, ReverseSource] = {}
        self._objects: dict[str, _Stored] = {}
        #: keys of Endpoints of another writer
        self._foreign: set[str] = set()
        #: the oldest trigger time, in nanoseconds, of unwritten changes, and of writes in flight
        self._triggers: dict[str, int] = {}
        self._sent: dict[str, int] = {}

    # -- events

    def on_change(self, change: Change[Object], now: float) -> None:
        match change.object:
            case Service() as service:
                key = service.metadata.key
                if change.new is None:
                    self._services.pop(key, None)
                else:
                    shape = endpoints_shape(
                        service, managed_by=MANAGED_BY_REVERSE_MIRROR, skip_mirror=True
                    )
                    self._services[key] = shape
                self.enqueue(key, now)
            case EndpointSlice():
                self._on_slice(change, now)
            case Endpoints() as endpoints:
                self._expectations.observe(change)
                self._on_endpoints(endpoints, gone=change.new is None, now=now)
            case unexpected:
                raise AssertionError(f"{change.resource} is not watched: {unexpected!r}")

    def _on_slice(self, change: Change[Object], now: float) -> None:
        before = _service_of(change.old)
        after = _service_of(change.new)
        if before is not None and before != after:
            self._put(before, change.object.metadata.name, None, now)
        if after is None or not isinstance(change.new, EndpointSlice):
            return
        if self._put(after, change.new.metadata.name, change.new, now) and self._synced:
            self._note_trigger(after, change)

    def _put(self, key: str, name: str, observed: EndpointSlice | None, now: float) -> bool:
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = ReverseSource()
        changed = source.put(name, None if observed is None else read_content(observed))
        if not source:
            del self._sources[key]
        if changed:
            self.enqueue(key, now)
        return changed

    def _note_trigger(self, key: str, change: Change[Object]) -> None:
        assert change.new is not None, f"{key}: a slice changed without a new version"
        text = (change.new.metadata.annotations or {}).get(ANNOTATION_TRIGGER_TIME)
        is_parsed = (
            change.old is not None
            and (change.old.metadata.annotations or {}).get(ANNOTATION_TRIGGER_TIME) == text
        )
        time = 0 if is_parsed else parse_nanoseconds(text)
        if time:
            self._triggers[key] = min(time, self._triggers.get(key, time))

    def _on_endpoints(self, observed: Endpoints, *, gone: bool, now: float) -> None:
        key = observed.metadata.key
        self._objects.pop(key, None)
        self._foreign.discard(key)
        if not gone:
            if (observed.metadata.labels or {}).get(
                LABEL_ENDPOINTS_MANAGED_BY
            ) == MANAGED_BY_REVERSE_MIRROR:
                self._objects[key] = _Stored(
                    observed.metadata, digest_of_subsets(observed.subsets, named=True)
                )
            else:
                self._foreign.add(key)
        self.enqueue(key, now)

    # -- work

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        if self.waits_for_cache(key, now):
            return ()
        if key in self._foreign:
            self._triggers.pop(key, None)
            return ()
        stored = self._objects.get(key)
        if stored is not None and stored.meta.deletion_timestamp is not None:
            return ()
        shape = self._services.get(key)
        if shape is None or not self._needs_endpoints(key, shape):
            self._triggers.pop(key, None)
            if stored is None:
                return ()
            # Only this version: the next one may belong to another writer.
            meta = stored.meta
            return (deletion(EndpointsObjects, meta, meta.resource_version, ("NotFound",)),)
        content = content_of(self._rendered(key, shape), Capacity.TRUNCATE)
        if stored is not None and content.matches(stored.meta, stored.digest, shape.labels):
            self._triggers.pop(key, None)
            return ()
        trigger = self._triggers.pop(key, 0)
        if trigger:
            self._sent[key] = trigger
        return (_write(shape, content, trigger, stored),)

    def _needs_endpoints(self, key: str, shape: EndpointsShape) -> bool:
        has_slices = shape.role is Role.WITHOUT_SELECTOR and key in self._sources
        return not self._cleanup and (shape.active or has_slices)

    def _rendered(self, key: str, shape: EndpointsShape) -> RenderedSubsets:
        source = self._sources.get(key) or ReverseSource()
        default_family: Family = "IPv6" if source.families == {"IPv6"} else "IPv4"
        return source.render(shape.family or default_family)

    def finished(self, done: Done, now: float) -> None:
        key = done.job.key
        sent = self._sent.pop(key, 0)
        if done.error is not None and sent:
            self._triggers[key] = min(sent, self._triggers.get(key, sent))
        self._expectations.expect(done, now)

    def check(self) -> None:
        super().check()
        assert not self._foreign & self._objects.keys(), "an object is ours and another writer's"
        for key, source in self._sources.items():
            assert source, f"{key} has no slices and was not dropped"
            source.check()


def _service_of(observed: Object | None) -> str | None:
    """Returns the key of the Service of a slice; ``None`` without one, or for a mirrored slice."""
    if observed is None:
        return None
    labels = observed.metadata.labels or {}
    name = labels.get(LABEL_SERVICE_NAME, "")
    if not name or labels.get(LABEL_MANAGED_BY) == MANAGED_BY_MIRRORING:
        return None
    return f"{observed.metadata.namespace}/{name}"


def _write(
    shape: EndpointsShape, content: EndpointsContent, trigger: int, stored: _Stored | None
) -> Write:
    if stored is None:
        # AlreadyExists: another writer was first, as the cache will show. NotFound: the Namespace
        # is gone.
        planned = create_endpoints(shape, content, trigger)
        return replace(to_write(EndpointsObjects, planned), tolerate=("AlreadyExists", "NotFound"))
    # It contains uid and version, so the server rejects it if the object was handed over or deleted
    # meanwhile.
    return to_write(EndpointsObjects, update_endpoints(shape, stored.meta, content, trigger))
