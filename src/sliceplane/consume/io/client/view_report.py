"""The Lease of an ``EndpointView`` that has a name (``tells``): how far the view is, for which drain
barriers wait, and its requests, for ``sliceplane.dev/Measured`` (``consume.demand``).

A request is an endpoint that a picker of the view gave. The view reports for its own zone and
Service alone, in the Service's namespace.
"""

from __future__ import annotations

import time

from sliceplane.api.discovery import EndpointSlice
from sliceplane.consume.balancing.view import BalancedService
from sliceplane.consume.demand import UID_LENGTH, write_demand
from sliceplane.consume.io.client.informer import Informer
from sliceplane.consume.io.reporting import Consumer
from sliceplane.consume.progress import VIEW
from sliceplane.consume.selections import SERVICE_SELECTION_PREFIX
from sliceplane.watch.io.reflect import loop_clock


class ReportedView(Consumer):
    """The consumer *name* of the Service *key*. *zone* "": no requests are reported."""

    def __init__(
        self,
        name: str,
        key: str,
        informer: Informer[EndpointSlice],
        view: BalancedService,
        zone: str,
    ) -> None:
        namespace, _, service = key.partition("/")
        self.clock = loop_clock(time.time())
        super().__init__(
            VIEW,
            f"{service}-{name}",
            {f"{SERVICE_SELECTION_PREFIX}{key}": informer.running},
            self.clock,
            namespace=namespace,
        )
        self._slices = informer
        self._view = view
        self._zone = zone

    def note_progress(self) -> None:
        super().note_progress()
        if self._zone and (uid := self._service_uid()):
            counts = {f"{self._zone}/{uid[:UID_LENGTH]}": self._view.picks}
            self.progress.on_demand(write_demand(counts))

    def _service_uid(self) -> str:
        """Returns the UID of the Service, which owns its slices; "": no slice has an owner."""
        owners = (
            owner.uid
            for observed in self._slices
            for owner in observed.metadata.owner_references or ()
            if owner.kind == "Service"
        )
        return next(owners, "")
