"""The established connections that a drain waits for once no node sends new ones (``--until-idle``).

Nodes count them on request (``consume.flow_counts``). **Sound:** a Pod is part of a request only
after its barrier was proven, and a node begins to count when its kernel has applied the slice with
the request. So the count begins after the last new connection, and a Pod without connections then
has none later. If the barrier is not proven any more, or has another goal, earlier counts are void.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from sliceplane.consume.drain.answer import DrainVerdict, Missing, OpenConnections
from sliceplane.consume.drain.barrier import ASK_PERIOD_S, FORGET_S, ConsumerState
from sliceplane.consume.flow_counts import KEPT_S, TARGETS_MAX, FlowTarget, write_request
from sliceplane.consume.progress import Scope

#: seconds after which a request is repeated: so that nodes retain it; and while one has not answered
RENEW_S: Final = KEPT_S / 3
REPEAT_S: Final = 5.0


class IdleWait:
    """Owned by one drain. Times are seconds since the epoch."""

    def __init__(self) -> None:
        #: by Pod whose barrier is proven; no target: nodes send it nothing
        self._targets: dict[str, tuple[FlowTarget, ...]] = {}
        self._goals: dict[str, Mapping[Scope, int]] = {}
        #: Pods by nonce of a request, the newest last
        self._requests: dict[str, frozenset[str]] = {}
        #: the number of times that the newest was sent, and when it was last
        self._sent = 0
        self._sent_at = -math.inf
        self._is_unanswered = False

    def begin(self, key: str, goal: Mapping[Scope, int], targets: tuple[FlowTarget, ...]) -> None:
        """Notes that the barrier of the Pod *key* is proven for *goal*; its first *targets*
        count.
        """
        if self._goals.get(key) != goal:
            self.forget(key)
            self._goals[key], self._targets[key] = dict(goal), targets

    def forget(self, key: str) -> None:
        """Notes that the barrier is not proven, any more or yet."""
        if self._targets.pop(key, None) is not None:
            del self._goals[key]
            self._requests = {
                nonce: pods - {key} for nonce, pods in self._requests.items() if pods - {key}
            }

    def judge(
        self,
        key: str,
        verdict: DrainVerdict,
        nodes: Iterable[ConsumerState],
        now: float,
        *,
        forget_s: float = FORGET_S,
    ) -> DrainVerdict:
        """Returns *verdict*, which is proven, or the connections that are open. Call ``begin``
        before.
        """
        texts = tuple(target.text for target in self._targets[key])
        verdict = replace(verdict, targets=texts)
        if not texts:
            return verdict
        uncounted: list[Missing] = []
        open_connections: list[OpenConnections] = []
        for node in nodes:
            silent_s = now - node.until
            if node.kind or node.flows is None or node.applied is None or silent_s > forget_s:
                continue
            counts = self._counts(key, node.flows)
            if counts is None:
                why = "its proxy stopped reporting" if silent_s > 0 else ""
                uncounted.append(Missing(node.name, why))
                continue
            count = sum(counts.get(text, 0) for text in texts)
            if count:
                open_connections.append(OpenConnections(node.name, count))
        if not uncounted and not open_connections:
            return verdict
        self._is_unanswered |= bool(uncounted)
        return replace(
            verdict,
            state="open",
            waiting=tuple(sorted(uncounted)),
            open=tuple(sorted(open_connections)),
        )

    def _counts(self, key: str, flows: Mapping[str, Mapping[str, int]]) -> Mapping[str, int] | None:
        """Returns a node's answer to the newest request that has the Pod; ``None``: there is
        none.
        """
        for nonce in reversed(self._requests):
            if key in self._requests[nonce] and nonce in flows:
                return flows[nonce]
        return None

    def take_request(self, nonce: str, waiting: Collection[str], now: float) -> str:
        """Returns the request to send now for the Pods that are *waiting*, not idle, "" if none is
        due. Call after ``judge`` of all of them. *nonce*: the name of the request if it is a new
        one.
        """
        is_unanswered, self._is_unanswered = self._is_unanswered, False
        pods = self._next_pods(waiting)
        if not pods or now - self._sent_at < ASK_PERIOD_S:
            return ""
        newest = next(reversed(self._requests), "")
        if not newest or not self._requests[newest] >= pods:
            self._requests[nonce] = pods
            newest, self._sent = nonce, 0
        elif now - self._sent_at < (REPEAT_S if is_unanswered else RENEW_S):
            return ""
        self._sent += 1
        self._sent_at = now
        targets = [
            target for key in sorted(self._requests[newest]) for target in self._targets[key]
        ]
        return write_request(newest, self._sent, targets)

    def _next_pods(self, waiting: Collection[str]) -> frozenset[str]:
        """Returns the first *waiting* Pods whose targets fit into one request."""
        pods: list[str] = []
        count = 0
        for key, targets in self._targets.items():
            if key not in waiting or not targets:
                continue
            count += len(targets)
            if count > TARGETS_MAX:
                break
            pods.append(key)
        return frozenset(pods)
