"""An agent's Lease in one namespace: whose the name is, when to renew it, and what to write.

**Whose name is it?**  The Lease names the host and this start of the agent. Of the same host: an
earlier start, taken over at once. Of another host: looked at for one duration of the Lease; when it
does not change, it is taken over, and when it does, the name is refused. Times in the Lease are for
people; no clock of another machine is compared.

Every write but the first carries the version that it builds on; one that meets another is followed
by a look. The first is an apply, not a create: rights to create can be bound to a name only where
the request has one. Two that make the Lease at once both succeed, the later one's name stands, and
the earlier one sees it.
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

#: renewals are spread by this part of their period
SPREAD: Final = 0.2
#: seconds until the next write to a server that answered one with another object
WRONG_ANSWER_PAUSE_S: Final = 5.0

T = TypeVar("T", bound=Object)

Ownership = Literal["free", "ours", "watched", "refused"]


class LeaseTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The user's choices: how long a silent agent counts as alive, and whether it takes its name
    from another.
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
    """``host``: stays the same as long as the machine does; ``start``: of this start of the
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
    """Owned by one agent.  ``lease``: the newest version known; ``error``: of the last job, for
    people.
    """

    def __init__(self, config: AgentConfig, namespace: str) -> None:
        self._config = config
        self._namespace = namespace
        self._name = lease_name(config.name)
        self.lease: Lease | None = None
        #: since when it is as it is
        self._changed_at = 0.0
        self.renew_at = 0.0
        self._sent_at = 0.0
        #: the beginning of the last renewal that the server confirmed
        self.renewed_at: float | None = None
        #: a write met another version than expected: the server is asked before the next
        self.read_first = False
        #: of another host's Lease, when it was seen first; and the holder, once it was seen to live
        self._watched_version = ""
        self.refused_by = ""
        #: this start made the Lease: slices that are there are not of an earlier start of this host
        self.is_new = False
        self.error = ""
        #: nothing is written before
        self.paused_until = 0.0

    # -- what is seen

    def on_lease_change(self, old: Lease | None, new: Lease | None, now: float) -> None:
        """A change of the cache.  The end of an earlier Lease is no end of the one that was made
        since.
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
        """To a write of ours.  *spread*: by how much the next renewal is early or late, about 1."""
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
        """The server took *write* and answered with something else: written again at once, it would
        be so for ever.
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

    # -- what follows

    def ownership(self, now: float) -> Ownership:
        """Whose the name is now."""
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
        # The version that was there may be of one that died; the next is of one that lives.
        if version != self._watched_version:
            self.refused_by = holder
        return "refused" if self.refused_by else "watched"

    @property
    def silent_at(self) -> float:
        """When a holder that does not renew until then is believed to be gone."""
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
    """The object of *write* as the server answered it; ``None`` if the answer is another one, or
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
