"""Slices as wholes: a Service is all of them, and no one of them is special."""

from __future__ import annotations

from typing import Final

from sliceplane.lab.conformance.objects import pod, pods, service, slice_
from sliceplane.lab.conformance.story import CHECK, Case, Delete

_MIRROR: Final = "endpointslicemirroring-controller.k8s.io"

CASES: Final = (
    Case(
        "two-slices-are-one-service",
        "The endpoints of two slices are one set",
        ("sercand/kuberesolver#66", "KEP-0752, Mapping"),
        given=(slice_("a", *pods(range(1, 4))), slice_("b", *pods(range(4, 6)))),
        story=(CHECK,),
    ),
    Case(
        "one-of-three-slices-is-touched",
        "Of 250 endpoints in three slices one slice changes; the others stay",
        ("sercand/kuberesolver#66",),
        given=(
            slice_("a", *pods(range(1, 101))),
            slice_("b", *pods(range(101, 201))),
            slice_("c", *pods(range(201, 251))),
        ),
        story=(CHECK, slice_("b", *pods(range(101, 200))), CHECK),
        needs=frozenset({"large"}),
    ),
    Case(
        "second-slice-appears",
        "A Service grows past its first slice",
        ("cilium/cilium#11947", "sercand/kuberesolver#66"),
        given=(slice_("a", *pods(range(1, 4))),),
        story=(CHECK, slice_("b", pod(4)), CHECK, slice_("b", pod(4), pod(5)), CHECK),
    ),
    Case(
        "slice-is-deleted-others-stay",
        "The delete of one slice takes its endpoints alone",
        ("linkerd/linkerd2#10370", "istio/istio#33750"),
        given=(slice_("a", *pods(range(1, 4))), slice_("b", *pods(range(4, 6)))),
        story=(CHECK, Delete("EndpointSlice", "a"), CHECK),
    ),
    Case(
        "every-slice-is-deleted",
        "Without slices a Service has no endpoints",
        ("linkerd/linkerd#1612", "submariner-io/lighthouse#1416"),
        given=(slice_("a", *pods(range(1, 4))), slice_("b", pod(4))),
        story=(
            CHECK,
            Delete("EndpointSlice", "a"),
            Delete("EndpointSlice", "b"),
            CHECK,
            slice_("c", pod(5)),
            CHECK,
        ),
    ),
    Case(
        "slice-is-emptied",
        "A slice may stay without endpoints",
        ("projectcontour/contour#602", "istio/istio#14336"),
        given=(slice_("a", pod(1)), slice_("b", pod(2))),
        story=(CHECK, slice_("a"), CHECK, slice_("b"), CHECK),
    ),
    Case(
        "only-an-empty-slice",
        "A Service whose one slice is empty from the beginning",
        ("grpc/grpc#7673", "openservicemesh/osm#132"),
        given=(slice_("a"),),
        story=(CHECK, slice_("a", pod(1)), CHECK),
    ),
    Case(
        "empty-slice-comes-last",
        "An empty slice that is written last does not empty the Service",
        ("sercand/kuberesolver#66",),
        given=(slice_("a", *pods(range(1, 4))),),
        story=(CHECK, slice_("b"), CHECK, slice_("b", note="again"), CHECK),
    ),
    Case(
        "slice-gets-another-name",
        "The endpoints come in a new slice, then the old one goes",
        ("cilium/cilium#11947",),
        given=(slice_("a", *pods(range(1, 4))),),
        story=(CHECK, slice_("b", *pods(range(1, 4))), CHECK, Delete("EndpointSlice", "a"), CHECK),
    ),
    Case(
        "slice-is-made-anew",
        "A slice is deleted and made again under its name, with other endpoints",
        ("cilium/cilium#11947", "kubernetes/kubernetes#84453"),
        given=(slice_("a", *pods(range(1, 4))),),
        story=(CHECK, Delete("EndpointSlice", "a"), slice_("a", *pods(range(3, 6))), CHECK),
    ),
    Case(
        "thousand-endpoints-in-one-slice",
        "A slice may hold 1,000 endpoints",
        ("prometheus-operator/prometheus-operator#3862", "kubernetes/website#18343"),
        given=(slice_("a", *pods(range(1, 1001))),),
        story=(CHECK, slice_("a", *pods(range(1, 1000))), CHECK),
        needs=frozenset({"large"}),
    ),
    Case(
        "one-more-than-a-thousand",
        "The 1,001st endpoint is not cut off, and the thousandth does not stay",
        ("zalando-incubator/kubernetes-on-aws#6543", "zalando/skipper#2551"),
        given=(slice_("a", *pods(range(1, 1001))), slice_("b", pod(1001))),
        story=(CHECK, slice_("b"), slice_("a", *pods(range(1, 1000))), CHECK),
        needs=frozenset({"large"}),
    ),
    Case(
        "many-slices-of-one",
        "After scale-downs a Service is spread over many small slices",
        ("kubernetes/kubernetes#81048", "linkerd/linkerd2#10370"),
        given=tuple(slice_(f"s-{number}", pod(number)) for number in range(1, 41)),
        story=(CHECK, Delete("EndpointSlice", "s-7"), Delete("EndpointSlice", "s-40"), CHECK),
    ),
    Case(
        "slices-of-several-managers",
        "Slices of other managers count like those of the controller",
        (
            "kubernetes/ingress-nginx#9908",
            "defilantech/LLMKube#895",
            "KEP-0752, Additional EndpointSlice Controllers",
        ),
        given=(
            slice_("a", pod(1)),
            slice_("b", pod(2), manager=_MIRROR),
            slice_("c", pod(3), manager="example.com"),
            slice_("d", pod(4), manager=None),
        ),
        story=(
            CHECK,
            Delete("EndpointSlice", "b"),
            CHECK,
            slice_("c", pod(5), manager="example.com"),
            CHECK,
        ),
    ),
    Case(
        "label-goes-to-another-service",
        "A slice that is given to another Service leaves this one",
        ("sgl-project/sglang#26842",),
        given=(slice_("a", pod(1)), slice_("b", pod(2))),
        story=(CHECK, slice_("b", pod(2), service="other"), CHECK, slice_("b", pod(2)), CHECK),
    ),
    Case(
        "label-is-taken-away",
        "A slice without the label is no Service's",
        ("sgl-project/sglang#26842", "sgl-project/sglang#30270"),
        given=(slice_("a", pod(1)), slice_("b", pod(2))),
        story=(CHECK, slice_("b", pod(2), service=None), CHECK),
    ),
    Case(
        "slice-of-another-service",
        "A Service with a like name in the same namespace is another one",
        ("kubernetes/ingress-nginx#9908",),
        given=(
            slice_("a", pod(1)),
            service(name="web-2"),
            slice_("web-x", pod(2), service="web-2"),
        ),
        story=(CHECK, slice_("web-x", pod(3), service="web-2"), CHECK),
    ),
    Case(
        "slices-before-the-service",
        "The Service is deleted and made again while its slices stay",
        ("cilium/cilium#40288", "kubernetes/kubernetes#94730"),
        given=(slice_("a", pod(1)),),
        story=(CHECK, Delete("Service", "web"), service(), CHECK, slice_("a", pod(2)), CHECK),
    ),
    Case(
        "to-zero-and-back",
        "A Service scales to zero and back, as autoscaling from zero does",
        ("linkerd/linkerd#1635", "istio/istio#14336"),
        given=(slice_("a", *pods(range(1, 11))),),
        story=(CHECK, slice_("a"), CHECK, slice_("a", *pods(range(11, 21))), CHECK),
    ),
    Case(
        "rollout-over-two-slices",
        "A rollout replaces each Pod, a few at a time, in both slices",
        ("linkerd/linkerd2#10491", "istio/istio#44985"),
        given=(slice_("a", *pods(range(1, 6))), slice_("b", *pods(range(6, 11)))),
        story=(
            CHECK,
            slice_("a", *pods(range(3, 6)), *pods(range(21, 23))),
            slice_("b", *pods(range(8, 11)), *pods(range(23, 25))),
            slice_("a", *pods(range(21, 23)), *pods(range(25, 28))),
            slice_("b", *pods(range(23, 25)), *pods(range(28, 31))),
            CHECK,
        ),
    ),
)
