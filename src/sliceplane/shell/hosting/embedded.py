"""The controllers of an embedded plane, as a service of its process.

Which controllers run is decided by the command line; this file only puts them into one host over one
in-process client, and makes their freshness visible: ``/readyz`` and ``/metrics`` know whether the caches are
filled and how stale they are.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sliceplane.api.gates import ENDPOINT_SLICE
from sliceplane.controllers.base import Controller
from sliceplane.controllers.election import ElectionConfig
from sliceplane.controllers.endpoints import EndpointsConfig, EndpointsController
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.controllers.endpointslice_mirroring import EndpointSliceMirroringController, MirroringConfig
from sliceplane.controllers.first_sync import FirstSync
from sliceplane.controllers.garbage_collector import GarbageCollector
from sliceplane.controllers.hint_problems import HintProblems
from sliceplane.controllers.namespace import NamespaceController
from sliceplane.controllers.resource_quota import ResourceQuotaController
from sliceplane.controllers.root_ca_publisher import RootCaPublisher
from sliceplane.controllers.service_account import ServiceAccountController
from sliceplane.controllers.service_claims import ServiceClaimsController
from sliceplane.controllers.traffic_distribution import TrafficDistributionController
from sliceplane.kit.rng import Rng
from sliceplane.shell.hosting import ControllerHost
from sliceplane.shell.hosting.election import Candidate
from sliceplane.shell.hosting.freshness import stale, unfilled
from sliceplane.shell.transport.base import Client
from sliceplane.shell.transport.fenced import FencedClient
from sliceplane.shell.transport.reflect import loop_clock

if TYPE_CHECKING:
    from sliceplane.controllers.emulation.nodes import EmulationConfig
    from sliceplane.shell.server.plane import Plane

#: who the embedded controllers are
USER_NAME = "system:kube-controller-manager"
#: the Lease that embedded controllers of several servers share, with those of ``sliceplane controllers``
LEASE_NAME = "sliceplane-controllers"
#: who they are in managedFields, as in any cluster
FIELD_MANAGER = "kube-controller-manager"


@dataclass(frozen=True, slots=True)
class Entry:
    """One controller: how to make it (again, after a fault) and how many of its jobs may run side by side."""

    make: Callable[[], Controller]
    max_in_flight: int = 5


@dataclass(frozen=True, slots=True)
class DiscoveryConfig:
    """The controllers that make EndpointSlices and Endpoints."""

    slices: EndpointSliceConfig = field(default_factory=EndpointSliceConfig)
    endpoints: EndpointsConfig = field(default_factory=EndpointsConfig)
    mirroring: MirroringConfig = field(default_factory=MirroringConfig)


def default_controllers(
    config: DiscoveryConfig | None = None, *, conditions: bool = True, reverse: bool = False
) -> tuple[Entry, ...]:
    """What every plane runs; without the feature gate EndpointSlice, slices stay as they are (KEP-0752).

    With *reverse* the reverse mirror makes Endpoints, in place of the Endpoints controller.

    The mirroring controller of one call waits for the Endpoints controller of the same call, if that runs.
    *conditions*: Services with trafficDistribution are told what became of it.
    """
    wanted = config or DiscoveryConfig()
    slices, endpoints, mirroring = wanted.slices, wanted.endpoints, wanted.mirroring
    first_sync, problems = FirstSync(), HintProblems()
    entries = [
        reverse_mirror()
        if reverse
        else Entry(lambda: EndpointsController(endpoints, first_sync), endpoints.concurrent_endpoint_syncs)
    ]
    if slices.gates.enabled(ENDPOINT_SLICE):
        mirror = Entry(
            lambda: EndpointSliceMirroringController(mirroring, first_sync),
            mirroring.concurrent_service_endpoint_syncs,
        )
        entries.append(mirror)
        entries.insert(
            0, Entry(lambda: EndpointSliceController(slices, problems), slices.concurrent_service_endpoint_syncs)
        )
    entries += [Entry(GarbageCollector, 20), Entry(NamespaceController), Entry(ResourceQuotaController)]
    entries += [Entry(ServiceAccountController), Entry(ServiceClaimsController)]
    if conditions:
        entries.append(Entry(lambda: TrafficDistributionController(slices.find_heuristic, problems, slices.gates)))
    return tuple(entries)


def reverse_mirror(*, cleanup: bool = False) -> Entry:
    """For who asks for it: slices to Endpoints.  With *cleanup* it takes away what it made, and makes no more."""
    from sliceplane.controllers.reverse_mirroring import ReverseMirrorController

    return Entry(lambda: ReverseMirrorController(cleanup=cleanup))


def emulation_controllers(config: EmulationConfig) -> tuple[Entry, ...]:
    """What ``--emulate`` adds."""
    from sliceplane.controllers.emulation.deployment import DeploymentController
    from sliceplane.controllers.emulation.kubelet import KubeletController
    from sliceplane.controllers.emulation.replicaset import ReplicaSetController

    return (Entry(DeploymentController), Entry(ReplicaSetController), Entry(lambda: KubeletController(config), 20))


class ControllerService:
    """A ``shell.server.plane.Service``."""

    name = "controllers"

    def __init__(self, entries: tuple[Entry, ...], *, elect: bool = False) -> None:
        """*elect*: other servers run the same controllers, and one of them at a time works."""
        self._entries = entries
        self._elect = elect
        self._host: ControllerHost | None = None
        self._candidate: Candidate | None = None
        self._term: asyncio.Task[None] | None = None
        #: this server was ready once: a later term must not take it from clients while its caches fill
        self._settled = False

    async def start(self, plane: Plane) -> None:
        client = plane.client(USER_NAME, field_manager=FIELD_MANAGER)
        rng = Rng(int.from_bytes(os.urandom(8), "big"))
        plane.health.add_readiness("informer-sync", self._filling)
        plane.health.add_readiness("controllers", self._complaint)
        plane.metrics.source(lambda: self._host.samples() if self._host else ())
        plane.metrics.gauge(
            "sliceplane_informer_staleness_seconds",
            "Age of the stalest cache.",
            lambda: self._host.status().staleness_s if self._host else 0.0,
        )
        if not self._elect:
            self._host = self._made(plane, client, rng)
            self._host.start()
            return
        config = ElectionConfig(identity=f"{socket.gethostname()}_{rng.uuid()}", name=LEASE_NAME)
        candidate = Candidate(client, config, rng=rng.fork(), clock=loop_clock(plane.clock()))
        self._candidate = candidate
        plane.metrics.gauges(
            "leader_election_master_status",
            "Whether this server's controllers work.",
            lambda: (({"name": config.name}, candidate.leading),),
        )

        async def term() -> None:
            host = self._host = self._made(plane, FencedClient(client, lambda: candidate.leading), rng.fork())
            host.start()
            try:
                await asyncio.Event().wait()
            finally:
                self._host = None
                await host.close()

        self._term = asyncio.get_running_loop().create_task(candidate.run(term), name="election")

    def _made(self, plane: Plane, client: Client, rng: Rng) -> ControllerHost:
        # The host's own clock goes on steadily when somebody sets the machine's.
        host = ControllerHost(client, rng=rng)
        for entry in self._entries:
            host.add(entry.make, max_in_flight=entry.max_in_flight)
        authority = plane.pki.ca_file.read_text()
        host.add(lambda: RootCaPublisher(authority))
        return host

    def _filling(self) -> str:
        """Whose caches are not filled at the start of this server.

        Where controllers of several servers take turns, that alone counts: a server whose controllers stand by is as
        ready as the one whose work, and is not to leave its clients in the moment in which it takes over, as its
        predecessor is just gone.
        """
        if self._settled:
            return ""
        if self._host is not None:
            why = unfilled(self._host.status())
        else:
            why = "" if self._candidate is not None and self._candidate.holder else "nobody is known to lead"
        self._settled = self._elect and not why
        return why

    def _complaint(self) -> str:
        return self._filling() or (stale(self._host.status()) if self._host is not None else "")

    async def drain(self) -> None:
        """Another server's controllers may work from now on.  Those that nobody would follow go on to the end."""
        if self._term is not None:
            self._term.cancel()
            await asyncio.gather(self._term, return_exceptions=True)

    async def stop(self) -> None:
        await self.drain()
        if self._host is not None:
            await self._host.close()
