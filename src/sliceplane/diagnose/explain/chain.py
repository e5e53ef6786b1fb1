"""The chain from a name to an endpoint: links in the order in which a connection needs them.

The first broken link is the cause; most later findings follow from it. A link lists its reads
(``reads``): if one was refused, the link is "not looked at", never "fine".
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
    managers,
    measured,
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
    rollouts,
    selection,
    silent_nodes,
    states,
    terminating,
    workloads,
)

#: the first link
NAME: Final = "name"
#: connections from here, if requested
PROBE: Final = "connections from here"
#: the kernel of this machine, if requested
KERNEL: Final = "kernel"
Check = Callable[[Any], Iterable[Finding]]


def _no_reads(_: ExplainCase) -> Iterable[Selection]:
    return ()


def _is_never_silent(_: ExplainCase) -> bool:
    return False


class LinkPart(NamedTuple):
    """A link for one kind of case. ``reads``: the reads before the checks run; called again after
    each read, so that one read may follow from another. ``is_silent``: the objects were read and
    say nothing, so that nothing is well.
    """

    checks: tuple[Check, ...] = ()
    reads: Callable[[Any], Iterable[Selection]] = _no_reads
    is_silent: Callable[[Any], bool] = _is_never_silent


class Link(msgspec.Struct, frozen=True):
    """``name``: in answers. ``is_for_endpoints``: the link does not concern a Service without
    endpoints (ExternalName).
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


#: the link of a fault that no check of the chain explains
LAST_RESORT: Final = Link("slices")
CHAIN: Final[tuple[Link, ...]] = (
    Link(
        NAME,
        {
            ServiceCase: LinkPart(
                (*services.NAME_CHECKS, policies.ingress_without_service), services.reads
            ),
            PodCase: LinkPart((services.no_such_pod,), services.pod_reads),
            NodeCase: LinkPart((services.no_such_node,), services.node_reads),
        },
        is_for_endpoints=False,
    ),
    Link("Service", {ServiceCase: LinkPart(serving.CHECKS, serving.reads)}, is_for_endpoints=False),
    Link(
        "selection",
        {
            ServiceCase: LinkPart((*selection.CHECKS, *workloads.CHECKS), selection.reads),
            PodCase: LinkPart((selection.unselected,), selection.pod_reads),
        },
    ),
    Link(
        "Pods",
        {
            ServiceCase: LinkPart(
                (states.troubles, silent_nodes.silent_nodes, *terminating.CHECKS), terminating.reads
            ),
            PodCase: LinkPart(
                (states.troubles, silent_nodes.silent_nodes, *terminating.POD_CHECKS),
                terminating.reads,
            ),
            NodeCase: LinkPart((silent_nodes.silent_node,), silent_nodes.node_reads),
        },
    ),
    Link("ports", {ServiceCase: LinkPart(ports.CHECKS, slices.reads)}),
    Link("slices", {ServiceCase: LinkPart(slices.CHECKS, slices.reads)}),
    Link(PROBE, {ServiceCase: LinkPart((ports.refused,), slices.reads)}),
    Link(
        "other slices",
        {ServiceCase: LinkPart((*managers.CHECKS, *foreign_slices.CHECKS), foreign_slices.reads)},
    ),
    Link(
        "hints",
        {
            ServiceCase: LinkPart(
                (*zones.CHECKS, *zone_shares.CHECKS, *measured.CHECKS),
                lambda case: (*zones.reads(case), *measured.reads(case)),
            ),
            NodeCase: LinkPart(
                (zones.node_without_zone, measured.capped_node),
                lambda case: (*zones.node_reads(case), *measured.node_reads(case)),
            ),
            ZoneCase: LinkPart((zone_shares.of_zone,), zone_shares.zone_reads),
        },
    ),
    Link(
        "node proxies",
        {
            ServiceCase: LinkPart(consumers.CHECKS, consumers.reads, consumers.is_silent),
            NodeCase: LinkPart((consumers.of_node,), consumers.node_reads, consumers.is_silent),
        },
    ),
    Link("views", {ServiceCase: LinkPart((consumers.view_behind,), consumers.view_reads)}),
    Link(
        KERNEL,
        {
            ServiceCase: LinkPart(kernels.CHECKS, kernels.reads),
            PodCase: LinkPart(kernels.NODE_CHECKS),
            NodeCase: LinkPart(kernels.NODE_CHECKS),
        },
    ),
    Link(
        "policies",
        {ServiceCase: LinkPart(policies.CHECKS, policies.reads)},
        is_for_endpoints=False,
    ),
    Link(
        "NetworkPolicies", {ServiceCase: LinkPart(policies.NETWORK_CHECKS, policies.network_reads)}
    ),
    Link("rollouts", {ServiceCase: LinkPart(rollouts.CHECKS, rollouts.reads)}),
    Link("DNS", {ServiceCase: LinkPart(names.CHECKS, names.reads)}, is_for_endpoints=False),
)
