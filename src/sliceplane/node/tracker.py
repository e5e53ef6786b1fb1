"""Change tracking: the Services that the data plane must update, and their current state.

Events mark Services; nothing is computed until ``take_changes``, so a thousand events of one Service
between two writes cost one computation.

**Trigger times** (``sig-scalability/slos/network_programming_latency.md`` of kubernetes/community):
an EndpointSlice has the time of the Pod or Service change that caused its last write. They are
retained by Service until ``take_triggers``. A removed slice discards those of its Service; a slice
whose content or time did not change adds none.

**Requests of a Service** are not granted as such: ``claims`` decides on external addresses and node
ports, ``bounds`` on the served part of a Service, ``schedule.Portions`` on the steps.

Owned by one caller (the data plane of a family); not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Final, TypeVar

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import ANNOTATION_TRIGGER_TIME, LABEL_ZONE, EndpointSlice
from sliceplane.consume.bounds import CHAINS_MAX, STICKY_MAX, TARGETS_MAX, Excess, share
from sliceplane.consume.claims import AddressClaims
from sliceplane.consume.grounds import Ground
from sliceplane.consume.model import (
    API_SERVICE,
    NodeEndpoint,
    PortState,
    ServedPort,
    ServiceChange,
    ServiceKey,
    ServicePortName,
    canonical_of,
    categorize,
    first_of,
)
from sliceplane.consume.servicemap import health_port, read
from sliceplane.consume.slicecache import CachedSlice, EndpointOrigin, SliceCache
from sliceplane.consume.usable import Locality
from sliceplane.kit.ip import Family, networks
from sliceplane.kit.times import parse_time
from sliceplane.node.conntrack import Expected
from sliceplane.node.schedule import PORTION, PORTION_OF_CHAINS, Portions

#: trigger times of one Service that wait for a write; later ones are not measured
TRIGGERS_MAX: Final = 1_000
_NO_EXCESS = Excess()
V = TypeVar("V")
_EndpointsOf = dict[ServicePortName, list[NodeEndpoint]]


class ServiceTracker:
    """The model of one IP family on one node."""

    def __init__(
        self, family: Family, node_name: str, *, since: float = 0.0, chains: bool = False
    ) -> None:
        """*since*: earlier trigger times are ignored.  *chains*: each target is a chain in the
        kernel.
        """
        self._chains = chains
        self.family: Family = family
        self._since = since
        self._health_ports: dict[ServiceKey, int] = {}
        self._triggers: dict[ServiceKey, list[float]] = {}
        self._services: dict[ServiceKey, tuple[ServedPort, ...]] = {}  # as requested
        self._excess: dict[ServiceKey, Excess] = {}
        self._beyond: dict[ServiceKey, int] = {}  # targets of a port beyond the bound
        self._claims = AddressClaims()
        self.portions = Portions()
        #: Services that do not get all that they request, as of the last ``take_changes``; and the
        #: new ones among them
        self.unserved: set[ServiceKey] = set()
        self.newly_unserved: set[ServiceKey] = set()
        self._slices = SliceCache(family, node_name)
        self._locality = Locality(node=node_name)
        self._changed: set[ServiceKey] = set()

    @property
    def locality(self) -> Locality:
        """Returns the location of this node."""
        return self._locality

    @property
    def pending(self) -> int:
        """Returns the number of Services that ``take_changes`` would return."""
        return len(self._changed) + len(self.portions.behind)

    def on_service(self, old: Service | None, new: Service | None) -> tuple[ServiceKey, ...]:
        """Notes an added, changed or removed Service; returns the marked Services.  A change of
        metadata alone marks none.
        """
        subject = new if new is not None else old
        assert subject is not None, "an event has an old or a new object"
        key = ServiceKey(subject.metadata.namespace, subject.metadata.name)
        ports, excess = read(new, self.family) if new is not None else ((), _NO_EXCESS)
        health_check_port = health_port(new) if new is not None and ports else 0
        before = self._services.get(key, ())
        created = (new.metadata.creation_timestamp or "") if new is not None else ""
        if ports != before:
            self.portions.on_service(key, lambda: self._claims.honoured(key, before), ports)
        marked = self._claims.on_service(key, created, before, ports)
        if (
            ports != before
            or health_check_port != self._health_ports.get(key, 0)
            or excess != self._excess.get(key, _NO_EXCESS)
        ):
            marked.add(key)
        _set_or_remove(self._health_ports, key, health_check_port)
        _set_or_remove(self._services, key, ports)
        _set_or_remove(self._excess, key, excess if any(excess) else None)
        return self._mark(marked)

    def _mark(self, marked: Iterable[ServiceKey]) -> tuple[ServiceKey, ...]:
        keys = tuple(sorted(marked))
        self._changed.update(keys)
        return keys

    def on_ground(self, owner: str, ground: Ground) -> tuple[ServiceKey, ...]:
        """Reserves the addresses of *owner*, which no Service may use; returns the marked Services."""
        return self._mark(self._claims.set_ground(owner, ground))

    def on_withheld(self, withheld: bool) -> tuple[ServiceKey, ...]:
        """Sets whether external IPs wait until all Nodes are reported; returns the marked Services."""
        return self._mark(self._claims.withhold(withheld))

    def reserve_ports(self, owner: str, ports: Iterable[tuple[str, int]]) -> None:
        """Reserves each (protocol, port) on which a program of this node listens.  Call it before the
        first Service.
        """
        self._claims.reserve_ports(owner, ports)

    @property
    def claims(self) -> AddressClaims:
        """Returns the owners of addresses, read-only."""
        return self._claims

    def on_slice(
        self, old: EndpointSlice | None, new: EndpointSlice | None
    ) -> tuple[ServiceKey, ...]:
        """Notes an added, changed or removed slice; returns the marked Services.  A slice of an
        absent Service marks none.
        """
        subject = new if new is not None else old
        assert subject is not None, "an event has an old or a new object"
        marked = tuple(
            key for key in self._slices.on_slice(subject.metadata.key, new) if key in self._services
        )
        self._changed.update(marked)
        if marked:
            self._note_trigger(marked, old, new)
        if API_SERVICE in marked:
            api_slices = self._slices.slices(API_SERVICE).values()
            texts = [
                text
                for api_slice in api_slices
                for endpoint in api_slice.endpoints
                for text in endpoint.addresses or ()
            ]
            addresses = dict.fromkeys(
                ip for text in texts if (ip := canonical_of(text, self.family)) is not None
            )
            return self._mark(
                {*marked, *self.on_ground("the API server", Ground(tuple(addresses)))}
            )
        return marked

    def _note_trigger(
        self, marked: tuple[ServiceKey, ...], old: EndpointSlice | None, new: EndpointSlice | None
    ) -> None:
        if new is None:
            for key in marked:
                self._triggers.pop(key, None)
            return
        text = (new.metadata.annotations or {}).get(ANNOTATION_TRIGGER_TIME)
        if text is None or (
            old is not None
            and (old.metadata.annotations or {}).get(ANNOTATION_TRIGGER_TIME) == text
        ):
            return
        try:
            moment = parse_time(text)
        except ValueError:
            return
        if moment > self._since:
            moments = self._triggers.setdefault(marked[-1], [])
            if len(moments) < TRIGGERS_MAX:
                moments.append(moment)

    def on_node(self, node: Node | None) -> tuple[ServiceKey, ...]:
        """Notes this node.  Only its zone matters; a change of it marks every Service.

        A deleted node (``None``) retains its zone: Pods may still run on it, and after a mistaken
        deletion other endpoints would do harm.
        """
        if node is None:
            return ()
        locality = Locality(
            node=self._locality.node, zone=(node.metadata.labels or {}).get(LABEL_ZONE, "")
        )
        if locality == self._locality:
            return ()
        self._locality = locality
        return self.mark_all()

    def mark_all(self) -> tuple[ServiceKey, ...]:
        """Marks every Service.  O(Services)."""
        self._changed.update(self._services)
        return tuple(self._services)

    def take_changes(self, now: float = inf, *, whole: bool = False) -> Iterator[ServiceChange]:
        """Yields the current state of each marked Service in the order of keys, and clears the marks.

        Large Services come last, in portions. Unless *whole* is set, some portions may remain
        (``portions.behind``), and some may have to wait at *now*. States are computed while
        iterating, so that a first sync never has all of them in memory; finish before the next
        event.
        """
        taken = sorted(self._changed)
        self._changed = set()
        for key in self.portions.begin(taken, self._slices.sizes, self._services):
            yield self._change(key, self._honoured(key))
        budget = PORTION_OF_CHAINS if self._chains else PORTION
        remaining = len(self.portions.behind)
        while remaining and (whole or budget > 0):
            remaining -= 1
            key = next(iter(self.portions.behind))
            since = self.portions.behind.pop(key)
            desired = self._honoured(key)
            # A removed Service does not wait: its addresses may belong to another one by now.
            if desired and not whole and self.portions.rests(key, now):
                self.portions.behind[key] = since
                continue
            size = self._slices.sizes.get(key, 0)
            if whole or key not in self.portions.delivered:
                ports = self.portions.finish(key, desired)
                self.portions.on_carried(key, size, whole=whole)
                budget -= max(size, 1)
                yield self._change(key, ports)
                continue
            endpoints = self._slices.endpoints(key)
            ports, spent = self.portions.advance(
                key,
                desired,
                lambda port: len(endpoints.get(port.name, ())),  # noqa: B023  # called at once
                budget,
                since,
            )
            budget -= spent
            self.portions.on_carried(key, max(size, spent), whole=False)
            yield self._change(key, ports, endpoints)

    def on_written(self, began: float, now: float) -> float | None:
        """Notes that the kernel has applied the changes taken at *began*.  Returns when remaining
        portions may continue; ``None`` if there are none.
        """
        return self.portions.on_written(began, now, lambda key: key not in self._services)

    def take_triggers(self) -> tuple[float, ...]:
        """Returns the trigger times of Services that ``take_changes`` returned completely, in the
        order of Services and events.
        """
        if not self._triggers:
            return ()
        behind = self.portions.behind
        taken = [
            moment
            for key in sorted(self._triggers)
            if key not in behind
            for moment in self._triggers[key]
        ]
        self._triggers = {key: moments for key, moments in self._triggers.items() if key in behind}
        return tuple(taken)

    def _change(
        self, key: ServiceKey, ports: tuple[ServedPort, ...], by_port: _EndpointsOf | None = None
    ) -> ServiceChange:
        """Builds the change of *key*.  *by_port*: its endpoints, if the caller has them."""
        if by_port is None:
            by_port = self._slices.endpoints(key) if ports else {}
        states, beyond = self._states(ports, by_port)
        if beyond or self._beyond:
            _set_or_remove(self._beyond, key, beyond)
        if not (self._claims.refusals(key) or key in self._excess or beyond):
            self.unserved.discard(key)
            self.newly_unserved.discard(key)
        elif key not in self.unserved:
            self.unserved.add(key)
            self.newly_unserved.add(key)
        health_check_port = self._health_ports.get(key, 0)
        complete = key not in self.portions.behind
        if not health_check_port:
            return ServiceChange(key, states, complete=complete)
        ready = {
            endpoint.ip
            for endpoints in by_port.values()
            for endpoint in endpoints
            if endpoint.ready and endpoint.is_local
        }
        return ServiceChange(key, states, health_check_port, len(ready), complete)

    def take_unserved(self) -> tuple[ServiceKey, ...]:
        """Returns the Services that became unserved since the last call, sorted."""
        taken = tuple(sorted(self.newly_unserved))
        self.newly_unserved = set()
        return taken

    def excess(self, key: ServiceKey) -> Excess:
        """Returns the part of *key* that exceeds the bounds."""
        return self._excess.get(key, _NO_EXCESS)._replace(targets=self._beyond.get(key, 0))

    def state(self, key: ServiceKey) -> tuple[PortState, ...]:
        """Returns the current state of *key*, one entry per service port.  O(the Service)."""
        ports = self._honoured(key)
        return self._states(ports, self._slices.endpoints(key))[0] if ports else ()

    def _honoured(self, key: ServiceKey) -> tuple[ServedPort, ...]:
        return self._claims.honoured(key, self._services.get(key, ()))

    def _states(
        self, ports: tuple[ServedPort, ...], endpoints: _EndpointsOf
    ) -> tuple[tuple[PortState, ...], int]:
        """Returns the states of *ports*, and the targets of the largest port beyond the bound."""
        states = tuple(
            PortState(port, categorize(endpoints.get(port.name, ()), port, self._locality))
            for port in ports
        )
        if not ports or self._slices.sizes.get(ports[0].name.service, 0) <= STICKY_MAX:
            return states, 0
        most = self._targets_max(ports)
        beyond = max((len(state.categories.reachable) for state in states), default=0) - most
        if beyond > 0:
            states = tuple(
                PortState(state.port, first_of(state.categories, most)) for state in states
            )
        return states, max(0, beyond)

    def _targets_max(self, ports: tuple[ServedPort, ...]) -> int:
        """Returns the maximum number of targets of each of *ports*, which are those of one Service."""
        if any(port.affinity_timeout_s for port in ports):
            return share(STICKY_MAX, len(ports))
        return share(CHAINS_MAX if self._chains else TARGETS_MAX, len(ports))

    def origins(
        self, key: ServiceKey, slice_key: str = ""
    ) -> dict[ServicePortName, list[EndpointOrigin]]:
        """Returns the origins of the endpoints of *key*; see ``SliceCache.origins``."""
        return self._slices.origins(key, slice_key)

    def slices(self, key: ServiceKey) -> dict[str, CachedSlice]:
        """Returns the slices of *key*; see ``SliceCache.slices``."""
        return self._slices.slices(key)

    def expected_flows(
        self, keys: Iterable[ServiceKey], removed: Iterable[ServedPort] = ()
    ) -> Expected:
        """Returns the valid endpoints of UDP flows to the Services *keys*, and to *removed* ports.

        A removed port has none, unless one of *keys* has its address now.  O(those Services).
        """
        expected = Expected()
        for port in removed:
            expected.add(port, ())
        for key in keys:
            endpoints = self._slices.endpoints(key)
            for port in self._honoured(key):
                if port.name.protocol == "UDP":
                    expected.add(port, endpoints.get(port.name, ()))
        return expected

    def has_affinity(self) -> bool:
        """Returns True if any Service has session affinity.  O(Services)."""
        return any(port.affinity_timeout_s for ports in self._services.values() for port in ports)

    @property
    def service_count(self) -> int:
        """Returns the number of Services that this family serves."""
        return len(self._services)

    def services(self) -> tuple[ServiceKey, ...]:
        """Returns all Services that this family serves, sorted.  O(Services)."""
        return tuple(sorted(self._services))

    def check(self) -> None:
        """Asserts every invariant.  O(state)."""
        assert self._health_ports.keys() <= self._services.keys(), (
            f"health ports of no Service: {self._health_ports}"
        )
        self._slices.check()
        self._claims.check(iter(self._services.items()))
        self.portions.check()
        assert self._excess.keys() <= self._services.keys(), f"excess of no Service: {self._excess}"
        for key, ports in self._services.items():
            assert ports, f"{key} is in the table without ports"
            assert all(port.name.service == key for port in ports), (
                f"{key} has ports of other Services: {ports}"
            )


def _set_or_remove(where: dict[ServiceKey, V], key: ServiceKey, value: V | None) -> None:
    """Sets the value of *key*, or removes an empty one."""
    if value:
        where[key] = value
    else:
        where.pop(key, None)


def node_ip(node: Node, family: Family) -> str:
    """Returns the node's first internal address of the family, else its first external one, else ""."""
    for kind in ("InternalIP", "ExternalIP"):
        for entry in node.status.addresses or ():
            ip = canonical_of(entry.address, family) if entry.type == kind else None
            if ip is not None:
                return ip
    return ""


def node_ground(node: Node, family: Family) -> Ground:
    """Returns the node's own addresses of the family, and the ranges of its Pods."""
    texts = [entry.address for entry in node.status.addresses or ()]
    addresses = dict.fromkeys(
        ip for text in texts if (ip := canonical_of(text, family)) is not None
    )
    ranges = (*(node.spec.pod_cidrs or ()), *([node.spec.pod_cidr] if node.spec.pod_cidr else []))
    return Ground(tuple(addresses), networks(ranges[:2], family))
