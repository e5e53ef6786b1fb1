"""From a request to its flow.

Whose schemas may match depends on the user alone, and is remembered by user; what is left to compare for a request is
one or two rules.  The matching of each rule is upstream's (``pkg/util/flowcontrol/rule.go``).
"""

from __future__ import annotations

from collections.abc import Iterable

from sliceplane.flowcontrol.types import ANY, Asked, Flow, Level, PathRule, ResourceRule, Schema, Subject

#: users whose schemas are remembered; all are forgotten beyond it
USERS_MAX = 4096

_ACCOUNT = "system:serviceaccount:"
_EVERYTHING = (ResourceRule(),), (PathRule(),)


class Classifier:
    """Owned by the server.  *schemas* in the order in which they are tried; the last matches whatever is left."""

    def __init__(self, schemas: Iterable[Schema], levels: Iterable[Level]) -> None:
        by_name = {level.name: level for level in levels}
        self._schemas = tuple((schema, by_name[schema.level]) for schema in schemas)
        #: (name, groups) -> flows that the user's requests may be of, and whether the schema matches all of them
        self._users: dict[tuple[str, tuple[str, ...]], tuple[tuple[Flow, bool], ...]] = {}

    def classify(self, name: str, groups: tuple[str, ...], asked: Asked) -> Flow:
        """The flow of what the user *name* of *groups* asks for."""
        user = (name, groups)
        candidates = self._users.get(user)
        if candidates is None:
            if len(self._users) >= USERS_MAX:
                self._users.clear()
            candidates = self._users[user] = self._of_user(name, groups)
        for flow, always in candidates:
            if always or matches(flow.schema, asked):
                break
        else:
            schema, level = self._schemas[-1]
            flow = Flow(schema, level, name)
        if flow.schema.distinguisher == "ByNamespace":
            return flow._replace(distinguisher=asked.namespace)
        return flow

    def _of_user(self, name: str, groups: tuple[str, ...]) -> tuple[tuple[Flow, bool], ...]:
        flows = []
        for schema, level in self._schemas:
            if any(speaks_of(subject, name, groups) for subject in schema.subjects):
                always = (schema.resource_rules, schema.path_rules) == _EVERYTHING
                flows.append((Flow(schema, level, name if schema.distinguisher == "ByUser" else ""), always))
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


def matches(schema: Schema, asked: Asked) -> bool:
    """Whether one of the schema's rules speaks of what is asked, by a user of whom it speaks."""
    if asked.resource:
        return any(_matches_resource(rule, asked) for rule in schema.resource_rules)
    return any(_matches_path(rule, asked) for rule in schema.path_rules)


def _matches_resource(rule: ResourceRule, asked: Asked) -> bool:
    if not (_in(asked.verb, rule.verbs) and _in(asked.resource, rule.resources) and _in(asked.group, rule.groups)):
        return False
    return _in(asked.namespace, rule.namespaces) if asked.namespace else rule.cluster_scope


def _matches_path(rule: PathRule, asked: Asked) -> bool:
    if not _in(asked.verb, rule.verbs):
        return False
    return any(path in (ANY, asked.path) or asked.path.startswith(path.rstrip("*/") + "/") for path in rule.paths)


def _in(value: str, values: tuple[str, ...]) -> bool:
    return value in values or values == (ANY,)
