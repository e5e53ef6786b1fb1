"""Events on Services: what a client refuses, what is left out for its size, and annotations that
are not heeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sliceplane.api.core import Service
from sliceplane.api.scheme import Services
from sliceplane.watch.controller.base import EventNote
from sliceplane.watch.io.events import EventRecorder
from sliceplane.watch.io.reflect import RunningInformer

TEXT_MAX: Final = 500
#: one message says it of so many Services at most
SERVICES_MAX: Final = 5


class ServiceNotes:
    """Owned by one server.  Services are named by their keys, ``NAMESPACE/NAME``."""

    def __init__(self, events: EventRecorder, services: RunningInformer[Service]) -> None:
        self._events = events
        self._services = services
        #: what was told and is still so
        self._too_large: frozenset[str] = frozenset()
        self._problems: dict[str, tuple[str, ...]] = {}

    def on_refusal(self, keys: Iterable[str], kind: str, text: str) -> None:
        for key in list(dict.fromkeys(keys))[:SERVICES_MAX]:
            self._tell(key, "XdsRefused", f"{kind} refuses what xDS makes of this: {text}")

    def on_too_large(self, ports: Mapping[str, str]) -> None:
        """*ports*: all that have too many endpoints now, with the Service of each."""
        for port in sorted(ports.keys() - self._too_large):
            sentence = (
                "has more endpoints than a client takes in one message: the last of each zone are "
                "left out"
            )
            self._tell(ports[port], "XdsTooLarge", f"{port} {sentence}")
        self._too_large = frozenset(ports)

    def on_problems(self, key: str, problems: Iterable[str]) -> None:
        """Notes the present problems of a Service's annotations."""
        before = self._problems.pop(key, ())
        now = tuple(problems)
        if now:
            self._problems[key] = now
        for problem in now:
            if problem not in before:
                self._tell(key, "XdsNotHeeded", problem)

    def _tell(self, key: str, reason: str, text: str) -> None:
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
