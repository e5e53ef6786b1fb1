"""Events on Services: resources that a client refuses, endpoints that exceed the message size, and
annotations that cannot be honoured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sliceplane.api.core import Service
from sliceplane.api.scheme import Services
from sliceplane.watch.controller.base import EventNote
from sliceplane.watch.io.events import EventRecorder
from sliceplane.watch.io.reflect import RunningInformer

#: characters of an Event's note
TEXT_MAX: Final = 500
#: Services that get an Event for one refused message
SERVICES_MAX: Final = 5


class ServiceNotes:
    """Records the Events.  Owned by one server.  Keys of Services are ``NAMESPACE/NAME``."""

    def __init__(self, events: EventRecorder, services: RunningInformer[Service]) -> None:
        self._events = events
        self._services = services
        #: ports and problems that are already reported
        self._too_large: frozenset[str] = frozenset()
        self._problems: dict[str, tuple[str, ...]] = {}

    def on_refusal(self, keys: Iterable[str], kind: str, text: str) -> None:
        for key in list(dict.fromkeys(keys))[:SERVICES_MAX]:
            self._record(
                key, "XdsRefused", f"{kind} refuses an xDS resource of this Service: {text}"
            )

    def on_too_large(self, ports: Mapping[str, str]) -> None:
        """Reports new *ports* with too many endpoints.  *ports*: Services by port, complete."""
        for port in sorted(ports.keys() - self._too_large):
            sentence = (
                "has more endpoints than fit into one message: the last of each zone are omitted"
            )
            self._record(ports[port], "XdsTooLarge", f"{port} {sentence}")
        self._too_large = frozenset(ports)

    def on_problems(self, key: str, problems: Iterable[str]) -> None:
        """Reports new problems of a Service's annotations.  *problems*: complete."""
        before = self._problems.pop(key, ())
        now = tuple(problems)
        if now:
            self._problems[key] = now
        for problem in now:
            if problem not in before:
                self._record(key, "XdsNotHeeded", problem)

    def _record(self, key: str, reason: str, text: str) -> None:
        service = self._services.cache.get(key)
        if service is not None:
            note = EventNote(
                regarding=service,
                regarding_resource=Services,
                type="Warning",
                reason=reason,
                note=text[:TEXT_MAX],
                component="sliceplane-xds",
                action="Configure",
            )
            self._events.record(note)
