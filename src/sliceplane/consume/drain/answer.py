"""The answer of a drain: values for programs, and the condition of a Pod. ``text`` formats it for
users.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import msgspec

#: the condition of a Pod, and its gate for readiness that ``sliceplane drain`` closes
CONDITION: Final = "sliceplane.dev/Drained"
GATE: Final = "sliceplane.dev/serving"
#: nodes that a sentence names
NAMED_MAX: Final = 3
#: why nothing is known of a node that has no Lease
NEVER_REPORTED: Final = "it never reported"
#: why a node that reports is unknown to a drain that waits until Pods are idle
CANNOT_COUNT: Final = "it counts no connections"

#: ``not idle``: no node sends new connections, but established ones are open after the time-out
Outcome = Literal["drained", "not idle", "time over", "cannot know"]
#: of all Pods together: also that nothing was marked, or all marks were taken back, to protect a
#: Service (``refused``), and that a dry run had no objection (``planned``)
DrainOutcome = Literal["drained", "not idle", "time over", "cannot know", "refused", "planned"]


class Use(NamedTuple):
    """A Service for which kernels use the Pod, and why: ``ready``, ``nobody else`` (is ready), or
    ``nobody local``.
    """

    service: str
    family: str
    why: str

    @property
    def text(self) -> str:
        match self.why:
            case "ready":
                return f"{self.service} ({self.family}): a slice still says ready"
            case "nobody local":
                return (
                    f"{self.service} ({self.family}): no other Pod on its node is ready, and the "
                    "policy is Local"
                )
        return (
            f"{self.service} ({self.family}): no other Pod is ready, so it is used as long as it "
            "serves"
        )


class Missing(NamedTuple):
    """A node or another consumer that has not applied the goal, and why."""

    node: str
    why: str

    @property
    def text(self) -> str:
        return f"{self.node} ({self.why})" if self.why else self.node


class OpenConnections(NamedTuple):
    """A node, and the number of established connections to a Pod that it tracks."""

    node: str
    connections: int


#: ``open``: no node sends new connections, but some track established ones, or are still counting
State = Literal["used", "waiting", "unknown", "open", "proven"]


class DrainVerdict(msgspec.Struct, frozen=True):
    """The state of one barrier at one moment. ``let_go``: unknown nodes that the policy ignores;
    ``revision``: the highest revision that a node had to apply. ``open``: established connections
    to ``targets``, addresses of the Pod; ``waiting`` has the nodes that did not count them yet.
    """

    state: State
    uses: tuple[Use, ...] = ()
    waiting: tuple[Missing, ...] = ()
    unknown: tuple[Missing, ...] = ()
    let_go: tuple[Missing, ...] = ()
    revision: int = 0
    required: int = 0
    others: int = 0
    unacknowledged: tuple[Missing, ...] = ()
    open: tuple[OpenConnections, ...] = ()
    targets: tuple[str, ...] = ()


class PortImpact(NamedTuple):
    """Ready endpoints of a Service's port in one address family: ``ready`` now, ``left`` of them
    without the Pods.

    ``nodes``: the Nodes that keep none, where a policy ``Local`` uses no other Node's.
    """

    service: str
    port: str
    family: str
    ready: int
    left: int
    nodes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return (
            f"{self.service} {self.port} ({self.family})"
            if self.port
            else f"{self.service} ({self.family})"
        )


class DrainedPod(NamedTuple):
    """``took_s``: from the mark.  ``gone``: the Pod itself vanished meanwhile, or was deleted at
    the end.
    """

    pod: str
    outcome: Outcome
    verdict: DrainVerdict
    took_s: float
    gone: bool = False


class DrainPlan(msgspec.Struct, frozen=True):
    """The state before the first mark: the effect on Services, and what could not be read."""

    what: str
    pods: tuple[str, ...]
    services: tuple[PortImpact, ...]
    unknown: tuple[Missing, ...]
    #: what could not be read, a phrase each
    unreadable: tuple[str, ...]


class DrainAnswer(msgspec.Struct, frozen=True):
    """The answer. ``not_covered``: clients that may still send; ``unreadable``: what could not be
    read, a phrase each.

    ``refused``: why nothing was marked, or all marks were taken back, although time was left.
    ``taken_back``: Pods without their marks again; ``marked``: Pods that should be and still have
    them.
    """

    what: str
    pods: tuple[DrainedPod, ...]
    nodes: int
    not_covered: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    services: tuple[PortImpact, ...] = ()
    refused: str = ""
    taken_back: tuple[str, ...] = ()
    marked: tuple[str, ...] = ()
    is_dry_run: bool = False
    #: the controller of the slices ignores marks, so Pods were removed first
    ignores_marks: bool = False

    @property
    def outcome(self) -> DrainOutcome:
        """``refused``, or the worst of the Pods' outcomes."""
        if self.refused:
            return "refused"
        if self.is_dry_run:
            return "planned"
        outcomes = {pod.outcome for pod in self.pods}
        worst_first: tuple[Outcome, ...] = ("time over", "cannot know", "not idle")
        return next((outcome for outcome in worst_first if outcome in outcomes), "drained")

    def as_document(self) -> dict[str, Any]:
        """The answer as plain data, for JSON."""
        return {
            "what": self.what,
            "outcome": self.outcome,
            "nodes": self.nodes,
            "pods": [
                {
                    "pod": pod.pod,
                    "outcome": pod.outcome,
                    "gone": pod.gone,
                    "milliseconds": round(pod.took_s * 1000),
                    "revision": pod.verdict.revision,
                    "otherConsumers": pod.verdict.others,
                    "usedBy": [use._asdict() for use in pod.verdict.uses],
                    "waitingFor": [missing._asdict() for missing in pod.verdict.waiting],
                    "unknown": [missing._asdict() for missing in pod.verdict.unknown],
                    "unknownLetGo": [missing._asdict() for missing in pod.verdict.let_go],
                    "unacknowledged": [missing._asdict() for missing in pod.verdict.unacknowledged],
                    "establishedConnections": [each._asdict() for each in pod.verdict.open],
                }
                for pod in self.pods
            ],
            "services": [impact._asdict() for impact in self.services],
            "refused": self.refused,
            "takenBack": list(self.taken_back),
            "stillMarked": list(self.marked),
            "notCovered": list(self.not_covered),
            "notLookedAt": list(self.unreadable),
            "markIgnored": self.ignores_marks,
        }


class UndoAnswer(msgspec.Struct, frozen=True):
    """Pods whose marks were taken away, and Pods that keep them."""

    what: str
    taken_back: tuple[str, ...]
    marked: tuple[str, ...]

    @property
    def outcome(self) -> DrainOutcome:
        return "cannot know" if self.marked else "drained"

    def as_document(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "takenBack": list(self.taken_back),
            "stillMarked": list(self.marked),
        }


def named(missing: tuple[Missing, ...]) -> str:
    """Returns the first few, and the number of further ones."""
    more = len(missing) - NAMED_MAX
    return ", ".join(node.text for node in missing[:NAMED_MAX]) + (
        f" and {more} more" if more > 0 else ""
    )


def sentence(pod: DrainedPod) -> str:
    verdict = pod.verdict
    took = f"{pod.took_s * 1000:.0f} ms" if pod.took_s < 10 else f"{pod.took_s:.0f} s"
    match pod.outcome:
        case "drained":
            count = max(verdict.required - len(verdict.let_go), 0)
            nodes = "1 node" if count == 1 else f"{count} nodes"
            nodes += f" and {verdict.others} more that told" if verdict.others else ""
            nodes += " holds" if count == 1 and not verdict.others else " hold"
            if not count and not verdict.others:
                nodes = "no node is known to hold"
            let_go = f"; not known of {named(verdict.let_go)}" if verdict.let_go else ""
            let_go += (
                f"; not acknowledged: {named(verdict.unacknowledged)}"
                if verdict.unacknowledged
                else ""
            )
            gone = "; no connection is established" if verdict.targets else ""
            gone += "; the Pod is gone" if pod.gone else ""
            return (
                f"drained: {nodes} version {verdict.revision} or later, after {took}{let_go}{gone}"
            )
        case "cannot know":
            return f"cannot know: nothing is known of {named(verdict.unknown)}"
        case "not idle":
            return f"not idle after {took}: no new connections, but {open_text(verdict)}"
    if verdict.uses:
        return f"not drained after {took}: {'; '.join(use.text for use in verdict.uses)}"
    unknown = f"; nothing is known of {named(verdict.unknown)}" if verdict.unknown else ""
    return f"not drained after {took}: waiting for {named(verdict.waiting)}{unknown}"


def open_text(verdict: DrainVerdict) -> str:
    """Returns the established connections by node, the most first, and the silent nodes."""
    nodes = sorted(verdict.open, key=lambda each: (-each.connections, each.node))
    total = sum(each.connections for each in nodes)
    where = ", ".join(f"{each.node} {each.connections}" for each in nodes[:NAMED_MAX])
    more = f" and {len(nodes) - NAMED_MAX} more" if len(nodes) > NAMED_MAX else ""
    connections = "1 established connection" if total == 1 else f"{total} established connections"
    on_nodes = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    counted = f"{connections} to {', '.join(verdict.targets)} on {on_nodes}: {where}{more}"
    uncounted = f"connections on {named(verdict.waiting)} that are not counted yet"
    parts = (counted if nodes else "", uncounted if verdict.waiting else "")
    return ", and ".join(filter(None, parts))


def message(verdict: DrainVerdict, took_s: float) -> str:
    """Returns the message of the condition: revision, nodes, milliseconds."""
    text = f"revision {verdict.revision}, {verdict.required} nodes, {took_s * 1000:.0f} ms"
    text += f"; not known of {named(verdict.let_go)}" if verdict.let_go else ""
    return text + (
        f"; not acknowledged: {named(verdict.unacknowledged)}" if verdict.unacknowledged else ""
    )
