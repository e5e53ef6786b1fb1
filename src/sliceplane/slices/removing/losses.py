"""Removals that no Pod reported: the endpoints concerned, and the list that confirms their loss.

An informer that is behind, a watch that reports deletions that did not happen, and a truncated list
all look like Pods that are gone. One consistent list of the Pods (and Nodes) concerned
distinguishes them, at the cost of one request. Endpoints stay meanwhile. If the list confirms a
removal, the endpoint is removed at once. If the list refutes it, the endpoint stays and is checked
again; after the second refutation the informer lists anew. This state lasts at most
``CONFIRM_BOUND_S``: a server that cannot be read, or contradicts itself, must not keep endpoints
forever.

A Pod or Node is *lost by an event* if a watch reported its deletion although it had not been
terminating. A forced deletion looks like that, too, so it is confirmed if it is one of many, and
never retained.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from sliceplane.api.core import Pod
from sliceplane.slices.facts import READY, PodFacts

CONFIRM_PAUSE_S: Final = 1.0
CONFIRM_BOUND_S: Final = 30.0
#: seconds after which the annotation of a Namespace is read again
NAMESPACE_S: Final = 60.0
#: number of refutations that prove a cache wrong: a watch that is merely behind has caught up by
#: then
REFUTED_MIN: Final = 2


class ConfirmationQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The reads that must come before endpoints of a Service are removed, and when they are due."""

    due: float
    pods: bool
    nodes: bool
    namespace: bool


class RemovalVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a list. ``relist_pods``, ``relist_nodes``: that cache is wrong."""

    confirmed: int = 0
    refuted: int = 0
    relist_pods: bool = False
    relist_nodes: bool = False


class RemovalConfirmation:
    """The lists that confirm removals of one Service. It is open from the first of many losses
    until all are confirmed or the bound has passed.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._due = 0.0
        self._pods = False
        self._refuted = 0

    def update(self, *, is_mass_removal: bool, unknown: bool, now: float) -> bool:
        """Opens or closes the confirmation. Returns True if it is open."""
        if self._since is None:
            if not is_mass_removal and not unknown:
                return False
            self._since = now
            self._due = now
            self._refuted = 0
        self._pods = self._pods or is_mass_removal
        if now >= self._since + CONFIRM_BOUND_S or not (self._pods or unknown):
            self.close()
        return self._since is not None

    def close(self) -> None:
        self._since = None
        self._pods = False

    @property
    def due(self) -> float | None:
        """The time of the next list; ``None`` if the confirmation is not open."""
        return None if self._since is None else self._due

    @property
    def needs_pods(self) -> bool:
        return self._pods

    def on_list(self, refuted: int, now: float) -> bool:
        """Handles a list that *refuted* this number of removals. Returns True if the informer's
        cache is wrong.
        """
        self._due = now + CONFIRM_PAUSE_S
        self._refuted += bool(refuted)
        return self._refuted >= REFUTED_MIN and refuted > 0

    @property
    def is_first_proof(self) -> bool:
        """True if the last list was the first that proved a cache wrong."""
        return self._refuted == REFUTED_MIN

    def on_failure(self, now: float) -> None:
        self._due = now + CONFIRM_PAUSE_S

    @property
    def deadline(self) -> float | None:
        return None if self._since is None else self._since + CONFIRM_BOUND_S


class EndpointLosses:
    """Endpoints of one Service that were lost although no Pod reported it, each in its last
    version.

    A loss is ``unconfirmed`` first, then ``confirmed`` unless an event reported it. ``retained``
    are the losses of both kinds that stay endpoints.
    """

    __slots__ = ("_by_event", "_retained_at", "confirmed", "retained", "unconfirmed")

    def __init__(self, earlier: EndpointLosses | None = None) -> None:
        """*earlier*: losses of the same Pods, none of which is retained yet."""
        self.unconfirmed: dict[str, PodFacts] = {}
        self.confirmed: dict[str, PodFacts] = {}
        self.retained: set[str] = set()
        #: the unconfirmed losses that an event reported; they are never confirmed
        self._by_event: set[str] = set()
        #: retained Pods by address
        self._retained_at: dict[str, str] = {}
        if earlier is not None:
            self.unconfirmed.update(earlier.unconfirmed)
            self.confirmed.update(earlier.confirmed)
            self._by_event.update(earlier._by_event)

    def __bool__(self) -> bool:
        return bool(self.confirmed or self.unconfirmed)

    def __contains__(self, pod: str) -> bool:
        return pod in self.confirmed or pod in self.unconfirmed

    def __getitem__(self, pod: str) -> PodFacts:
        return self.confirmed[pod] if pod in self.confirmed else self.unconfirmed[pod]

    @property
    def may_be_confirmed(self) -> bool:
        """True if unconfirmed losses may be retained once they are confirmed."""
        return len(self.unconfirmed) > len(self._by_event)

    def add(self, pod: str, facts: PodFacts, *, by_event: bool) -> None:
        self.unconfirmed[pod] = facts
        if by_event:
            self._by_event.add(pod)

    def confirm(self, pod: str) -> bool:
        """Confirms the loss of *pod*. Returns False if an event reported it, so that it must be
        removed.
        """
        if pod in self._by_event:
            return False
        self.confirmed[pod] = self.unconfirmed.pop(pod)
        return True

    def retain(self) -> tuple[PodFacts, ...]:
        """Retains all losses. Returns those that were not retained before."""
        lost = (*self.unconfirmed.items(), *self.confirmed.items())
        added = tuple([facts for name, facts in lost if name not in self.retained])
        for facts in added:
            self.retained.add(facts.name)
            self._retained_at.update((ip, facts.name) for ip in facts.pod.status.ips)
        return added

    def forget(self, pod: str) -> None:
        """Forgets the loss of *pod*, which is back or must be removed."""
        facts = self.confirmed.pop(pod, None) or self.unconfirmed.pop(pod, None)
        self._by_event.discard(pod)
        if facts is not None and pod in self.retained:
            self.retained.discard(pod)
            for ip in facts.pod.status.ips:
                if self._retained_at.get(ip) == pod:
                    del self._retained_at[ip]

    def retained_at(self, addresses: Iterable[str]) -> tuple[str, ...]:
        """Returns the retained Pods that have one of *addresses*."""
        names = (self._retained_at.get(address) for address in addresses)
        return tuple(dict.fromkeys(pod for pod in names if pod is not None))

    def check(self) -> None:
        lost = self.confirmed.keys() | self.unconfirmed.keys()
        assert self.retained <= lost, f"{self.retained - lost} were not lost"
        assert self._by_event <= self.unconfirmed.keys(), (
            f"{self._by_event} are not all unconfirmed"
        )


def confirms_removal(lost: PodFacts, listed: Pod | None) -> bool:
    """Returns True if the Pod that was *lost* takes no traffic according to a fresh list."""
    if listed is None or listed.metadata.uid != lost.pod.metadata.uid:
        return True
    facts = PodFacts(listed)
    return facts.excluded or facts.readiness != READY
