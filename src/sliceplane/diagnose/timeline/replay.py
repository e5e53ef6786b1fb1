"""The production cores, told again what they were told, at the times at which they were told it.

Each life of the recording is a controller made anew. What it wants written is compared, job by job,
with the digests that were recorded; the answers are those that were recorded, so a replay goes on
as long as both agree. The first difference of a life ends that life's replay, since all that
follows rests on it; others go on.

A recording that begins in the middle begins with a checkpoint: the objects that caches held, and
keys that had jobs under way. A controller that starts there has lost what it had in mind (a retry,
a batch that waits), so a key for which it wants to write at once, and one with a job under way, is
*unsettled* and left out; the others are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from sliceplane.api.codec import decode, encode
from sliceplane.api.meta import Object
from sliceplane.api.selectors.fields import selected_name
from sliceplane.api.selectors.grammar import parse_labels
from sliceplane.diagnose.timeline.reader import entries
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Controller, Done, Job, MarkReader, Write
from sliceplane.watch.recorder.entries import (
    Answer,
    Changed,
    Ended,
    LifeBegan,
    LifeEnded,
    LifeSynced,
    Reached,
    RecordedAnswer,
    RecordedJob,
    RecordedWrite,
    Turned,
)
from sliceplane.watch.recorder.file import Recording
from sliceplane.watch.recorder.redact import TOKEN, Redactor

#: name of a controller -> how one is made; those of one call may share what they tell each other
Makers = Mapping[str, Callable[[], Controller]]
_UNKNOWN: Final = "it is no controller that this version can make"
_BLIND: Final = "not all texts of Pod templates are recorded, and it makes names of a hash of them"
_EVERYTHING: Final = 1 << 20


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first one of a life. ``recorded`` and ``replayed`` say in words what either side did;
    ``seen`` is the object as the server had it after the recorded write, and ``body`` what the
    replay wanted to write instead.
    """

    controller: str
    life: int
    at: float
    key: str
    recorded: str
    replayed: str
    seen: str = ""
    body: str = ""


@dataclass(slots=True, kw_only=True)
class ReplayReport:
    """``skipped``: controllers that cannot be made here, with why."""

    entries: int = 0
    jobs: int = 0
    writes: int = 0
    unsettled: int = 0
    differences: list[Difference] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    checkpoint: bool = False
    began: float = 0.0
    ended: float = 0.0

    @property
    def same(self) -> bool:
        return not self.differences


@dataclass(slots=True)
class _Life:
    number: int
    name: str
    controller: Controller
    #: keys that are not compared
    unsettled: set[str] = field(default_factory=set)
    jobs: dict[str, Job] = field(default_factory=dict)
    #: it raised
    fault: str = ""
    #: it makes names of templates, and has seen one that is not recorded whole
    blind: bool = False


class Replay:
    """One run over one recording.  *salt* may be any: what was not recorded is in no recording."""

    def __init__(self, makers: Makers, salt: bytes = b"replay") -> None:
        self._makers = makers
        self._redactor = Redactor(salt)
        self._lives: dict[int, _Life] = {}
        self.report = ReplayReport()
        #: differences whose recorded object is not seen yet: its name -> where the difference is
        self._unseen: dict[tuple[str, str, str], int] = {}

    def run(self, recording: Recording) -> ReplayReport:
        """Raises ``RecordingError``."""
        report = self.report
        start = next((at for at, segment in enumerate(recording.segments) if segment.whole), 0)
        if recording.segments:
            report.checkpoint = bool(recording.segments[start].lives)
            report.began = report.ended = recording.segments[start].began
        for entry in entries(recording, start):
            report.entries += 1
            report.ended = entry.at
            if isinstance(entry, LifeBegan):
                self._begin(entry)
                continue
            if self._unseen and isinstance(entry, Changed):
                self._see(entry.change)
            life = self._lives.get(entry.life)
            if life is None:
                continue
            if life.fault and not isinstance(entry, LifeEnded):
                self._differ(life, entry.at, "", "went on", f"raised {life.fault}")
                continue
            try:
                self._tell(life, entry)
            except Exception as error:  # that it did so then, too, shows in the entry that follows
                life.fault = f"{type(error).__name__}: {error}"
        return report

    # -- lives

    def _begin(self, entry: LifeBegan) -> None:
        make = self._makers.get(entry.name)
        if make is None:
            self.report.skipped[entry.name] = _UNKNOWN
            return
        if entry.checkpoint and not entry.synced:
            self.report.skipped[entry.name] = (
                "its caches were being filled where the recording begins"
            )
            return
        controller = make()
        life = _Life(entry.life, entry.name, controller, set(entry.busy))
        self._lives[entry.life] = life
        if not entry.checkpoint:
            return
        for change in entry.objects:
            if self._is_watched(life, change):
                controller.on_change(change, entry.at)
        controller.on_synced(entry.at)
        # What a controller that begins here wants at once is what the recorded one had done, or had
        # in mind.
        life.unsettled.update(job.key for job in controller.take_work(entry.at, _EVERYTHING).jobs)
        self.report.unsettled += len(life.unsettled)

    def _is_watched(self, life: _Life, change: Change[Object]) -> bool:
        meta = change.object.metadata
        return any(
            selection.resource.key == change.resource
            and selection.namespace in ("", meta.namespace)
            and (
                not selection.field_selector or selected_name(selection.field_selector) == meta.name
            )
            and (
                not selection.label_selector
                or parse_labels(selection.label_selector).matches(meta.labels or {})
            )
            for selection in life.controller.info.watches
        )

    def _tell(self, life: _Life, entry: Any) -> None:
        controller = life.controller
        match entry:
            case Changed():
                life.blind = life.blind or _hides(controller, entry.change)
                controller.on_change(entry.change, entry.at)
            case Reached():
                if isinstance(controller, MarkReader):
                    controller.on_mark(entry.mark, entry.at)
            case Turned():
                self._turn(life, entry)
            case Ended():
                self._done(life, entry)
            case LifeSynced():
                controller.on_synced(entry.at)
            case LifeEnded():
                del self._lives[life.number]

    def _see(self, change: Change[Object]) -> None:
        meta = change.object.metadata
        at = self._unseen.pop((change.resource, meta.namespace, meta.name), None)
        if at is not None:
            seen = "gone" if change.new is None else _text(encode(change.new))
            self.report.differences[at] = replace(self.report.differences[at], seen=seen)

    # -- jobs

    def _turn(self, life: _Life, entry: Turned) -> None:
        work = life.controller.take_work(entry.at, entry.room)
        wanted = [job for job in work.jobs if job.key not in life.unsettled]
        recorded = [job for job in entry.jobs if job.key not in life.unsettled]
        for job, theirs in zip(wanted, recorded, strict=False):
            if not self._agree(life, entry.at, job, theirs):
                return
            life.jobs[job.key] = job
        if len(wanted) > len(recorded):
            job = wanted[len(recorded)]
            self._differ(life, entry.at, job.key, "no job", self._told(job), body=_bodies(job))
        elif len(recorded) > len(wanted):
            theirs = recorded[len(wanted)]
            self._differ(
                life, entry.at, theirs.key, _words(theirs.writes), "no job", write=theirs.writes[0]
            )

    def _agree(self, life: _Life, at: float, job: Job, theirs: RecordedJob) -> bool:
        self.report.jobs += 1
        if job.key == theirs.key:
            ours = [self._written(write) for write in job.writes]
            if ours == list(theirs.writes):
                self.report.writes += len(ours)
                return True
            at_write = next(
                (
                    place
                    for place, pair in enumerate(zip(ours, theirs.writes, strict=False))
                    if pair[0] != pair[1]
                ),
                min(len(ours), len(theirs.writes)),
            )
            body = _text(job.writes[at_write].body) if at_write < len(ours) else ""
            recorded = theirs.writes[at_write:]
            write = recorded[0] if recorded else None
            self._differ(
                life,
                at,
                job.key,
                _words(recorded),
                _words(tuple(ours[at_write:])),
                body=body,
                write=write,
            )
        else:
            self._differ(
                life,
                at,
                job.key,
                f"{theirs.key}: {_words(theirs.writes)}",
                f"{job.key}: {self._told(job)}",
            )
        return False

    def _written(self, write: Write) -> RecordedWrite:
        return RecordedWrite(
            write.verb,
            write.resource.schema_key,
            write.namespace,
            write.name,
            write.subresource,
            self._redactor.digest(write),
            len(write.body),
        )

    def _done(self, life: _Life, entry: Ended) -> None:
        job = life.jobs.pop(entry.key, None)
        if job is None:
            return  # of an unsettled key
        results = tuple(
            _result(write, answer) for write, answer in zip(job.writes, entry.answers, strict=False)
        )
        life.controller.on_done(Done(job, results, entry.error), entry.at)

    def _differ(
        self,
        life: _Life,
        at: float,
        key: str,
        recorded: str,
        replayed: str,
        *,
        body: str = "",
        write: RecordedWrite | None = None,
    ) -> None:
        if life.blind:
            self.report.skipped[life.name] = _BLIND
            del self._lives[life.number]
            return
        if write is not None and write.name:
            self._unseen[write.resource, write.namespace, write.name] = len(self.report.differences)
        self.report.differences.append(
            Difference(
                controller=life.name,
                life=life.number,
                at=at,
                key=key,
                recorded=recorded,
                replayed=replayed,
                body=body,
            )
        )
        del self._lives[life.number]

    def _told(self, job: Job) -> str:
        return _words(tuple(self._written(write) for write in job.writes))


def _hides(controller: Controller, change: Change[Object]) -> bool:
    """The object is one that *controller* is there for, and its template has tokens."""
    template = getattr(getattr(change.new, "spec", None), "template", None)
    if not template or controller.info.watches[0].resource.key != change.resource:
        return False
    return TOKEN in str(template)


def _words(writes: tuple[RecordedWrite, ...]) -> str:
    if not writes:
        return "nothing more"
    return ", ".join(
        f"{write} (digest {write.digest:08x}, {write.size_bytes} bytes)" for write in writes
    )


def _text(body: bytes) -> str:
    return body.decode(errors="replace")


def _bodies(job: Job) -> str:
    return "\n".join(_text(write.body) for write in job.writes)


def _result(write: Write, answer: RecordedAnswer) -> bytes:
    """The bytes that the server answered, as far as the core may look at them."""
    match answer.kind:
        case Answer.EMPTY:
            return b""
        case Answer.STATUS:
            return b'{"kind":"Status","apiVersion":"v1","status":"Success"}'
        case Answer.UID:
            return encode(
                {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "status": "Success",
                    "details": {"uid": answer.uid},
                }
            )
        case Answer.ITEMS:
            return encode({"items": answer.items})
    assert answer.value is not None, "an answer with an object has one"
    if answer.kind is Answer.WHOLE:
        return encode(answer.value)
    body = decode(write.body, write.resource.projection)
    ours, theirs = body.metadata, answer.value.metadata
    meta = msgspec.structs.replace(
        theirs,
        name=write.name,
        uid=theirs.uid or ours.uid,
        labels=ours.labels,
        annotations=ours.annotations,
        owner_references=ours.owner_references,
        finalizers=ours.finalizers,
    )
    return encode(msgspec.structs.replace(body, metadata=meta))
