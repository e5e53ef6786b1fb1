"""``internalTrafficPolicy: Local``: what a process on a node may reach are the endpoints of that
node, or nothing.

Only consumers that claim it are asked: for a name server or a gateway the field says nothing.
"""

from __future__ import annotations

from typing import Any, Final

from sliceplane.lab.conformance.objects import pod, service, slice_
from sliceplane.lab.conformance.story import CHECK, Case, Claim, Document, Need

_NEEDS: Final[frozenset[Need | Claim]] = frozenset({"local"})
_LOCAL: Final = service(policy="Local")
_GOING: Final = {"ready": False, "serving": True, "terminating": True}
_NOT_READY: Final = {"ready": False, "serving": False, "terminating": False}


def _elsewhere(number: int, **keywords: Any) -> Document:
    return pod(number, zone="west", **keywords)


#: one endpoint here, one elsewhere
_GIVEN: Final = (_LOCAL, slice_("a", pod(1), _elsewhere(2)))


CASES: Final = (
    Case(
        "only-endpoints-of-the-node",
        "With the policy Local the endpoints of other nodes are left out",
        ("projectcalico/calico#8255", "istio/istio#42377", "KEP-2086"),
        given=_GIVEN,
        story=(CHECK, slice_("a", pod(1), _elsewhere(2), pod(3)), CHECK),
        needs=_NEEDS,
    ),
    Case(
        "no-endpoint-of-the-node",
        "With the policy Local and no endpoint here there is none, however many are elsewhere",
        ("kubernetes/kubernetes#106497", "linkerd/linkerd2#12311"),
        given=_GIVEN,
        story=(CHECK, slice_("a", _elsewhere(2)), CHECK, slice_("a", _elsewhere(2), pod(3)), CHECK),
        needs=_NEEDS,
    ),
    Case(
        "endpoint-of-the-node-is-not-ready",
        "With the policy Local an endpoint elsewhere does not stand in for the one here that is "
        "not ready",
        ("linkerd/linkerd2#12311", "KEP-2086"),
        given=_GIVEN,
        story=(CHECK, slice_("a", pod(1, conditions=_NOT_READY), _elsewhere(2)), CHECK),
        needs=_NEEDS,
    ),
    Case(
        "endpoints-of-the-node-terminate",
        "With the policy Local those of the node that end and serve are its fall-back",
        ("kubernetes/kubernetes#97238", "cilium/cilium#37613", "KEP-1669"),
        given=_GIVEN,
        story=(
            CHECK,
            slice_("a", pod(1, conditions=_GOING), _elsewhere(2)),
            CHECK,
            slice_("a", pod(1, conditions=_GOING), _elsewhere(2), pod(3)),
            CHECK,
        ),
        needs=_NEEDS,
    ),
    Case(
        "node-is-asked-over-all-slices",
        "With the policy Local whether one is ready here is asked of all slices together",
        ("sercand/kuberesolver#66", "KEP-2086"),
        given=(_LOCAL, slice_("a", pod(1, conditions=_GOING)), slice_("b", _elsewhere(2))),
        story=(CHECK, slice_("b", _elsewhere(2), pod(3)), CHECK, slice_("b", _elsewhere(2)), CHECK),
        needs=_NEEDS,
    ),
    Case(
        "policy-before-hints",
        "With the policy Local hints for another zone take nothing away",
        ("linkerd/linkerd2#10186", "KEP-2433", "KEP-2086"),
        given=(
            _LOCAL,
            slice_(
                "a", pod(1, zones=["west"]), pod(2, zones=["east"]), _elsewhere(3, zones=["east"])
            ),
        ),
        story=(CHECK,),
        needs=_NEEDS,
    ),
    Case(
        "policy-changes",
        "The policy changes, and no slice does",
        ("metallb/metallb#263",),
        given=(slice_("a", pod(1), _elsewhere(2)),),
        story=(CHECK, _LOCAL, CHECK, service(), CHECK),
        needs=_NEEDS,
    ),
)
