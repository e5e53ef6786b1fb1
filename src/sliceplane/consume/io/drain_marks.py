"""The marks of a drain on Pods: set, and taken back when the drain gives up.

A mark is the annotation ``sliceplane.dev/drain``, which our controller reads, and ``False`` in the
condition of the readiness gate ``sliceplane.dev/serving``, which every controller reads, where the
Pod has the gate and is ``True`` there. A Pod that something else marked keeps its mark.

A request that sets a mark is awaited before the mark is taken back, also when the drain is
cancelled: otherwise it could reach the server after the one that takes it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal

from sliceplane.api.codec import encode
from sliceplane.api.core import Pod
from sliceplane.api.discovery import ANNOTATION_DRAIN
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Condition
from sliceplane.api.requests import Write
from sliceplane.api.scheme import Pods
from sliceplane.consume.drain.answer import GATE
from sliceplane.kit.times import format_time
from sliceplane.watch.controller.base import condition_write
from sliceplane.watch.io.base import Client, Unreachable

#: seconds for which taking marks back is retried while the server is unreachable, and for one
#: request
TAKE_BACK_MAX_S: Final = 30.0
_REQUEST_MAX_S: Final = 5.0
_PAUSE_MIN_S: Final = 0.2
_PAUSE_MAX_S: Final = 2.0
_REASON: Final = "Drain"
#: the Pod is gone, or another one has its name: 404, 409 and 422 of a patch with the uid of the one
#: before
_GONE: Final = ("NotFound", "Conflict", "Invalid")


class DrainMarks:
    """Owned by one drain."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        """*clock*: seconds since the epoch."""
        self._client = client
        self._clock = clock
        #: Pods that have a mark of ours, or may have one
        self._marked: dict[str, Pod] = {}
        self._setting: asyncio.Task[None] | None = None

    @property
    def marked(self) -> tuple[str, ...]:
        return tuple(self._marked)

    def adopt(self, pod: Pod) -> None:
        """Takes a mark of an earlier drain for ours."""
        if is_marked(pod):
            self._marked[pod.metadata.key] = pod

    def forget(self, key: str) -> None:
        """The Pod is deleted."""
        self._marked.pop(key, None)

    async def set(self, pod: Pod) -> None:
        """Raises ``StatusError`` and ``Unreachable``."""
        if is_marked(pod):
            return
        self._marked[pod.metadata.key] = pod
        self._setting = asyncio.create_task(self._set(pod), name="drain mark")
        await asyncio.shield(self._setting)

    async def _set(self, pod: Pod) -> None:
        try:
            await self._annotate(pod, format_time(self._clock()))
        except StatusError as error:
            if error.code < 500:
                self.forget(pod.metadata.key)  # the server says that it did nothing
            raise
        gate = gate_of(pod)
        if gate is not None and gate.status == "True":
            await self._execute(_gate_write(pod, "False"))

    async def take_back(self) -> tuple[str, ...]:
        """Takes the marks away.  Returns the Pods that may still have one, after
        ``TAKE_BACK_MAX_S`` at most.
        """
        until = self._clock() + TAKE_BACK_MAX_S
        await self._end_setting()
        pause_s = _PAUSE_MIN_S
        refused: set[str] = set()
        while True:
            for key in [key for key in self._marked if key not in refused]:
                outcome = await self._try_to_unset(self._marked[key])
                if outcome == "away":
                    break
                if outcome == "done":
                    self.forget(key)
                else:
                    refused.add(key)
            if self._marked.keys() <= refused or self._clock() + pause_s > until:
                return self.marked
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _end_setting(self) -> None:
        setting, self._setting = self._setting, None
        if setting is not None:
            await asyncio.wait({setting}, timeout=_REQUEST_MAX_S)
            setting.cancel()
            await asyncio.gather(setting, return_exceptions=True)

    async def _try_to_unset(self, pod: Pod) -> Literal["done", "refused", "away"]:
        try:
            async with asyncio.timeout(_REQUEST_MAX_S):
                await self._unset(pod)
        except (Unreachable, TimeoutError):
            return "away"
        except StatusError as error:
            return "away" if error.code == 429 or error.code >= 500 else "refused"
        return "done"

    async def _unset(self, pod: Pod) -> None:
        await self._annotate(pod, None)
        gate = gate_of(pod)
        if gate is not None and (gate.status == "True" or gate.reason == _REASON):
            await self._execute(_gate_write(pod, "True"))

    async def _annotate(self, pod: Pod, value: str | None) -> None:
        meta = pod.metadata
        body = encode({"metadata": {"uid": meta.uid, "annotations": {ANNOTATION_DRAIN: value}}})
        await self._execute(
            Write(verb="patch", resource=Pods, namespace=meta.namespace, name=meta.name, body=body)
        )

    async def _execute(self, write: Write) -> None:
        try:
            await self._client.perform(write)
        except StatusError as error:
            if error.reason not in _GONE:
                raise


def is_marked(pod: Pod) -> bool:
    gate = gate_of(pod)
    is_closed = gate is not None and gate.status == "False" and gate.reason == _REASON
    return is_closed or ANNOTATION_DRAIN in (pod.metadata.annotations or {})


def gate_of(pod: Pod) -> Condition | None:
    """The condition of the Pod's gate, if its template has the gate."""
    if not any(gate.condition_type == GATE for gate in pod.spec.readiness_gates or ()):
        return None
    return pod.condition(GATE)


def _gate_write(pod: Pod, status: str) -> Write:
    condition = {"type": GATE, "status": status, "reason": _REASON, "message": "sliceplane drain"}
    return condition_write(Pods, pod.metadata, condition)
