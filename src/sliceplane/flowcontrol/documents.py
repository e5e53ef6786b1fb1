"""Flow schemas and priority levels as ``flowcontrol.apiserver.k8s.io/v1`` writes them: specs, and a status."""

from __future__ import annotations

from typing import Any

from sliceplane.flowcontrol.types import Level, PathRule, ResourceRule, Schema, Subject

Document = dict[str, Any]


def spec_of_level(level: Level) -> Document:
    if level.exempt:
        return {"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}}
    response: Document = {"type": "Reject"}
    if level.queues:
        queuing = {"queues": level.queues, "handSize": level.hand_size, "queueLengthLimit": level.queue_length}
        response = {"type": "Queue", "queuing": queuing}
    limited = {
        "nominalConcurrencyShares": level.shares,
        "limitResponse": response,
        "lendablePercent": level.lendable_percent,
    }
    return {"type": "Limited", "limited": limited}


def spec_of_schema(schema: Schema) -> Document:
    rule: Document = {"subjects": [_subject(subject) for subject in schema.subjects]}
    if schema.resource_rules:
        rule["resourceRules"] = [_resource_rule(resources) for resources in schema.resource_rules]
    if schema.path_rules:
        rule["nonResourceRules"] = [_path_rule(paths) for paths in schema.path_rules]
    spec: Document = {
        "priorityLevelConfiguration": {"name": schema.level},
        "matchingPrecedence": schema.precedence,
        "rules": [rule],
    }
    if schema.distinguisher:
        spec["distinguisherMethod"] = {"type": schema.distinguisher}
    return spec


def status_of_schema(schema: Schema, since: str) -> Document:
    """Its level is there, since the time *since*."""
    message = f'This FlowSchema references the PriorityLevelConfiguration object named "{schema.level}" and it exists'
    condition = {
        "type": "Dangling",
        "status": "False",
        "lastTransitionTime": since,
        "reason": "Found",
        "message": message,
    }
    return {"conditions": [condition]}


def _subject(subject: Subject) -> Document:
    match subject.kind:
        case "User":
            return {"kind": "User", "user": {"name": subject.name}}
        case "Group":
            return {"kind": "Group", "group": {"name": subject.name}}
        case "ServiceAccount":
            return {"kind": "ServiceAccount", "serviceAccount": {"namespace": subject.namespace, "name": subject.name}}


def _resource_rule(rule: ResourceRule) -> Document:
    found: Document = {
        "verbs": list(rule.verbs),
        "apiGroups": list(rule.groups),
        "resources": list(rule.resources),
        "namespaces": list(rule.namespaces),
    }
    return {**found, "clusterScope": True} if rule.cluster_scope else found


def _path_rule(rule: PathRule) -> Document:
    return {"verbs": list(rule.verbs), "nonResourceURLs": list(rule.paths)}
