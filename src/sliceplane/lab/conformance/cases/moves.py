"""Endpoints that move between slices, stand in two of them, or take over another's address."""

from __future__ import annotations

from typing import Final

from sliceplane.lab.conformance.objects import pod, pods, slice_
from sliceplane.lab.conformance.story import AWAY, BACK, CHECK, Case, Delete

_GOING: Final = {"ready": False, "serving": True, "terminating": True}

CASES: Final = (
    Case(
        "moves-and-is-never-missing",
        "An endpoint is added to one slice before it leaves the other",
        ("cilium/cilium#40288", "kubernetes/website#38174"),
        given=(slice_("a", pod(1), pod(2)), slice_("b", pod(3))),
        story=(CHECK, slice_("b", pod(3), pod(2)), slice_("a", pod(1)), CHECK),
    ),
    Case(
        "moves-delete-told-first",
        "The delete is told before the add that takes its place",
        ("kubernetes/website#38174", "kubernetes/website#23084"),
        given=(slice_("a", pod(1), pod(2)), slice_("b", pod(3))),
        story=(CHECK, slice_("a", pod(1)), slice_("b", pod(3), pod(2)), CHECK),
    ),
    Case(
        "two-swap-their-slices",
        "Two endpoints change places",
        ("kubernetes/kubernetes#135593", "istio/istio#27603"),
        given=(slice_("a", pod(1), pod(2)), slice_("b", pod(3), pod(4))),
        story=(
            CHECK,
            slice_("b", *pods((2, 3, 4))),
            slice_("a", *pods((1, 3))),
            slice_("b", *pods((2, 4))),
            CHECK,
        ),
    ),
    Case(
        "stands-twice-leaves-once",
        "An endpoint in two slices stays when one of them lets it go",
        ("cilium/cilium#24202", "kubernetes/kubernetes#135334"),
        given=(slice_("a", pod(1), pod(2)), slice_("b", pod(2), pod(3))),
        story=(CHECK, slice_("a", pod(1)), CHECK, slice_("b", pod(3)), CHECK),
    ),
    Case(
        "stands-twice-a-slice-is-deleted",
        "An endpoint in two slices stays when one of them is deleted",
        ("cilium/cilium#24202", "istio/istio#27603"),
        given=(slice_("a", pod(1), pod(2)), slice_("b", pod(2), pod(3))),
        story=(CHECK, Delete("EndpointSlice", "b"), CHECK),
    ),
    Case(
        "stands-twice-in-one-slice",
        "The same address twice in one slice is one endpoint",
        ("kubernetes/kubernetes#121330", "nginx/nginx-gateway-fabric#253"),
        given=(slice_("a", pod(1), pod(1), pod(2)),),
        story=(CHECK, slice_("a", pod(1), pod(2)), CHECK),
    ),
    Case(
        "slice-is-split",
        "A full slice is split in two",
        ("cilium/cilium#40288", "kubernetes/website#38174"),
        given=(slice_("a", *pods(range(1, 9))),),
        story=(CHECK, slice_("b", *pods(range(5, 9))), slice_("a", *pods(range(1, 5))), CHECK),
    ),
    Case(
        "slices-are-merged",
        "Two small slices become one, and the empty one is deleted",
        ("kubernetes/enhancements#1086", "linkerd/linkerd2#10370"),
        given=(slice_("a", *pods(range(1, 5))), slice_("b", *pods(range(5, 9)))),
        story=(CHECK, slice_("a", *pods(range(1, 9))), Delete("EndpointSlice", "b"), CHECK),
    ),
    Case(
        "address-of-a-ghost",
        "A Pod that ends and a new one have the same address: the new one counts",
        ("kubernetes/kubernetes#135593",),
        given=(slice_("a", pod(1), pod(2)),),
        story=(
            CHECK,
            slice_("a", pod(1, conditions=_GOING), pod(2)),
            CHECK,
            slice_("b", pod(3, at=1)),
            CHECK,
            slice_("a", pod(2)),
            CHECK,
        ),
    ),
    Case(
        "ghost-comes-in-a-later-slice",
        "The slice of the Pod that ends is told after the one of the new Pod",
        ("kubernetes/kubernetes#135593", "kubernetes/kubernetes#135334"),
        given=(slice_("a", pod(3, at=1)), slice_("b", pod(2))),
        story=(
            CHECK,
            slice_("b", pod(2), pod(1, conditions=_GOING)),
            CHECK,
            slice_("b", pod(2)),
            CHECK,
        ),
    ),
    Case(
        "address-is-reused-at-once",
        "A Pod goes and another takes its address, in one write",
        ("kubernetes/kubernetes#109414", "Kong/kubernetes-ingress-controller#403"),
        given=(slice_("a", pod(1), pod(2)),),
        story=(CHECK, slice_("a", pod(3, at=1), pod(2)), CHECK, slice_("a", pod(3, at=1)), CHECK),
    ),
    Case(
        "reused-address-outlives-the-old-slice",
        "The old slice of a reused address is deleted after the new one is there",
        ("cilium/cilium#40288", "microsoft/Windows-Containers#631"),
        given=(slice_("a", pod(1)),),
        story=(CHECK, slice_("b", pod(3, at=1)), Delete("EndpointSlice", "a"), CHECK),
    ),
    Case(
        "pod-gets-another-address",
        "A Pod stays and its address changes: the old one is gone",
        ("istio/istio#20676", "sgl-project/sglang#30270"),
        given=(slice_("a", pod(1), pod(2)),),
        story=(CHECK, slice_("a", pod(1, at=9), pod(2)), CHECK),
    ),
    Case(
        "moves-while-nobody-listens",
        "An endpoint moves while the watch is away",
        ("cilium/cilium#48050",),
        given=(slice_("a", pod(1), pod(2)), slice_("b", pod(3))),
        story=(CHECK, AWAY, slice_("a", pod(1)), slice_("b", pod(3), pod(2)), BACK, CHECK),
    ),
)
