"""Removals that no Pod reported: the endpoints concerned, and the list that confirms their loss.

An informer that is behind, a watch that reports deletions which did not happen and a list that was
cut short look like Pods that are gone. One consistent list of the Pods (and Nodes) concerned tells
them apart for a request. Endpoints stay meanwhile. If the list confirms a removal, it proceeds at
once; if the list refutes it, the endpoint stays and is checked again, and after the second
refutation the informer lists anew. Nothing stays so for longer than ``CONFIRM_BOUND_S``: a server
that cannot be read, or contradicts itself, must not keep endpoints for ever.

*Lost by an event* is a Pod or a Node whose deletion a watch reported although the Pod or Node had
not been terminating before. A forced deletion looks like that too, so it is confirmed when it is
one of many, and never retained.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from sliceplane.api.core import Pod
from sliceplane.slices.facts import READY, PodFacts

CONFIRM_PAUSE_S: Final = 1.0
CONFIRM_BOUND_S: Final = 30.0
#: the annotation of a Namespace is read again after this
NAMESPACE_S: Final = 60.0
#: a watch that is merely behind has caught up when the second list is there
REFUTED_MIN: Final = 2


class RemovalQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Reads that are needed before endpoints of a Service go, and when they are due."""

    due: float
    pods: bool
    nodes: bool
    namespace: bool


class RemovalVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a list. ``relist_...``: that cache is wrong."""

    confirmed: int = 0
    refuted: int = 0
    relist_pods: bool = False
    relist_nodes: bool = False


class RemovalConfirmation:
    """The lists that confirm removals of one Service. It is open from the first loss of many until
    all are confirmed, or the bound has passed.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._due = 0.0
        self._pods = False
        self._refuted = 0

    def update(self, *, many: bool, unknown: bool, now: float) -> bool:
        """Opens or closes it, and returns True if it is open."""
        if self._since is None:
            if not many and not unknown:
                return False
            self._since = now
            self._due = now
            self._refuted = 0
        self._pods = self._pods or many
        if now >= self._since + CONFIRM_BOUND_S or not (self._pods or unknown):
            self.close()
        return self._since is not None

    def close(self) -> None:
        self._since = None
        self._pods = False

    @property
    def due(self) -> float | None:
        """When the next list is due; ``None``: it is not open."""
        return None if self._since is None else self._due

    @property
    def asks_pods(self) -> bool:
        return self._pods

    def on_answer(self, refuted: int, now: float) -> bool:
        """A list *refuted* so many removals. Returns True if the informer's cache is wrong."""
        self._due = now + CONFIRM_PAUSE_S
        self._refuted += bool(refuted)
        return self._refuted >= REFUTED_MIN and refuted > 0

    @property
    def first_proof(self) -> bool:
        """The last answer was the first that shows a cache to be wrong."""
        return self._refuted == REFUTED_MIN

    def on_failure(self, now: float) -> None:
        self._due = now + CONFIRM_PAUSE_S

    @property
    def deadline(self) -> float | None:
        return None if self._since is None else self._since + CONFIRM_BOUND_S


class EndpointLosses:
    """Endpoints of one Service that were lost although no Pod reported it, each as it was.

    A loss is ``unconfirmed`` first, then ``confirmed`` unless an event reported it. ``retained``
    are those of both that stay endpoints.
    """

    __slots__ = ("_by_event", "_retained_at", "confirmed", "retained", "unconfirmed")

    def __init__(self, earlier: EndpointLosses | None = None) -> None:
        """*earlier*: losses of the same Pods, of which none is retained yet."""
        self.unconfirmed: dict[str, PodFacts] = {}
        self.confirmed: dict[str, PodFacts] = {}
        self.retained: set[str] = set()
        #: the unconfirmed ones that an event reported; they are never confirmed
        self._by_event: set[str] = set()
        #: address -> Pod, of retained ones
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
        """Some of the unconfirmed may be retained once they are confirmed."""
        return len(self.unconfirmed) > len(self._by_event)

    def add(self, pod: str, facts: PodFacts, *, by_event: bool) -> None:
        self.unconfirmed[pod] = facts
        if by_event:
            self._by_event.add(pod)

    def confirm(self, pod: str) -> bool:
        """Moves *pod* to the confirmed ones. False: an event reported it, so it must go."""
        if pod in self._by_event:
            return False
        self.confirmed[pod] = self.unconfirmed.pop(pod)
        return True

    def retain(self) -> tuple[PodFacts, ...]:
        """All losses stay endpoints. Returns those that were not retained before."""
        lost = (*self.unconfirmed.items(), *self.confirmed.items())
        added = tuple([facts for name, facts in lost if name not in self.retained])
        for facts in added:
            self.retained.add(facts.name)
            self._retained_at.update((ip, facts.name) for ip in facts.pod.status.ips)
        return added

    def forget(self, pod: str) -> None:
        """*pod* is not lost, or must go."""
        facts = self.confirmed.pop(pod, None) or self.unconfirmed.pop(pod, None)
        self._by_event.discard(pod)
        if facts is not None and pod in self.retained:
            self.retained.discard(pod)
            for ip in facts.pod.status.ips:
                if self._retained_at.get(ip) == pod:
                    del self._retained_at[ip]

    def retained_at(self, addresses: Iterable[str]) -> tuple[str, ...]:
        """Retained Pods that have one of *addresses*."""
        found = (self._retained_at.get(address) for address in addresses)
        return tuple(dict.fromkeys(pod for pod in found if pod is not None))

    def check(self) -> None:
        lost = self.confirmed.keys() | self.unconfirmed.keys()
        assert self.retained <= lost, f"{self.retained - lost} were not lost"
        assert self._by_event <= self.unconfirmed.keys(), (
            f"{self._by_event} are not all unconfirmed"
        )


def confirms_removal(lost: PodFacts, listed: Pod | None) -> bool:
    """Returns True if the Pod that was *lost* takes no traffic, as a fresh list shows it."""
    if listed is None or listed.metadata.uid != lost.pod.metadata.uid:
        return True
    facts = PodFacts(listed)
    return facts.excluded or facts.answers != READY
