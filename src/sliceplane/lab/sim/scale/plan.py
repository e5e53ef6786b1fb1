"""The parameters of a simulation at scale: sizes, the scenario, costs of processing, and
budgets.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from sliceplane.controllers.endpointslice import EndpointSliceConfig


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Costs in processor seconds, except the last three. ``MEASURED`` names the sources of the
    figures.
    """

    slice_write_s: float = 0.00078
    pod_write_s: float = 0.0007
    lease_write_s: float = 0.00053
    #: cost of one write to a watch's socket, and of each of its bytes
    event_s: float = 25.3e-6
    event_byte_s: float = 1.13e-9
    controller_event_s: float = 0.000125
    controller_write_s: float = 0.0012
    #: seconds from a change on a node until the kernel has it
    node_write_s: float = 0.005
    #: seconds until a write is on disk
    commit_s: float = 0.002
    #: a relay: an event from its parent, an object of a list, and a report of a node with its part
    #: of the relay's Lease
    relay_event_s: float = 0.0005
    relay_object_s: float = 30e-6
    report_s: float = 16e-6
    #: network latency in one direction
    one_way_s: float = 0.0005


#: unit, units per second, description and benchmark of each field of ``Costs``
MEASURED: Final[dict[str, tuple[str, float, str, str]]] = {
    "slice_write_s": ("ms", 1e3, "server: a write of a slice of 20", "server_costs"),
    "pod_write_s": ("ms", 1e3, "server: a write of a Pod", "server_costs"),
    "lease_write_s": ("ms", 1e3, "server: a renewal of a Lease", "server_costs"),
    "event_s": ("us", 1e6, "server: a write to a watch", "server_costs"),
    "event_byte_s": ("us", 1e9, "server: 1,000 bytes of it", "server_costs"),
    "controller_event_s": ("ms", 1e3, "controller: an event", "rolling_update"),
    "controller_write_s": ("ms", 1e3, "controller: a write of a slice", "end_to_end"),
    "node_write_s": ("ms", 1e3, "node: a change until the kernel has it", "node_proxy"),
    "relay_event_s": ("ms", 1e3, "relay: an event from its parent", "relay"),
    "relay_object_s": ("us", 1e6, "relay: an object of a list", "relay"),
    "report_s": ("us", 1e6, "relay: a node's report, aggregated", "relay"),
    "commit_s": ("ms", 1e3, "disk: a write until it is durable", "storage"),
    "one_way_s": ("ms", 1e3, "network: one way", "assumed"),
}


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds that must hold; the first that does not is reported as the bottleneck."""

    #: seconds from the change of a Pod until 99 % of the nodes received it, at the 99th percentile
    #: of changes
    freshness_s: float = 30.0
    #: seconds after the last change of a part of the scenario until every queue is empty
    drain_s: float = 60.0
    #: bandwidth of one server
    link_bytes_s: float = 1.25e9
    #: memory of this process; 0: unlimited
    memory_mib: float = 0.0


class ScalePlan(msgspec.Struct, frozen=True, kw_only=True):
    seed: int = 1
    nodes: int = 60
    pods: int = 600
    services: int = 30
    zones: int = 3
    #: number of Services that are rolled out, and of those at the same time
    rolling: int = 6
    at_once: int = 2
    #: number of API servers, which share nodes and requests
    servers: int = 1
    #: number of relays that nodes read from, and of levels of relays; the upper ones have fewer
    relays: int = 0
    levels: int = 1
    #: seconds after which a relay that was killed is there again
    restart_s: float = 1.0
    #: number of sampled nodes
    sampled: int = 2
    #: seconds from the creation of a Pod until it is ready, and from its deletion until it is
    #: removed
    ready_s: float = 5.0
    termination_s: float = 10.0
    #: seconds after which the Pods of a silent node are not ready; Pods marked per second
    node_grace_s: float = 40.0
    marks_per_s: float = 100.0
    #: progress reports per second of each node's proxy; kubelets that renew here add as many again
    renewals_per_s: float = 0.1
    controller: EndpointSliceConfig = msgspec.field(default_factory=EndpointSliceConfig)
    costs: Costs = msgspec.field(default_factory=Costs)
    budgets: Budgets = msgspec.field(default_factory=Budgets)

    def __post_init__(self) -> None:
        """Raises ``ValueError`` with a sentence."""
        if self.zones > self.nodes:
            raise ValueError(f"{self.nodes} nodes cannot be in {self.zones} zones")
        if self.services > self.pods:
            raise ValueError(f"{self.services} Services need a Pod each, and there are {self.pods}")
        if self.rolling > self.services:
            raise ValueError(
                f"{self.rolling} Services cannot be rolled out, there are {self.services}"
            )
        if self.servers > self.nodes - self.nodes // self.zones:
            raise ValueError(
                f"{self.servers} servers are more than the nodes that are left when a zone is lost"
            )
        if self.relays > self.nodes:
            raise ValueError(f"{self.relays} relays are more than the {self.nodes} nodes")
        if self.levels > 1 and self.relays < 2**self.levels:
            raise ValueError(
                f"{self.levels} levels need {2**self.levels} relays or more (--relays), so that "
                f"each level has more than the one above it; there are {self.relays}"
            )

    def grown(self, factor: float) -> ScalePlan:
        """Returns a cluster *factor* times as large, in which the same share is rolled out in the
        same time.
        """
        names = ("nodes", "pods", "services", "rolling", "at_once")
        return replace(
            self, **{name: max(1, round(getattr(self, name) * factor)) for name in names}
        )

    @property
    def relays_by_level(self) -> list[int]:
        """Returns the number of relays of each level, the root's first."""
        levels = range(1, self.levels + 1) if self.relays else ()
        return [round(self.relays ** (level / self.levels)) for level in levels]


def node_name(number: int) -> str:
    return f"node-{number:05}"


def zone_name(number: int) -> str:
    return f"zone-{number + 1}"
