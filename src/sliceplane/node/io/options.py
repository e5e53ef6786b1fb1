"""The options of a node proxy, its periods and time-outs, and its access to the host.

Production uses the constants, tests any values. An operator can set two of them: the period of
checks (``syncPeriod``; a proxy is unhealthy if a change waits twice as long), and the time-out of the
API server's answer (``--healthz-api-timeout``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from sliceplane.api.gates import Gates
from sliceplane.consume.flow_counts import CountFlows
from sliceplane.consume.progress import CHANGED_PERIOD_S, IDLE_PERIOD_S
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.node.conntrack import Expected
from sliceplane.node.context import RulesConfig
from sliceplane.node.io.kernel.netns import Listen, listening_in
from sliceplane.node.plane import NodePlaneConfig
from sliceplane.watch.reflector import ABSENT_PERIOD_S

#: seconds that the first write waits for the Node once Services and EndpointSlices were listed
NODE_GRACE_S = 1.0
#: a change that the kernel has not applied after this time makes the proxy unhealthy (as upstream:
#: twice syncPeriod)
HEALTH_TIMEOUT_S = 60.0

#: seconds between two checks of our tables and of the host's addresses
CHECK_PERIOD_S = 30.0
#: seconds after which a table is rewritten, whatever its expected state (as upstream:
#: ``pkg/proxy/nftables/proxier.go``)
WHOLE_TABLE_PERIOD_S = 3600.0
#: the same while another program changes rules, perhaps ours
SUSPECT_PERIOD_S = 300.0

#: time-out of the API server's answer to a probe
PROBE_TIMEOUT_S = 0.6
#: seconds for which its answer, or an event of a watch, is valid
PROBE_VALID_S = 0.3
#: seconds between a failed pass over UDP flows and the next one
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
        """Returns the options of its planes; *since*: the start of the process."""
        return NodePlaneConfig(
            self.node_name, self.min_period_s, self.rules, since=since, own_ports=self.own_ports
        )


class FlowForgetter(Protocol):
    """The part of ``conntrack.Conntrack`` that deletes stale UDP flows."""

    async def reconcile(self, family: Family, expected: Expected) -> int: ...


async def _no_addresses() -> tuple[str, ...] | None:
    return ()


class HostAccess(msgspec.Struct, frozen=True):
    """*flows*: ``None`` retains stale UDP flows. *addresses* returns those of the host's interfaces; it
    is only called if flags restrict node ports to networks. *listen* opens the sockets of health
    check node ports. *count_flows* counts open connections for ``drain --until-idle``.
    """

    flows: FlowForgetter | None = None
    addresses: Callable[[], Awaitable[tuple[str, ...] | None]] = _no_addresses
    listen: Listen = listening_in("")
    count_flows: CountFlows | None = None
