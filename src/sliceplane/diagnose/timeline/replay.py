"""Replays a recording: the production cores receive the recorded inputs again, at the recorded
times.

Each controller loop of the recording is replayed by a new controller. Its writes are compared, job
by job, with the recorded digests, and it receives the recorded answers, so a replay goes on as long
as both agree. The first difference of a loop ends the replay of this loop, since all that follows
depends on it; others go on.

A recording that begins in the middle begins with a checkpoint: the cached objects, and keys with
jobs under way. A controller that starts there lacks the recorded one's internal state (a retry, a
waiting batch). So a key that it writes at once, and one with a job under way, is *unsettled* and
not compared; all others are.
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
    BatchTaken,
    Changed,
    Ended,
    LoopBegan,
    LoopEnded,
    LoopSynced,
    Reached,
    RecordedAnswer,
    RecordedJob,
    RecordedWrite,
)
from sliceplane.watch.recorder.file import Recording
from sliceplane.watch.recorder.redact import TOKEN, Redactor

#: factories by name of the controller; the controllers of one mapping may share state
Makers = Mapping[str, Callable[[], Controller]]
_UNKNOWN: Final = "it is no controller that this version can make"
_BLIND: Final = "not all texts of Pod templates are recorded, and it makes names of a hash of them"
_ALL_JOBS: Final = 1 << 20


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference of a controller loop. ``recorded`` and ``replayed`` describe the writes
    of the two sides; ``observed`` is the object on the server after the recorded write, and
    ``body`` the replay's write.
    """

    controller: str
    loop: int
    at: float
    key: str
    recorded: str
    replayed: str
    observed: str = ""
    body: str = ""


@dataclass(slots=True, kw_only=True)
class ReplayReport:
    """``skipped``: controllers that cannot be replayed here, with the reason."""

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
class _Loop:
    number: int
    name: str
    controller: Controller
    #: keys that are not compared
    unsettled: set[str] = field(default_factory=set)
    jobs: dict[str, Job] = field(default_factory=dict)
    #: the exception that it raised
    fault: str = ""
    #: it derives names from templates, and observed one that is not recorded in full
    blind: bool = False


class Replay:
    """One run over one recording. Any *salt* will do: redacted texts are in no recording."""

    def __init__(self, makers: Makers, salt: bytes = b"replay") -> None:
        self._makers = makers
        self._redactor = Redactor(salt)
        self._loops: dict[int, _Loop] = {}
        self.report = ReplayReport()
        #: name of the recorded object, if not observed yet -> index of the difference
        self._pending: dict[tuple[str, str, str], int] = {}

    def run(self, recording: Recording) -> ReplayReport:
        """Raises ``RecordingError``."""
        report = self.report
        start = next((at for at, segment in enumerate(recording.segments) if segment.whole), 0)
        if recording.segments:
            report.checkpoint = bool(recording.segments[start].loops)
            report.began = report.ended = recording.segments[start].began
        for entry in entries(recording, start):
            report.entries += 1
            report.ended = entry.at
            if isinstance(entry, LoopBegan):
                self._begin(entry)
                continue
            if self._pending and isinstance(entry, Changed):
                self._on_observed(entry.change)
            loop = self._loops.get(entry.loop)
            if loop is None:
                continue
            if loop.fault and not isinstance(entry, LoopEnded):
                self._differ(loop, entry.at, "", "went on", f"raised {loop.fault}")
                continue
            try:
                self._apply(loop, entry)
            except Exception as error:  # the next entry shows if it raised then, too
                loop.fault = f"{type(error).__name__}: {error}"
        return report

    # -- lives

    def _begin(self, entry: LoopBegan) -> None:
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
        loop = _Loop(entry.loop, entry.name, controller, set(entry.busy))
        self._loops[entry.loop] = loop
        if not entry.checkpoint:
            return
        for change in entry.objects:
            if self._is_watched(loop, change):
                controller.on_change(change, entry.at)
        controller.on_synced(entry.at)
        # Writes that a controller plans at once here were done or pending in the recorded one.
        loop.unsettled.update(job.key for job in controller.take_work(entry.at, _ALL_JOBS).jobs)
        self.report.unsettled += len(loop.unsettled)

    def _is_watched(self, loop: _Loop, change: Change[Object]) -> bool:
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
            for selection in loop.controller.info.watches
        )

    def _apply(self, loop: _Loop, entry: Any) -> None:
        controller = loop.controller
        match entry:
            case Changed():
                loop.blind = loop.blind or _hides(controller, entry.change)
                controller.on_change(entry.change, entry.at)
            case Reached():
                if isinstance(controller, MarkReader):
                    controller.on_mark(entry.mark, entry.at)
            case BatchTaken():
                self._replay_batch(loop, entry)
            case Ended():
                self._done(loop, entry)
            case LoopSynced():
                controller.on_synced(entry.at)
            case LoopEnded():
                del self._loops[loop.number]

    def _on_observed(self, change: Change[Object]) -> None:
        meta = change.object.metadata
        at = self._pending.pop((change.resource, meta.namespace, meta.name), None)
        if at is not None:
            observed = "gone" if change.new is None else _text(encode(change.new))
            self.report.differences[at] = replace(self.report.differences[at], observed=observed)

    # -- jobs

    def _replay_batch(self, loop: _Loop, entry: BatchTaken) -> None:
        work = loop.controller.take_work(entry.at, entry.room)
        planned = [job for job in work.jobs if job.key not in loop.unsettled]
        recorded = [job for job in entry.jobs if job.key not in loop.unsettled]
        for job, theirs in zip(planned, recorded, strict=False):
            if not self._agree(loop, entry.at, job, theirs):
                return
            loop.jobs[job.key] = job
        if len(planned) > len(recorded):
            job = planned[len(recorded)]
            self._differ(loop, entry.at, job.key, "no job", self._job_text(job), body=_bodies(job))
        elif len(recorded) > len(planned):
            theirs = recorded[len(planned)]
            self._differ(
                loop,
                entry.at,
                theirs.key,
                _writes_text(theirs.writes),
                "no job",
                write=theirs.writes[0],
            )

    def _agree(self, loop: _Loop, at: float, job: Job, theirs: RecordedJob) -> bool:
        self.report.jobs += 1
        if job.key == theirs.key:
            ours = [self._written(write) for write in job.writes]
            if ours == list(theirs.writes):
                self.report.writes += len(ours)
                return True
            at_write = next(
                (
                    position
                    for position, pair in enumerate(zip(ours, theirs.writes, strict=False))
                    if pair[0] != pair[1]
                ),
                min(len(ours), len(theirs.writes)),
            )
            body = _text(job.writes[at_write].body) if at_write < len(ours) else ""
            recorded = theirs.writes[at_write:]
            write = recorded[0] if recorded else None
            self._differ(
                loop,
                at,
                job.key,
                _writes_text(recorded),
                _writes_text(tuple(ours[at_write:])),
                body=body,
                write=write,
            )
        else:
            self._differ(
                loop,
                at,
                job.key,
                f"{theirs.key}: {_writes_text(theirs.writes)}",
                f"{job.key}: {self._job_text(job)}",
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

    def _done(self, loop: _Loop, entry: Ended) -> None:
        job = loop.jobs.pop(entry.key, None)
        if job is None:
            return  # the key is unsettled
        results = tuple(
            _result(write, answer) for write, answer in zip(job.writes, entry.answers, strict=False)
        )
        loop.controller.on_done(Done(job, results, entry.error), entry.at)

    def _differ(
        self,
        loop: _Loop,
        at: float,
        key: str,
        recorded: str,
        replayed: str,
        *,
        body: str = "",
        write: RecordedWrite | None = None,
    ) -> None:
        if loop.blind:
            self.report.skipped[loop.name] = _BLIND
            del self._loops[loop.number]
            return
        if write is not None and write.name:
            self._pending[write.resource, write.namespace, write.name] = len(
                self.report.differences
            )
        self.report.differences.append(
            Difference(
                controller=loop.name,
                loop=loop.number,
                at=at,
                key=key,
                recorded=recorded,
                replayed=replayed,
                body=body,
            )
        )
        del self._loops[loop.number]

    def _job_text(self, job: Job) -> str:
        return _writes_text(tuple(self._written(write) for write in job.writes))


def _hides(controller: Controller, change: Change[Object]) -> bool:
    """Returns True if *controller* reconciles the object, and its template is redacted."""
    template = getattr(getattr(change.new, "spec", None), "template", None)
    if not template or controller.info.watches[0].resource.key != change.resource:
        return False
    return TOKEN in str(template)


def _writes_text(writes: tuple[RecordedWrite, ...]) -> str:
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
    """Returns the parts of the server's answer that a core may use."""
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
