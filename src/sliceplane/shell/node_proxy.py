"""The node proxy's shell: informers feed the planes, the planes' transactions go to nft.

One task for each IP family, so that a slow or refused transaction of one does not hold the other.  Events are
taken synchronously as the informers report them (``on_change``) and only mark; the family's task then writes
whatever is marked.  So a burst is one transaction, and while one runs the next is collected.

**Gate.**  Nothing is written before Services and EndpointSlices were listed.  The node's own zone decides which
endpoints to use, so its Node is waited for as well, but not for long: a node that is not registered gets rules
too.

**Others.**  The kernel is never listed on the way of a change; that our tables are still there is looked at now and
then, and at once when a transaction was refused, and each is written anew every ``WHOLE_TABLE_PERIOD_S``: what somebody
else deleted or changed comes back although nothing happens to Services.

**Exit** leaves the rules: traffic goes on while the proxy is upgraded.  ``cleanup`` takes them away.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import LABEL_HEADLESS, LABEL_SERVICE_PROXY_NAME, EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices, Nodes, Services
from sliceplane.controllers.base import Watched
from sliceplane.informer.changes import Change
from sliceplane.kit.ip import Family
from sliceplane.kit.rng import Rng
from sliceplane.nft.names import TABLE
from sliceplane.nft.objects import TableRef, deletion
from sliceplane.nft.plane import NFT_FAMILIES, FamilyPlane, PlaneConfig
from sliceplane.proxy.progress import Progress
from sliceplane.proxy.schedule import Freshness
from sliceplane.shell.client.base import Client
from sliceplane.shell.log import get_logger
from sliceplane.shell.nft_runner import NftError
from sliceplane.shell.reflect import Informer

#: how long the first write waits for the Node once Services and EndpointSlices are there
NODE_GRACE_S = 1.0
#: a change that the kernel does not have after so long makes us unhealthy (reference A11: 2 x syncPeriod)
HEALTH_TIMEOUT_S = 60.0

#: how often it is looked whether our tables are there
LOOK_PERIOD_S = 30.0
#: after so long a table is written anew, whatever it is thought to hold (as upstream, reference A10)
WHOLE_TABLE_PERIOD_S = 3600.0

FAMILIES: tuple[Family, ...] = ("IPv4", "IPv6")

_log = get_logger("node-proxy")


class Runner(Protocol):
    """What is needed of ``nft_runner.NftRunner``."""

    async def run(self, text: str) -> None: ...

    async def tables(self) -> frozenset[TableRef]: ...


@dataclass(frozen=True, slots=True)
class ProxyHealth:
    """For /healthz and metrics.  ``healthy``: every family has written all that is older than ``HEALTH_TIMEOUT_S``.

    ``input_staleness_s`` is how long ago the oldest of our caches was last known to be current (``None``: nobody
    says).  It is told but does not count: while the API server is away, the rules of before are the best there are.
    """

    healthy: bool
    synced: bool
    families: tuple[tuple[Family, Freshness], ...]
    input_staleness_s: float | None = None

    @property
    def last_success(self) -> float | None:
        """When the family that wrote last did so."""
        times = [freshness.last_success for _, freshness in self.families if freshness.last_success is not None]
        return max(times, default=None)


def watches(node_name: str) -> tuple[Watched, ...]:
    """What a node proxy watches (reference A1): the server filters out what is not its business."""
    return (
        Watched(Services, label_selector=f"!{LABEL_SERVICE_PROXY_NAME}", field_selector="spec.clusterIP!=None"),
        Watched(EndpointSlices, label_selector=f"!{LABEL_HEADLESS}"),
        Watched(Nodes, field_selector=f"metadata.name={node_name}"),
    )


class NodeProxy:
    """Feed it with ``on_change`` and ``on_synced`` from one event loop; ``run`` does the rest until it is
    cancelled."""

    def __init__(
        self,
        node_name: str,
        runner: Runner,
        *,
        families: tuple[Family, ...] = FAMILIES,
        min_period_s: float = 0.0,
        table: str = TABLE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        config = PlaneConfig(node_name=node_name, table=table, min_period_s=min_period_s)
        self.watches = watches(node_name)
        #: for ``proxy_report``
        self.progress = Progress(node_name, families)
        self._runner = runner
        self._clock = clock
        self._planes = tuple(FamilyPlane(family, config) for family in families)
        self._wake = {plane.family: asyncio.Event() for plane in self._planes}
        self._missing = {Services.key, EndpointSlices.key, Nodes.key}
        self._gate = asyncio.Event()  # Services and EndpointSlices are there
        self._node = asyncio.Event()
        self._doubt = asyncio.Event()
        self._written = {plane.family: asyncio.Event() for plane in self._planes}
        self._informers: tuple[Informer[Object], ...] = ()

    def on_change(self, change: Change[Object]) -> None:
        """One difference that an informer found, of any of ``watches``."""
        now = self._clock()
        self.progress.on_object(change.object)
        for plane in self._planes:
            match change.old, change.new:
                case (Service() | None as old, Service() | None as new):
                    plane.on_service(old, new, now)
                case (EndpointSlice() | None as old_slice, EndpointSlice() | None as new_slice):
                    plane.on_slice(old_slice, new_slice, now)
                case (_, Node() | None as node):
                    plane.on_node(node, now)
                case _:
                    raise AssertionError(f"a change of {change.resource}, which is not watched")
        self._wake_all()

    def on_synced(self, resource: str) -> None:
        """The first list of *resource* (``Resource.key``) was delivered."""
        self._missing.discard(resource)
        if Nodes.key not in self._missing:
            self._node.set()
        if not self._missing & {Services.key, EndpointSlices.key}:
            self._gate.set()

    async def follow(self, client: Client, rng: Rng) -> None:
        """Runs informers over *client* and ``run``, until cancelled; the rules stay.  Call it once."""
        assert not self._informers, "this proxy follows a server already"
        self._informers = tuple(
            Informer(
                client,
                watched.resource,
                clock=self._clock,
                rng=rng.fork(),
                label_selector=watched.label_selector,
                field_selector=watched.field_selector,
            )
            for watched in self.watches
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self.run(), name="node-proxy")
            for informer in self._informers:
                informer.add_handler(self._on_changes, partial(self.on_synced, informer.resource.key))
                group.create_task(informer.run(), name=f"informer {informer.resource.key}")

    def _on_changes(self, changes: tuple[Change[Object], ...]) -> None:
        for change in changes:
            self.on_change(change)

    async def run(self) -> None:
        """Writes rules until cancelled; the rules stay."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._open_gate(), name="node-proxy-gate")
            group.create_task(self._look_after_tables(), name="node-proxy-tables")
            for plane in self._planes:
                group.create_task(self._write(plane), name=f"node-proxy-{plane.family}")

    async def wait_ready(self) -> None:
        """Returns when every family has been written once."""
        for written in self._written.values():
            await written.wait()

    def health(self) -> ProxyHealth:
        now = self._clock()
        families = tuple((plane.family, plane.freshness) for plane in self._planes)
        healthy = all(freshness.staleness_s(now) <= HEALTH_TIMEOUT_S for _, freshness in families)
        ages = [informer.staleness() for informer in self._informers]
        return ProxyHealth(healthy, self._gate.is_set(), families, max(ages, default=None))

    def counts(self) -> dict[Family, tuple[int, int]]:
        """For each family: Services served, transactions written."""
        return {plane.family: (plane.services, plane.writes) for plane in self._planes}

    async def _open_gate(self) -> None:
        await self._gate.wait()
        try:
            async with asyncio.timeout(NODE_GRACE_S):
                await self._node.wait()
        except TimeoutError:
            _log.warning("node unknown so far, zone hints are ignored until it is")
        for plane in self._planes:
            plane.on_synced(self._clock())
        self._wake_all()

    async def _look_after_tables(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LOOK_PERIOD_S):
                    await self._doubt.wait()
            except TimeoutError:
                pass
            self._doubt.clear()
            try:
                present = await self._runner.tables()
            except NftError:
                continue  # whoever writes next says what is wrong with nft
            now = self._clock()
            for plane in self._planes:
                written_at = plane.table_written_at
                if written_at is None:
                    continue
                if plane.table not in present:
                    _log.warning("our table is gone, it is written anew", family=plane.family, table=plane.table.name)
                elif now - written_at < WHOLE_TABLE_PERIOD_S:
                    continue
                plane.on_doubt(now)
                self._wake[plane.family].set()

    async def _write(self, plane: FamilyPlane) -> None:
        wake = self._wake[plane.family]
        while True:
            wake.clear()
            if plane.due(self._clock()):
                await self._write_once(plane)
                continue
            deadline = plane.next_deadline()
            delay_s = None if deadline is None else max(0.0, deadline - self._clock())
            try:
                async with asyncio.timeout(delay_s):
                    await wake.wait()
            except TimeoutError:
                pass

    async def _write_once(self, plane: FamilyPlane) -> None:
        started = self._clock()
        self.progress.on_taken(plane.family)
        transaction = plane.take_transaction(started)
        if transaction is None:
            self.progress.on_written(plane.family)
            return
        try:
            await self._runner.run(transaction.render())
        except NftError as error:
            plane.on_failure(self._clock())
            self._doubt.set()  # what befell this table may have befallen the other one
            failures = plane.freshness.failures
            _log.error(
                "rules not written", family=plane.family, reason=error.reason, error=str(error), failures=failures
            )
            return
        plane.on_success(self._clock())
        self.progress.on_written(plane.family)
        self._written[plane.family].set()
        _log.debug(
            "rules written",
            family=plane.family,
            full=transaction.full,
            commands=len(transaction.commands),
            seconds=round(self._clock() - started, 4),
        )

    def _wake_all(self) -> None:
        for wake in self._wake.values():
            wake.set()


def available_families() -> tuple[Family, ...]:
    """Both, unless this kernel has no IPv6 at all.  Which ones the Node uses does not matter (reference A6)."""
    return FAMILIES if os.path.exists("/proc/net/if_inet6") else ("IPv4",)


async def cleanup(runner: Runner, *, families: tuple[Family, ...] = FAMILIES, table: str = TABLE) -> None:
    """Takes our tables away, whether they are there or not.  Raises ``NftError``."""
    text = "".join(deletion(TableRef(NFT_FAMILIES[family], table)).render() for family in families)
    await runner.run(text)
