"""The catalogue of controllers: their factories, with the settings from flags, and their numbers of
jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sliceplane.agent.endpoints_controller import ExternalEndpointsController
from sliceplane.api.gates import ENDPOINT_SLICE
from sliceplane.api.scheme import ReplicationControllers
from sliceplane.api.selectors.adoption import Scope
from sliceplane.controllers.drained import DrainedController
from sliceplane.controllers.endpoints import EndpointsConfig, EndpointsController
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.controllers.endpointslice_mirroring import (
    EndpointSliceMirroringController,
    MirroringConfig,
)
from sliceplane.controllers.measured.controller import MeasuredZonesController
from sliceplane.controllers.objects.garbage_collector import GarbageCollector
from sliceplane.controllers.objects.namespace import NamespaceController
from sliceplane.controllers.objects.per_namespace import ServiceAccountController
from sliceplane.controllers.objects.pod_garbage_collector import PodGarbageCollector
from sliceplane.controllers.objects.resource_quota import ResourceQuotaController
from sliceplane.controllers.service_claims import ServiceClaimsController
from sliceplane.controllers.service_syncs import FirstSync, HintProblems
from sliceplane.controllers.traffic_distribution import TrafficDistributionController
from sliceplane.watch.io.hosting.host import ControllerEntry

if TYPE_CHECKING:
    from sliceplane.emulation.nodes import EmulationConfig


class DiscoveryConfig(msgspec.Struct, frozen=True):
    """The controllers that make EndpointSlices and Endpoints."""

    slices: EndpointSliceConfig = msgspec.field(default_factory=EndpointSliceConfig)
    endpoints: EndpointsConfig = msgspec.field(default_factory=EndpointsConfig)
    mirroring: MirroringConfig = msgspec.field(default_factory=MirroringConfig)


def default_controllers(
    config: DiscoveryConfig | None = None, *, conditions: bool = True, reverse: bool = False
) -> tuple[ControllerEntry, ...]:
    """Returns the controllers of every plane; without the feature gate EndpointSlice, slices stay
    as they are (KEP-0752).

    With *reverse*, the reverse mirror makes Endpoints instead of the Endpoints controller.
    *conditions*: Services with trafficDistribution get conditions.

    The mirroring controller waits for the Endpoints controller of the same call, if that runs.
    """
    discovery = config or DiscoveryConfig()
    slices = discovery.slices
    endpoints = discovery.endpoints
    mirroring = discovery.mirroring
    first_sync = FirstSync()
    problems = HintProblems()
    entries: list[ControllerEntry] = []
    if slices.gates.enabled(ENDPOINT_SLICE):
        syncs = slices.concurrent_service_endpoint_syncs
        entries.append(ControllerEntry(lambda: EndpointSliceController(slices, problems), syncs))
    if reverse:
        entries.append(reverse_mirror())
    else:
        syncs = endpoints.concurrent_endpoint_syncs
        entries.append(ControllerEntry(lambda: EndpointsController(endpoints, first_sync), syncs))
    if slices.gates.enabled(ENDPOINT_SLICE):
        syncs = mirroring.concurrent_service_endpoint_syncs
        entries.append(
            ControllerEntry(lambda: EndpointSliceMirroringController(mirroring, first_sync), syncs)
        )
    entries += [
        ControllerEntry(GarbageCollector, 20),
        ControllerEntry(NamespaceController),
        ControllerEntry(PodGarbageCollector),
        ControllerEntry(ResourceQuotaController),
        ControllerEntry(ServiceAccountController),
        ControllerEntry(ServiceClaimsController),
        ControllerEntry(MeasuredZonesController),
    ]
    if conditions:
        entries.append(
            ControllerEntry(
                lambda: TrafficDistributionController(slices.find_heuristic, problems, slices.gates)
            )
        )
    entries += [ControllerEntry(DrainedController), ControllerEntry(ExternalEndpointsController)]
    return tuple(entries)


def adopting_controllers(config: DiscoveryConfig) -> tuple[ControllerEntry, ...]:
    """Returns the controllers of adopted Services, for a *config* of that scope. Endpoints of other
    Services are mirrored by upstream's controller.
    """
    slices, endpoints = config.slices, config.endpoints
    return (
        ControllerEntry(
            lambda: EndpointSliceController(slices), slices.concurrent_service_endpoint_syncs
        ),
        ControllerEntry(
            lambda: EndpointsController(endpoints), endpoints.concurrent_endpoint_syncs
        ),
        ControllerEntry(lambda: MeasuredZonesController(Scope.ADOPTED)),
    )


def reverse_mirror(*, cleanup: bool = False) -> ControllerEntry:
    """Returns the optional controller that mirrors slices to Endpoints. With *cleanup* it deletes
    its objects and makes no more.
    """
    from sliceplane.controllers.reverse_mirroring import ReverseMirrorController

    return ControllerEntry(lambda: ReverseMirrorController(cleanup=cleanup))


def emulation_controllers(config: EmulationConfig) -> tuple[ControllerEntry, ...]:
    """Returns the controllers that ``--emulate`` adds."""
    from sliceplane.emulation.daemonset import DaemonSetController
    from sliceplane.emulation.deployments.controller import DeploymentController
    from sliceplane.emulation.disruption import DisruptionController
    from sliceplane.emulation.kubelet import KubeletController
    from sliceplane.emulation.replicaset import ReplicaSetController
    from sliceplane.emulation.statefulset import StatefulSetController

    return (
        ControllerEntry(DeploymentController),
        ControllerEntry(ReplicaSetController),
        ControllerEntry(lambda: ReplicaSetController(ReplicationControllers)),
        ControllerEntry(DaemonSetController),
        ControllerEntry(StatefulSetController),
        ControllerEntry(DisruptionController),
        ControllerEntry(lambda: KubeletController(config), 20),
    )
