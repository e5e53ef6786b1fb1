"""What is recorded is read back: changes, jobs, answers and times; in few bytes, and within the
ring's.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.watch.recorder.histories import History

from sliceplane.api.codec import decode, encode
from sliceplane.api.discovery import EndpointSlice, SliceEndpoint
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import EndpointSlices
from sliceplane.diagnose.timeline.reader import entries
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Job, Work, Write
from sliceplane.watch.recorder.blocks import lines_of
from sliceplane.watch.recorder.entries import (
    Answer,
    BatchTaken,
    Changed,
    Ended,
    Entry,
    LoopBegan,
    LoopEnded,
    LoopSynced,
    Marked,
    RecordedAnswer,
    quantized,
)
from sliceplane.watch.recorder.file import Header, Recording, read_lines, write_lines
from sliceplane.watch.recorder.lines import ANSWER_BYTES_MAX
from sliceplane.watch.recorder.recorder import LoopRecord, Recorder
from sliceplane.watch.recorder.redact import TOKEN

BEGAN = 1_800_000_000.25
SALT = b"saltsalt"


def redacted(version: Object | None, recorder: Recorder) -> Object | None:
    if version is None:
        return None
    annotations = recorder.redactor.annotations(version.metadata.annotations)
    return msgspec.structs.replace(
        version, metadata=msgspec.structs.replace(version.metadata, annotations=annotations)
    )


class Told:
    """A recorder, two controller loops that read everything, and what was recorded of them."""

    def __init__(
        self, seed: int, steps: int, limit_bytes: int = 1 << 24, segment_bytes: int = 1 << 23
    ) -> None:
        self.recorder = Recorder(limit_bytes, SALT, BEGAN, segment_bytes=segment_bytes)
        self.history = History(seed)
        self.entries: list[tuple[float, Any]] = []
        self.now = BEGAN
        records = [self.recorder.begin(name, BEGAN) for name in ("one", "two")]
        for record in records:
            record.synced(BEGAN)
        for _ in range(steps):
            self.step(records)
            assert not self.recorder.fault, self.recorder.fault
            self.recorder.check()

    def step(self, records: list[LoopRecord]) -> None:
        random = self.history.random
        later = self.now + random.choice((0.0, 1e-6, 0.004, 1.75, 86_400.0, 1 / 3))
        self.now = later if random.random() < 0.1 else quantized(later)
        change = self.history.change()
        for number in random.choice(((0, 1), (1, 0), (0,))):
            records[number].change(change, self.now)
            self.entries.append((self.now, (number, change)))
        work = self.history.work()
        records[0].batch_taken(work, 5, self.now)
        self.entries.append((self.now, (0, work)))
        done = self.history.done()
        if done is not None:
            records[0].done(done, self.now)
            self.entries.append((self.now, (0, done)))

    def recording(self) -> Recording:
        return Recording(Header(), list(self.recorder.segments()))


def plain_text(recording: Recording) -> str:
    """All that is in it."""
    segments = [
        [lines_of(block) for block in (*segment.checkpoint, *segment.blocks)]
        for segment in recording.segments
    ]
    return f"{recording.header} {segments}"


def plain(read: Entry, recorder: Recorder) -> Any:
    """What an entry and what was told have in common."""
    match read:
        case Changed():
            return read.at, read.loop, read.change
        case BatchTaken():
            return (
                read.at,
                read.loop,
                tuple((job.key, tuple(write.digest for write in job.writes)) for job in read.jobs),
            )
        case Ended():
            return (
                read.at,
                read.loop,
                read.key,
                tuple(answer.value for answer in read.answers),
                str(read.error),
            )
    raise AssertionError(read)


def expected(at: float, told: Any, recorder: Recorder) -> Any:
    loop, what = told
    if isinstance(what, Change):
        return (
            at,
            loop,
            Change(what.resource, redacted(what.old, recorder), redacted(what.new, recorder)),
        )
    if hasattr(what, "jobs"):
        digests = tuple(
            (job.key, tuple(recorder.redactor.digest(write) for write in job.writes))
            for job in what.jobs
        )
        return at, loop, digests
    answers = tuple(
        redacted(decode(result, EndpointSlices.projection), recorder) if result else None
        for result in what.results
    )
    return at, loop, what.job.key, answers, str(what.error)


@effort(60)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(0, 300))
def test_what_was_told_is_read_back_in_order_with_its_times(seed: int, steps: int) -> None:
    told = Told(seed, steps)
    lines = list(write_lines(Header(), told.recorder.segments()))
    recording = read_lines(lines)
    assert recording.problem == ""
    read = [
        entry for entry in entries(recording) if isinstance(entry, (Changed, BatchTaken, Ended))
    ]
    assert [plain(entry, told.recorder) for entry in read] == [
        expected(at, what, told.recorder) for at, what in told.entries
    ]


@effort(30)
@given(seed=st.integers(0, 1 << 32))
def test_a_ring_keeps_its_bytes_and_its_newest_segment_reads_alone(seed: int) -> None:
    limit = 24_000
    told = Told(seed, 1200, limit_bytes=limit, segment_bytes=6_000)
    recorder = told.recorder
    assert recorder.ring.forgotten > 0, "the ring was never full"
    assert recorder.ring.size_bytes <= limit
    recording = told.recording()
    assert len(recording.segments) >= 2
    for position in range(len(recording.segments)):
        read = [
            plain(entry, recorder)
            for entry in entries(recording, position)
            if isinstance(entry, (Changed, Ended))
        ]
        wanted = [
            expected(*entry, recorder) for entry in told.entries if not hasattr(entry[1][1], "jobs")
        ]
        assert read == wanted[len(wanted) - len(read) :]


def test_a_checkpoint_has_the_objects_that_were_there() -> None:
    told = Told(7, 1500, limit_bytes=60_000, segment_bytes=8_000)
    recording = told.recording()
    first = next(iter(entries(recording, len(recording.segments) - 1)))
    assert isinstance(first, LoopBegan)
    assert (first.checkpoint, first.synced, first.name) == (True, True, "one")
    held: dict[tuple[str, str], Object | None] = {
        (change.resource, change.object.metadata.name): change.new for change in first.objects
    }
    for entry in entries(recording, len(recording.segments) - 1):
        if isinstance(entry, Changed):
            name = (entry.change.resource, entry.change.object.metadata.name)
            held[name] = entry.change.new
    present = {name: version for name, version in held.items() if version is not None}
    assert present == {
        name: redacted(version, told.recorder) for name, version in told.history.objects.items()
    }


def test_lives_marks_and_their_ends_are_read_back() -> None:
    recorder = Recorder(1 << 20, SALT, BEGAN)
    record = recorder.begin("one", BEGAN)
    record.synced(BEGAN + 1)
    recorder.mark("guard", "held shop/web", BEGAN + 2)
    record.ended(BEGAN + 3, "ValueError: no")
    read = list(entries(Recording(Header(), list(recorder.segments()))))
    assert read == [
        LoopBegan(at=BEGAN, loop=0, name="one"),
        LoopSynced(at=BEGAN + 1, loop=0),
        Marked(at=BEGAN + 2, kind="guard", text="held shop/web"),
        LoopEnded(at=BEGAN + 3, loop=0, fault="ValueError: no"),
    ]


def test_nothing_secret_is_in_a_file() -> None:
    told = Told(3, 300)
    text = plain_text(told.recording())
    assert "swordfish" not in text
    assert TOKEN in text


def test_a_flip_of_one_pod_is_a_few_bytes() -> None:
    """The mean of what matters: a change, told to two controllers, and the turns after it."""
    told = Told(5, 50)
    recorder = told.recorder
    record = recorder.begin("three", told.now)
    segments = recorder.segments()
    before = segments[-1].size_bytes
    entries_before = segments[-1].entries
    for _ in range(500):
        told.now = quantized(told.now + 0.01)
        record.change(told.history.change(), told.now)
        record.batch_taken(told.history.work(), 5, told.now)
        done = told.history.done()
        if done is not None:
            record.done(done, told.now)
    segment = recorder.segments()[-1]
    mean = (segment.size_bytes - before) / (segment.entries - entries_before)
    assert mean < 100, f"{mean} bytes an entry"


def test_a_large_answer_rests_on_a_version_of_the_same_object_or_is_kept_whole() -> None:
    """A slice may be updated before any cache has shown it (seed 629 of the simulator, as it was
    then).
    """

    def answer_of(uid: str, *, shown: str) -> RecordedAnswer:
        recorder = Recorder(1 << 20, SALT, BEGAN)
        record = recorder.begin("one", BEGAN)
        endpoints = tuple(
            SliceEndpoint(addresses=(f"10.0.0.{number}",) * 9) for number in range(30)
        )
        made = ObjectMeta(
            name="a",
            namespace="shop",
            uid=uid,
            resource_version="7",
            creation_timestamp="2027-01-15",
        )
        if shown:
            before = EndpointSlice(
                metadata=msgspec.structs.replace(made, uid=shown, resource_version="5")
            )
            record.change(Change(EndpointSlices.key, None, before), BEGAN)
        answered = encode(EndpointSlice(metadata=made, endpoints=endpoints))
        assert len(answered) > ANSWER_BYTES_MAX
        write = Write(
            verb="update", resource=EndpointSlices, namespace="shop", name="a", body=b"{}"
        )
        job = Job(key="shop/a", writes=(write,))
        record.batch_taken(Work(jobs=(job,)), 5, BEGAN)
        record.done(Done(job, (answered,)), BEGAN)
        recording = Recording(Header(), list(recorder.segments()))
        (answer,) = next(entry for entry in entries(recording) if isinstance(entry, Ended)).answers
        assert answer.value is not None
        assert answer.value.metadata == made
        return answer

    assert answer_of("u1", shown="").kind is Answer.WHOLE
    assert answer_of("u1", shown="u0").kind is Answer.WHOLE
    assert answer_of("u1", shown="u1").kind is Answer.WRITTEN


def test_a_fault_of_the_recorder_stays_its_own() -> None:
    recorder = Recorder(1 << 20, SALT, BEGAN)
    record = recorder.begin("one", BEGAN)
    record.change(Change("pods", None, None), BEGAN)  # what no informer tells
    recorder.encode()
    assert recorder.fault
    record.synced(BEGAN)
    assert recorder.segments() is not None


def test_an_answer_whose_error_was_tolerated_is_empty() -> None:
    told = Told(11, 80)
    ended = [
        entry
        for entry in entries(told.recording())
        if isinstance(entry, Ended) and entry.error is None
    ]
    assert ended
    assert all(entry.answers[1].kind is Answer.EMPTY for entry in ended)


def test_an_object_that_went_before_its_answer_came_is_not_kept() -> None:
    """A kubelet's delete is answered with the Pod, often after the watch has told its end: each Pod
    that ever was stayed, decoded, until a segment ended (found by thirty minutes of everything at
    once).
    """
    recorder = Recorder(1 << 20, SALT, BEGAN)
    record = recorder.begin("one", BEGAN)
    for number in range(20):
        meta = ObjectMeta(
            name=f"a-{number}",
            namespace="shop",
            uid=f"u{number}",
            resource_version=f"{3 * number + 1}",
        )
        made = EndpointSlice(metadata=meta)
        going = msgspec.structs.replace(
            meta, resource_version=f"{3 * number + 2}", deletion_grace_period_seconds=0
        )
        verb, answered = ("delete", "patch")[number % 2], encode(EndpointSlice(metadata=going))
        job = Job(
            key=meta.key,
            writes=(Write(verb=verb, resource=EndpointSlices, namespace="shop", name=meta.name),),
        )
        record.change(Change(EndpointSlices.key, None, made), BEGAN)
        record.batch_taken(Work(jobs=(job,)), 5, BEGAN)
        record.change(Change(EndpointSlices.key, made, None), BEGAN)
        record.done(Done(job, (answered,)), BEGAN)
    recorder.encode()
    assert not recorder.fault
    assert len(recorder._lines) == 0
    recording = Recording(Header(), list(recorder.segments()))
    answers = [entry.answers[0] for entry in entries(recording) if isinstance(entry, Ended)]
    assert [answer.value.metadata.uid for answer in answers if answer.value] == [
        f"u{number}" for number in range(20)
    ]


def test_an_answer_that_an_event_overtook_is_not_kept() -> None:
    """A job's answers come together, when later writers have changed its first objects already: one
    version of each Pod of a ReplicaSet stayed, decoded, beside the newest.
    """
    recorder = Recorder(1 << 20, SALT, BEGAN)
    record = recorder.begin("one", BEGAN)
    meta = ObjectMeta(name="a", namespace="shop", uid="u", resource_version="8")
    made, later = (
        EndpointSlice(metadata=msgspec.structs.replace(meta, resource_version=v))
        for v in ("8", "9")
    )
    job = Job(
        key=meta.key,
        writes=(Write(verb="create", resource=EndpointSlices, namespace="shop", name=meta.name),),
    )
    record.batch_taken(Work(jobs=(job,)), 5, BEGAN)
    record.change(Change(EndpointSlices.key, None, made), BEGAN)
    record.change(Change(EndpointSlices.key, made, later), BEGAN)
    record.done(Done(job, (encode(made),)), BEGAN)
    recorder.encode()
    recorder.check()
    recording = Recording(Header(), list(recorder.segments()))
    (answer,) = [entry.answers[0] for entry in entries(recording) if isinstance(entry, Ended)]
    assert answer.value == made
