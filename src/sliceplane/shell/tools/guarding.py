"""What ``sliceplane guard`` reads and writes: the condition by which a controller tells that it holds endpoints, and
the annotation by which a user lets them go.

Both are on the Service, so this works on any cluster where the EndpointSlice controller is ours, wherever that runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Service
from sliceplane.api.meta import Document
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import Services
from sliceplane.kit.times import format_time, parse_time
from sliceplane.shell.tools.lists import list_whole
from sliceplane.shell.transport.base import Client, Reader
from sliceplane.slices.guard import ANNOTATION_RELEASE, REASON_HELD


@dataclass(frozen=True, slots=True)
class HeldService:
    """``service`` is ``namespace/name``, ``since`` RFC 3339."""

    service: str
    since: str
    message: str

    def as_document(self) -> Document:
        return {"service": self.service, "since": self.since, "message": self.message}


async def read_held(client: Reader, namespace: str) -> tuple[HeldService, ...]:
    """By name.  *namespace* "": all.  Raises ``StatusError`` and ``Unreachable``."""
    return held_of(decode(body, Service) for body in await list_whole(client, Selection(Services, namespace)))


def held_of(services: Iterable[Service]) -> tuple[HeldService, ...]:
    """By name."""
    return tuple(
        HeldService(service.metadata.key, condition.last_transition_time or "", condition.message)
        for service in sorted(services, key=lambda service: service.metadata.key)
        for condition in service.status.conditions or ()
        if condition.type == REASON_HELD and condition.status == "True"
    )


async def release_holds(client: Client, namespace: str, names: Iterable[str], now: float) -> None:
    """Raises ``StatusError`` and ``Unreachable``; those before the failure are released.

    The controller's clock says when a hold began, and may be ahead of the one that says *now*.
    """
    began = {row.service: parse_time(row.since) for row in await read_held(client, namespace) if row.since}
    for name in names:
        # a hold that began within this second began before it is over
        over = max(now, began.get(f"{namespace}/{name}", now)) + 1
        body = encode({"metadata": {"annotations": {ANNOTATION_RELEASE: format_time(over)}}})
        await client.perform(Write(verb="patch", resource=Services, namespace=namespace, name=name, body=body))
