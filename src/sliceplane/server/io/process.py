"""The parts that the API server (``plane``) and a relay have in common."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from sliceplane.kit.io.process import descriptors
from sliceplane.kit.metrics import Metrics
from sliceplane.server.io.audit.log import AuditConfig, AuditLog
from sliceplane.server.io.connections.listener import Listener
from sliceplane.server.io.metrics import ServerMetrics
from sliceplane.server.io.nonresource.pages import HealthChecks
from sliceplane.server.io.offload.service import OffloadService


class HasMetrics(Protocol):
    """A part with metrics."""

    @property
    def metrics(self) -> Metrics: ...


class ServingProcess:
    """A process that serves the API.  Its parts end in the reverse order of their starts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.health = HealthChecks()
        self.metrics = ServerMetrics()
        self._cleanup = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        # Set at the start.
        self.offload: OffloadService
        self.listener: Listener

    def _include(self, *parts: HasMetrics) -> None:
        for part in parts:
            self.metrics.include(part.metrics.families)

    def _check_shutdown(self) -> None:
        """A process that stops is not ready."""
        self.health.add_readiness(
            "shutdown", lambda: "the process is stopping" if self._stopping else ""
        )

    def _open_audit_log(self, config: AuditConfig | None) -> AuditLog | None:
        """Raises ``StartError``."""
        if config is None:
            return None
        log = AuditLog(config, self.clock)
        self._cleanup.callback(log.close)
        self._include(log)
        return log

    def _start_offload(self) -> None:
        self.offload = OffloadService()
        self._cleanup.push_async_callback(self.offload.close)

    def _listen(self, listener: Listener, grace_s: float, end_watches: Callable[[], None]) -> None:
        """Prepares for clients; the caller starts *listener*."""
        self.listener = listener
        self._include(listener)
        descriptors.raise_limit()
        self._cleanup.push_async_callback(listener.stop, grace_s=grace_s, end_watches=end_watches)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Starts a background task that is cancelled at the end."""
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)

        async def end() -> None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        self._cleanup.push_async_callback(end)
