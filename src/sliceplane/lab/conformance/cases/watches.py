"""Watches: cut, expired, refused, silent.  Whatever was missed meanwhile must be known afterwards,
deletes included.
"""

from __future__ import annotations

from typing import Final

from sliceplane.lab.conformance.objects import pod, pods, slice_
from sliceplane.lab.conformance.story import (
    AWAY,
    BACK,
    BOOKMARK,
    CHECK,
    CUT,
    EXPIRE,
    Case,
    Delete,
    Refuse,
    Silence,
    Step,
)

_GIVEN: Final = (slice_("a", *pods((1, 2, 3))), slice_("b", *pods((4, 5))))


def _gap(*missed: Step) -> tuple[Step, ...]:
    """*missed* happens while the server is away, and its history is forgotten."""
    return (CHECK, AWAY, *missed, EXPIRE, BACK, CHECK)


CASES: Final = (
    Case(
        "slice-deleted-while-away",
        "A slice is deleted while the watch is away",
        ("vllm-project/production-stack#1091", "coredns/coredns#3879", "sgl-project/sglang#32322"),
        given=_GIVEN,
        story=(CHECK, AWAY, Delete("EndpointSlice", "b"), BACK, CHECK),
    ),
    Case(
        "slice-deleted-in-a-gap",
        "A slice is deleted while the watch is away, and 410 Gone follows",
        ("kcp-dev/kcp#4364", "kubernetes-client/javascript#494"),
        given=_GIVEN,
        story=_gap(Delete("EndpointSlice", "b")),
    ),
    Case(
        "endpoint-removed-in-a-gap",
        "An endpoint leaves its slice in a gap",
        ("sgl-project/sglang#30270", "kubernetes/kubernetes#86015"),
        given=_GIVEN,
        story=_gap(slice_("a", *pods((1, 3)))),
    ),
    Case(
        "slice-added-in-a-gap",
        "A slice comes in a gap",
        ("kubernetes/kubernetes#86015", "operator-framework/java-operator-sdk#1727"),
        given=_GIVEN,
        story=_gap(slice_("c", pod(6))),
    ),
    Case(
        "slice-made-anew-in-a-gap",
        "A slice is deleted in a gap, and another is made under its name",
        ("kubernetes/kubernetes#133565", "kubernetes/kubernetes#84453"),
        given=_GIVEN,
        story=_gap(Delete("EndpointSlice", "b"), slice_("b", pod(7))),
    ),
    Case(
        "all-slices-deleted-in-a-gap",
        "After a gap the list is empty: so is the Service",
        ("vllm-project/production-stack#1091", "kubernetes-client/javascript#494"),
        given=_GIVEN,
        story=_gap(Delete("EndpointSlice", "a"), Delete("EndpointSlice", "b")),
    ),
    Case(
        "relabelled-in-a-gap",
        "A slice is given to another Service in a gap",
        ("sgl-project/sglang#30270", "vllm-project/production-stack#1091"),
        given=_GIVEN,
        story=_gap(slice_("b", *pods((4, 5)), service="other")),
    ),
    Case(
        "hundred-changes-in-a-gap",
        "A whole rollout passes in a gap",
        ("cilium/cilium#48050", "vllm-project/production-stack#228"),
        given=_GIVEN,
        story=_gap(
            *(slice_("a", *pods((number, number + 1, number + 2))) for number in range(2, 102))
        ),
    ),
    Case(
        "nothing-changed-in-a-gap",
        "410 Gone and nothing has changed: no endpoint is missing meanwhile",
        ("alibaba/nacos#10209", "kr8s-org/kr8s#478"),
        given=_GIVEN,
        story=(CHECK, EXPIRE, CHECK, slice_("b", pod(5)), CHECK),
    ),
    Case(
        "two-gaps",
        "A second 410 Gone comes right after the first",
        ("gtsystem/lightkube#108", "apache/airflow#23521"),
        given=_GIVEN,
        story=(
            CHECK,
            EXPIRE,
            slice_("b", pod(5)),
            EXPIRE,
            CHECK,
            Delete("EndpointSlice", "b"),
            CHECK,
        ),
    ),
    Case(
        "cut-without-a-word",
        "The server closes the watch without 410, and changes follow",
        ("fabric8io/kubernetes-client#7896", "kubernetes-client/python#124"),
        given=_GIVEN,
        story=(
            CHECK,
            CUT,
            slice_("a", *pods((1, 2))),
            CHECK,
            CUT,
            Delete("EndpointSlice", "b"),
            CHECK,
        ),
    ),
    Case(
        "cut-after-each-write",
        "Every write is followed by a cut",
        ("ManageIQ/kubeclient#599",),
        given=_GIVEN,
        story=(
            CHECK,
            slice_("a", *pods((1, 2))),
            CUT,
            slice_("a", pod(1)),
            CUT,
            Delete("EndpointSlice", "b"),
            CUT,
            slice_("c", pod(8)),
            CUT,
            CHECK,
        ),
    ),
    Case(
        "bookmarks-alone",
        "For long nothing comes but bookmarks, which are no objects and take none away",
        ("tomplus/kubernetes_asyncio#291", "kubernetes-client/python#1796"),
        given=_GIVEN,
        story=(CHECK, BOOKMARK, BOOKMARK, CHECK, slice_("b", pod(5)), CHECK),
    ),
    Case(
        "resumed-at-a-bookmark",
        "The watch goes on from a bookmark: what came before it is known, what came after is not "
        "missed",
        ("kubernetes-client/python#1796", "apache/airflow#21087"),
        given=_GIVEN,
        story=(
            CHECK,
            slice_("a", *pods((1, 2))),
            BOOKMARK,
            AWAY,
            Delete("EndpointSlice", "b"),
            BACK,
            CHECK,
        ),
    ),
    Case(
        "told-again",
        "A client that goes on from an early version is told again what it knows, deletes included",
        ("kubernetes-client/python#819", "zalando-incubator/kopf#42"),
        given=_GIVEN,
        story=(
            CHECK,
            Delete("EndpointSlice", "b"),
            slice_("b", *pods((4, 5))),
            slice_("a", *pods((1, 3))),
            slice_("a", *pods((1, 2, 3))),
            CHECK,
            CUT,
            CHECK,
            CUT,
            CHECK,
        ),
    ),
    Case(
        "last-change-then-quiet",
        "The last change falls into a reconnect, and none follows",
        ("cilium/cilium#48050",),
        given=_GIVEN,
        story=(CHECK, AWAY, slice_("b", pod(5)), BACK, CHECK),
    ),
    Case(
        "list-refused-after-a-gap",
        "The list after 410 Gone is refused a few times",
        ("nolar/kopf#787", "jupyterhub/kubespawner#938"),
        given=_GIVEN,
        story=(CHECK, Refuse(500, 3), Delete("EndpointSlice", "b"), EXPIRE, CHECK),
    ),
    Case(
        "list-told-to-wait",
        "The list after 410 Gone is told to come back later",
        ("nolar/kopf#963", "tomplus/kubernetes_asyncio#431"),
        given=_GIVEN,
        story=(CHECK, Refuse(429, 2), slice_("b", pod(5)), EXPIRE, CHECK),
    ),
    Case(
        "too-large-resource-version",
        "A server that lags behind answers 504, and then is up to date",
        ("vllm-project/production-stack#999", "fabric8io/kubernetes-client#852"),
        given=_GIVEN,
        story=(CHECK, Refuse(504, 3, watches=True), CUT, Delete("EndpointSlice", "b"), CHECK),
    ),
    Case(
        "watch-refused",
        "The watch is refused a few times",
        ("tomplus/kubernetes_asyncio#431", "jupyterhub/kubespawner#938"),
        given=_GIVEN,
        story=(CHECK, Refuse(503, 3, watches=True), CUT, slice_("a", *pods((2, 3))), CHECK),
    ),
    Case(
        "list-fails-at-the-start",
        "The first list fails; the consumer starts all the same",
        ("fabric8io/kubernetes-client#4408", "aws/amazon-network-policy-controller-k8s#19"),
        given=(*_GIVEN, Refuse(503, 2)),
        story=(CHECK, slice_("b", pod(5)), CHECK),
    ),
    Case(
        "writes-that-change-nothing",
        "Many updates change nothing that matters, and one does",
        ("kubernetes/kubernetes#26637", "hashicorp/consul#3890"),
        given=_GIVEN,
        story=(
            CHECK,
            *(slice_("a", *pods((1, 2, 3)), note=str(number)) for number in range(40)),
            slice_("a", *pods((1, 3)), note="last"),
            CHECK,
        ),
    ),
    Case(
        "burst",
        "A hundred updates of one slice come at once",
        ("kubernetes/kubernetes#83206", "istio/istio#14349"),
        given=_GIVEN,
        story=(
            CHECK,
            *(slice_("a", *pods((number, number + 1))) for number in range(10, 110)),
            CHECK,
        ),
    ),
    Case(
        "delete-then-cut",
        "A delete and the end of the watch come together",
        ("vllm-project/production-stack#1091",),
        given=_GIVEN,
        story=(CHECK, Delete("EndpointSlice", "b"), CUT, CHECK),
    ),
    Case(
        "silent-watch",
        "A firewall forgot the connection: it stays open, and nothing comes",
        ("nolar/kopf#810", "kubernetes-client/python#2145", "sgl-project/sglang#32322"),
        given=_GIVEN,
        story=(CHECK, Silence(), Delete("EndpointSlice", "b"), CHECK),
        needs=frozenset({"silence"}),
    ),
)
