"""The controllers of an embedded plane, as a service of its process.

The command line decides which controllers run. This module puts them into one host over one client
of the plane, and publishes their freshness: ``/readyz`` and ``/metrics`` report if the caches are
filled and how stale they are.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

from sliceplane.controllers.io.freshness import stale, unfilled
from sliceplane.controllers.io.monitoring import leader_family, staleness_family
from sliceplane.controllers.objects.per_namespace import RootCaPublisher
from sliceplane.kit.metrics import Family
from sliceplane.kit.rng import Rng
from sliceplane.watch.controller.election import ElectionConfig
from sliceplane.watch.io.base import FencedClient
from sliceplane.watch.io.hosting.election import LeaseCandidate
from sliceplane.watch.io.hosting.host import ControllerEntry, ControllerHost, make_host
from sliceplane.watch.io.reflect import loop_clock
from sliceplane.watch.io.service import ServiceContext

#: user name of the embedded controllers
USER_NAME = "system:kube-controller-manager"
#: the Lease that embedded controllers of several servers share with those of ``sliceplane
#: controllers``
LEASE_NAME = "sliceplane-controllers"
#: their manager in managedFields, as in any cluster
FIELD_MANAGER = "kube-controller-manager"


class ControllerService:
    """The ``watch.io.service.PlaneService`` of controllers."""

    name = "controllers"

    def __init__(
        self,
        entries: tuple[ControllerEntry, ...],
        *,
        elect: bool = False,
        settings: dict[str, Any] | None = None,
    ) -> None:
        """*elect*: several servers run the same controllers, and one of them at a time is active.
        *settings*: settings of *entries*, for recordings (``hosting.settings``).
        """
        self._entries = entries
        self._settings = settings or {}
        self._elect = elect
        self._host: ControllerHost | None = None
        self._candidate: LeaseCandidate | None = None
        self._term: asyncio.Task[None] | None = None
        #: this server was ready once: a later term must not make it unready while its caches fill
        self._was_ready = False

    async def start(self, context: ServiceContext) -> None:
        client = context.client(USER_NAME, FIELD_MANAGER)
        entries = (*self._entries, ControllerEntry(lambda: RootCaPublisher(context.authority)))
        rng = Rng(int.from_bytes(os.urandom(8), "big"))
        context.add_readiness("informer-sync", self._filling)
        context.add_readiness(
            "controllers",
            lambda: (
                self._filling() or (stale(self._host.status()) if self._host is not None else "")
            ),
        )
        context.add_samples(self._samples)
        recorder = None
        if context.flight is not None:
            recorder = context.flight.recorder
            context.flight.settings.update(self._settings, authority=context.authority)
        if not self._elect:
            self._host = make_host(client, entries, rng, recorder=recorder)
            self._host.start()
            return
        config = ElectionConfig(identity=f"{socket.gethostname()}_{rng.uuid()}", name=LEASE_NAME)
        candidate = LeaseCandidate(
            client, config, rng=rng.fork(), clock=loop_clock(context.clock())
        )
        self._candidate = candidate

        async def term() -> None:
            fenced = FencedClient(client, lambda: candidate.leading)
            self._host = make_host(fenced, entries, rng.fork(), recorder=recorder)
            try:
                await self._host.run()
            finally:
                self._host = None

        self._term = asyncio.get_running_loop().create_task(candidate.run(term), name="election")

    def _samples(self) -> tuple[Family, ...]:
        """Returns the metrics of active controllers, the age of their caches, and the
        leader flag.
        """
        host = self._host
        candidate = self._candidate
        figures = () if host is None else host.samples()
        age = staleness_family(0.0 if host is None else host.status().staleness_s)
        return (
            (*figures, age)
            if candidate is None
            else (*figures, age, leader_family(LEASE_NAME, candidate.leading))
        )

    def _filling(self) -> str:
        """Returns the reason why caches are not filled at the start of this server; "" if they are.

        With an election this applies only until the server is ready once. A server whose
        controllers stand by is as ready as the active one, and must not lose its clients when it
        takes over, just after its predecessor has stopped.
        """
        if self._was_ready:
            return ""
        if self._host is not None:
            reason = unfilled(self._host.status())
        elif self._candidate is None or not self._candidate.holder:
            reason = "no leader is known"
        else:  # between the Lease and the start of the host
            reason = "the controllers are starting" if self._candidate.leading else ""
        self._was_ready = self._elect and not reason
        return reason

    async def drain(self) -> None:
        """Stops controllers under an election, so that another server's can take over. Without one
        they continue to the end.
        """
        if self._term is not None:
            self._term.cancel()
            await asyncio.gather(self._term, return_exceptions=True)

    async def stop(self) -> None:
        await self.drain()
        if self._host is not None:
            await self._host.close()
