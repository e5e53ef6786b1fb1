"""Actions of a node proxy on addresses that Services request and may not have (``consume.claims``
decides).

It reads all Nodes of the cluster as soon as a Service asks for an external IP, and no sooner: at
5,000 nodes their heartbeats are more than all else that a proxy reads. Until they were listed the
planes withhold external IPs. A proxy that may not list Nodes serves none.

What a Service does not get is told once in the log of each node, and counted. The Event for its
owner is a controller's (``controllers.service_claims``): one Service must not cost a write for each
node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from sliceplane.api.core import Node
from sliceplane.api.meta import Object
from sliceplane.api.scheme import Nodes
from sliceplane.kit.io.log import get_logger
from sliceplane.node.io.inputs import Inputs
from sliceplane.node.plane import AnyNodePlane
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Selection
from sliceplane.watch.io.base import Client

#: the selection of all Nodes
ALL_NODES: Final = "all nodes"
#: lines in the log for one write
LOGGED_MAX: Final = 10

_log = get_logger("node-proxy")


class ProxyClaims:
    """The claims of one node proxy.  *clock* returns seconds since the epoch; *wake* schedules a
    write of the planes.
    """

    def __init__(
        self,
        planes: tuple[AnyNodePlane, ...],
        *,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._planes = planes
        self._wake = wake
        self._clock = clock
        self._inputs: Inputs | None = None
        self._watching = False
        self._listed = asyncio.Event()

    def follow(self, inputs: Inputs, client: Client) -> None:
        """From now on Nodes can be asked for, and are not known before they were."""
        self._inputs = inputs
        now = self._clock()
        for plane in self._planes:
            plane.on_all_nodes(False, now)
            plane.on_api_server(_host_of(client), now)

    def check_nodes(self) -> None:
        """After changes of Services: whether Nodes have to be known."""
        if (
            self._watching
            or self._inputs is None
            or not any(plane.tracker.claims.wants_nodes for plane in self._planes)
        ):
            return
        self._watching = True
        self._inputs.add(Selection(Nodes), ALL_NODES, self._on_listed)

    async def wait_nodes(self, patience_s: float) -> None:
        """Returns when all Nodes are known, if a Service needs them, and after *patience_s* at the
        latest: what was served before a restart shall be in the first write.
        """
        if self._watching and not self._listed.is_set():
            try:
                async with asyncio.timeout(patience_s):
                    await self._listed.wait()
            except TimeoutError:
                _log.warning("Nodes are not known so far, so no external IP is served")

    def on_node(self, change: Change[Object]) -> None:
        """One of all Nodes."""
        now = self._clock()
        name = change.object.metadata.name
        for plane in self._planes:
            plane.on_any_node(name, change.new if isinstance(change.new, Node) else None, now)

    def _on_listed(self) -> None:
        self._listed.set()
        for plane in self._planes:
            plane.on_all_nodes(True, self._clock())
        self._wake()


def log_unserved(plane: AnyNodePlane) -> None:
    """Logs Services that do not get all that they ask for, and did before or are new."""
    keys = plane.tracker.take_unserved()
    for key in keys[:LOGGED_MAX]:
        refused = plane.tracker.claims.refusals(key)
        excess = str(plane.tracker.excess(key))
        why = [str(refusal) for refusal in refused[:1]] + ([excess] if excess else [])
        _log.warning(
            "a Service does not get all that it asks for",
            service=str(key),
            family=plane.family,
            refused=len(refused),
            why="; ".join(why),
        )
    if len(keys) > LOGGED_MAX:
        _log.warning("so do others", services=len(keys) - LOGGED_MAX, family=plane.family)


def _host_of(client: Client) -> Iterable[str]:
    """The address that *client* dials, if it is one and not a name."""
    host = urlsplit(getattr(client, "server", "")).hostname or ""
    try:
        return (str(ip_address(host)),)
    except ValueError:
        return ()
