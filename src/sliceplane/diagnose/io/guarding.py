"""The reads and writes of ``sliceplane guard``: the conditions by which controllers report retained
endpoints, and the annotations by which a user releases them.

There are two conditions: for Pods that are missing (of the EndpointSlice controller) and for agents
that stopped reporting (of the controller of external endpoints). Both are on the Service, so the
command works on any cluster with these controllers, wherever they run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.core import Service
from sliceplane.api.meta import Document
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import Services
from sliceplane.consume.agents import registration as agents
from sliceplane.diagnose.io.lists import list_objects
from sliceplane.kit.times import format_time, parse_time
from sliceplane.slices.removing.guard import ANNOTATION_RELEASE, REASON_RETAINED
from sliceplane.watch.io.base import Client, Reader

#: condition type -> the annotation that releases the endpoints
_RELEASES: Final = {
    REASON_RETAINED: ANNOTATION_RELEASE,
    agents.CONDITION_AGENT_REMOVAL: agents.ANNOTATION_RELEASE,
}


class RetainedService(msgspec.Struct, frozen=True):
    """A Service with retained endpoints. ``service``: ``namespace/name``; ``condition``: the type
    of the condition; ``since``: RFC 3339.
    """

    service: str
    condition: str
    since: str
    message: str

    def as_document(self) -> Document:
        return {
            "service": self.service,
            "condition": self.condition,
            "since": self.since,
            "message": self.message,
        }


async def read_retained(client: Reader, namespace: str) -> tuple[RetainedService, ...]:
    """Returns the Services with retained endpoints, by name. *namespace* "": all. Raises
    ``StatusError`` and ``Unreachable``.
    """
    return find_retained(await list_objects(client, Selection(Services, namespace), Service))


def find_retained(services: Iterable[Service]) -> tuple[RetainedService, ...]:
    """By name."""
    return tuple(
        RetainedService(
            service.metadata.key,
            condition.type,
            condition.last_transition_time or "",
            condition.message,
        )
        for service in sorted(services, key=lambda service: service.metadata.key)
        for condition in service.status.conditions or ()
        if condition.type in _RELEASES and condition.status == "True"
    )


async def release_retained(
    client: Client, namespace: str, names: Iterable[str], now: float
) -> None:
    """Releases the retained endpoints of *names*. Raises ``StatusError`` and ``Unreachable``; names
    before the failure are released.

    The time when a retention began is the controller's, whose clock may be ahead of *now*.
    """
    retained = await read_retained(client, namespace)
    for name in names:
        rows = [row for row in retained if row.service == f"{namespace}/{name}"]
        # a retention that began within this second began before its end
        over = max(now, *(parse_time(row.since) for row in rows if row.since), now) + 1
        annotations = {_RELEASES[row.condition]: format_time(over) for row in rows} or {
            ANNOTATION_RELEASE: format_time(over)
        }
        body = encode({"metadata": {"annotations": annotations}})
        await client.perform(
            Write(verb="patch", resource=Services, namespace=namespace, name=name, body=body)
        )
