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
from sliceplane.slices.removing.guard import ANNOTATION_RELEASE, REASON_HELD
from sliceplane.watch.io.base import Client, Reader

#: a condition, and the annotation that ends what it tells
_RELEASES: Final = {
    REASON_HELD: ANNOTATION_RELEASE,
    agents.CONDITION_HELD: agents.ANNOTATION_RELEASE,
}


class HeldService(msgspec.Struct, frozen=True):
    """``service`` is ``namespace/name``, ``condition`` the type of the one that tells it, ``since``
    RFC 3339.
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


async def read_held(client: Reader, namespace: str) -> tuple[HeldService, ...]:
    """By name.  *namespace* "": all.  Raises ``StatusError`` and ``Unreachable``."""
    return held_of(await list_objects(client, Selection(Services, namespace), Service))


def held_of(services: Iterable[Service]) -> tuple[HeldService, ...]:
    """By name."""
    return tuple(
        HeldService(
            service.metadata.key,
            condition.type,
            condition.last_transition_time or "",
            condition.message,
        )
        for service in sorted(services, key=lambda service: service.metadata.key)
        for condition in service.status.conditions or ()
        if condition.type in _RELEASES and condition.status == "True"
    )


async def release_holds(client: Client, namespace: str, names: Iterable[str], now: float) -> None:
    """Raises ``StatusError`` and ``Unreachable``; those before the failure are released.

    The controller's clock says when a hold began, and may be ahead of the one that says *now*.
    """
    held = await read_held(client, namespace)
    for name in names:
        rows = [row for row in held if row.service == f"{namespace}/{name}"]
        # a hold that began within this second began before it is over
        over = max(now, *(parse_time(row.since) for row in rows if row.since), now) + 1
        asked = {_RELEASES[row.condition]: format_time(over) for row in rows} or {
            ANNOTATION_RELEASE: format_time(over)
        }
        body = encode({"metadata": {"annotations": asked}})
        await client.perform(
            Write(verb="patch", resource=Services, namespace=namespace, name=name, body=body)
        )
