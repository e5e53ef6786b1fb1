"""Requests and watches that a relay answers from memory, each by the part of its resource that the
front chose (``relay.parts``).

A watch that resumes before the history first waits for the events that it missed
(``Parent.catch_up``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from sliceplane.api.requests import Selection
from sliceplane.api.scheme import Leases
from sliceplane.relay.earlier import WatchScope
from sliceplane.relay.io.parent import Parent
from sliceplane.relay.io.reports import ReportLeases
from sliceplane.relay.parts import part_of
from sliceplane.server.io.metrics import WatchTraffic
from sliceplane.server.io.requests.params import watch_options
from sliceplane.server.io.requests.request import Request, Route, Send
from sliceplane.server.io.requests.resources import ResourceHandlers
from sliceplane.server.io.requests.response import Response
from sliceplane.server.io.requests.watch import WatchHandler
from sliceplane.server.registry.registry import Registry

T = TypeVar("T")


class FrontDurability:
    """Storage for handlers of requests: the front has waited for versions before."""

    staleness_s = 0.0

    async def write(self, step: Callable[[], T], revision_of: Callable[[T], int]) -> T:
        raise AssertionError("writes are passed on")

    async def current(self) -> None:
        return


class Served(NamedTuple):
    """One part of a resource as it is served."""

    parent: Parent
    registry: Registry
    resources: ResourceHandlers
    watches: WatchHandler


class ServedParts:
    """Answers each request with the handlers of the part of its resource that the front chose."""

    def __init__(self, served: Mapping[Selection, Served], reports: ReportLeases | None) -> None:
        self._served = served
        self._reports = reports

    def _of(self, request: Request, route: Route) -> Served:
        selector = request.query.first("labelSelector")
        served = part_of(self._served, route.target.resource, selector)
        assert served is not None, "the front passes on what no part has"
        return served

    async def respond(self, request: Request, route: Route) -> Response:
        if self._reports is not None and route.target.resource is Leases:
            return await self._reports.respond(request, route)
        return await self._of(request, route).resources.respond(request, route)

    async def stream(
        self,
        request: Request,
        route: Route,
        send: Send,
        on_head: Callable[[], str],
        traffic: WatchTraffic,
    ) -> None:
        """Opens a watch at the hub of its part."""
        served = self._of(request, route)
        await self._catch_up(served, request, route)
        await served.watches.respond(request, route, send, on_head, traffic)

    async def _catch_up(self, served: Served, request: Request, route: Route) -> None:
        target = replace(route.target, name="")
        options = watch_options(request.query, name=route.target.name)
        plan = served.registry.watch_plan(served.resources.context(request), target, options)
        if plan.since is not None:
            scope = WatchScope(plan.namespace, plan.name, plan.selector)
            await served.parent.catch_up(scope, plan.since)
