"""The controllers that a simulation can run, by the names that ``--controllers`` takes.

A new controller plugs in by one line here; the rest of the simulator knows only ``controllers.base.Controller``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sliceplane.controllers.base import Controller
from sliceplane.controllers.emulation.deployment import DeploymentController
from sliceplane.controllers.emulation.kubelet import KubeletController
from sliceplane.controllers.emulation.nodes import EmulationConfig, make_nodes
from sliceplane.controllers.emulation.replicaset import ReplicaSetController
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.controllers.garbage_collector import GarbageCollector
from sliceplane.controllers.namespace import NamespaceController
from sliceplane.controllers.resource_quota import ResourceQuotaController
from sliceplane.controllers.service_account import ServiceAccountController

ZONES: Final = ("zone-a", "zone-b", "zone-c")
EMULATED_NODES: Final = 4
#: small, so that a handful of Pods fill several slices
MAX_ENDPOINTS: Final = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """``agent``: one of its kind stands beside a node; it has no second instance that could overlap."""

    make: Callable[[], Controller]
    agent: bool = False


def _endpointslice() -> Controller:
    return EndpointSliceController(EndpointSliceConfig(max_endpoints_per_slice=MAX_ENDPOINTS))


def _kubelet() -> Controller:
    nodes = make_nodes(EMULATED_NODES, ZONES)
    return KubeletController(EmulationConfig(nodes=nodes, start_s=0.2, ready_s=1.0, termination_s=2.0))


ROSTER: Final[Mapping[str, Entry]] = {
    "endpointslice": Entry(_endpointslice),
    "garbage-collector": Entry(GarbageCollector),
    "namespace": Entry(NamespaceController),
    "resourcequota": Entry(ResourceQuotaController),
    "serviceaccount": Entry(ServiceAccountController),
    "deployment": Entry(DeploymentController),
    "replicaset": Entry(ReplicaSetController),
    "kubelet": Entry(_kubelet, agent=True),
}


def parse_controllers(text: str) -> tuple[str, ...]:
    """``all`` or names with commas.  Raises ``ValueError`` with a sentence."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if names == ("all",):
        return tuple(ROSTER)
    unknown = [name for name in names if name not in ROSTER]
    if unknown or not names:
        raise ValueError(f"{unknown[0] if unknown else text!r} is no controller; there are {', '.join(ROSTER)}, all")
    return tuple(name for name in ROSTER if name in names)
