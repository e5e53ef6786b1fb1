"""Hints: all or nothing over the ready endpoints of all slices, never a reason to have none.

Every consumer must survive these; what one believes that does not claim hints is every ready
endpoint.
"""

from __future__ import annotations

from typing import Final

from sliceplane.lab.conformance.objects import pod, slice_
from sliceplane.lab.conformance.story import CHECK, Case, Document


def _east(number: int) -> Document:
    return pod(number, zones=["east"])


def _west(number: int) -> Document:
    return pod(number, zone="west", zones=["west"])


CASES: Final = (
    Case(
        "hints-to-the-own-zone",
        "Where every endpoint has a hint, those for the own zone count",
        ("cilium/cilium#23837", "KEP-2433"),
        given=(slice_("a", _east(1), _east(2), _west(3)),),
        story=(CHECK, slice_("a", _east(1), _west(3)), CHECK),
    ),
    Case(
        "one-endpoint-without-a-hint",
        "One ready endpoint without a hint switches them off",
        ("cilium/cilium#41116", "KEP-2433"),
        given=(slice_("a", _east(1), _west(2)),),
        story=(
            CHECK,
            slice_("a", _east(1), _west(2), pod(3)),
            CHECK,
            slice_("a", _east(1), _west(2)),
            CHECK,
        ),
    ),
    Case(
        "hints-half-there",
        "While the slices are updated one after the other, half of the hints are missing",
        ("cilium/cilium#41116", "KEP-2433"),
        given=(slice_("a", pod(1)), slice_("b", pod(2, zone="west"))),
        story=(CHECK, slice_("a", _east(1)), CHECK, slice_("b", _west(2)), CHECK),
    ),
    Case(
        "no-hint-for-the-own-zone",
        "Where no hint names the own zone, all are used: never none",
        ("cilium/cilium#41022", "cilium/cilium#41116"),
        given=(slice_("a", _west(1), _west(2)),),
        story=(CHECK, slice_("a", _west(1), _west(2), _east(3)), CHECK),
    ),
    Case(
        "own-zone-is-not-ready",
        "A hint of an endpoint that is not ready counts for nothing",
        ("cilium/cilium#41022", "cilium/cilium#45947"),
        given=(slice_("a", _east(1), _west(2)),),
        story=(CHECK, slice_("a", {**_east(1), "conditions": {"ready": False}}, _west(2)), CHECK),
    ),
    Case(
        "unready-endpoint-without-a-hint",
        "An endpoint that is not ready may lack a hint: the others' stay in force",
        ("cilium/cilium#47960", "KEP-2433"),
        given=(slice_("a", _east(1), _west(2), pod(3, conditions={"ready": False})),),
        story=(CHECK,),
    ),
    Case(
        "hints-are-withdrawn",
        "Without hints everybody is for everybody again",
        ("kubernetes/kubernetes#114215",),
        given=(slice_("a", _east(1), _west(2)),),
        story=(CHECK, slice_("a", pod(1), pod(2, zone="west")), CHECK),
    ),
    Case(
        "hint-for-several-zones",
        "An endpoint may be meant for several zones",
        ("KEP-2433",),
        given=(slice_("a", pod(1, zones=["east", "west"]), _west(2)),),
        story=(CHECK, slice_("a", pod(1, zones=["west"]), _west(2)), CHECK),
    ),
    Case(
        "hints-for-the-node",
        "Hints for nodes come before those for zones",
        ("KEP-3015", "cilium/cilium#44060"),
        given=(
            slice_(
                "a",
                pod(1, zones=["east"], nodes=["east-1"]),
                pod(2, zones=["east"], nodes=["east-2"]),
                pod(3, zone="west", zones=["west"], nodes=["west-1"]),
            ),
        ),
        story=(
            CHECK,
            slice_(
                "a",
                pod(2, zones=["east"], nodes=["east-2"]),
                pod(3, zone="west", zones=["west"], nodes=["west-1"]),
            ),
            CHECK,
        ),
    ),
)
