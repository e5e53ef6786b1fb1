"""``controllers --once`` where the server does not let it look: what it has not read is not counted
as none.
"""

from __future__ import annotations

import math

from sliceplane.api.errors import StatusError, forbidden
from sliceplane.api.scheme import Nodes, Pods, Resource, Services
from sliceplane.cli.run.controllers import summary_text
from sliceplane.controllers.io.standalone import ReconcileSummary
from sliceplane.watch.actions import Counters
from sliceplane.watch.controller.base import Selection
from sliceplane.watch.controller.events import RecorderStatus
from sliceplane.watch.io.hosting.host import HostStatus
from sliceplane.watch.io.hosting.informers import InformerStatus


def informer(
    resource: Resource, objects: int, *, synced: bool, error: StatusError | None = None
) -> InformerStatus:
    age = 0.0 if synced else math.inf
    said = None if error is None else (error, 1.0)
    return InformerStatus(
        Selection(resource), synced, age, objects, 0, "7" if synced else "", Counters(), said
    )


def text(*informers: InformerStatus) -> list[str]:
    status = HostStatus(informers, (), RecorderStatus(0, 0, 0, 0, 0), 0.0)
    return summary_text(ReconcileSummary(4.0, status, ("endpointslice-controller",))).splitlines()


def test_what_could_not_be_read_is_named_with_the_reason() -> None:
    refused = forbidden("pods", "", "", 'User "jane" cannot list resource "pods"')
    assert text(
        informer(Services, 3, synced=True),
        informer(Pods, 0, synced=False, error=refused),
        informer(Nodes, 0, synced=False),
    ) == [
        "read 3 services",
        'NOT read pods: pods is forbidden: User "jane" cannot list resource "pods"',
        "NOT read nodes",
        "NOT reconciled after 4.0 s: endpointslice-controller would go on",
    ]


def test_an_old_failure_of_what_was_read_is_no_news() -> None:
    again = informer(Pods, 2, synced=True, error=forbidden("pods", "", "", "not yet"))
    assert text(again)[0] == "read 2 pods"
    assert text(informer(Pods, 0, synced=False))[0] == "read nothing"
