"""Decides which of several instances leads: leader election over one Lease, sans-IO.

The Lease says who leads and when they last renewed. Clocks of machines differ, so no instance
compares the Lease's times with its own clock: an instance notes *when it saw the record change* and
takes over only after it has looked at one unchanged record for the lease's whole duration. The
leader in turn stops leading ``renew_deadline_s`` after the *beginning* of its last successful
renewal, which is earlier, as long as clocks run equally fast:

    leader     renewal begins .... renew_deadline ..... (stops its work)
    others            sees it change ............................ lease_duration .... takes over

Every write carries the resourceVersion that it builds on, so of two that try at once one gets a
Conflict. A renewal whose answer was lost is not believed, but may have happened; the next look at
the Lease tells.

The owner performs ``take_request`` and tells how it ended, then looks at ``leading``. Names,
defaults and the record are those of client-go, so that instances of both kinds can share a Lease.
"""

from __future__ import annotations

from math import ceil
from typing import Final, Literal

import msgspec

from sliceplane.api.codec import decode, decode_document, encode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document, Object, ObjectMeta
from sliceplane.api.requests import Verb, Write
from sliceplane.api.scheme import Leases
from sliceplane.kit.rng import Rng
from sliceplane.kit.times import format_micro_time

JITTER_FACTOR: Final = 1.2
#: what a Lease is left with by the instance that releases it, so that the next can take it at once
RELEASED_DURATION_S: Final = 1


class ElectionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """kube-controller-manager's ``--leader-elect-*`` flags.  Raises ``ValueError`` for times that
    cannot work.
    """

    identity: str
    name: str
    namespace: str = "kube-system"
    lease_duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_period_s: float = 2.0

    def __post_init__(self) -> None:
        if self.lease_duration_s < 1:
            raise ValueError(
                f"the lease duration must be at least a second, not {self.lease_duration_s:g} s"
            )
        if self.lease_duration_s <= self.renew_deadline_s:
            raise ValueError(
                f"the lease duration ({self.lease_duration_s:g} s) must be greater than the renew "
                "deadline"
                f" ({self.renew_deadline_s:g} s)"
            )
        if self.renew_deadline_s <= self.retry_period_s * JITTER_FACTOR:
            raise ValueError(
                f"the renew deadline ({self.renew_deadline_s:g} s) must be greater than "
                f"{JITTER_FACTOR} times the retry"
                f" period ({self.retry_period_s:g} s)"
            )
        if self.retry_period_s <= 0:
            raise ValueError(f"the retry period must be positive, not {self.retry_period_s:g} s")


class Election:
    """One instance's part.  Owned by one loop; at most one request is under way."""

    def __init__(self, config: ElectionConfig, rng: Rng) -> None:
        self._config = config
        self._rng = rng
        self._lease: Document | None = None
        #: when this version of the record was observed first
        self._observed_at = 0.0
        #: the next request, and its earliest time; "check" reads the Lease before a release, as a
        #: cancelled renewal has changed it
        self._next: Literal["get", "create", "update", "check", "release"] = "get"
        self._due = 0.0
        self._in_flight: Write | None = None
        self._requested_at = 0.0
        self._until: float | None = None
        self._stopping = False

    # -- state for the owner

    @property
    def holder(self) -> str:
        """The leader by the last observed Lease; "" for none."""
        return str(_spec(self._lease).get("holderIdentity") or "")

    @property
    def lease(self) -> ObjectMeta | None:
        """Metadata of the last observed Lease, for Events about it."""
        return None if self._lease is None else decode(encode(self._lease), Object).metadata

    def leading(self, now: float) -> bool:
        """This instance may work.  Turns false by the clock alone, too."""
        return self._until is not None and now < self._until

    @property
    def ended(self) -> bool:
        """True if ``stop`` was called and no request to the server remains."""
        return self._stopping and self._in_flight is None and self._next not in ("check", "release")

    def next_deadline(self) -> float | None:
        """Returns when ``take_request`` or ``leading`` may change without an answer."""
        if self._in_flight is not None or self.ended:
            return self._until
        return self._due if self._until is None else min(self._due, self._until)

    # -- requests

    def take_request(self, now: float) -> Write | None:
        """Returns the next request for the Lease: a ``get``, a create or an update."""
        if self._until is not None and now >= self._until:
            self._until = None  # over, and no longer the deadline of anything
        if self._in_flight is not None or self.ended or now < self._due:
            return None
        self._requested_at = now
        if self._next in ("get", "check"):
            self._in_flight = self._request("get")
        elif self._next == "release":
            self._in_flight = self._request("update", encode(self._released(now)))
        else:
            verb: Verb = "create" if self._next == "create" else "update"
            self._in_flight = self._request(verb, encode(self._record(now)))
        return self._in_flight

    def _request(self, verb: Verb, body: bytes = b"") -> Write:
        return Write(
            verb=verb,
            resource=Leases,
            namespace=self._config.namespace,
            name="" if verb == "create" else self._config.name,
            body=body,
        )

    def on_answer(self, body: bytes, now: float) -> None:
        """Handles the answer to the request; *body* is the Lease."""
        request = self._in_flight
        self._in_flight = None
        assert request is not None, "an answer to nothing"
        try:
            lease = decode_document(body)
        except (msgspec.DecodeError, StatusError):
            self._retry(now)
            return
        self._observe(lease, now)
        if self._stopping:
            self._end(released=request.verb == "update" and not self.holder)
        elif request.verb == "get":
            self._weigh(now)
        else:
            self._until = self._requested_at + self._config.renew_deadline_s
            self._next = "update"
            self._due = now + self._config.retry_period_s

    def on_error(self, error: StatusError, now: float) -> None:
        """The request failed; after "no answer" a write may have happened all the same."""
        request = self._in_flight
        self._in_flight = None
        assert request is not None, "an error for nothing"
        if self._stopping and request.verb == "update" and error.reason == "Conflict":
            # The renewal that was cancelled at the end has reached the server.
            self._next = "check"
            self._due = now
        elif self._stopping:
            self._end(released=True)  # the record runs out by itself
        elif request.verb == "get" and error.reason == "NotFound":
            self._lease = None
            self._next = "create"
            self._due = now
        elif request.verb != "get" and error.reason in ("Conflict", "AlreadyExists", "NotFound"):
            # Another instance was first, or our own write with a lost answer: the Lease shows
            # which. No hurry for an instance that does not lead.
            self._next = "get"
            self._due = now if self.leading(now) and request.verb == "update" else self._pause(now)
        else:
            self._retry(now)

    def stop(self) -> None:
        """Lead no more; if the Lease is ours, the next request releases it.  Call it when the work
        has ended.
        """
        if self._stopping:
            return
        self._stopping = True
        if self.holder == self._config.identity:
            self._next = "release"
            self._due = 0.0
        else:
            self._next = "get"
        self._until = None

    # -- helpers

    def _end(self, *, released: bool) -> None:
        if released or self.holder != self._config.identity:
            self._next = "get"
        else:
            # a renewal was under way when the end came
            self._next = "release"
            self._due = 0.0

    def _observe(self, lease: Document, now: float) -> None:
        if self._lease is None or _spec(self._lease) != _spec(lease):
            self._observed_at = now
        self._lease = lease

    def _weigh(self, now: float) -> None:
        """Decides from the observed Lease whether this instance may acquire it."""
        spec = _spec(self._lease)
        holder = self.holder
        lasts_s = float(spec.get("leaseDurationSeconds") or self._config.lease_duration_s)
        if not holder or holder == self._config.identity or self._observed_at + lasts_s <= now:
            self._next = "update"
            self._due = now
        else:
            self._until = None  # it is said plainly that another leads
            self._next = "get"
            self._due = self._pause(now)

    def _retry(self, now: float) -> None:
        self._next = "get"
        self._due = self._pause(now)

    def _pause(self, now: float) -> float:
        """The next try; candidates spread theirs, the leader is regular."""
        period = self._config.retry_period_s
        return now + (
            period if self.leading(now) else period * self._rng.uniform(1.0, 1.0 + JITTER_FACTOR)
        )

    def _record(self, now: float) -> Document:
        old = _spec(self._lease)
        moment = format_micro_time(now)
        spec = {
            **old,
            "holderIdentity": self._config.identity,
            "leaseDurationSeconds": ceil(self._config.lease_duration_s),
            "renewTime": moment,
        }
        if old.get("holderIdentity") != self._config.identity:
            spec["acquireTime"] = moment
            spec["leaseTransitions"] = (
                0 if self._lease is None else int(old.get("leaseTransitions") or 0) + 1
            )
        return self._with_spec(spec)

    def _released(self, now: float) -> Document:
        moment = format_micro_time(now)
        spec = {
            **_spec(self._lease),
            "holderIdentity": "",
            "leaseDurationSeconds": RELEASED_DURATION_S,
            "renewTime": moment,
            "acquireTime": moment,
        }
        return self._with_spec(spec)

    def _with_spec(self, spec: Document) -> Document:
        if self._lease is not None:
            return {
                **self._lease,
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "spec": spec,
            }
        metadata = {"name": self._config.name, "namespace": self._config.namespace}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }

    def check(self) -> None:
        assert self._until is None or not self._stopping, (
            f"{self._config.identity} leads and has stopped"
        )
        assert self._next == "get" or self._lease is not None or self._next == "create", (
            f"{self._next} of no Lease"
        )


def _spec(lease: Document | None) -> Document:
    spec = {} if lease is None else lease.get("spec")
    return spec if isinstance(spec, dict) else {}
