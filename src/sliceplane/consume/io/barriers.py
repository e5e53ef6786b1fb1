"""The drain barriers of a cluster, for who only looks: which Pods leave, which nodes are waited
for, what has ended.

Asked again and again by one reader of lists. What changed between two looks is fed to the core that
a drain and the controller follow, too, so a Pod that was seen to leave keeps the versions that
nodes must hold. Nothing is marked, and no node is asked to report: they tell at their own beat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sliceplane.api import codec
from sliceplane.api.core import Lease, Node, Pod, Service
from sliceplane.api.discovery import ANNOTATION_DRAIN, EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Leases, Nodes, Pods, Services
from sliceplane.consume.drain.answer import CONDITION, DrainedPod, Outcome, sentence
from sliceplane.consume.drain.cluster import SELECTIONS, DrainCluster
from sliceplane.consume.drain.departure import leaves, subject_of
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.io.base import Reader

#: barriers that are over and remembered, and Pods that are told at once
ENDED_MAX: Final = 50
GOING_MAX: Final = 200
_KINDS: Final[dict[str, type[Object]]] = {
    EndpointSlices.key: EndpointSlice,
    Services.key: Service,
    Nodes.key: Node,
    Leases.key: Lease,
}
#: of a verdict: what a person reads, and how ``sentence`` has it
_STATES: Final[dict[str, tuple[str, Outcome]]] = {
    "proven": ("drained", "drained"),
    "unknown": ("cannot know", "cannot know"),
    "waiting": ("waiting", "time over"),
    "used": ("in use", "time over"),
}


class BarrierBook:
    """Owned by one reader.  *namespace*: only Pods of it; "": of all."""

    def __init__(self, namespace: str = "") -> None:
        self._namespace = namespace
        self._cluster: DrainCluster | None = None
        self._known: dict[tuple[str, str], Object] = {}
        #: what may not be read, and why
        self._unread: dict[str, str] = {}
        #: those that leave, as told last; those that left, the newest last
        self._going: dict[str, dict[str, Any]] = {}
        self._ended: dict[str, dict[str, Any]] = {}

    async def look(self, client: Reader, clock: Callable[[], float]) -> dict[str, Any]:
        """As a document.  Raises ``StatusError`` and ``Unreachable`` where Pods or slices cannot be
        read.
        """
        page = await client.list(Selection(Pods, self._namespace))
        pods = {pod.metadata.key: pod for pod in (codec.decode(body, Pod) for body in page.items)}
        leaving = {key: pods[key] for key in sorted(pods) if leaves(pods[key])}
        if leaving or self._going:
            await self._follow(client, leaving, clock)
        now = clock()
        for key, row in self._going.items():
            if key not in leaving:
                self._ended[key] = {**row, "until": now}
        for key in [*leaving, *list(self._ended)[:-ENDED_MAX]]:
            self._ended.pop(key, None)
        self._going = self._rows(leaving, now)
        return {
            "going": list(self._going.values())[:GOING_MAX],
            "more": max(0, len(self._going) - GOING_MAX),
            "ended": list(reversed(self._ended.values())),
            "notLookedAt": list(self._unread.values()),
        }

    async def _follow(
        self, client: Reader, leaving: Mapping[str, Pod], clock: Callable[[], float]
    ) -> None:
        """Subjects come before what is said of them."""
        pages = {}
        for selection in SELECTIONS:
            try:
                pages[selection.resource.key] = await client.list(selection)
            except StatusError as error:
                if error.code != 403 or selection.resource is EndpointSlices:
                    raise
                self._unread[selection.resource.key] = str(error)
        if self._cluster is None:
            self._cluster = DrainCluster(
                services_known=Services.key in pages, leases_known=Leases.key in pages
            )
        cluster, departures = self._cluster, self._cluster.departures
        for subject in departures.subjects():
            if subject.key not in leaving:
                departures.discard(subject.key)
        for pod in leaving.values():
            departures.add(subject_of(pod))
        now = clock()
        for key, page in pages.items():
            found = {
                (key, item.metadata.key): item
                for item in (codec.decode(each, _KINDS[key]) for each in page.items)
            }
            changes = [
                Change(key, self._known.pop(at), None)
                for at in list(self._known)
                if at[0] == key and at not in found
            ]
            for at, item in found.items():
                before = self._known.get(at)
                if (
                    before is None
                    or before.metadata.resource_version != item.metadata.resource_version
                ):
                    changes.append(Change(key, before, item))
            self._known.update(found)
            for change in changes:
                cluster.on_change(change, now)
        for key, page in pages.items():
            cluster.on_mark(Mark(key, page.resource_version, listed=True), now)
        departures.look()

    def _rows(self, leaving: Mapping[str, Pod], now: float) -> dict[str, dict[str, Any]]:
        if self._cluster is None:
            return {}
        cluster, facts = self._cluster, self._cluster.facts()
        rows = {}
        for key, pod in leaving.items():
            if not cluster.departures.services(key) and ANNOTATION_DRAIN not in (
                pod.metadata.annotations or {}
            ):
                continue  # no kernel was told of it
            before = self._going.get(key, {"uid": "", "since": now, "state": ""})
            same = before["uid"] == pod.metadata.uid
            if same and before["state"] == "drained":
                rows[key] = before  # a barrier that was passed stays so
                continue
            since = before["since"] if same else now
            verdict = cluster.verdict(key, facts, now)
            state, outcome = _STATES[verdict.state]
            # Its beginning is the state, in the words of a command that has ended.
            says = sentence(DrainedPod(key, outcome, verdict, now - since)).partition(": ")[2]
            told = pod.condition(CONDITION)
            if told is not None and told.status == "True":
                state, says = "drained", told.message or ""
            rows[key] = {
                "pod": key,
                "uid": pod.metadata.uid,
                "node": pod.spec.node_name,
                "state": state,
                "says": says,
                "since": since,
                "until": None,
                "waitingFor": [missing.text for missing in (*verdict.waiting, *verdict.unknown)],
            }
        return dict(sorted(rows.items(), key=lambda entry: entry[1]["state"] == "drained"))
