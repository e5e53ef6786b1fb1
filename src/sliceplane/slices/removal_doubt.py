"""Whether what a mass removal rests on was read again: before many endpoints go that no Pod told, a
list confirms it.

An informer that is behind, a watch that tells of deletions which did not happen and a list that was
cut short look like Pods that are gone. One consistent list of the Pods (and Nodes) concerned tells
them apart for a request. Endpoints stay meanwhile. What the list bears out goes on at once; what it
refutes stays and is asked about again, and when it is refuted twice the informer lists anew.
Nothing stays so for longer than ``CONFIRM_BOUND_S``: a server that cannot be read, or contradicts
itself, must not keep endpoints for ever.

*Lost by an event* is a Pod or a Node that a watch told to be deleted without having told before
that it goes. That is what a forced deletion looks like too, so it is confirmed when it is one of
many, and never held.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sliceplane.api.core import Pod
from sliceplane.slices.facts import READY, PodFacts

CONFIRM_PAUSE_S: Final = 1.0
CONFIRM_BOUND_S: Final = 30.0
#: what a Namespace asks for is read again after this
NAMESPACE_S: Final = 60.0
#: a watch that is merely behind has caught up when the second list is there
REFUTED_MIN: Final = 2


class RemovalQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be read of a Service before its endpoints go, and from when on."""

    due: float
    pods: bool
    nodes: bool
    namespace: bool


class RemovalVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """``relist_...``: that cache is wrong."""

    confirmed: int = 0
    refuted: int = 0
    relist_pods: bool = False
    relist_nodes: bool = False


class RemovalDoubt:
    """Of one Service.  Open from the first loss of many until all are confirmed, or the bound has
    passed.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._due = 0.0
        self._pods = False
        self._refuted = 0

    def weigh(self, *, many: bool, unknown: bool, now: float) -> bool:
        """Whether it is open."""
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
        """When it is time to read; ``None``: it is not open."""
        return None if self._since is None else self._due

    @property
    def asks_pods(self) -> bool:
        return self._pods

    def on_answer(self, refuted: int, now: float) -> bool:
        """How many a list *refuted*.  True: it is the cache that is wrong."""
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


def bears_out(lost: PodFacts, listed: Pod | None) -> bool:
    """Whether a fresh list says of a Pod that was *lost* that it takes no traffic."""
    if listed is None or listed.metadata.uid != lost.pod.metadata.uid:
        return True
    facts = PodFacts(listed)
    return facts.excluded or facts.answers != READY
