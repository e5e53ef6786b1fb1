"""A recording as Chrome's trace events, for ui.perfetto.dev or chrome://tracing.

A process is a controller, or a node; a thread is the key of a job (a Service, for slice
controllers). Spans may overlap, so they are asynchronous: a *change* lasts until a controller that
received it plans writes, a *job* from there to the answer, a *slice* from the answer until the last
node reported that it applied it. Arrows lead from each to the next. A span whose begin or end is
not in the recording (the ring dropped it, or it ended) is closed where the recording begins or
ends, with the argument ``cut``.

The format is "Trace Event Format" (Chromium project, docs of catapult): ``ph`` b and e for spans, s
and f for arrows, M for names; times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from sliceplane.api.core import Lease
from sliceplane.api.discovery import EndpointSlice
from sliceplane.consume.drain.relayed import RELAY_PREFIX, nodes_of
from sliceplane.consume.progress import ANNOTATION_REVISION, LEASE_PREFIX
from sliceplane.diagnose.timeline.wording import change_text
from sliceplane.kit.times import format_micro_time
from sliceplane.watch.recorder.entries import (
    BatchTaken,
    Changed,
    Ended,
    Entry,
    LoopBegan,
    LoopEnded,
    Marked,
)

#: changes that wait for the controller's writes; older ones are closed
_WAITING_MAX: Final = 64
#: Leases that report nodes
_NODES: Final = (LEASE_PREFIX, RELAY_PREFIX)

Event = dict[str, Any]


@dataclass(slots=True)
class _Span:
    category: str
    number: int
    process: int
    thread: int
    name: str


@dataclass(slots=True)
class _Loop:
    name: str
    process: int
    #: changes that it received since its last batch
    pending: list[_Span] = field(default_factory=list)
    jobs: dict[str, _Span] = field(default_factory=dict)


class ChromeTrace:
    """One export. ``events`` is the content of ``traceEvents``."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[int, str], int] = {}
        self._loops: dict[int, _Loop] = {}
        self._open: dict[tuple[str, int], _Span] = {}
        #: spans by step
        self._steps: dict[int, _Span] = {}
        #: slices that not every node has reported: revision -> span
        self._slices: dict[int, _Span] = {}
        self._nodes: dict[str, int] = {}
        self._numbers = 0
        self._began = 0.0
        self._at = 0.0

    def add_all(self, entries: Iterable[Entry]) -> None:
        first = True
        for entry in entries:
            if first:
                self._began, first = entry.at, False
            self._at = entry.at
            self._add(entry)
        for span in list(self._open.values()):
            self._end(span, self._at, cut="the recording ends before it does")

    def _add(self, entry: Entry) -> None:
        match entry:
            case LoopBegan():
                self._loops[entry.loop] = _Loop(entry.name, self._process(entry.name))
                for key in entry.busy:
                    self._begin_job(
                        self._loops[entry.loop],
                        key,
                        self._began,
                        cut="it began before the recording",
                    )
            case LoopEnded():
                loop = self._loops.pop(entry.loop, None)
                for span in () if loop is None else (*loop.jobs.values(), *loop.pending):
                    self._end(span, entry.at, cut="its controller ended")
            case Changed():
                self._on_change(entry)
            case BatchTaken():
                self._on_batch(entry)
            case Ended():
                self._on_done(entry)
            case Marked():
                self._moment(
                    self._process("process"), entry.kind, f"{entry.kind}: {entry.text}", entry.at
                )

    # -- what happens

    def _on_change(self, entry: Changed) -> None:
        loop = self._loops.get(entry.loop)
        lease = entry.change.new
        if isinstance(lease, Lease) and lease.metadata.name.startswith(_NODES):
            for report in nodes_of(lease):
                self._on_node(report.lease, entry.at)
        span = self._steps.get(entry.step)
        if span is None:
            by = f" by {entry.writer}" if entry.writer else ""
            what = f"{entry.change.resource} {entry.key}: {change_text(entry.change)}{by}"
            span = self._begin(
                "change", self._process("objects"), entry.change.resource, what, entry.at
            )
            self._steps[entry.step] = span
        if loop is None:
            return
        loop.pending.append(span)
        while len(loop.pending) > _WAITING_MAX:
            self._end(loop.pending.pop(0), entry.at)

    def _on_batch(self, entry: BatchTaken) -> None:
        loop = self._loops.get(entry.loop)
        if loop is None:
            return
        for job in entry.jobs:
            span = self._begin_job(loop, job.key, entry.at, ", ".join(map(str, job.writes)))
            if loop.pending:
                self._arrow(loop.pending[-1], span, entry.at)
        if entry.jobs:
            for change in loop.pending:
                self._end(change, entry.at)
        loop.pending = []

    def _begin_job(
        self, loop: _Loop, key: str, at: float, what: str = "", *, cut: str = ""
    ) -> _Span:
        span = self._begin("job", loop.process, key, what or key, at, cut=cut)
        loop.jobs[key] = span
        return span

    def _on_done(self, entry: Ended) -> None:
        loop = self._loops.get(entry.loop)
        if loop is None:
            return
        job = loop.jobs.pop(entry.key, None) or self._begin_job(
            loop, entry.key, self._began, cut="it began before the recording"
        )
        error = "" if entry.error is None else str(entry.error)
        self._end(job, entry.at, **({"error": error} if error else {}))
        for answer in entry.answers:
            written = answer.value
            if written is not None and self._nodes and isinstance(written, EndpointSlice):
                revision = written.metadata.revision
                span = self._begin(
                    "slice",
                    job.process,
                    entry.key,
                    f"{written.metadata.key} reaches nodes",
                    entry.at,
                )
                self._arrow(job, span, entry.at)
                self._slices[revision] = span

    def _on_node(self, lease: Lease, at: float) -> None:
        node = lease.metadata.name.removeprefix(LEASE_PREFIX)
        applied = (lease.metadata.annotations or {}).get(ANNOTATION_REVISION, "")
        if not applied.isdecimal() or self._nodes.get(node) == int(applied):
            return
        before = self._nodes.get(node, 0)
        self._nodes[node] = int(applied)
        process = self._process(f"node {node}")
        report = self._moment(process, "told", f"holds revision {applied}", at)
        for revision, span in list(self._slices.items()):
            if before < revision <= int(applied):
                self._arrow(span, report, at)
            if all(reported >= revision for reported in self._nodes.values()):
                self._end(span, at)
                del self._slices[revision]

    # -- events

    def _process(self, name: str) -> int:
        process = self._processes.get(name)
        if process is None:
            process = self._processes[name] = len(self._processes) + 1
            self.events.append(
                {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
            )
        return process

    def _thread(self, process: int, name: str) -> int:
        thread = self._threads.get((process, name))
        if thread is None:
            thread = self._threads[process, name] = len(self._threads) + 1
            event = {
                "ph": "M",
                "pid": process,
                "tid": thread,
                "name": "thread_name",
                "args": {"name": name},
            }
            self.events.append(event)
        return thread

    def _event(self, phase: str, span: _Span, at: float, **more: Any) -> None:
        self.events.append(
            {
                "ph": phase,
                "cat": span.category,
                "id": span.number,
                "pid": span.process,
                "tid": span.thread,
                "name": span.name,
                "ts": round((at - self._began) * 1e6),
                **more,
            }
        )

    def _begin(
        self, category: str, process: int, thread: str, name: str, at: float, *, cut: str = ""
    ) -> _Span:
        self._numbers += 1
        span = _Span(category, self._numbers, process, self._thread(process, thread), name)
        self._open[category, span.number] = span
        arguments = {"at": format_micro_time(at)} | ({"cut": cut} if cut else {})
        self._event("b", span, at, args=arguments)
        return span

    def _end(self, span: _Span, at: float, **arguments: str) -> None:
        """Ends *span*, once; if several wait for it, with the first."""
        if self._open.pop((span.category, span.number), None) is not None:
            self._event("e", span, at, args=arguments)

    def _moment(self, process: int, thread: str, name: str, at: float) -> _Span:
        span = self._begin("moment", process, thread, name, at)
        self._end(span, at)
        return span

    def _arrow(self, source: _Span, target: _Span, at: float) -> None:
        self._numbers += 1
        arrow = _Span("arrow", self._numbers, source.process, source.thread, "leads to")
        self._event("s", arrow, at)
        arrow.process, arrow.thread = target.process, target.thread
        self._event("f", arrow, at, bp="e")
