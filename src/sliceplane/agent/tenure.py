"""An agent's Lease in one namespace: who owns the name, when to renew it, and the writes.

**Ownership**: the holder of the Lease is the host and this start of the agent. A Lease of the same
host is from an earlier start and is taken over immediately. A Lease of another host is observed for
one of its durations: if it does not change, it is taken over; if it does, the name is refused.
Times in the Lease are informational; no clock of another machine is compared.

Every write except the first carries the resource version it builds on; a conflict is followed by a
read. The first write is an apply, not a create: RBAC can bind a create to a name only if the
request has one. If two agents create the Lease at the same time, both succeed, the later one
becomes the holder, and the earlier one observes it.
"""

from __future__ import annotations

from typing import Final, Literal, TypeVar

import msgspec

from sliceplane.api.codec import UNREADABLE, decode, encode
from sliceplane.api.core import Lease
from sliceplane.api.meta import Document, Object, is_newer
from sliceplane.api.requests import Write
from sliceplane.api.scheme import Leases
from sliceplane.consume.agents.registration import (
    LABEL_AGENT,
    LEASE_MAX_S,
    LEASE_MIN_S,
    LEASE_S,
    lease_duration_s,
    lease_name,
)
from sliceplane.kit.times import format_micro_time

#: jitter of renewals as a fraction of their period
SPREAD: Final = 0.2
#: seconds until the next write to a server that answered with another object
WRONG_ANSWER_PAUSE_S: Final = 5.0

T = TypeVar("T", bound=Object)

Ownership = Literal["free", "ours", "watched", "refused"]


class LeaseTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The user's choices: how long a silent agent counts as alive, and whether it takes over its
    name from another host.
    """

    lease_s: float = LEASE_S
    takeover: bool = False

    def __post_init__(self) -> None:
        """Raises ``ValueError``."""
        if not LEASE_MIN_S <= self.lease_s <= LEASE_MAX_S:
            raise ValueError(
                f"a Lease lasts {LEASE_MIN_S:g} s to {LEASE_MAX_S:g} s, not {self.lease_s:g} s"
            )

    @property
    def renew_s(self) -> float:
        """Two renewals may get lost."""
        return self.lease_s / 3


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``host``: identifies the machine and never changes; ``start``: identifies this start of the
    agent.
    """

    name: str
    host: str
    start: str
    terms: LeaseTerms = LeaseTerms()

    @property
    def identity(self) -> str:
        return f"{self.host}_{self.start}"


class Tenure:
    """Owned by one agent. ``lease``: the newest observed version; ``error``: of the last job, for
    users.
    """

    def __init__(self, config: AgentConfig, namespace: str) -> None:
        self._config = config
        self._namespace = namespace
        self._name = lease_name(config.name)
        self.lease: Lease | None = None
        #: when this version was observed
        self._changed_at = 0.0
        self.renew_at = 0.0
        self._sent_at = 0.0
        #: when the last confirmed renewal was sent
        self.renewed_at: float | None = None
        #: a write conflicted: read the Lease before the next write
        self.read_first = False
        #: version of another host's Lease at its first observation; and its holder, once that
        #: proved alive
        self._watched_version = ""
        self.refused_by = ""
        #: this start created the Lease: stored slices are not of an earlier start of this host
        self.is_new = False
        self.error = ""
        #: no writes before this time
        self.paused_until = 0.0

    # -- events

    def on_lease_change(self, old: Lease | None, new: Lease | None, now: float) -> None:
        """Takes a change of the cache. The deletion of an earlier Lease does not delete the current
        one.
        """
        if (
            new is None
            and old is not None
            and self.lease is not None
            and not _is_same_object(old, self.lease)
        ):
            return
        self._on_lease(new, now)

    def on_answer(self, write: Write, answer: bytes, spread: float, now: float) -> None:
        """Takes the answer to our own write. *spread*: factor of the time until the next renewal,
        about 1.
        """
        if write.verb == "delete":
            self.lease = None
            return
        lease = decode_answer(write, answer, Lease) if answer else None
        is_ours = lease is not None and lease.spec.holder_identity == self._config.identity
        if bool(answer) if lease is None else not is_ours and write.verb != "get":
            self.on_wrong_answer(write, now)
            return
        self.read_first = False
        self._on_lease(lease, now)
        if write.verb != "get":
            self.is_new |= write.patch_type == "apply"
            self.renewed_at = self._sent_at
            self.renew_at = self._sent_at + self._config.terms.renew_s * spread

    def on_wrong_answer(self, write: Write, now: float) -> None:
        """Pauses writes after the server answered *write* with another object: an immediate retry
        would repeat that for ever.
        """
        self.error = (
            f"{write.verb} of {write.resource.singular} {write.name}: the server answered with "
            "another object"
        )
        self.paused_until = now + WRONG_ANSWER_PAUSE_S

    def _on_lease(self, lease: Lease | None, now: float) -> None:
        previous = self.lease
        is_same_lease = (
            lease is not None and previous is not None and _is_same_object(lease, previous)
        )
        if (
            is_same_lease
            and lease is not None
            and previous is not None
            and not is_newer(lease.metadata, previous.metadata)
        ):
            return
        self.lease = lease
        self._changed_at = now

    # -- decisions

    def ownership(self, now: float) -> Ownership:
        """Returns who owns the name now."""
        if self.lease is None:
            self.refused_by = ""
            return "free"
        holder = self.lease.spec.holder_identity or ""
        if holder == self._config.identity:
            self.refused_by = ""
            return "ours"
        is_ours = not holder or holder.rpartition("_")[0] == self._config.host
        if is_ours or self._config.terms.takeover or now >= self.silent_at:
            self.refused_by = ""
            self.renew_at = now
            return "ours"
        version = self.lease.metadata.resource_version
        self._watched_version = self._watched_version or version
        # The first version may be from a dead agent; the next one proves a living one.
        if version != self._watched_version:
            self.refused_by = holder
        return "refused" if self.refused_by else "watched"

    @property
    def silent_at(self) -> float:
        """When a holder that has not renewed by then is considered dead."""
        seconds = self.lease.spec.lease_duration_seconds if self.lease is not None else None
        return self._changed_at + lease_duration_s(seconds, self._config.terms.lease_s)

    def is_due(self, now: float) -> bool:
        return self.renew_at <= now

    def is_half_over(self, now: float) -> bool:
        return now - (self.renewed_at or 0.0) > self._config.terms.renew_s / 2

    def read(self) -> Write:
        return Write(
            verb="get",
            resource=Leases,
            namespace=self._namespace,
            name=self._name,
            tolerate=("NotFound",),
        )

    def renewal(self, ownership: Ownership, now: float) -> Write:
        self._sent_at = now
        labels = {LABEL_AGENT: self._config.name}
        spec: Document = {
            "holderIdentity": self._config.identity,
            "leaseDurationSeconds": round(self._config.terms.lease_s),
            "renewTime": format_micro_time(now),
        }
        lease = self.lease
        if ownership == "free" or lease is None:
            spec |= {"acquireTime": format_micro_time(now), "leaseTransitions": 0}
            metadata: Document = {
                "name": self._name,
                "namespace": self._namespace,
                "labels": labels,
            }
            head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            return self._write(encode({**head, "metadata": metadata, "spec": spec}), applies=True)
        if lease.spec.holder_identity != self._config.identity:
            transitions = (lease.spec.lease_transitions or 0) + 1
            spec |= {"acquireTime": format_micro_time(now), "leaseTransitions": transitions}
        precondition = {
            "uid": lease.metadata.uid,
            "resourceVersion": lease.metadata.resource_version,
        }
        return self._write(
            encode({"metadata": {**precondition, "labels": labels}, "spec": spec}), applies=False
        )

    def _write(self, body: bytes, *, applies: bool) -> Write:
        return Write(
            verb="patch",
            resource=Leases,
            namespace=self._namespace,
            name=self._name,
            body=body,
            patch_type="apply" if applies else "merge",
            force=applies,
        )


def decode_answer(write: Write, answer: bytes, kind: type[T]) -> T | None:
    """Returns the object of *write* in the server's *answer*; ``None`` if it is another object, or
    none.
    """
    try:
        stored = decode(answer, kind)
    except UNREADABLE:
        return None
    return (
        stored
        if (stored.metadata.namespace, stored.metadata.name) == (write.namespace, write.name)
        else None
    )


def _is_same_object(one: Lease, other: Lease) -> bool:
    return one.metadata.uid == other.metadata.uid
