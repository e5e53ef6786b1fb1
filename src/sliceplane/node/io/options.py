"""The options of a node proxy, its periods and time-outs, and its access to the host.

Production has the constants, a test any values. An operator chooses two of them: the period of
checks (``syncPeriod``; a proxy that is twice as late is unhealthy), and how long the API server may
take to answer (``--healthz-api-timeout``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from sliceplane.api.gates import Gates
from sliceplane.consume.progress import CHANGED_PERIOD_S, IDLE_PERIOD_S
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.node.conntrack import Expected
from sliceplane.node.context import RulesConfig
from sliceplane.node.io.kernel.netns import Listen, listening_in
from sliceplane.node.plane import NodePlaneConfig
from sliceplane.watch.reflector import ABSENT_PERIOD_S

#: how long the first write waits for the Node once Services and EndpointSlices are there
NODE_GRACE_S = 1.0
#: a change that the kernel does not have after so long makes us unhealthy (as upstream: twice
#: syncPeriod)
HEALTH_TIMEOUT_S = 60.0

#: how often it is looked whether our tables are there, and which addresses the host has
CHECK_PERIOD_S = 30.0
#: after so long a table is written anew, whatever it is thought to hold (as upstream:
#: ``pkg/proxy/nftables/proxier.go``)
WHOLE_TABLE_PERIOD_S = 3600.0
#: the same while another program changes rules, ours perhaps
SUSPECT_PERIOD_S = 300.0

#: how long the API server may take to answer when it is asked whether it does
PROBE_TIMEOUT_S = 0.6
#: how long its answer, or whatever a watch brings, counts
PROBE_VALID_S = 0.3
#: after a pass over UDP flows that failed, until the next one
FLOWS_RETRY_S = 5.0


class ProxyTiming(msgspec.Struct, frozen=True):
    """Waiting times of a proxy; the default of each is the constant that explains it.
    *probe_timeout_s* 0 disables probes of the server.
    """

    node_grace_s: float = NODE_GRACE_S
    health_timeout_s: float = HEALTH_TIMEOUT_S
    check_period_s: float = CHECK_PERIOD_S
    suspect_period_s: float = SUSPECT_PERIOD_S
    probe_timeout_s: float = PROBE_TIMEOUT_S
    probe_valid_s: float = PROBE_VALID_S
    flows_retry_s: float = FLOWS_RETRY_S
    absent_kind_period_s: float = ABSENT_PERIOD_S
    lease_changed_period_s: float = CHANGED_PERIOD_S
    lease_idle_period_s: float = IDLE_PERIOD_S


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
