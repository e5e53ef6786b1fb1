"""Classification of requests into flows, and the seats of both kinds.

Whose schemas may match depends on the user alone, and is remembered by user; what is left to
compare for a request is one or two rules. The matching of each rule is upstream's
(``pkg/util/flowcontrol/rule.go``). Reads and writes have seats of their own, so that storage which
stands still keeps no client from reading what is in memory. (Upstream adds the two limits up and
makes no difference between them.)
"""

from __future__ import annotations

from collections.abc import Iterable

from sliceplane.kit.metrics import Metrics
from sliceplane.server.fairness.defaults import LEVELS, SCHEMAS
from sliceplane.server.fairness.seats import SchemaTally, Seats
from sliceplane.server.fairness.types import (
    ANY,
    Flow,
    Kind,
    Level,
    PathRule,
    RequestAttributes,
    ResourceRule,
    Schema,
    Subject,
)

_PREFIX = "apiserver_flowcontrol_"
#: users whose schemas are remembered; all are forgotten beyond it
USERS_MAX = 4096
#: characters of the name and groups of one that is remembered; others are matched anew for each
#: request
USER_CHARACTERS_MAX = 1024
_ACCOUNT = "system:serviceaccount:"
_EVERYTHING = (ResourceRule(),), (PathRule(),)


class FlowControl:
    """Owned by the server, as are its parts."""

    def __init__(self, *, reads: int, writes: int) -> None:
        """*reads* and *writes*: how many are worked on at a time."""
        self.classify = Classifier(SCHEMAS, LEVELS).classify
        self._tallies = {schema.name: SchemaTally() for schema in SCHEMAS}
        self.seats: dict[Kind, Seats] = {
            "read": Seats(reads, LEVELS, self._tallies),
            "write": Seats(writes, LEVELS, self._tallies),
        }
        self.metrics = Metrics()
        self._declare()

    def tally(self, schema: str) -> SchemaTally:
        return self._tallies[schema]

    def _declare(self) -> None:
        """Under upstream's names and labels, where upstream has the thing."""
        add = self.metrics.computed
        of_schema = ("priority_level", "flow_schema")
        tallies = [((schema.level, schema.name), self._tallies[schema.name]) for schema in SCHEMAS]
        add(
            "gauge",
            f"{_PREFIX}current_executing_requests",
            "Requests that have a seat.",
            lambda: [(labels, tally.executing) for labels, tally in tallies],
            *of_schema,
        )
        add(
            "gauge",
            f"{_PREFIX}current_inqueue_requests",
            "Requests that wait for a seat.",
            lambda: [(labels, tally.waiting) for labels, tally in tallies],
            *of_schema,
        )
        add(
            "counter",
            f"{_PREFIX}dispatched_requests_total",
            "Requests that got a seat.",
            lambda: [(labels, tally.dispatched) for labels, tally in tallies],
            *of_schema,
        )
        add(
            "gauge",
            f"{_PREFIX}nominal_limit_seats",
            "Seats of a priority level before any are lent, for reads and writes together.",
            lambda: [
                ((level.name,), sum(seats.nominal(level.name) for seats in self.seats.values()))
                for level in LEVELS
            ],
            "priority_level",
        )
        add(
            "counter",
            f"{_PREFIX}rejected_requests_total",
            "Requests that got no seat.",
            lambda: [
                ((*labels, reason), count)
                for labels, tally in tallies
                for reason, count in sorted(tally.refused.items())
            ],
            *(*of_schema, "reason"),
        )
        add(
            "histogram",
            f"{_PREFIX}request_wait_duration_seconds",
            "How long requests waited for a seat; execute says whether they got it.",
            lambda: [
                ((*labels, execute), waits.read())
                for labels, tally in tallies
                if tally.dispatched or tally.refused
                for execute, waits in (("true", tally.waited), ("false", tally.abandoned_waits))
            ],
            *(*of_schema, "execute"),
        )

    def check(self) -> None:
        for seats in self.seats.values():
            seats.check()


class Classifier:
    """Owned by the server.  *schemas* in the order in which they are tried; the last matches
    whatever is left.
    """

    def __init__(self, schemas: Iterable[Schema], levels: Iterable[Level]) -> None:
        by_name = {level.name: level for level in levels}
        self._schemas = tuple((schema, by_name[schema.level]) for schema in schemas)
        #: (name, groups) -> flows that the user's requests may be of, and whether the schema
        #: matches all of them
        self._users: dict[tuple[str, tuple[str, ...]], tuple[tuple[Flow, bool], ...]] = {}

    def classify(self, name: str, groups: tuple[str, ...], attributes: RequestAttributes) -> Flow:
        """The flow of what the user *name* of *groups* asks for."""
        user = (name, groups)
        candidates = self._users.get(user)
        if candidates is None:
            candidates = self._of_user(name, groups)
            if (
                len(name) + sum(map(len, groups)) <= USER_CHARACTERS_MAX
                and len(groups) <= USER_CHARACTERS_MAX
            ):
                if len(self._users) >= USERS_MAX:
                    self._users.clear()
                self._users[user] = candidates
        for flow, always in candidates:
            if always or matches(flow.schema, attributes):
                break
        else:
            schema, level = self._schemas[-1]
            flow = Flow(schema, level, name)
        if flow.schema.distinguisher == "ByNamespace":
            return flow._replace(distinguisher=attributes.namespace)
        return flow

    def _of_user(self, name: str, groups: tuple[str, ...]) -> tuple[tuple[Flow, bool], ...]:
        flows = []
        for schema, level in self._schemas:
            if any(speaks_of(subject, name, groups) for subject in schema.subjects):
                always = (schema.resource_rules, schema.path_rules) == _EVERYTHING
                flows.append(
                    (Flow(schema, level, name if schema.distinguisher == "ByUser" else ""), always)
                )
                if always:
                    break
        return tuple(flows)


def speaks_of(subject: Subject, name: str, groups: tuple[str, ...]) -> bool:
    match subject.kind:
        case "User":
            return subject.name in (ANY, name)
        case "Group":
            return subject.name == ANY or subject.name in groups
        case "ServiceAccount":
            prefix = f"{_ACCOUNT}{subject.namespace}:"
            return name.startswith(prefix) if subject.name == ANY else name == prefix + subject.name


def matches(schema: Schema, attributes: RequestAttributes) -> bool:
    """Returns True if a rule of the schema matches a request by one of its subjects."""
    if attributes.resource:
        return any(_matches_resource(rule, attributes) for rule in schema.resource_rules)
    return any(_matches_path(rule, attributes) for rule in schema.path_rules)


def _matches_resource(rule: ResourceRule, attributes: RequestAttributes) -> bool:
    if not (
        _in(attributes.verb, rule.verbs)
        and _in(attributes.resource, rule.resources)
        and _in(attributes.group, rule.groups)
    ):
        return False
    return (
        _in(attributes.namespace, rule.namespaces) if attributes.namespace else rule.cluster_scope
    )


def _matches_path(rule: PathRule, attributes: RequestAttributes) -> bool:
    if not _in(attributes.verb, rule.verbs):
        return False
    return any(
        path in (ANY, attributes.path) or attributes.path.startswith(path.rstrip("*/") + "/")
        for path in rule.paths
    )


def _in(value: str, values: tuple[str, ...]) -> bool:
    return value in values or values == (ANY,)
