"""The assumptions of an answer, as sentences that precede it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from sliceplane.api.findings.wording import count, some
from sliceplane.consume.balancing.shares import ClientLocation
from sliceplane.lab.whatif.world import WhatIfWorld

if TYPE_CHECKING:
    from sliceplane.lab.whatif.prediction import WhatIfQuestion


def percent(share: Fraction) -> str:
    return f"{float(share):.1%}"


def zone_name(zone: str) -> str:
    return zone or "(no zone)"


def rate(a_second: Fraction) -> str:
    """Formats a rate as ``333 requests a second``; small ones have three digits."""
    number = float(a_second)
    return (
        f"{number:,.0f} requests a second" if number >= 99.5 else f"{number:.3g} requests a second"
    )


def assumptions(
    question: WhatIfQuestion,
    world: WhatIfWorld,
    client_locations: Sequence[ClientLocation],
    pending: int,
    runs: int,
) -> tuple[str, ...]:
    return (
        _clients(question, client_locations),
        *_consumers(question),
        *_running(question, world),
        *_changes(question, world),
        *_runs(runs, wrote=bool(world.events)),
        *_pending(pending, world.pending_pods),
    )


def _consumers(question: WhatIfQuestion) -> Iterator[str]:
    clients = question.clients
    if clients.rate is not None:
        takes = "" if clients.capacity is None else f", and a Pod can take {rate(clients.capacity)}"
        yield f"They send {rate(clients.rate)}{takes}; each request costs the same."
    yield (
        "It holds for kube-proxy and Sliceplane's node proxy and Python client. Cilium follows "
        "hints only with "
        "loadBalancer.serviceTopology; Istio, Linkerd and Envoy choose by rules of their own."
    )
    if question.service.spec.cluster_ip == "None":
        yield (
            "The Service is headless: clients find its Pods by DNS, and only those that read "
            "hints follow them."
        )
    if question.service.spec.session_affinity == "ClientIP":
        yield "Session affinity is not looked at: it keeps clients where they are."


def _running(question: WhatIfQuestion, world: WhatIfWorld) -> Iterator[str]:
    running = question.now
    yield (
        f"Controllers run with max-endpoints-per-slice={running.max_endpoints_per_slice}, "
        f"subsetting={running.subsetting.value or 'off'}, "
        f"defragment={'yes' if running.defragment else 'no'} "
        "(--now says it otherwise)."
    )
    others = f" and {count(question.watchers, 'other client')}" if question.watchers else ""
    yield f"Slices are watched by {count(world.audience.proxies, 'node proxy')}{others}."
    if world.running.subsetting.by_zone:
        yield (
            "Node proxies read the slices for their zone (feature gate EndpointSliceSubsetting); "
            "kube-proxy reads all."
        )


def _changes(question: WhatIfQuestion, world: WhatIfWorld) -> Iterator[str]:
    changes = question.changes
    if changes.replicas or changes.rollouts:
        is_set = world.running.ready_delay_s is not None
        origin = "" if is_set else ", as the median of those that are there"
        yield (
            f"A Pod is ready {world.ready_delay_s:g} s after its start{origin}; Pods "
            "spread over zones, then Nodes; resources, taints and affinity to Pods are not looked "
            "at."
        )
    if changes.zones_lost:
        yield (
            f"The Nodes of a lost zone are silent at once, and its clients are gone. After "
            f"{world.running.node_grace_s:g} s without a word a Node is Unknown and its Pods are "
            "not ready (--now "
            "node-grace says it otherwise): that is what stands under then. Pods are deleted when "
            "they no longer "
            "tolerate it, after 5 minutes where they say nothing else, Node by Node every 10 s."
        )
    if changes.zones_added:
        yield (
            "Nodes of a new zone are like the first that is there; no Pod moves to them by itself."
        )


def _runs(runs: int, *, wrote: bool) -> Iterator[str]:
    if runs > 1:
        yield (
            "A range is of four runs: changes of one burst reach the EndpointSlice controller "
            "together, 16 at a time, "
            "or one by one; they are made now, in 30 s or in 2 min, as the age of Pods decides "
            "which of them go first; "
            "and of zones that have as many Pods another one is taken first."
        )
    elif wrote:
        yield (
            "Changes of one burst reach the controller together; a busy one may write once more, "
            "or once less."
        )


def _pending(writes: int, pods: int) -> Iterator[str]:
    if writes:
        yield (
            f"{count(writes, 'write', 'is')} due before any change: slices are not yet as the "
            "Pods are."
        )
    if pods:
        yield (
            f"{count(pods, 'Pod', 'is')} created or deleted before any change: the workloads of "
            "the cluster had not converged when it was read, or the owners of Pods are missing."
        )


def _clients(question: WhatIfQuestion, client_locations: Sequence[ClientLocation]) -> str:
    zones = sorted({location.at.zone for location in client_locations})
    parts = ", ".join(
        f"{zone_name(zone)} "
        f"{percent(sum((location.share for location in client_locations if location.at.zone == zone), Fraction(0)))}"
        for zone in zones
    )
    clients = question.clients
    if clients.traffic:
        strange = [
            zone_name(location.at.zone) for location in client_locations if not location.at.node
        ]
        unknown = f" No Node that takes Pods is in {some(strange)}." if strange else ""
        return f"Clients are as --traffic says: {parts}.{unknown}"
    if clients.selector:
        return f"Clients are where the {count(len(client_locations), 'Pod')} of {clients.selector} are: {parts}."
    return f"Clients are where Nodes take Pods ({count(len(client_locations), 'Node')}): {parts}."
