"""The flow schemas and priority levels that every server has: upstream's mandatory and suggested
ones, and one of ours.

Facts are those of ``pkg/apis/flowcontrol/bootstrap/default.go`` in ``k8s.io/apiserver`` 1.36. Ours
is ``sliceplane-node-proxies``: node proxies that use the user ``system:kube-proxy`` tell in Leases
how far they are, and upstream would count them among all others. ``spec_of_level``,
``spec_of_schema`` and ``status_of_schema`` are what ``flowcontrol.apiserver.k8s.io/v1`` has of
them.
"""

from __future__ import annotations

from typing import Any

from sliceplane.server.fairness.types import Level, PathRule, ResourceRule, Schema, Subject

LEVELS: tuple[Level, ...] = (
    Level(name="catch-all", shares=5),
    Level(name="exempt", exempt=True),
    Level(
        name="global-default",
        shares=20,
        lendable_percent=50,
        queues=128,
    ),
    Level(name="leader-election", shares=10, queues=16, hand_size=4, vital=True),
    Level(
        name="node-high",
        shares=40,
        lendable_percent=25,
        queues=64,
        vital=True,
    ),
    Level(
        name="system",
        shares=30,
        lendable_percent=33,
        queues=64,
        vital=True,
    ),
    Level(
        name="workload-high",
        shares=40,
        lendable_percent=50,
        queues=128,
    ),
    Level(
        name="workload-low",
        shares=100,
        lendable_percent=90,
        queues=128,
    ),
)

_EVERYBODY = (Subject("Group", "system:unauthenticated"), Subject("Group", "system:authenticated"))
_KUBE_SYSTEM = (Subject("ServiceAccount", "*", "kube-system"),)
_NODES = (Subject("Group", "system:nodes"),)
_MANAGER = Subject("User", "system:kube-controller-manager")
_SCHEDULER = Subject("User", "system:kube-scheduler")
_LEASES = "coordination.k8s.io"

#: by precedence, and by name where that is equal: the first that matches counts
SCHEMAS: tuple[Schema, ...] = (
    Schema(
        name="exempt", level="exempt", precedence=1, subjects=(Subject("Group", "system:masters"),)
    ),
    Schema(
        name="probes",
        level="exempt",
        precedence=2,
        subjects=_EVERYBODY,
        resource_rules=(),
        path_rules=(PathRule(verbs=("get",), paths=("/healthz", "/readyz", "/livez")),),
    ),
    Schema(
        name="system-leader-election",
        level="leader-election",
        precedence=100,
        distinguisher="ByUser",
        subjects=(_MANAGER, _SCHEDULER, *_KUBE_SYSTEM),
        resource_rules=(
            ResourceRule(
                verbs=("get", "create", "update"),
                groups=(_LEASES,),
                resources=("leases",),
                cluster_scope=False,
            ),
        ),
        path_rules=(),
    ),
    Schema(
        name="system-node-high",
        level="node-high",
        precedence=400,
        distinguisher="ByUser",
        subjects=_NODES,
        resource_rules=(
            ResourceRule(groups=("",), resources=("nodes", "nodes/status")),
            ResourceRule(groups=(_LEASES,), resources=("leases",), cluster_scope=False),
        ),
        path_rules=(),
    ),
    Schema(
        name="sliceplane-node-proxies",
        level="system",
        precedence=450,
        distinguisher="ByUser",
        subjects=(Subject("User", "system:kube-proxy"),),
    ),
    Schema(
        name="system-nodes", level="system", precedence=500, distinguisher="ByUser", subjects=_NODES
    ),
    Schema(
        name="kube-controller-manager",
        level="workload-high",
        precedence=800,
        distinguisher="ByNamespace",
        subjects=(_MANAGER,),
    ),
    Schema(
        name="kube-scheduler",
        level="workload-high",
        precedence=800,
        distinguisher="ByNamespace",
        subjects=(_SCHEDULER,),
    ),
    Schema(
        name="kube-system-service-accounts",
        level="workload-high",
        precedence=900,
        distinguisher="ByNamespace",
        subjects=_KUBE_SYSTEM,
    ),
    Schema(
        name="service-accounts",
        level="workload-low",
        precedence=9000,
        distinguisher="ByUser",
        subjects=(Subject("Group", "system:serviceaccounts"),),
    ),
    Schema(
        name="global-default",
        level="global-default",
        precedence=9900,
        distinguisher="ByUser",
        subjects=_EVERYBODY,
    ),
    Schema(
        name="catch-all",
        level="catch-all",
        precedence=10000,
        distinguisher="ByUser",
        subjects=_EVERYBODY,
    ),
)


Document = dict[str, Any]


def spec_of_level(level: Level) -> Document:
    if level.exempt:
        return {"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}}
    response: Document = {"type": "Reject"}
    if level.queues:
        queuing = {
            "queues": level.queues,
            "handSize": level.hand_size,
            "queueLengthLimit": level.queue_length,
        }
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
        rule["nonResourceRules"] = [
            {"verbs": list(rules.verbs), "nonResourceURLs": list(rules.paths)}
            for rules in schema.path_rules
        ]
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
    message = (
        f'This FlowSchema references the PriorityLevelConfiguration object named "{schema.level}" '
        "and it exists"
    )
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
            return {
                "kind": "ServiceAccount",
                "serviceAccount": {"namespace": subject.namespace, "name": subject.name},
            }


def _resource_rule(rule: ResourceRule) -> Document:
    document: Document = {
        "verbs": list(rule.verbs),
        "apiGroups": list(rule.groups),
        "resources": list(rule.resources),
        "namespaces": list(rule.namespaces),
    }
    return {**document, "clusterScope": True} if rule.cluster_scope else document
