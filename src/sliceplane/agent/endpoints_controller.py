"""Withdraws the endpoints of silent agents, and refuses endpoints that are not allowed.

Names decide which Lease and which slices belong to an agent: RBAC binds names, whereas the agent
writes its labels itself (``agent.roster``, ``consume.agents.grants``). A Lease with the label of
another agent counts as missing.

An agent that ``agent.judge`` considers lost is withdrawn in two steps. When its Lease has expired,
its slices become not ready and not serving, with the state ``lost``. ``forget_after_s`` later the
Lease is deleted, and the garbage collector deletes the slices. A laptop that returns in between is
an update, not a new registration. Both writes have the judged versions as preconditions: a renewal
that was not observed yet makes them fail, so the end of an old registration never removes the new
one.

The controller refuses the following, with a sentence in an annotation of the slice, which the agent
handles and displays:

- a slice that does not fit the grant of its agent: another Service in its label, another manager,
  an address outside of the agent's networks. The controller empties it; our own server does not
  admit it (``server.registry.admission.agents``);
- an address of a Pod, of the networks of cluster IPs and of Pods, of a Node or of the API server,
  if the grant names no networks;
- an address and port that another agent registered for the same Service later: the agent with the
  newest Lease keeps it.

Each affected Service reports the agents that a mass expiry retains in a condition
(``agent.notices``). Each retained agent whose grant names its networks is probed once: if all its
ports refuse a connection, it is withdrawn immediately. A probe without an answer proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sliceplane.agent.judge import ABSENT, LeaseJudge
from sliceplane.agent.notices import RetentionNotices
from sliceplane.agent.refusals import AgentRefusals
from sliceplane.agent.roster import AgentRoster
from sliceplane.agent.withdrawal import current_refusal, lease_end, refusal, withdrawal
from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Lease, Node, Pod, Service, ServiceCIDR
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object, is_newer
from sliceplane.api.scheme import (
    EndpointSlices,
    Leases,
    Nodes,
    Pods,
    Roles,
    ServiceAccounts,
    ServiceCIDRs,
    Services,
)
from sliceplane.consume.agents.grants import (
    Marks,
    agent_of_account,
    agent_of_lease,
    lease_misfit,
    read_grant,
)
from sliceplane.consume.agents.registration import LABEL_AGENT, lease_duration_s, lease_name
from sliceplane.consume.model import API_SERVICE
from sliceplane.kit.delays import Backoff
from sliceplane.kit.metrics import Family, Metrics
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import (
    ControllerInfo,
    Done,
    EventNote,
    Selection,
    Write,
    condition_write,
)
from sliceplane.watch.controller.keyed import KeyedController

#: seconds between the loss of an agent and the deletion of its Lease
FORGET_AFTER_S: Final = 600.0
#: of queries about overdue Leases: they must not flood the server, but must notice outages of
#: seconds
BACKOFF: Final = Backoff(base_s=0.2, cap_s=1.0)
COMPONENT: Final = "external-endpoints-controller"
_CONDITION: Final = "condition:"
#: the slice with the addresses of the API servers (kubernetes.io, "The Kubernetes API",
#: "kubernetes.default")
_API_SLICE: Final = str(API_SERVICE)


class ExternalEndpointsController(KeyedController):
    """Keys are ``namespace/name`` of agents, and ``condition:`` with the key of a Service."""

    def __init__(self, *, forget_after_s: float = FORGET_AFTER_S) -> None:
        super().__init__(
            ControllerInfo(
                name=COMPONENT,
                aliases=("external-endpoints",),
                watches=(
                    Selection(Leases, label_selector=LABEL_AGENT),
                    Selection(EndpointSlices),
                    Selection(Services),
                    Selection(Pods),
                    Selection(Roles, label_selector=LABEL_AGENT),
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
        self._roster = AgentRoster()
        #: Leases whose label fits their name
        self._leases: dict[str, Lease] = {}
        self._services: dict[str, Service] = {}
        #: labels and annotations of the agents' Roles and ServiceAccounts, by ``namespace/name``
        #: and resource
        self._marks: dict[str, dict[str, Marks]] = {}
        #: when each lost agent was lost
        self._lost: dict[str, float] = {}
        self._notices = RetentionNotices(self._judge, self._refusals.list_services)
        self._metrics = Metrics()
        self._losses = self._metrics.counter(
            "sliceplane_agents_lost_total", "Agents whose Lease ran out."
        )
        self._metrics.computed(
            "gauge", "sliceplane_agents", "Agents that have a Lease.", lambda: len(self._leases)
        )
        self._metrics.computed(
            "gauge",
            "sliceplane_agents_held",
            "Agents that are silent and whose endpoints stay, since many fell silent together.",
            lambda: len(self._judge.retained),
        )
        self._metrics.computed(
            "gauge",
            "sliceplane_agent_slices_misfit",
            "Slices of agents that do not fit the grant of their account, and are emptied.",
            lambda: self._refusals.misfits,
        )

    def samples(self, now: float) -> tuple[Family, ...]:
        return (*super().samples(now), *self._metrics.families())

    # -- events

    def on_synced(self, now: float) -> None:
        super().on_synced(now)
        for key in dict.fromkeys((*self._leases, *self._refusals.agents)):
            self.enqueue(key, now)
        self._enqueue_outdated_conditions(now)

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
                touched = self._refusals.on_range(
                    f"the cluster IPs of ServiceCIDR {cidr.metadata.name}", cidrs
                )
            case Node() as node:
                touched = self._on_node(node, exists=change.new is not None)
            case granting:  # a Role or a ServiceAccount
                touched = self._on_grant(
                    change.resource, granting, exists=change.new is not None, now=now
                )
        self._enqueue_agents(touched, now)

    def _enqueue_agents(self, slice_keys: Iterable[str], now: float) -> None:
        """Enqueues the agents of *slice_keys*. Before the first sync it does nothing: the sync
        enqueues all agents.
        """
        for key in slice_keys if self._synced else ():
            agent = self._roster.get_agent(key)
            if agent:
                self.enqueue(agent, now)

    def _on_lease(self, old: Lease | None, new: Lease | None, now: float) -> None:
        """Stores a Lease for the agent that its *name* identifies; a Lease with another agent's
        label counts as missing.
        """
        lease = new or old
        assert lease is not None, "a change of nothing"
        agent = agent_of_lease(lease.metadata.name)
        if not agent:
            return
        key = f"{lease.metadata.namespace}/{agent}"
        if new is not None and lease_misfit(agent, new.metadata.name, new.metadata.labels):
            new = None
        touched = self._refusals.on_lease(
            key, None if new is None else (new.metadata.creation_timestamp or "", new.metadata.uid)
        )
        if new is None:
            self._leases.pop(key, None)
            self._on_missing_lease(key, now)
        else:
            self._leases[key] = new
            duration_s = lease_duration_s(new.spec.lease_duration_seconds)
            if self._judge.on_lease(key, new.metadata.resource_version, duration_s, now):
                self._lost.pop(key, None)
            self._judge.on_services(key, self._refusals.list_services(key))
        self.enqueue(key, now)
        self._enqueue_agents(touched, now)

    def _on_missing_lease(self, key: str, now: float) -> None:
        """Judges slices without a Lease like those of a silent agent."""
        if self._refusals.list_slices(key):
            self._judge.on_absent(key, now)
            self._judge.on_services(key, self._refusals.list_services(key))
        else:
            self._lost.pop(key, None)
            self._judge.on_removed(key)

    def _on_slice(self, key: str, new: EndpointSlice | None, now: float) -> tuple[str, ...]:
        self._roster.on_slice(key, new)
        touched = self._attribute(key, now)
        if key == _API_SLICE:
            addresses = [
                address
                for endpoint in (new.endpoints or () if new else ())
                for address in endpoint.addresses
            ]
            touched = (*touched, *self._refusals.on_host("the API server", tuple(addresses)))
        return touched

    def _attribute(self, key: str, now: float) -> tuple[str, ...]:
        """Attributes a slice to its agent. Returns the slices whose verdict may have changed."""
        before, agent = self._roster.attribute(key)
        if not before and not agent:
            return ()
        touched = self._refusals.on_slice(key, agent, self._roster[key] if agent else None)
        for owner in dict.fromkeys(owner for owner in (before, agent) if owner):
            if owner in self._leases:
                self._judge.on_services(owner, self._refusals.list_services(owner))
            else:
                self._on_missing_lease(owner, now)
            self.enqueue(owner, now)
        return touched

    def _on_grant(self, resource: str, granting: Object, *, exists: bool, now: float) -> list[str]:
        """Stores a Role or a ServiceAccount. Returns the slices whose verdict may have changed."""
        meta = granting.metadata
        key = meta.key
        if not agent_of_account(meta.name):
            return []
        marks = self._marks.setdefault(key, {})
        marks.pop(resource, None)
        if exists:
            marks[resource] = Marks(meta.labels or {}, meta.annotations or {})
        elif not marks:
            del self._marks[key]
        grant = read_grant(
            meta.namespace, meta.name, marks.get(Roles.key), marks.get(ServiceAccounts.key)
        )
        agent = f"{meta.namespace}/{agent_of_account(meta.name)}"
        self._refusals.on_grant(agent, grant)
        slice_keys = dict.fromkeys(
            (*self._refusals.list_slices(agent), *self._roster.on_grant(agent, grant))
        )
        return [touched for slice_key in slice_keys for touched in self._attribute(slice_key, now)]

    def _on_node(self, node: Node, *, exists: bool) -> tuple[str, ...]:
        name = node.metadata.name
        networks = node.spec.pod_cidrs or ((node.spec.pod_cidr,) if node.spec.pod_cidr else ())
        addresses = tuple(address.address for address in node.status.addresses or ())
        return (
            *self._refusals.on_range(f"the Pods of Node {name}", networks if exists else ()),
            *self._refusals.on_host(f"Node {name}", addresses if exists else ()),
        )

    def _on_service(self, key: str, new: Service | None, now: float) -> None:
        self._services.pop(key, None)
        if new is not None:
            self._services[key] = new
        if self._notices.on_service(key, new):
            namespace = key.partition("/")[0]
            retained = self._judge.retained_in(namespace)
            self._judge.release(namespace, now)
            for agent in retained:
                self.enqueue(agent, now)

    # -- work

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        if key.startswith(_CONDITION):
            return self._condition_write(key.removeprefix(_CONDITION), now)
        lease = self._leases.get(key)
        if lease is None and not self._refusals.list_slices(key):
            self._enqueue_outdated_conditions(now)
            return ()
        for released in self._judge.take_released(now):
            if released != key:
                self.enqueue(released, now)
        lost = self._judge.judge(key, now)
        self._enqueue_outdated_conditions(now)
        if not lost:
            return self._plan_alive(key, now)
        if key not in self._lost:
            self._lost[key] = now
            self._losses.value += 1
            silent_s = self._judge.silent_s(key, now)
            self._emit_event(
                key, "AgentLost", f"said nothing for {silent_s:.0f} s: its endpoints are withdrawn"
            )
        writes = self._slice_writes(key, lost=True)
        forget_at = self._lost[key] + self._forget_after_s
        if writes or lease is None or now < forget_at:
            if lease is not None:
                self.enqueue_after(key, max(0.0, forget_at - now), now)
            return writes
        return (lease_end(lease),)

    def _plan_alive(self, key: str, now: float) -> tuple[Write, ...]:
        namespace, _, agent = key.partition("/")
        name = lease_name(agent)
        if self._judge.needs_query(key, now):
            return (
                Write(
                    verb="get",
                    resource=Leases,
                    namespace=namespace,
                    name=name,
                    tolerate=("NotFound",),
                ),
            )
        if self._judge.take_probe(key):
            probes = tuple(
                Write(
                    verb="probe", resource=Leases, namespace=namespace, name=name, body=encode(port)
                )
                for port in self._refusals.list_probe_ports(key)
            )
            if probes:
                return probes
        due = self._judge.next_deadline(key, now)
        if due is not None:
            self.enqueue_after(key, max(0.0, due - now), now)
        return self._slice_writes(key, lost=False)

    def _slice_writes(self, key: str, *, lost: bool) -> tuple[Write, ...]:
        writes = []
        for slice_key in self._refusals.list_slices(key):
            stored = self._roster[slice_key]
            reason = self._refusals.find_reason(slice_key)
            is_misfit = self._refusals.is_misfit(slice_key)
            if lost and not is_misfit:
                write = withdrawal(stored)
            else:
                write = refusal(stored, reason, empties=is_misfit)
                if reason and reason != current_refusal(stored):
                    self._emit_event(
                        key,
                        "AgentRefused",
                        reason,
                        (self._refusals.get_granted_service(slice_key),),
                    )
            if write is not None:
                writes.append(write)
        return tuple(writes)

    def _emit_event(self, key: str, reason: str, text: str, services: tuple[str, ...] = ()) -> None:
        """Emits an Event on *services*, or else on each Service of the agent."""
        for service_key in services or self._refusals.list_services(key):
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

    def _enqueue_outdated_conditions(self, now: float) -> None:
        for service_key in self._notices.take_outdated():
            self.enqueue(f"{_CONDITION}{service_key}", now)

    def _condition_write(self, service_key: str, now: float) -> tuple[Write, ...]:
        service = self._services.get(service_key)
        condition = self._notices.condition(service_key, now)
        if service is None or condition is None:
            return ()
        meta = service.metadata
        return (condition_write(Services, meta, condition),)

    # -- results

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
                cached = self._services.get(service.metadata.key)
                if cached is not None and is_newer(service.metadata, cached.metadata):
                    self._on_service(service.metadata.key, service, now)
            elif write.verb == "get":
                self._judge.on_confirmed(key, _version_of(key, answer), now)
        if done.error is None:  # otherwise the queue retries with back-off
            self.enqueue(key, now)

    def check(self) -> None:
        super().check()
        self._judge.check()
        self._refusals.check()
        self._roster.check()
        for key in self._lost:
            assert key in self._leases or self._refusals.list_slices(key), (
                f"{key} is lost and has nothing"
            )


def _version_of(key: str, answer: bytes) -> str:
    """Returns the version of the Lease that the server stores for the agent *key*."""
    if not answer:
        return ABSENT
    meta = decode(answer, Lease).metadata
    misfit = lease_misfit(key.partition("/")[2], meta.name, meta.labels)
    return ABSENT if misfit else meta.resource_version


def _own_addresses(pod: Pod | None) -> tuple[str, ...]:
    """Returns the addresses of a Pod that has its own network namespace."""
    if pod is None or pod.spec.host_network or pod.has_ended:
        return ()
    return pod.status.ips
