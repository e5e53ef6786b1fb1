"""Programs that follow a Service's slices themselves and tell how far they are: Python views
(docs/drain.md, "Other consumers"). One that tells nothing is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sliceplane.api.core import Lease
from sliceplane.api.discovery import ANNOTATION_TRIGGER_TIME
from sliceplane.api.findings.finding import Finding
from sliceplane.api.findings.wording import lasting, since, some
from sliceplane.api.requests import Selection
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    LABEL_COMPONENT,
    LEASE_DURATION_S,
    Held,
    read_report,
)
from sliceplane.consume.selections import SERVICE_READING
from sliceplane.diagnose.explain.case import ServiceCase, seen
from sliceplane.diagnose.explain.objects import LEASES

#: from the change of a Pod to a report of a view that holds it: the controller batches, the view
#: reports every 10 s
BEHIND_S: Final = 30.0
_VIEWS: Final = f"{LABEL_COMPONENT}=view"


def wants(case: ServiceCase) -> Iterator[Selection]:
    everything = case.question.kind == "everything"
    yield LEASES.in_namespace("" if everything else case.namespace, _VIEWS)


def behind(case: ServiceCase) -> Iterable[Finding]:
    """C6: of several the one that is behind for the longest."""
    late = sorted(_late(case), key=lambda pair: (-pair[0], pair[1].metadata.name))
    if not late:
        return
    age_s, lease, held, newest = late[0]
    name = lease.spec.holder_identity or lease.metadata.name
    others = [other.spec.holder_identity or other.metadata.name for _, other, _, _ in late[1:]]
    also = f"; so with {some(others)}" if others else ""
    yield case.finding(
        "C6",
        f"view {name} is {lasting(age_s)} behind: it holds version {held.revision}, and "
        "a slice is of "
        f"{newest}{also}",
        seen(LEASES, lease, f"metadata.annotations[{ANNOTATION_PROGRESS}]", str(held.revision)),
        certainty="likely",
        effect="it goes on with the endpoints of then, while the nodes have others",
        remedy=f"look at the log of {name}: its watch; restart it",
    )


def _late(case: ServiceCase) -> Iterator[tuple[float, Lease, Held, int]]:
    reading = f"{SERVICE_READING}{case.namespace}/{case.name}"
    for lease in case.facts.of(LEASES, case.namespace):
        report = read_report((lease.metadata.annotations or {}).get(ANNOTATION_PROGRESS, ""))
        held = report.endpointslices.get(reading) if report is not None else None
        silent_s = since(lease.spec.renew_time, case.facts.now) or 0.0
        if held is None or silent_s > (lease.spec.lease_duration_seconds or LEASE_DURATION_S):
            continue  # of another Service, or it has ended
        missed = [item for item in case.slices if item.metadata.revision > held.revision]
        ages = [
            age
            for item in missed
            if (
                age := since(
                    (item.metadata.annotations or {}).get(ANNOTATION_TRIGGER_TIME), case.facts.now
                )
            )
            is not None
        ]
        if ages and max(ages) > BEHIND_S:
            yield max(ages), lease, held, max(item.metadata.revision for item in missed)
