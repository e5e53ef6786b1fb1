"""The chain from a name to an endpoint: links in the order in which a connection needs them.

The first broken link is the cause; most findings behind it follow from it. A link names what it
must have read (``wants``): if a read was refused, the link is "not looked at", never "fine".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from sliceplane.api.findings.finding import Finding
from sliceplane.api.requests import Selection
from sliceplane.diagnose.explain.case import (
    ExplainCase,
    NodeCase,
    PodCase,
    PodsCase,
    ServiceCase,
    ZoneCase,
)
from sliceplane.diagnose.explain.checks import (
    consumers,
    foreign_slices,
    kernels,
    names,
    policies,
    ports,
    services,
    serving,
    slices,
    zone_shares,
    zones,
)
from sliceplane.diagnose.explain.checks.pods import (
    leaving,
    rollouts,
    selection,
    silent_nodes,
    states,
    workloads,
)

#: the first link
NAME: Final = "name"
#: connections that were tried, where that was asked for
PROBE: Final = "connections from here"
#: of the machine that asks, where it was asked for
KERNEL: Final = "kernel"
Check = Callable[[Any], Iterable[Finding]]


def _nothing(_: ExplainCase) -> Iterable[Selection]:
    return ()


class LinkPart(NamedTuple):
    """A link for one kind of case.  ``wants``: what to read before the checks run; asked again
    after each read, so that one read may follow from another.
    """

    checks: tuple[Check, ...] = ()
    wants: Callable[[Any], Iterable[Selection]] = _nothing


class Link(msgspec.Struct, frozen=True):
    """``name``: as answers call it. ``is_for_endpoints``: it does not concern a Service that never
    has endpoints (ExternalName).
    """

    name: str
    parts: Mapping[type[ExplainCase], LinkPart] = {}
    is_for_endpoints: bool = True

    def part(self, case: ExplainCase) -> LinkPart:
        """Returns the part for *case*; an empty one if the link does not concern it. Only the first
        link is about a Service or a Pod that does not exist.
        """
        if self.name != NAME and isinstance(case, PodsCase) and not case.exists:
            return LinkPart()
        if self.is_for_endpoints and isinstance(case, ServiceCase) and not case.has_endpoints:
            return LinkPart()
        if self.name == PROBE and case.facts.tried is None:
            return LinkPart()
        if self.name == KERNEL and case.facts.kernel is None:
            return LinkPart()
        return self.parts.get(type(case), LinkPart())


#: the link of what no check of the chain explains
LAST_RESORT: Final = Link("slices")
CHAIN: Final[tuple[Link, ...]] = (
    Link(
        NAME,
        {
            ServiceCase: LinkPart(
                (*services.NAME_CHECKS, policies.ingress_to_nothing), services.wants
            ),
            PodCase: LinkPart((services.no_such_pod,), services.pod_wants),
            NodeCase: LinkPart((services.no_such_node,), services.node_wants),
        },
        is_for_endpoints=False,
    ),
    Link("Service", {ServiceCase: LinkPart(serving.CHECKS, serving.wants)}, is_for_endpoints=False),
    Link(
        "selection",
        {
            ServiceCase: LinkPart((*selection.CHECKS, *workloads.CHECKS), selection.wants),
            PodCase: LinkPart((selection.unselected,), selection.pod_wants),
        },
    ),
    Link(
        "Pods",
        {
            ServiceCase: LinkPart(
                (states.troubles, silent_nodes.silent_nodes, *leaving.CHECKS), leaving.wants
            ),
            PodCase: LinkPart(
                (states.troubles, silent_nodes.silent_nodes, *leaving.POD_CHECKS),
                leaving.wants,
            ),
            NodeCase: LinkPart((silent_nodes.silent_node,), silent_nodes.node_wants),
        },
    ),
    Link("ports", {ServiceCase: LinkPart(ports.CHECKS, slices.wants)}),
    Link("slices", {ServiceCase: LinkPart(slices.CHECKS, slices.wants)}),
    Link(PROBE, {ServiceCase: LinkPart((ports.refused,), slices.wants)}),
    Link("other slices", {ServiceCase: LinkPart(foreign_slices.CHECKS, foreign_slices.wants)}),
    Link(
        "hints",
        {
            ServiceCase: LinkPart((*zones.CHECKS, *zone_shares.CHECKS), zones.wants),
            NodeCase: LinkPart((zones.node_without_zone,), zones.node_wants),
            ZoneCase: LinkPart((zone_shares.of_zone,), zone_shares.zone_wants),
        },
    ),
    Link(
        "node proxies",
        {
            ServiceCase: LinkPart(consumers.CHECKS, consumers.wants),
            NodeCase: LinkPart((consumers.of_node,), consumers.node_wants),
        },
    ),
    Link("views", {ServiceCase: LinkPart((consumers.view_behind,), consumers.view_wants)}),
    Link(
        KERNEL,
        {
            ServiceCase: LinkPart(kernels.CHECKS, slices.wants),
            PodCase: LinkPart(kernels.NODE_CHECKS),
            NodeCase: LinkPart(kernels.NODE_CHECKS),
        },
    ),
    Link(
        "policies",
        {ServiceCase: LinkPart(policies.CHECKS, policies.wants)},
        is_for_endpoints=False,
    ),
    Link(
        "NetworkPolicies", {ServiceCase: LinkPart(policies.NETWORK_CHECKS, policies.network_wants)}
    ),
    Link("rollouts", {ServiceCase: LinkPart(rollouts.CHECKS, rollouts.wants)}),
    Link("DNS", {ServiceCase: LinkPart(names.CHECKS, names.wants)}, is_for_endpoints=False),
)
