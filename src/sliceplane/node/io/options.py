"""The options of a node proxy, and its access to the host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from sliceplane.api.gates import Gates
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.node.conntrack import Expected
from sliceplane.node.io.kernel.netns import Listen, listening_in
from sliceplane.node.io.timing import ProxyTiming
from sliceplane.node.plane import NodePlaneConfig
from sliceplane.node.surroundings import RulesConfig


class ProxyConfig(msgspec.Struct, frozen=True):
    """Options of a node proxy. *own_ports*: TCP ports of its pages; no Service gets them as node
    ports.
    """

    node_name: str
    families: tuple[Family, ...] = FAMILIES
    min_period_s: float = 0.0
    rules: RulesConfig = RulesConfig()
    gates: Gates = Gates()
    timing: ProxyTiming = ProxyTiming()
    own_ports: tuple[int, ...] = ()

    def for_plane(self, since: float) -> NodePlaneConfig:
        """*since*: the start of the process."""
        return NodePlaneConfig(
            self.node_name, self.min_period_s, self.rules, since=since, own_ports=self.own_ports
        )


class FlowForgetter(Protocol):
    """The part of ``conntrack.Conntrack`` that forgets stale UDP flows."""

    async def reconcile(self, family: Family, expected: Expected) -> int: ...


async def _no_addresses() -> tuple[str, ...] | None:
    return ()


class HostAccess(msgspec.Struct, frozen=True):
    """*flows*: ``None`` leaves stale UDP flows. *addresses* returns those of the host's interfaces;
    it is called only if flags name node ports by networks. *listen* opens the sockets of health
    check node ports.
    """

    flows: FlowForgetter | None = None
    addresses: Callable[[], Awaitable[tuple[str, ...] | None]] = _no_addresses
    listen: Listen = listening_in("")
