"""Clients that read, watch and write Endpoints, by the lines of an audit log (``audit.k8s.io``
Events).

A *client* is a user together with the program in its User-Agent. Clients of the control plane are
omitted: working on Endpoints is their task, or they read objects of every kind. Refused requests
(401, 403) are not evidence that a client depends on an answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from sliceplane.api.meta import Projection

#: clients, and objects of one client, that are counted one by one
CLIENTS_MAX: Final = 10_000
OBJECTS_MAX: Final = 100
_READS: Final = ("get", "list", "watch")
_WRITES: Final = ("create", "update", "patch", "delete", "deletecollection")
_ACCOUNT: Final = "system:serviceaccount:kube-system:"
CONTROL_PLANE: Final = frozenset(
    (
        *("system:kube-controller-manager", "system:apiserver"),
        *(
            f"{_ACCOUNT}{name}"
            for name in ("endpoint-controller", "endpointslicemirroring-controller")
        ),
        *(f"{_ACCOUNT}{name}" for name in ("generic-garbage-collector", "namespace-controller")),
        f"{_ACCOUNT}resourcequota-controller",
    )
)
OWN_AGENT: Final = "sliceplane"

# Members of audit.k8s.io Events that every version has


class WireUser(Projection, frozen=True, kw_only=True):
    username: str = ""


class WireObject(Projection, frozen=True, kw_only=True):
    resource: str = ""
    namespace: str = ""
    name: str = ""
    api_group: str = ""


class WireAnswer(Projection, frozen=True, kw_only=True):
    code: int = 0


class WireAuditEvent(Projection, frozen=True, kw_only=True):
    stage: str = ""
    verb: str = ""
    user: WireUser | None = None
    impersonated_user: WireUser | None = None
    user_agent: str = ""
    object_ref: WireObject | None = None
    response_status: WireAnswer | None = None
    stage_timestamp: str = ""
    request_received_timestamp: str = ""


_events = msgspec.json.Decoder(WireAuditEvent)


@dataclass(slots=True)
class EndpointsClient:
    """``everywhere``, ``namespaces``: the scopes that it listed or watched; ``objects``: read by
    name (``namespace/name``). ``more_objects``: there were more than are kept.
    """

    user: str
    agent: str
    requests: dict[str, int] = field(default_factory=dict)
    everywhere: bool = False
    namespaces: set[str] = field(default_factory=set)
    objects: set[str] = field(default_factory=set)
    more_objects: bool = False
    last: str = ""

    @property
    def reads(self) -> bool:
        return self.everywhere or self.more_objects or bool(self.namespaces or self.objects)

    def on_request(self, verb: str, namespace: str, name: str, requests: int) -> None:
        self.requests[verb] = self.requests.get(verb, 0) + requests
        if verb not in _READS:
            return
        if name:
            self._read(f"{namespace}/{name}")
        elif namespace:
            if len(self.namespaces) < OBJECTS_MAX:
                self.namespaces.add(namespace)
            else:
                self.everywhere = True
        else:
            self.everywhere = True

    def _read(self, key: str) -> None:
        if len(self.objects) < OBJECTS_MAX:
            self.objects.add(key)
        elif key not in self.objects:
            self.more_objects = True


@dataclass(slots=True)
class AuditLogUsage:
    """The usage of Endpoints by an audit log. ``begins``, ``ends``: RFC 3339, "" without a line."""

    lines: int = 0
    unreadable: int = 0
    begins: str = ""
    ends: str = ""
    #: requests of clients beyond ``CLIENTS_MAX``
    overflow: int = 0
    _clients: dict[tuple[str, str], EndpointsClient] = field(default_factory=dict)

    def on_line(self, line: bytes) -> None:
        if not line.strip():
            return
        self.lines += 1
        try:
            event = _events.decode(line)
        except (ValueError, RecursionError):
            self.unreadable += 1
            return
        time = event.stage_timestamp or event.request_received_timestamp
        if not (event.verb and event.stage and time):
            # JSON of another kind: a log without any request must not pass as one without readers.
            self.unreadable += 1
            return
        self.begins = min(self.begins or time, time)
        self.ends = max(self.ends, time)
        if _concerns(event):
            self._count(event, time)

    def _count(self, event: WireAuditEvent, time: str) -> None:
        account = event.impersonated_user or event.user
        user = account.username if account is not None else ""
        agent = event.user_agent.partition("/")[0].strip()
        if user in CONTROL_PLANE or agent == OWN_AGENT:
            return
        client = self._clients.get((user, agent))
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                self.overflow += 1
                return
            client = self._clients[user, agent] = EndpointsClient(user, agent)
        assert event.object_ref is not None, "an event that counts names its object"
        # A watch counts when it begins; one that began before the log only has its end in it.
        requests = 0 if event.verb == "watch" and event.stage == "ResponseComplete" else 1
        client.on_request(event.verb, event.object_ref.namespace, event.object_ref.name, requests)
        client.last = max(client.last, time)

    @property
    def clients(self) -> tuple[EndpointsClient, ...]:
        """Returns the clients by user and program."""
        return tuple(self._clients[key] for key in sorted(self._clients))


def _concerns(event: WireAuditEvent) -> bool:
    """Returns True for an allowed request on Endpoints; a watch has two such lines, others one."""
    target = event.object_ref
    answer = event.response_status
    if target is None or target.resource != "endpoints" or target.api_group:
        return False
    if event.verb not in (*_READS, *_WRITES) or (answer is not None and answer.code in (401, 403)):
        return False
    return event.stage == "ResponseComplete" or (
        event.verb == "watch" and event.stage == "ResponseStarted"
    )
