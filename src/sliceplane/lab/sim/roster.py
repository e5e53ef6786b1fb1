"""The controllers that a simulation can run, by the names that ``--controllers`` takes.

A new controller plugs in by one line here; the rest of the simulator knows only
``watch.controller.base.Controller``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from sliceplane.controllers.endpoints import EndpointsController
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.controllers.endpointslice_mirroring import EndpointSliceMirroringController
from sliceplane.controllers.objects.garbage_collector import GarbageCollector
from sliceplane.controllers.objects.namespace import NamespaceController
from sliceplane.controllers.objects.per_namespace import RootCaPublisher, ServiceAccountController
from sliceplane.controllers.objects.pod_garbage_collector import PodGarbageCollector
from sliceplane.controllers.objects.resource_quota import ResourceQuotaController
from sliceplane.controllers.traffic_distribution import TrafficDistributionController
from sliceplane.emulation.deployments.controller import DeploymentController
from sliceplane.emulation.kubelet import KubeletController
from sliceplane.emulation.nodes import EmulationConfig, make_nodes
from sliceplane.emulation.replicaset import ReplicaSetController
from sliceplane.kit.rng import Rng
from sliceplane.slices.heuristics.shipped import find_shipped
from sliceplane.slices.subsets import Subsetting
from sliceplane.watch.controller.base import Controller

ZONES: Final = ("zone-a", "zone-b", "zone-c")
EMULATED_NODES: Final = 4
#: small, so that a handful of Pods fills several slices
MAX_ENDPOINTS: Final = 4
WORKLOADS: Final = ("full", "classic")
#: the certificate that every namespace must have
AUTHORITY: Final = "-----BEGIN CERTIFICATE-----\nsimulated\n-----END CERTIFICATE-----\n"
_SETUP_SALT: Final = 0x5E7


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of a simulated plane. ``instances``: number of instances of the slice controller,
    of which only the leader works.
    """

    subsetting: Subsetting = Subsetting.OFF
    defragment: bool = False
    instances: int = 1
    max_endpoints: int = MAX_ENDPOINTS
    hold: bool = False
    probe: bool = False


def random_setup(workload: str, seed: int) -> Setup:
    """Returns the flags for a seed; ``classic`` has none. Draws from a generator of its own."""
    assert workload in WORKLOADS, f"workload {workload!r}"
    if workload == "classic":
        return Setup()
    rng = Rng(seed ^ _SETUP_SALT).fork()
    return Setup(
        subsetting=tuple(Subsetting)[rng.below(len(Subsetting))],
        defragment=rng.below(2) == 0,
        instances=1 + rng.below(2),
        hold=rng.below(2) == 0,
    )


class RosterEntry(msgspec.Struct, frozen=True):
    """One controller. ``agent``: it belongs to a node, so it has no second instance that could
    overlap.
    """

    make: Callable[[Setup], Controller]
    agent: bool = False
    elected: bool = False


def _endpointslice(setup: Setup) -> Controller:
    config = EndpointSliceConfig(
        max_endpoints_per_slice=setup.max_endpoints,
        hold_mass_removals=setup.hold,
        probe_held=setup.probe,
        subsetting=None if setup.subsetting is Subsetting.OFF else setup.subsetting,
        defragment=setup.defragment,
    )
    return EndpointSliceController(config)


def _kubelet(_: Setup) -> Controller:
    nodes = make_nodes(EMULATED_NODES, ZONES)
    return KubeletController(
        EmulationConfig(nodes=nodes, start_s=0.2, ready_s=1.0, termination_s=2.0)
    )


ROSTER: Final[Mapping[str, RosterEntry]] = {
    "endpointslice": RosterEntry(_endpointslice, elected=True),
    "garbage-collector": RosterEntry(lambda _: GarbageCollector()),
    "namespace": RosterEntry(lambda _: NamespaceController()),
    "resourcequota": RosterEntry(lambda _: ResourceQuotaController()),
    "serviceaccount": RosterEntry(lambda _: ServiceAccountController()),
    "deployment": RosterEntry(lambda _: DeploymentController()),
    "replicaset": RosterEntry(lambda _: ReplicaSetController()),
    "kubelet": RosterEntry(_kubelet, agent=True),
    "root-ca": RosterEntry(lambda _: RootCaPublisher(AUTHORITY)),
    "traffic-distribution": RosterEntry(lambda _: TrafficDistributionController(find_shipped)),
    "endpoints": RosterEntry(lambda _: EndpointsController()),
    "endpointslice-mirroring": RosterEntry(lambda _: EndpointSliceMirroringController()),
    "pod-garbage-collector": RosterEntry(lambda _: PodGarbageCollector()),
}
#: the controllers of recorded seeds of the classic workload
CLASSIC: Final = tuple(ROSTER)[:8]


def all_controllers(workload: str) -> tuple[str, ...]:
    """Returns the controllers that ``all`` stands for."""
    return CLASSIC if workload == "classic" else tuple(ROSTER)


def parse_controllers(text: str) -> tuple[str, ...]:
    """Parses ``all`` or names with commas. Raises ``ValueError`` with a sentence."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if names == ("all",):
        return tuple(ROSTER)
    unknown = [name for name in names if name not in ROSTER]
    if unknown or not names:
        raise ValueError(
            f"{unknown[0] if unknown else text!r} is no controller; there are "
            f"{', '.join(ROSTER)}, all"
        )
    return tuple(name for name in ROSTER if name in names)


def makers(setup: Setup, authority: str) -> dict[str, Callable[[], Controller]]:
    """Returns factories of the controllers of a simulation by their names; *authority* is the
    recorded one.
    """
    factories = {
        entry.make(setup).info.name: partial(entry.make, setup) for entry in ROSTER.values()
    }
    publisher = RootCaPublisher(authority)
    return {**factories, publisher.info.name: lambda: RootCaPublisher(authority)}
