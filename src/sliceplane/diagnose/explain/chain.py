"""The chain from a name to an endpoint: links in the order in which a connection needs them.

The first link that is broken is the cause; what is found behind it mostly follows from it. A link
says what it must have read (``wants``): a link whose reading was refused is "not looked at", never
"fine".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from sliceplane.api.findings.finding import Finding
from sliceplane.api.requests import Selection
from sliceplane.diagnose.explain.case import (
    Case,
    NodeCase,
    PodCase,
    PodsCase,
    ServiceCase,
    ZoneCase,
)
from sliceplane.diagnose.explain.checks import (
    foreign_slices,
    kernels,
    names,
    network_policies,
    node_proxies,
    pods,
    pods_leaving,
    ports,
    rollouts,
    selection,
    services,
    serving,
    silent_nodes,
    slices,
    traffic_policies,
    views,
    workloads,
    zone_shares,
    zones,
)

#: the first link
NAME: Final = "name"
#: connections that were tried, where that was asked for
PROBE: Final = "connections from here"
#: of the machine that asks, where it was asked for
KERNEL: Final = "kernel"
ServiceCheck = Callable[[ServiceCase], Iterable[Finding]]
PodCheck = Callable[[PodCase], Iterable[Finding]]
NodeCheck = Callable[[NodeCase], Iterable[Finding]]
ZoneCheck = Callable[[ZoneCase], Iterable[Finding]]


def _nothing(_: Case) -> Iterable[Selection]:
    return ()


class Link(msgspec.Struct, frozen=True):
    """``name``: as answers call it. ``wants``, and those of Pods, nodes and zones: what to read
    before the checks run; asked again after each reading, so that one reading may follow from
    another. ``of_endpoints``: it says nothing of a Service that never has any (ExternalName).
    """

    name: str
    checks: tuple[ServiceCheck, ...] = ()
    wants: Callable[[ServiceCase], Iterable[Selection]] = _nothing
    pod_checks: tuple[PodCheck, ...] = ()
    pod_wants: Callable[[PodCase], Iterable[Selection]] = _nothing
    node_checks: tuple[NodeCheck, ...] = ()
    node_wants: Callable[[NodeCase], Iterable[Selection]] = _nothing
    zone_checks: tuple[ZoneCheck, ...] = ()
    zone_wants: Callable[[ZoneCase], Iterable[Selection]] = _nothing
    of_endpoints: bool = True

    def checks_of(self, case: Case) -> tuple[Callable[[Any], Iterable[Finding]], ...]:
        """Empty: the link says nothing of such a case; of what does not exist only the first
        does.
        """
        if isinstance(case, PodsCase) and not case.exists and self.name != NAME:
            return ()
        if self.name == PROBE and case.facts.tried is None:
            return ()
        if self.name == KERNEL and case.facts.kernel is None:
            return ()
        match case:
            case ServiceCase():
                return self.checks if case.has_endpoints or not self.of_endpoints else ()
            case PodCase():
                return self.pod_checks
            case NodeCase():
                return self.node_checks
            case ZoneCase():
                return self.zone_checks

    def wants_of(self, case: Case) -> Iterable[Selection]:
        if not self.checks_of(case):
            return ()
        match case:
            case ServiceCase():
                return self.wants(case)
            case PodCase():
                return self.pod_wants(case)
            case NodeCase():
                return self.node_wants(case)
            case ZoneCase():
                return self.zone_wants(case)


#: the link of what no check of the chain explains
LAST_RESORT: Final = Link("slices")
CHAIN: Final[tuple[Link, ...]] = (
    Link(
        NAME,
        (*services.NAME_CHECKS, traffic_policies.ingress_to_nothing),
        services.wants,
        pod_checks=(services.no_such_pod,),
        pod_wants=services.pod_wants,
        node_checks=(services.no_such_node,),
        node_wants=services.node_wants,
        of_endpoints=False,
    ),
    Link("Service", serving.CHECKS, serving.wants, of_endpoints=False),
    Link(
        "selection",
        (*selection.CHECKS, *workloads.CHECKS),
        selection.wants,
        pod_checks=selection.POD_CHECKS,
        pod_wants=selection.pod_wants,
    ),
    Link(
        "Pods",
        (*pods.CHECKS, *silent_nodes.CHECKS, *pods_leaving.CHECKS),
        pods_leaving.wants,
        pod_checks=(*pods.CHECKS, *silent_nodes.CHECKS, *pods_leaving.POD_CHECKS),
        pod_wants=pods_leaving.wants,
        node_checks=silent_nodes.NODE_CHECKS,
        node_wants=silent_nodes.node_wants,
    ),
    Link("ports", ports.CHECKS, slices.wants),
    Link("slices", slices.CHECKS, slices.wants),
    Link(PROBE, ports.PROBE_CHECKS, slices.wants),
    Link("other slices", foreign_slices.CHECKS, foreign_slices.wants),
    Link(
        "hints",
        (*zones.CHECKS, *zone_shares.CHECKS),
        zones.wants,
        node_checks=zones.NODE_CHECKS,
        node_wants=zones.node_wants,
        zone_checks=zone_shares.ZONE_CHECKS,
        zone_wants=zone_shares.zone_wants,
    ),
    Link(
        "node proxies",
        node_proxies.CHECKS,
        node_proxies.wants,
        node_checks=node_proxies.NODE_CHECKS,
        node_wants=node_proxies.node_wants,
    ),
    Link("views", views.CHECKS, views.wants),
    Link(
        KERNEL,
        kernels.CHECKS,
        slices.wants,
        pod_checks=kernels.NODE_CHECKS,
        node_checks=kernels.NODE_CHECKS,
    ),
    Link("policies", traffic_policies.CHECKS, traffic_policies.wants, of_endpoints=False),
    Link("NetworkPolicies", network_policies.CHECKS, network_policies.wants),
    Link("rollouts", rollouts.CHECKS, rollouts.wants),
    Link("DNS", names.CHECKS, names.wants, of_endpoints=False),
)
