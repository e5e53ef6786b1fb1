"""The drain barriers of a cluster, read-only: draining Pods, nodes that are waited for, and
barriers that have ended.

One reader refreshes it repeatedly from lists. Changes between two lists are the input of the core
that a drain and the controller use, too, so a draining Pod retains the revisions that nodes must
apply. Nothing is marked, and no report is requested: nodes report at their own interval.
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
from sliceplane.consume.drain.departure import is_draining, subject_of
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.io.base import Reader

#: ended barriers that are retained, and draining Pods in one document
ENDED_MAX: Final = 50
GOING_MAX: Final = 200
_KINDS: Final[dict[str, type[Object]]] = {
    EndpointSlices.key: EndpointSlice,
    Services.key: Service,
    Nodes.key: Node,
    Leases.key: Lease,
}
#: by state of a verdict: the state for users, and the outcome for ``sentence``
_STATES: Final[dict[str, tuple[str, Outcome]]] = {
    "proven": ("drained", "drained"),
    "unknown": ("cannot know", "cannot know"),
    "waiting": ("waiting", "time over"),
    "used": ("in use", "time over"),
}


class BarrierBook:
    """Owned by one reader.  *namespace*: only its Pods; "": all Pods."""

    def __init__(self, namespace: str = "") -> None:
        self._namespace = namespace
        self._cluster: DrainCluster | None = None
        self._cached: dict[tuple[str, str], Object] = {}
        #: what may not be read, and why
        self._unread: dict[str, str] = {}
        #: rows of draining Pods, and of drained ones, the newest last
        self._going: dict[str, dict[str, Any]] = {}
        self._ended: dict[str, dict[str, Any]] = {}

    async def refresh(self, client: Reader, clock: Callable[[], float]) -> dict[str, Any]:
        """Returns the barriers as a document. Raises ``StatusError`` and ``Unreachable`` if Pods or
        slices cannot be read.
        """
        page = await client.list(Selection(Pods, self._namespace))
        pods = {pod.metadata.key: pod for pod in (codec.decode(body, Pod) for body in page.items)}
        leaving = {key: pods[key] for key in sorted(pods) if is_draining(pods[key])}
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
        """Adds subjects before the objects that refer to them."""
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
                reads_services=Services.key in pages,
                reads_leases=Leases.key in pages,
                reads_nodes=Nodes.key in pages,
            )
        cluster, draining_pods = self._cluster, self._cluster.draining_pods
        for subject in draining_pods.subjects():
            if subject.key not in leaving:
                draining_pods.discard(subject.key)
        for pod in leaving.values():
            draining_pods.add(subject_of(pod))
        now = clock()
        for key, page in pages.items():
            listed = {
                (key, item.metadata.key): item
                for item in (codec.decode(each, _KINDS[key]) for each in page.items)
            }
            changes = [
                Change(key, self._cached.pop(at), None)
                for at in list(self._cached)
                if at[0] == key and at not in listed
            ]
            for at, item in listed.items():
                before = self._cached.get(at)
                if (
                    before is None
                    or before.metadata.resource_version != item.metadata.resource_version
                ):
                    changes.append(Change(key, before, item))
            self._cached.update(listed)
            for change in changes:
                cluster.on_change(change, now)
        for key, page in pages.items():
            cluster.on_mark(Mark(key, page.resource_version, listed=True), now)
        draining_pods.update()

    def _rows(self, leaving: Mapping[str, Pod], now: float) -> dict[str, dict[str, Any]]:
        if self._cluster is None:
            return {}
        cluster, facts = self._cluster, self._cluster.facts()
        rows = {}
        for key, pod in leaving.items():
            if not cluster.draining_pods.services(key) and ANNOTATION_DRAIN not in (
                pod.metadata.annotations or {}
            ):
                continue  # no kernel has it
            before = self._going.get(key, {"uid": "", "since": now, "state": ""})
            same = before["uid"] == pod.metadata.uid
            if same and before["state"] == "drained":
                rows[key] = before  # a barrier that was passed stays so
                continue
            since = before["since"] if same else now
            verdict = cluster.verdict(key, facts, now)
            state, outcome = _STATES[verdict.state]
            # The sentence begins with the state, in the words of a command that has ended.
            text = sentence(DrainedPod(key, outcome, verdict, now - since)).partition(": ")[2]
            condition = pod.condition(CONDITION)
            if condition is not None and condition.status == "True":
                state, text = "drained", condition.message or ""
            rows[key] = {
                "pod": key,
                "uid": pod.metadata.uid,
                "node": pod.spec.node_name,
                "state": state,
                "says": text,
                "since": since,
                "until": None,
                "waitingFor": [missing.text for missing in (*verdict.waiting, *verdict.unknown)],
            }
        return dict(sorted(rows.items(), key=lambda entry: entry[1]["state"] == "drained"))
