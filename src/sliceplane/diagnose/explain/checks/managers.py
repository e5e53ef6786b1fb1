"""The controllers that write the slices of a Service: which they should be, and that it is one.

A slice's label names the controller it belongs to, and its managedFields the programs that wrote it
and when. Two programs that write slices of one label within a minute are two controllers at once: a
hand-over writes with one after the other, and once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Final

from sliceplane.api.discovery import MANAGED_BY_CONTROLLER, MANAGED_BY_MIRRORING
from sliceplane.api.findings.finding import Finding
from sliceplane.api.findings.wording import lasting
from sliceplane.api.selectors.adoption import (
    ANNOTATION_ADOPTION,
    ANNOTATION_SELECTOR,
    AdoptionStage,
    stage_of,
)
from sliceplane.diagnose.audit.judge import CONTROLLERS
from sliceplane.diagnose.explain.case import ServiceCase, evidence_of
from sliceplane.diagnose.explain.objects import ENDPOINTS, SLICES, FullEndpoints, FullSlice
from sliceplane.kit.times import time_or_zero

#: seconds between the writes of two controllers that work at one time
TOGETHER_S: Final = 60.0
#: seconds after which two writes say nothing of now
RECENT_S: Final = 600.0

_STAGES: Final = {
    AdoptionStage.ADOPTING: ("its move to our controllers is not complete", "adopt"),
    AdoptionStage.RELEASING: ("its move back to upstream's controllers is not complete", "release"),
    AdoptionStage.CONFLICT: ("it was adopted, and then applied again with spec.selector", "adopt"),
}


def between_controllers(case: ServiceCase) -> Iterable[Finding]:
    """E19"""
    stage = stage_of(case.service)
    annotations = case.service.metadata.annotations or {}
    selector = case.field(
        f"metadata.annotations[{ANNOTATION_SELECTOR}]", annotations.get(ANNOTATION_SELECTOR, "")
    )
    if stage is AdoptionStage.INVALID:
        yield case.finding(
            "E19",
            "it is adopted by an annotation that is no selector",
            selector,
            weight="error",
            effect="its EndpointSlices stay as they are, whatever becomes of its Pods",
            remedy=f"kubectl -n {case.namespace} annotate --overwrite service {case.name} "
            f"{ANNOTATION_SELECTOR}=KEY=VALUE",
        )
    elif stage in _STAGES:
        sentence, command = _STAGES[stage]
        moving = annotations.get(ANNOTATION_ADOPTION, "(none)")
        yield case.finding(
            "E19",
            sentence,
            selector,
            case.field(f"metadata.annotations[{ANNOTATION_ADOPTION}]", moving),
            effect="upstream's controllers have it"
            if stage is AdoptionStage.CONFLICT
            else "both controllers write EndpointSlices",
            remedy=f"sliceplane {command} service {case.name} -n {case.namespace}",
        )


def two_writers(case: ServiceCase) -> Iterable[Finding]:
    """E20, for one object of the Service."""
    for item in _controlled(case):
        times = {
            entry.manager: time_or_zero(entry.time or "")
            for entry in item.metadata.managed_fields or ()
            if entry.manager in CONTROLLERS and entry.writes_addresses
        }
        for one, other in combinations(sorted(times), 2):
            apart = abs(times[one] - times[other])
            if apart <= TOGETHER_S and case.now - max(times[one], times[other]) <= RECENT_S:
                readable = SLICES if isinstance(item, FullSlice) else ENDPOINTS
                yield case.finding(
                    "E20",
                    f"{one} and {other} wrote {item.metadata.name} within {lasting(apart)}",
                    evidence_of(readable, item, "metadata.managedFields", f"{one}, {other}"),
                    certainty="likely",
                    effect="two controllers undo each other's work, or conflict",
                    remedy="switch one of them off, or let ours work for adopted Services alone: "
                    "sliceplane controllers --adopted-only",
                )
                return


def _controlled(case: ServiceCase) -> Iterator[FullSlice | FullEndpoints]:
    """Yields the objects that one controller each should write."""
    for item in case.slices:
        if item.manager in (MANAGED_BY_CONTROLLER, MANAGED_BY_MIRRORING):
            yield item
    endpoints = case.get(ENDPOINTS, case.name)
    if endpoints is not None and case.selector:
        yield endpoints


CHECKS: Final = (between_controllers, two_writers)
