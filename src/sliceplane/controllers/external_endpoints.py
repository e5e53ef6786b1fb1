"""Withdraws the endpoints of agents that fell silent, and refuses those that may not be.

For each Lease of an agent (``external.judge`` says which of them live), in two steps: when it is over, its slices say
not ready and not serving, under the word ``lost``; ``forget_after_s`` later the Lease is deleted, and the garbage
collector takes the slices.  A laptop that returns in between is an update, not a birth.  Both writes are bound to the
versions that were judged: a renewal that was not seen yet makes them fail, so the end of an old registration never
takes the new one with it.

Three things are refused, with a sentence in an annotation of the slice that the agent heeds and shows:

- an address outside of what its account may use (``agent.sliceplane.dev/cidrs`` of its ServiceAccount);
- an address that is a Pod's, or of the networks of cluster IPs and of Nodes' Pods, if the account does not say;
- an address and port that another agent brought to the same Service later: the newest Lease keeps it.

What is held in a mass expiry is told by each Service concerned (``external.notices``).  Each agent that is held is
probed once: if all its ports refuse a connection it is withdrawn at once.  No answer says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Lease, Node, Pod, Service, ServiceCIDR
from sliceplane.api.discovery import LABEL_MANAGED_BY, EndpointSlice
from sliceplane.api.meta import Object, is_newer
from sliceplane.api.scheme import EndpointSlices, Leases, Nodes, Pods, ServiceAccounts, ServiceCIDRs, Services
from sliceplane.controllers.base import ControllerInfo, Done, EventNote, Selection, Write, condition_write
from sliceplane.controllers.keyed import KeyedController
from sliceplane.external.judge import LeaseJudge
from sliceplane.external.notices import HoldNotices
from sliceplane.external.refusals import AgentRefusals
from sliceplane.external.registration import ANNOTATION_CIDRS, LABEL_AGENT, LEASE_S, MANAGED_BY
from sliceplane.external.withdrawal import lease_end, refusal, shown_refusal, withdrawal
from sliceplane.informer.cache import Change
from sliceplane.kit.delays import Backoff
from sliceplane.kit.metrics import Family, Metrics

#: from the moment when an agent is lost until its Lease goes
FORGET_AFTER_S: Final = 600.0
#: the server is asked again about what is doubtful; it must not be flooded, and outages of seconds must be noticed
BACKOFF: Final = Backoff(base_s=0.2, cap_s=1.0)
COMPONENT: Final = "external-endpoints-controller"
_CONDITION: Final = "condition:"


class ExternalEndpointsController(KeyedController):
    """Keys are ``namespace/name`` of agents, and ``condition:`` with the key of a Service."""

    def __init__(self, *, forget_after_s: float = FORGET_AFTER_S) -> None:
        super().__init__(
            ControllerInfo(
                name=COMPONENT,
                aliases=("external-endpoints",),
                watches=(
                    Selection(Leases, label_selector=LABEL_AGENT),
                    Selection(EndpointSlices, label_selector=f"{LABEL_MANAGED_BY}={MANAGED_BY}"),
                    Selection(Services),
                    Selection(Pods),
                    Selection(ServiceAccounts, label_selector=LABEL_AGENT),
                    Selection(ServiceCIDRs),
                    Selection(Nodes),
                ),
            ),
            backoff=BACKOFF,
        )
        self._forget_after_s = forget_after_s
        self._judge = LeaseJudge()
        self._refusals = AgentRefusals()
        self._leases: dict[str, Lease] = {}
        self._slices: dict[str, EndpointSlice] = {}
        self._services: dict[str, Service] = {}
        #: agents that are lost -> since when
        self._lost: dict[str, float] = {}
        self._notices = HoldNotices(self._judge, self._refusals.services_of)
        self._metrics = Metrics()
        self._losses = self._metrics.counter("sliceplane_agents_lost_total", "Agents whose Lease ran out.")
        self._metrics.computed("gauge", "sliceplane_agents", "Agents that have a Lease.", lambda: len(self._leases))
        self._metrics.computed(
            "gauge",
            "sliceplane_agents_held",
            "Agents that are silent and whose endpoints stay, since many fell silent together.",
            lambda: len(self._judge.held),
        )

    def samples(self, now: float) -> tuple[Family, ...]:
        return (*super().samples(now), *self._metrics.families())

    # -- events -----------------------------------------------------------------------------------------

    def on_synced(self, now: float) -> None:
        super().on_synced(now)
        for key in self._leases:
            self.enqueue(key, now)
        self._tell_held(now)

    def on_change(self, change: Change[Object], now: float) -> None:
        key = change.object.metadata.key
        touched: Iterable[str] = ()
        match change.object:
            case Lease():
                self._on_lease(*change.typed(Lease), now)
            case EndpointSlice():
                touched = self._on_slice(key, change.typed(EndpointSlice)[1], now)
            case Service():
                self._on_service(key, change.typed(Service)[1], now)
            case Pod():
                old, new = change.typed(Pod)
                touched = self._refusals.on_pod(key, _own_addresses(old), _own_addresses(new))
            case ServiceCIDR() as cidr:
                cidrs = tuple(cidr.spec.cidrs or ()) if change.new is not None else ()
                touched = self._refusals.on_range(f"the cluster IPs of ServiceCIDR {cidr.metadata.name}", cidrs)
            case Node() as node:
                own = node.spec.pod_cidrs or ((node.spec.pod_cidr,) if node.spec.pod_cidr else ())
                touched = self._refusals.on_range(
                    f"the Pods of Node {node.metadata.name}", own if change.new is not None else ()
                )
            case account:  # a ServiceAccount
                agent = _agent_of(account)
                annotations = account.metadata.annotations or {} if change.new is not None else {}
                touched = self._refusals.on_account(agent, annotations.get(ANNOTATION_CIDRS))
        for slice_key in touched if self._synced else ():  # then all are looked at
            if slice_key in self._slices:
                self.enqueue(_agent_of(self._slices[slice_key]), now)

    def _on_lease(self, old: Lease | None, new: Lease | None, now: float) -> None:
        lease = new or old
        assert lease is not None, "a change of nothing"
        key = _agent_of(lease)
        touched = self._refusals.on_lease(
            key, None if new is None else (new.metadata.creation_timestamp or "", new.metadata.uid)
        )
        if new is None:
            self._leases.pop(key, None)
            self._lost.pop(key, None)
            self._judge.on_gone(key)
        else:
            self._leases[key] = new
            duration_s = float(new.spec.lease_duration_seconds or LEASE_S)
            if self._judge.on_lease(key, new.metadata.resource_version, duration_s, now):
                self._lost.pop(key, None)
            self._judge.on_services(key, self._refusals.services_of(key))
        self.enqueue(key, now)
        for slice_key in touched:
            self.enqueue(_agent_of(self._slices[slice_key]), now)

    def _on_slice(self, key: str, new: EndpointSlice | None, now: float) -> tuple[str, ...]:
        old = self._slices.pop(key, None)
        if new is not None:
            self._slices[key] = new
        touched = self._refusals.on_slice(key, new)
        for agent in dict.fromkeys(_agent_of(version) for version in (old, new) if version is not None):
            self._judge.on_services(agent, self._refusals.services_of(agent))
            self.enqueue(agent, now)
        return touched

    def _on_service(self, key: str, new: Service | None, now: float) -> None:
        self._services.pop(key, None)
        if new is not None:
            self._services[key] = new
        if self._notices.on_service(key, new):
            held = self._judge.held
            self._judge.release(now)
            for agent in held:
                self.enqueue(agent, now)

    # -- work -------------------------------------------------------------------------------------------

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        if key.startswith(_CONDITION):
            return self._condition_write(key.removeprefix(_CONDITION), now)
        lease = self._leases.get(key)
        if lease is None:
            self._tell_held(now)
            return ()
        for released in self._judge.take_released(now):
            if released != key:
                self.enqueue(released, now)
        lost = self._judge.judge(key, now)
        self._tell_held(now)
        if not lost:
            return self._of_living(key, lease, now)
        if key not in self._lost:
            self._lost[key] = now
            self._losses.value += 1
            self._tell(
                key,
                "AgentLost",
                f"said nothing for {self._judge.silent_s(key, now):.0f} s: its endpoints are withdrawn",
            )
        withdrawals = self._withdrawals(key)
        forget_at = self._lost[key] + self._forget_after_s
        if withdrawals or now < forget_at:
            self.enqueue_after(key, max(0.0, forget_at - now), now)
            return withdrawals
        return (lease_end(lease),)

    def _of_living(self, key: str, lease: Lease, now: float) -> tuple[Write, ...]:
        if self._judge.asks(key, now):
            meta = lease.metadata
            return (
                Write(verb="get", resource=Leases, namespace=meta.namespace, name=meta.name, tolerate=("NotFound",)),
            )  # fmt: skip
        if self._judge.take_probe(key):
            meta = lease.metadata
            return tuple(
                Write(verb="probe", resource=Leases, namespace=meta.namespace, name=meta.name, body=encode(port))
                for port in self._refusals.ports_of(key)
            )
        due = self._judge.due(key, now)
        if due is not None:
            self.enqueue_after(key, max(0.0, due - now), now)
        return self._refusal_writes(key)

    def _withdrawals(self, key: str) -> tuple[Write, ...]:
        writes = (withdrawal(self._slices[slice_key]) for slice_key in self._refusals.slices_of(key))
        return tuple(write for write in writes if write is not None)

    def _refusal_writes(self, key: str) -> tuple[Write, ...]:
        writes = []
        for slice_key in self._refusals.slices_of(key):
            found = self._slices[slice_key]
            why = self._refusals.why(slice_key)
            write = refusal(found, why)
            if write is not None:
                writes.append(write)
            if why and why != shown_refusal(found):
                self._tell(key, "AgentRefused", why)
        return tuple(writes)

    def _tell(self, key: str, reason: str, text: str) -> None:
        """An Event on each Service of the agent."""
        for service_key in self._refusals.services_of(key):
            service = self._services.get(service_key)
            if service is not None:
                self.note(
                    EventNote(
                        regarding=service,
                        regarding_resource=Services,
                        type="Warning",
                        reason=reason,
                        note=f"agent {key.partition('/')[2]}: {text}",
                        component=COMPONENT,
                        action="Withdraw",
                    )
                )

    def _tell_held(self, now: float) -> None:
        for service_key in self._notices.take_outdated():
            self.enqueue(f"{_CONDITION}{service_key}", now)

    def _condition_write(self, service_key: str, now: float) -> tuple[Write, ...]:
        service = self._services.get(service_key)
        condition = self._notices.condition(service_key, now)
        if service is None or condition is None:
            return ()
        meta = service.metadata
        return (condition_write(Services, meta.namespace, meta.name, meta.uid, condition),)

    # -- what became of it ------------------------------------------------------------------------------

    def finished(self, done: Done, now: float) -> None:
        key = done.job.key
        if done.job.writes[0].verb == "probe":
            if done.error is None and not any(done.results):
                self._judge.on_refused(key)
        elif done.error is None or done.error.code in (404, 409):
            self._judge.on_reachable(now)
        elif done.error.code >= 500 or done.error.code == 0:
            self._judge.on_unreachable()
        for write, answer in zip(done.job.writes, done.results, strict=False):
            if write.resource is Services and answer:
                service = decode(answer, Service)
                known = self._services.get(service.metadata.key)
                if known is not None and is_newer(service.metadata, known.metadata):
                    self._on_service(service.metadata.key, service, now)
            elif write.verb == "get" and answer:
                self._judge.on_confirmed(key, decode(answer, Lease).metadata.resource_version, now)
        if done.error is None:  # else the queue's back-off brings it back
            self.enqueue(key, now)

    def check(self) -> None:
        super().check()
        self._judge.check()
        self._refusals.check()
        assert self._lost.keys() <= self._leases.keys(), "lost agents without a Lease"


def _agent_of(labelled: Object) -> str:
    """``namespace/name of the agent``."""
    return f"{labelled.metadata.namespace}/{(labelled.metadata.labels or {}).get(LABEL_AGENT, '')}"


def _own_addresses(pod: Pod | None) -> tuple[str, ...]:
    """Of a Pod that runs in a network of its own."""
    if pod is None or pod.spec.host_network or pod.status.phase in ("Succeeded", "Failed"):
        return ()
    return tuple(address.ip for address in pod.status.pod_ips or ()) or (
        (pod.status.pod_ip,) if pod.status.pod_ip else ()
    )
