"""What happened to a few objects, out of a recording of many: only blocks that are about them are
read.

The names of a block tell which objects and which jobs it is about. ``load`` reads the blocks of the
objects that a question is about, and keeps their steps; ``version`` makes an object when it is
asked for, along the chain of differences that leads to it. So a question about one Service costs
what concerns that Service.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

from sliceplane.api.scheme import EndpointSlices, by_key
from sliceplane.watch.recorder.delta import service_of
from sliceplane.watch.recorder.entries import VERBS, Answer, Base, Code, Old, SentVersion, SliceSent
from sliceplane.watch.recorder.file import Recording, SegmentRows

NONE: Final = -1


class ObjectKey(NamedTuple):
    resource: str
    namespace: str
    name: str


class RecordedStep(NamedTuple):
    """One change of one object. ``old`` and ``new`` are numbers of versions, ``NONE`` where there
    is none.

    ``order`` tells those of one moment apart.
    """

    at: float
    order: int
    key: ObjectKey
    old: int
    new: int
    writer: str


class Plan(NamedTuple):
    """A controller wanted to write: verb, resource, size in bytes of each write."""

    at: float
    writes: tuple[tuple[str, str, int], ...]


class _Version(NamedTuple):
    """How one version is made: ``base`` is the number of another version."""

    resource: str
    base: int
    difference: bytes | list[Any]


class _SegmentNames:
    """Who is in a segment, and in which of its blocks."""

    def __init__(self, rows: SegmentRows) -> None:
        self.rows: Final = rows
        self.blocks: Final = rows.names()[: len(rows.entry_blocks)]
        self.texts: Final = [text for names in self.blocks for text in names.texts]
        #: the objects of the checkpoint, which have the first numbers: base and difference
        self.present: Final = [(row[3], row[4]) for row in rows.objects()]
        #: an object that was made anew has another number
        self.numbers: Final[dict[tuple[str, str, str], list[int]]] = {}
        #: of slices, by number; "" where that is not known
        self.services: Final[dict[int, str]] = {}
        objects = [(row[0], row[1], row[2], "") for row in rows.objects()]
        keys = (key for names in self.blocks for key in names.keys)
        for number, (resource, namespace, name, service) in enumerate(chain(objects, keys)):
            self.numbers.setdefault((resource, namespace, name), []).append(number)
            if resource == EndpointSlices.key:
                self.services[number] = service

    def may_be_of(self, number: int, service: str) -> bool:
        """A slice whose Service its name does not tell."""
        difference = self.present[number][1] if number < len(self.present) else b""
        return not isinstance(difference, bytes) or not difference or service.encode() in difference


class Index:
    """Of one recording.  Steps and plans, as far as they are loaded, are in the order of time."""

    def __init__(self, recording: Recording) -> None:
        self._reading: Final = recording.reading()
        self._segments: Final = [_SegmentNames(rows) for rows in recording.segments]
        self.ended: Final = max(
            (names.ended for segment in self._segments for names in segment.blocks),
            default=recording.segments[-1].began if recording.segments else 0.0,
        )
        self.steps: Final[dict[ObjectKey, list[RecordedStep]]] = {}
        self.plans: Final[dict[str, list[Plan]]] = {}
        #: what the server sent of slices of the Services whose plans are loaded
        self.sent: Final[dict[SentVersion, SliceSent]] = {}
        #: versions that the first checkpoint has: what was there before the first step
        self.first: Final[dict[ObjectKey, int]] = {}
        self._versions: list[_Version] = []
        self._made: dict[int, Any] = {}
        self._loaded: set[ObjectKey] = set()

    def keys(self, resource: str, namespace: str) -> Iterator[ObjectKey]:
        """Of what was there, or came."""
        found = (key for segment in self._segments for key in segment.numbers if key[0] == resource)
        return (ObjectKey(*key) for key in dict.fromkeys(found) if key[1] == namespace)

    def slices(self, namespace: str, service: str) -> tuple[ObjectKey, ...]:
        """Those of a Service, loaded."""
        likely: list[ObjectKey] = []
        for key in self.keys(EndpointSlices.key, namespace):
            for segment in self._segments:
                for number in segment.numbers.get(key, ()):
                    named = segment.services[number]
                    if named == service or (not named and segment.may_be_of(number, service)):
                        likely.append(key)
        likely = list(dict.fromkeys(likely))
        self.load(likely)
        return tuple(
            key
            for key in likely
            if any(service_of(version) == service for version in self.versions(key))
        )

    def versions(self, key: ObjectKey) -> Iterator[Any]:
        """All that were there of a loaded object."""
        if key in self.first:
            yield self.version(self.first[key])
        for step in self.steps.get(key, ()):
            if step.new != NONE or key not in self.first:
                yield self.version(step.new if step.new != NONE else step.old)

    def version(self, number: int) -> Any:
        """The object; ``None`` for ``NONE``."""
        if number == NONE:
            return None
        links: list[int] = []
        while number != NONE and number not in self._made:
            links.append(number)
            number = self._versions[number].base
        made = self._made.get(number)
        for link in reversed(links):
            resource, _, difference = self._versions[link]
            if made is None:
                known = by_key(resource)
                assert known is not None, f"{resource} was known when it was recorded"
                made = self._reading.unpack_whole(known.projection, difference)
            elif isinstance(difference, bytes):
                made = self._reading.unpack_moved(made, difference)
            else:
                made = self._reading.unpack(made, difference)
            self._made[link] = made
        return made

    def load(
        self, keys: Iterable[ObjectKey], plans: Iterable[str] = (), since: float = 0.0
    ) -> None:
        """Steps of *keys*, and what was planned for keys of jobs.  *since*: older ones are not
        asked for.
        """
        wanted = [key for key in dict.fromkeys(keys) if key not in self._loaded]
        self._loaded.update(wanted)
        texts = frozenset(plans) - self.plans.keys()
        if not wanted and not texts:
            return
        for text in texts:
            self.plans[text] = []
        for position, segment in enumerate(self._segments):
            _Loading(self, segment, wanted, texts).run(position, since)

    def add(self, resource: str, base: int, difference: bytes | list[Any]) -> int:
        self._versions.append(_Version(resource, base, difference))
        return len(self._versions) - 1


class _Loading:
    """Steps and plans out of one segment."""

    def __init__(
        self, index: Index, segment: _SegmentNames, wanted: list[ObjectKey], texts: frozenset[str]
    ) -> None:
        self._index = index
        self._segment = segment
        self._keys = {number: key for key in wanted for number in segment.numbers.get(key, ())}
        self._planned = {number: text for number, text in enumerate(segment.texts) if text in texts}
        #: by number: the newest version, and one out of an answer
        self._newest: dict[int, int] = {}
        self._answered: dict[int, int] = {}

    def run(self, position: int, since: float) -> None:
        present = self._segment.present
        for number, key in self._keys.items():
            if number < len(present):
                self._newest[number] = self._add(number, *present[number])
                if position == 0:
                    self._index.first[key] = self._newest[number]
        keys, planned = self._keys.keys(), self._planned.keys()
        for block, names in enumerate(self._segment.blocks):
            if names.ended < since or (
                keys.isdisjoint(names.touched) and planned.isdisjoint(names.planned)
            ):
                continue
            self._read(self._segment.rows.block(block), (position << 48) + (block << 24))

    def _read(self, rows: list[list[Any]], order: int) -> None:
        keys = self._keys
        for place, row in enumerate(rows):
            code = row[0]
            if code == Code.STEP:
                if row[1] in keys:
                    self._step(
                        row, rows[place + 1][1], order + place
                    )  # a step is told at once, and maybe again later
            elif code == Code.TURN:
                if len(row) > 4:
                    self._plan(row)
            elif code == Code.MARK:
                if len(row) > 4 and row[4] in self._planned:
                    sent = SliceSent.parse(row[3])
                    self._index.sent[sent.version] = sent
            elif code == Code.DONE:
                for answer in row[4]:
                    if type(answer) is list and answer[0] == Answer.WHOLE and answer[1] in keys:
                        self._answered[answer[1]] = self._add(answer[1], answer[2], answer[3])

    def _step(self, row: list[Any], at: float, order: int) -> None:
        _, number, kind, *told, base, difference, writer = row
        old = NONE
        if kind == Old.NEWEST:
            old = self._newest.get(number, NONE)
        elif kind == Old.TOLD:
            old = self._newest[number] = self._add(number, *told)
        new = NONE
        if base != Base.GONE:
            new = self._add(number, base, difference)
            self._answered.pop(number, None)
        self._newest[number] = new
        key = self._keys[number]
        step = RecordedStep(at, order, key, old, new, self._segment.texts[writer])
        self._index.steps.setdefault(key, []).append(step)

    def _add(self, number: int, base: int, difference: Any) -> int:
        if base == Base.ANSWERED:
            return self._answered[number]
        under = self._newest.get(number, NONE) if base in (Base.NEWEST, Base.MOVED) else NONE
        return self._index.add(self._keys[number].resource, under, difference)

    def _plan(self, row: list[Any]) -> None:
        texts = self._segment.texts
        for key, writes in row[4]:
            if key in self._planned:
                sizes = tuple((VERBS[write[0]], texts[write[1]], write[5]) for write in writes)
                self._index.plans[self._planned[key]].append(Plan(row[1], sizes))
