"""Everything that happened to objects, without the objects: where each version is, and what it is the difference to.

One pass over the rows costs a fraction of reading them: no object is made.  ``version`` makes one when it is asked for,
along the chain of differences that leads to it, and keeps what it made.  So a question about one Service reads what
concerns that Service.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sliceplane.api.scheme import by_key
from sliceplane.recorder.delta import Reading, schema
from sliceplane.recorder.entries import VERBS, Answer, Base, Code, Old
from sliceplane.recorder.file import Recording, SegmentRows

NONE: Final = -1


class ObjectKey(NamedTuple):
    resource: str
    namespace: str
    name: str


class RecordedStep(NamedTuple):
    """One change of one object.  ``old`` and ``new`` are numbers of versions, ``NONE`` where there is none.

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
    controller: str
    key: str
    writes: tuple[tuple[str, str, int], ...]


class IndexedMark(NamedTuple):
    at: float
    kind: str
    text: str


@dataclass(slots=True)
class _Version:
    """How one version is made: ``base`` is the number of another version."""

    resource: str
    base: int
    difference: bytes | list[Any]


@dataclass(slots=True)
class Index:
    """Of one recording.  Steps and plans are in the order of time."""

    reading: Reading
    #: where labels are in a difference: members of the metadata, in an object of any kind
    labels: int
    metadata: tuple[int, int]
    began: float = 0.0
    ended: float = 0.0
    steps: dict[ObjectKey, list[RecordedStep]] = field(default_factory=dict)
    plans: dict[str, list[Plan]] = field(default_factory=dict)
    marks: list[IndexedMark] = field(default_factory=list)
    #: versions that a checkpoint has, by key: what was there before the first step
    first: dict[ObjectKey, int] = field(default_factory=dict)
    #: how many steps there are
    told: int = 0
    _versions: list[_Version] = field(default_factory=list)
    _made: dict[int, Any] = field(default_factory=dict)

    def version(self, number: int) -> Any:
        """The object; ``None`` for ``NONE``."""
        if number == NONE:
            return None
        chain: list[int] = []
        while number != NONE and number not in self._made:
            chain.append(number)
            number = self._versions[number].base
        made = self._made.get(number)
        for link in reversed(chain):
            version = self._versions[link]
            if made is None:
                resource = by_key(version.resource)
                assert resource is not None, f"{version.resource} was known when it was recorded"
                made = self.reading.unpack_whole(resource.projection, version.difference)
            elif isinstance(version.difference, bytes):
                made = self.reading.unpack_moved(made, version.difference)
            else:
                made = self.reading.unpack(made, version.difference)
            self._made[link] = made
        return made

    def label(self, number: int, label: str) -> str:
        """Of a version that is not made for it: the newest difference that has labels tells."""
        while number != NONE:
            version = self._versions[number]
            if isinstance(version.difference, bytes):
                labels = self.version(number).metadata.labels or {}
                return str(labels.get(label, ""))
            for at in range(0, len(version.difference), 2):
                if version.difference[at] in self.metadata:
                    members = version.difference[at + 1]
                    for place in range(0, len(members), 2):
                        if members[place] == self.labels:
                            return str((members[place + 1] or {}).get(label, ""))
            number = version.base
        return ""

    def keys(self, resource: str, namespace: str) -> Iterator[ObjectKey]:
        """Of what was there, or came."""
        for key in self.steps:
            if key.resource == resource and key.namespace == namespace:
                yield key
        for key in self.first:
            if key.resource == resource and key.namespace == namespace and key not in self.steps:
                yield key


def index_of(recording: Recording) -> Index:
    members = {**schema(), **recording.header.schema}
    metadata = members["Object"].index("metadata")
    labels = members["ObjectMeta"].index("labels")
    index = Index(recording.reading(), labels, (metadata, ~metadata))
    if recording.segments:
        index.began = index.ended = recording.segments[0].began
    names: dict[int, str] = {}
    for position, segment in enumerate(recording.segments):
        _SegmentIndex(index, segment, names).run(first=position == 0)
    return index


class _SegmentIndex:
    def __init__(self, index: Index, segment: SegmentRows, names: dict[int, str]) -> None:
        self._index = index
        self._segment = segment
        self._versions = index._versions
        #: of the segment's keys: the newest version, and one out of an answer
        self._newest: list[int] = []
        self._answered: list[int] = []
        self._keys: list[ObjectKey] = []
        self._texts: list[str] = []
        #: life -> controller
        self._names = names
        for life in segment.lives:
            names[life.number] = life.name

    def run(self, *, first: bool) -> None:
        for row in self._segment.objects():
            key = ObjectKey(row[0], row[1], row[2])
            self._keys.append(key)
            self._newest.append(NONE)
            self._answered.append(NONE)
            self._newest[-1] = self._add(len(self._keys) - 1, row[3], row[4])
            if first:
                self._index.first[key] = self._newest[-1]
        at = self._segment.began
        pending: tuple[int, int, int, str] | None = None
        keys, add_step = self._keys, self._add_step
        steps = self._index.steps
        for row in self._segment.entries():
            code = row[0]
            if code == 5:  # a step is told at once, and maybe again later
                at = row[1]
                if pending is not None:
                    number, old, new, writer = pending
                    pending = None
                    key = keys[number]
                    self._index.told += 1
                    step = RecordedStep(at, self._index.told, key, old, new, writer)
                    known = steps.get(key)
                    if known is None:
                        steps[key] = [step]
                    else:
                        known.append(step)
            elif code == 6:
                at = row[1]
                if len(row) > 4:
                    self._plan(at, row)
            elif code == 4:
                pending = add_step(row)
            else:
                self._other(code, row)
                if code > 4:
                    at = row[1]
        self._index.ended = max(self._index.ended, at)

    def _other(self, code: int, row: list[Any]) -> None:
        match code:
            case Code.KEY:
                self._keys.append(ObjectKey(row[1], row[2], row[3]))
                self._newest.append(NONE)
                self._answered.append(NONE)
            case Code.TEXT:
                self._texts.append(row[1])
            case Code.DONE:
                for answer in row[4]:
                    if type(answer) is list and answer[0] == Answer.WHOLE:
                        self._answered[answer[1]] = self._add(answer[1], answer[2], answer[3])
            case Code.BEGAN:
                self._names[row[2]] = self._texts[row[3]]
            case Code.MARK:
                self._index.marks.append(IndexedMark(row[1], self._texts[row[2]], row[3]))

    def _add_step(self, row: list[Any]) -> tuple[int, int, int, str]:
        number = row[1]
        at = 3
        old = NONE
        if row[2] == Old.NEWEST:
            old = self._newest[number]
        elif row[2] == Old.TOLD:
            old = self._newest[number] = self._add(number, row[3], row[4])
            at = 5
        base = row[at]
        new = NONE
        if base != Base.GONE:
            new = self._add(number, base, row[at + 1])
            self._answered[number] = NONE
        self._newest[number] = new
        return number, old, new, self._texts[row[at + 2]]

    def _add(self, number: int, base: int, difference: list[Any]) -> int:
        if base == Base.ANSWERED:
            return self._answered[number]
        under = NONE
        if base in (Base.NEWEST, Base.MOVED):
            under = self._newest[number]
        self._versions.append(_Version(self._keys[number].resource, under, difference))
        return len(self._versions) - 1

    def _plan(self, at: float, row: list[Any]) -> None:
        texts = self._texts
        controller = self._names.get(row[2], "")
        for key, writes in row[4]:
            sizes = tuple((VERBS[write[0]], texts[write[1]], write[5]) for write in writes)
            self._index.plans.setdefault(texts[key], []).append(Plan(at, controller, texts[key], sizes))
