"""Programs that follow the slices of a Service themselves and report their progress: Python views
(docs/drain.md, "Other consumers").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sliceplane.api.findings.finding import Evidence, Finding, ObjectName
from sliceplane.api.findings.wording import lasting, some
from sliceplane.api.requests import Selection
from sliceplane.consume.progress import ANNOTATION_PROGRESS, LABEL_COMPONENT
from sliceplane.consume.selections import SERVICE_READING
from sliceplane.diagnose.drift.facts import listed, told_of
from sliceplane.diagnose.drift.reports import judge_report
from sliceplane.diagnose.explain.case import ServiceCase
from sliceplane.diagnose.explain.objects import LEASES

_VIEWS: Final = f"{LABEL_COMPONENT}=view"


def wants(case: ServiceCase) -> Iterator[Selection]:
    everything = case.question.kind == "everything"
    yield LEASES.in_namespace("" if everything else case.namespace, _VIEWS)


def behind(case: ServiceCase) -> Iterable[Finding]:
    """C6, about the view that has been behind for the longest."""
    reading = f"{SERVICE_READING}{case.namespace}/{case.name}"
    slices = [listed(item, item.written_at)._replace(readings=(reading,)) for item in case.slices]
    judged = [
        judge_report(view, slices, case.now)
        for view in map(told_of, case.of(LEASES))
        if view.report is not None and not view.is_late(case.now)
    ]
    late = sorted(
        (each for each in judged if each.is_behind),
        key=lambda each: (-each.behind_s, each.told.node),
    )
    for view, missing, _ in late[:1]:
        held = view.report.endpointslices[reading].revision if view.report is not None else 0
        others = [each.told.node for each in late[1:]]
        also = f"; so with {some(others)}" if others else ""
        yield case.finding(
            "C6",
            f"view {view.node} is {lasting(late[0].behind_s)} behind: it holds version {held}, and "
            f"a slice is of {max(item.revision for item in missing)}{also}",
            Evidence(
                subject=ObjectName(LEASES.resource.key, "Lease", case.namespace, view.lease),
                field=f"metadata.annotations[{ANNOTATION_PROGRESS}]",
                value=str(held),
            ),
            # Without managedFields a slice has the time of the change that it was written for.
            certainty="likely",
            effect="it goes on with the endpoints of then, while the nodes have others",
            remedy=f"look at the log of {view.node}: its watch; restart it",
        )
