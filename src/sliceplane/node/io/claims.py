"""Actions of a node proxy on addresses that Services request and may not have (``consume.claims``
decides).

It reads all Nodes of the cluster once a Service requests an external IP, and not before: with 5,000
nodes their heartbeats exceed everything else that a proxy reads. Until they were listed the planes
withhold external IPs. A proxy that may not list Nodes serves none.

Each node logs a refused request of a Service once, and counts it. A controller records the Event for
its owner (``controllers.service_claims``): one Service must not cause a write for each node.
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

#: name of the selection of all Nodes
ALL_NODES: Final = "all nodes"
#: maximum number of lines in the log for one write
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
        """Sets the informers that can read Nodes; until those were listed, Nodes are unknown."""
        self._inputs = inputs
        now = self._clock()
        for plane in self._planes:
            plane.on_all_nodes(False, now)
            plane.on_api_server(_host_of(client), now)

    def check_nodes(self) -> None:
        """Starts to read Nodes if a Service needs them; for calls after changes of Services."""
        if (
            self._watching
            or self._inputs is None
            or not any(plane.tracker.claims.needs_nodes for plane in self._planes)
        ):
            return
        self._watching = True
        self._inputs.add(Selection(Nodes), ALL_NODES, self._on_listed)

    async def wait_nodes(self, patience_s: float) -> None:
        """Waits until all Nodes were listed, if a Service needs them, for at most *patience_s*: the
        first write after a restart should have everything that was served before it.
        """
        if self._watching and not self._listed.is_set():
            try:
                async with asyncio.timeout(patience_s):
                    await self._listed.wait()
            except TimeoutError:
                _log.warning("Nodes are not known so far, so no external IP is served")

    def on_node(self, change: Change[Object]) -> None:
        """Handles a change of any Node of the cluster."""
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
    """Logs Services that newly do not get all that they request."""
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
    """Returns the address that *client* dials; empty if it is a name."""
    host = urlsplit(getattr(client, "server", "")).hostname or ""
    try:
        return (str(ip_address(host)),)
    except ValueError:
        return ()
