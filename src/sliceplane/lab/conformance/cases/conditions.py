"""Conditions: absent ones have a meaning, terminating ones are no ready ones, and the last word
counts.
"""

from __future__ import annotations

from typing import Final

from sliceplane.lab.conformance.objects import pod, pods, slice_
from sliceplane.lab.conformance.story import CHECK, Case

_GOING: Final = {"ready": False, "serving": True, "terminating": True}
_GONE: Final = {"ready": False, "serving": False, "terminating": True}
_READY: Final = {"ready": True, "serving": True, "terminating": False}
_NOT_READY: Final = {"ready": False, "serving": False, "terminating": False}

CASES: Final = (
    Case(
        "absent-ready-is-ready",
        "An endpoint without conditions is ready",
        ("envoyproxy/gateway#2407", "coredns/coredns#4632"),
        given=(slice_("a", pod(1, conditions={}), pod(2)),),
        story=(CHECK, slice_("a", pod(1, conditions={}), pod(2, conditions={})), CHECK),
    ),
    Case(
        "only-serving-is-told",
        "Ready is absent and serving is told: ready all the same",
        ("discovery.k8s.io/v1 EndpointConditions", "envoyproxy/gateway#2407"),
        given=(slice_("a", pod(1, conditions={"serving": True}), pod(2)),),
        story=(CHECK,),
    ),
    Case(
        "not-ready-from-the-beginning",
        "A Pod that was never ready is left out",
        ("projectcalico/calico#4952", "coredns/coredns#4580"),
        given=(slice_("a", pod(1), pod(2, conditions=_NOT_READY)),),
        story=(CHECK, slice_("a", pod(1), pod(2, conditions=_READY)), CHECK),
    ),
    Case(
        "becomes-unready",
        "A Pod that fails its probe is left out while it stays in the slice",
        ("deckhouse/deckhouse#22686", "istio/istio#15989"),
        given=(slice_("a", *pods((1, 2, 3))),),
        story=(CHECK, slice_("a", pod(1), pod(2, conditions=_NOT_READY), pod(3)), CHECK),
    ),
    Case(
        "nobody-is-ready",
        "With no ready endpoint and none that ends there is none",
        ("kubernetes/kubernetes#77864",),
        given=(slice_("a", pod(1), pod(2)),),
        story=(
            CHECK,
            slice_("a", pod(1, conditions=_NOT_READY), pod(2, conditions=_NOT_READY)),
            CHECK,
        ),
    ),
    Case(
        "flaps-fast",
        "Ready, not ready and ready again faster than anybody looks",
        ("kubernetes/kubernetes#117193", "sapcc/kubernikus#923"),
        given=(slice_("a", pod(1), pod(2)),),
        story=(
            CHECK,
            slice_("a", pod(1), pod(2, conditions=_NOT_READY)),
            slice_("a", pod(1), pod(2, conditions=_READY)),
            slice_("a", pod(1), pod(2, conditions=_NOT_READY)),
            slice_("a", pod(1), pod(2, conditions=_READY)),
            CHECK,
        ),
    ),
    Case(
        "flaps-and-ends-unready",
        "The last word of a fast change counts",
        ("kubernetes/kubernetes#117193", "nolar/kopf#698"),
        given=(slice_("a", pod(1), pod(2)),),
        story=(
            CHECK,
            slice_("a", pod(1), pod(2, conditions=_NOT_READY)),
            slice_("a", pod(1), pod(2, conditions=_READY)),
            slice_("a", pod(1), pod(2, conditions=_NOT_READY)),
            CHECK,
        ),
    ),
    Case(
        "terminating-beside-ready",
        "A Pod that ends gets nothing new while another is ready",
        ("envoyproxy/gateway#6277", "cilium/cilium#34991"),
        given=(slice_("a", *pods((1, 2))),),
        story=(
            CHECK,
            slice_("a", pod(1), pod(2, conditions=_GOING)),
            CHECK,
            slice_("a", pod(1)),
            CHECK,
        ),
    ),
    Case(
        "all-terminate",
        "All Pods end and still serve: they are the fall-back, or nothing is",
        ("cilium/cilium#39743", "KEP-1669"),
        given=(slice_("a", *pods((1, 2))),),
        story=(
            CHECK,
            slice_("a", pod(1, conditions=_GOING), pod(2, conditions=_GOING)),
            CHECK,
            slice_("a"),
            CHECK,
        ),
    ),
    Case(
        "some-of-those-that-end-serve-no-more",
        "Of those that end, only the ones that serve are the fall-back",
        ("KEP-1669", "cilium/cilium#40969"),
        given=(slice_("a", *pods((1, 2))),),
        story=(
            CHECK,
            slice_("a", pod(1, conditions=_GOING), pod(2, conditions=_GONE)),
            CHECK,
            slice_("a", pod(1, conditions=_GONE)),
            CHECK,
        ),
    ),
    Case(
        "fall-back-ends",
        "A ready Pod ends the fall-back, though it is in another slice",
        ("KEP-1669", "cilium/cilium#40279"),
        given=(slice_("a", *pods((1, 2))),),
        story=(
            CHECK,
            slice_("a", pod(1, conditions=_GOING), pod(2, conditions=_GOING)),
            CHECK,
            slice_("b", pod(3)),
            CHECK,
            slice_("a"),
            CHECK,
        ),
    ),
    Case(
        "fall-back-over-two-slices",
        "Whether one is ready is asked of all slices together",
        ("KEP-1669", "envoyproxy/gateway#4946", "sercand/kuberesolver#66"),
        given=(slice_("a", pod(1)), slice_("b", pod(2))),
        story=(
            CHECK,
            slice_("a", pod(1, conditions=_GOING)),
            CHECK,
            slice_("b", pod(2, conditions=_GOING)),
            CHECK,
        ),
    ),
    Case(
        "published-though-it-ends",
        "Of a Service that publishes not ready addresses the slices say ready: that is what counts",
        ("discovery.k8s.io/v1 EndpointConditions", "ovn-kubernetes/ovn-kubernetes#3435"),
        given=(
            slice_(
                "a",
                pod(1, conditions={"ready": True, "serving": True, "terminating": True}),
                pod(2),
            ),
        ),
        story=(CHECK,),
    ),
)
