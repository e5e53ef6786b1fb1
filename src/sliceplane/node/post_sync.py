"""Effects of a change after the kernel has applied it: health checks, metrics, flows to check.

They must not be reported earlier: a load balancer would send traffic to an endpoint that no rule
leads to yet, and a latency would end before the write. So a change is noted when a write takes it,
and counts when a write has succeeded. After a failed write it waits for the next one (upstream loses
its trigger times and clean-ups then: ``pkg/proxy/nftables/proxier.go``).

**Memory** is in proportion to the present Services, whatever the history, if the owner of the plane
calls every ``take_*`` after each write. Two collections may never be processed, so they are bounded:
removed UDP ports on a host that cannot list flows (without ``conntrack``), and trigger times while
the kernel refuses every write.

Owned by one data plane.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sliceplane.consume.model import ServedPort, ServiceChange, ServiceKey

#: maximum number of removed UDP ports whose flows were not checked yet; flows of the oldest ones
#: beyond it last until their time-out
REMOVED_UDP_MAX = 10_000
#: maximum number of trigger times that wait for a successful write; later ones are not measured
TRIGGERS_MAX = 100_000


class HealthCheck(msgspec.Struct, frozen=True):
    """The answer of a Service's health check node port."""

    port: int
    local_endpoints: int


class WriteFacts(msgspec.Struct, frozen=True):
    """Facts about one Service.  The numbers count service ports that have endpoints, but none on
    this node, although their policy is Local.
    """

    health: HealthCheck | None = None
    internal_without_local: int = 0
    external_without_local: int = 0
    udp: tuple[ServedPort, ...] = ()


_PLAIN = WriteFacts()


class PostSync:
    """See the module.  It has only Services with facts to report."""

    def __init__(self) -> None:
        self._waiting: dict[ServiceKey, WriteFacts] = {}
        self._triggers: list[float] = []
        self._facts: dict[ServiceKey, WriteFacts] = {}
        self._latencies: list[float] = []
        self._udp: set[ServiceKey] = set()
        self._removed_udp: dict[ServedPort, None] = {}  # the oldest first; no present port
        #: applied health checks, by Service
        self.health_checks: dict[ServiceKey, HealthCheck] = {}
        #: numbers of service ports without an endpoint for their Local policy: internal, external
        self.without_local = (0, 0)

    def note(self, change: ServiceChange) -> None:
        """Notes *change*, a part of the write that begins now."""
        facts = _facts(change)
        if facts != _PLAIN or change.service in self._facts or change.service in self._waiting:
            self._waiting[change.service] = facts

    def note_triggers(self, moments: tuple[float, ...]) -> None:
        """Notes the trigger times of the write that begins now, in seconds since the epoch."""
        self._triggers.extend(moments[: TRIGGERS_MAX - len(self._triggers)])

    def on_success(self, now: float) -> None:
        """Notes that the kernel has applied all noted changes."""
        for key in sorted(self._waiting):
            old = self._facts.get(key, _PLAIN)
            new = self._waiting[key]
            self.without_local = (
                self.without_local[0] + new.internal_without_local - old.internal_without_local,
                self.without_local[1] + new.external_without_local - old.external_without_local,
            )
            self._note_udp(key, old.udp, new.udp)
            self.health_checks.pop(key, None)
            if new.health is not None:
                self.health_checks[key] = new.health
            self._facts.pop(key, None)
            if new != _PLAIN:
                self._facts[key] = new
        self._waiting = {}
        self._latencies.extend(max(0.0, now - moment) for moment in self._triggers)
        self._triggers = []

    def _note_udp(
        self, key: ServiceKey, old: tuple[ServedPort, ...], new: tuple[ServedPort, ...]
    ) -> None:
        if new:
            self._udp.add(key)
        else:
            self._udp.discard(key)
        for port in new:  # its flows are checked by its endpoints now
            self._removed_udp.pop(port, None)
        self._removed_udp.update(dict.fromkeys(port for port in old if port not in new))
        self._drop_oldest_removed()

    def _drop_oldest_removed(self) -> None:
        if len(self._removed_udp) > REMOVED_UDP_MAX:
            self._removed_udp = dict.fromkeys(list(self._removed_udp)[-REMOVED_UDP_MAX:])

    def take_latencies(self) -> tuple[float, ...]:
        """Returns the seconds from the causes of slice changes until the kernel applied them, of the
        writes since the last call.
        """
        taken = tuple(self._latencies)
        self._latencies = []
        return taken

    def take_udp(self) -> tuple[ServiceKey, ...]:
        """Returns the Services whose UDP ports changed since the last call: flows to them may lead to
        removed endpoints.
        """
        taken = tuple(sorted(self._udp))
        self._udp = set()
        return taken

    def take_removed_udp(self) -> tuple[ServedPort, ...]:
        """Returns the UDP ports that were removed or replaced since the last call: their addresses may
        belong to no Service now.
        """
        taken = tuple(self._removed_udp)
        self._removed_udp = {}
        return taken

    def return_udp(self, services: Iterable[ServiceKey], removed: Iterable[ServedPort]) -> None:
        """Returns flows that were taken but not processed, except those that changed meanwhile."""
        self._udp.update(key for key in services if self._udp_of(key))
        absent = (port for port in removed if port not in self._udp_of(port.name.service))
        self._removed_udp = dict.fromkeys(absent) | self._removed_udp
        self._drop_oldest_removed()

    def _udp_of(self, key: ServiceKey) -> tuple[ServedPort, ...]:
        return self._facts.get(key, _PLAIN).udp

    def udp_services(self) -> tuple[ServiceKey, ...]:
        """Returns all Services with applied UDP ports."""
        return tuple(sorted(key for key, facts in self._facts.items() if facts.udp))

    def check(self) -> None:
        """Asserts that sums match their parts, and that no removed Service remains.  O(state)."""
        internal = sum(facts.internal_without_local for facts in self._facts.values())
        external = sum(facts.external_without_local for facts in self._facts.values())
        assert (internal, external) == self.without_local, (
            f"{self.without_local} is not {self._facts}"
        )
        checks = {
            key: facts.health for key, facts in self._facts.items() if facts.health is not None
        }
        assert checks == self.health_checks, f"{self.health_checks} should be {checks}"
        assert self._udp <= set(self.udp_services()), (
            f"{self._udp} are more than {self.udp_services()}"
        )
        back = [port for port in self._removed_udp if port in self._udp_of(port.name.service)]
        assert not back, f"{back} are said to be gone"
        assert len(self._removed_udp) <= REMOVED_UDP_MAX, (
            f"{len(self._removed_udp)} removed UDP ports"
        )
        assert len(self._triggers) <= TRIGGERS_MAX, f"{len(self._triggers)} trigger times"


def _facts(change: ServiceChange) -> WriteFacts:
    internal = 0
    external = 0
    udp = tuple([state.port for state in change.ports if state.port.name.protocol == "UDP"])
    for state in change.ports:
        lacking = state.categories.has_any and not state.categories.local
        internal += lacking and state.port.internal_local
        external += lacking and state.port.external_local
    health = HealthCheck(change.health_port, change.local_ready) if change.health_port else None
    if health is None and not (internal or external or udp):
        return _PLAIN
    return WriteFacts(health, internal, external, udp)
