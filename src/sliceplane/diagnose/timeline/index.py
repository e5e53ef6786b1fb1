"""The history of a few objects from a recording of many; only the blocks about them are read.

The names of a block list its objects and jobs. ``load`` reads the blocks of the requested objects
and keeps their steps; ``version`` builds an object on demand, along the chain of differences that
leads to it. So a query about one Service costs in proportion to that Service.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from sliceplane.api.discovery import LABEL_SERVICE_NAME
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices
from sliceplane.diagnose.timeline.reader import ObjectKey, resource_of
from sliceplane.watch.recorder.blocks import lines_of, names_of, objects_of
from sliceplane.watch.recorder.entries import VERBS, Code, Old, SentVersion, SliceSent
from sliceplane.watch.recorder.file import Recording
from sliceplane.watch.recorder.objects import read_object, service_of
from sliceplane.watch.recorder.ring import Segment

NONE: Final = -1


class RecordedStep(NamedTuple):
    """One change of one object. ``old`` and ``new`` are numbers of versions; ``NONE``: absent.

    ``order`` sorts the changes of one moment.
    """

    at: float
    order: int
    key: ObjectKey
    old: int
    new: int
    writer: str


class Plan(NamedTuple):
    """The planned writes of a controller's job: verb, resource and size in bytes of each."""

    at: float
    writes: tuple[tuple[str, str, int], ...]


class _Version(NamedTuple):
    """How to build one version: ``base`` is the number of the version that its form extends."""

    kind: type[Object]
    base: int
    form: Any


class _SegmentNames:
    """The names in a segment, with their blocks."""

    def __init__(self, segment: Segment) -> None:
        self.segment: Final = segment
        self.blocks: Final = names_of(segment.names[: len(segment.blocks)])
        #: the objects of the checkpoint
        self.present: Final = {
            ObjectKey(resource, namespace, name): form
            for resource, namespace, name, form in objects_of(segment.checkpoint)
        }
        #: the Services of slices
        self.services: Final = {
            key: labels.get(LABEL_SERVICE_NAME, "")
            for key, form in self.present.items()
            if key.resource == EndpointSlices.key
            and isinstance(labels := form["metadata"].get("labels") or {}, dict)
        }
        keys = dict.fromkeys(self.present)
        for names in self.blocks:
            for *name, service in names.touched:
                key = ObjectKey(*name)
                keys[key] = None
                if service:
                    self.services[key] = service
        self.keys: Final = tuple(keys)


class Index:
    """The index of one recording. Loaded steps and plans are in the order of time."""

    def __init__(self, recording: Recording) -> None:
        self._segments: Final = [_SegmentNames(segment) for segment in recording.segments]
        self.ended: Final = max(
            (names.ended for segment in self._segments for names in segment.blocks),
            default=recording.segments[-1].began if recording.segments else 0.0,
        )
        self.steps: Final[dict[ObjectKey, list[RecordedStep]]] = {}
        self.plans: Final[dict[str, list[Plan]]] = {}
        #: events that the server sent for slices of the Services whose plans are loaded
        self.sent: Final[dict[SentVersion, SliceSent]] = {}
        #: versions of the first checkpoint, before the first step
        self.first: Final[dict[ObjectKey, int]] = {}
        self._versions: list[_Version] = []
        self._objects: dict[int, Any] = {}
        self._loaded: set[ObjectKey] = set()

    def keys(self, resource: str, namespace: str) -> Iterator[ObjectKey]:
        """Yields the names of objects that existed at the start, or were created."""
        keys = (key for segment in self._segments for key in segment.keys)
        return (key for key in dict.fromkeys(keys) if key[:2] == (resource, namespace))

    def slices(self, namespace: str, service: str) -> tuple[ObjectKey, ...]:
        """Returns the slices that were a Service's at any time, loaded."""
        likely = [
            key
            for segment in self._segments
            for key, name in segment.services.items()
            if name == service and key.namespace == namespace
        ]
        likely = list(dict.fromkeys(likely))
        self.load(likely)
        return tuple(
            key
            for key in likely
            if any(service_of(version) == service for version in self.versions(key))
        )

    def versions(self, key: ObjectKey) -> Iterator[Any]:
        """Yields all versions of a loaded object."""
        if key in self.first:
            yield self.version(self.first[key])
        for step in self.steps.get(key, ()):
            if step.new != NONE or key not in self.first:
                yield self.version(step.new if step.new != NONE else step.old)

    def version(self, number: int) -> Any:
        """Returns the object; ``None`` for ``NONE``."""
        if number == NONE:
            return None
        links: list[int] = []
        while number != NONE and number not in self._objects:
            links.append(number)
            number = self._versions[number].base
        built = self._objects.get(number)
        for link in reversed(links):
            kind, _, form = self._versions[link]
            built = self._objects[link] = read_object(kind, form, built)
        return built

    def load(
        self, keys: Iterable[ObjectKey], plans: Iterable[str] = (), since: float = 0.0
    ) -> None:
        """Loads steps of *keys*, and the plans of the job keys *plans*. *since*: older ones may be
        omitted.
        """
        pending = frozenset(keys) - self._loaded
        self._loaded |= pending
        texts = frozenset(plans) - self.plans.keys()
        if not pending and not texts:
            return
        for text in texts:
            self.plans[text] = []
        for position, segment in enumerate(self._segments):
            _Loading(self, segment, pending, texts).run(position, since)

    def add(self, resource: str, base: int, form: Any) -> int:
        """Adds a version and returns its number. A short *form* extends version *base*."""
        base = base if isinstance(form, list) else NONE
        self._versions.append(_Version(resource_of(resource).projection, base, form))
        return len(self._versions) - 1


class _Loading:
    """Reads steps and plans from one segment."""

    def __init__(
        self,
        index: Index,
        segment: _SegmentNames,
        keys: frozenset[ObjectKey],
        planned: frozenset[str],
    ) -> None:
        self._index = index
        self._segment = segment
        self._keys = keys
        self._planned = planned
        self._newest: dict[ObjectKey, int] = {}

    def run(self, position: int, since: float) -> None:
        for key in self._keys & self._segment.present.keys():
            number = self._index.add(key.resource, NONE, self._segment.present[key])
            self._newest[key] = number
            if position == 0:
                self._index.first[key] = number
        for block, names in enumerate(self._segment.blocks):
            touched = (key[:3] for key in names.touched)
            if names.ended >= since and not (
                self._keys.isdisjoint(touched) and self._planned.isdisjoint(names.planned)
            ):
                lines = lines_of(self._segment.segment.blocks[block])
                self._read(lines, (position << 48) + (block << 24))

    def _read(self, lines: list[list[Any]], order: int) -> None:
        for position, line in enumerate(lines):
            match line:
                case [Code.STEP, resource, namespace, name, old, new, writer, *_]:
                    key = ObjectKey(resource, namespace, name)
                    if key in self._keys:  # the change that follows has the step's time
                        at = lines[position + 1][1]
                        self._step(
                            RecordedStep(at, order + position, key, NONE, NONE, writer), old, new
                        )
                case [Code.BATCH, at, _, _, jobs]:
                    for text, writes in jobs:
                        if text in self._planned:
                            sizes = tuple((VERBS[write[0]], write[1], write[5]) for write in writes)
                            self._index.plans[text].append(Plan(at, sizes))
                case [Code.MARK, _, _, text, service] if service in self._planned:
                    sent = SliceSent.parse(text)
                    self._index.sent[sent.version] = sent

    def _step(self, step: RecordedStep, replaced: Any, form: Any) -> None:
        key = step.key
        old = self._newest.get(key, NONE)
        if replaced == Old.NOTHING:
            old = NONE
        elif replaced != Old.NEWEST:
            old = self._index.add(key.resource, NONE, replaced)
        new = NONE if form is None else self._index.add(key.resource, old, form)
        self._newest[key] = new
        self._index.steps.setdefault(key, []).append(step._replace(old=old, new=new))
