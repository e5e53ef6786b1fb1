"""Why a Service has no hints, and what its conditions say: steps with a real kubectl, and what each
must show.

``test_hint_story.py`` drives every step, and ``tools/make_transcripts.py`` writes those of the
chapters ``DOCUMENTED`` with their output into ``docs/hints.md``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.running import Plane
from tests.waiting import until

#: for something that takes a controller a moment, and for a node to be late
WAIT_S = 90.0
LATE_S = 75.0
DOCUMENTED = (
    "All is well",
    "Node proxies report",
    "A heuristic that fails",
    "A heuristic that is not installed",
    "Nodes whose zone is not known",
    "Auto: too much load for some zone",
)
FLAGS = ("--emulate", "--emulate-nodes", "2", "--zones", "zone-a,zone-b")


@dataclass(frozen=True)
class Step:
    """``command`` for a shell; asked again until its output has all of ``expect`` (regular
    expressions).

    ``hidden``: not in the document.
    """

    command: str
    expect: tuple[str, ...] = ()
    stdin: str = ""
    hidden: bool = False
    wait_s: float = WAIT_S


@dataclass(frozen=True)
class Chapter:
    title: str
    text: str
    steps: tuple[Step, ...]


def run(plane: Plane, step: Step) -> str:
    """The output, once it is as it must be.  Raises ``AssertionError`` after its time."""
    path = f"{Path(plane.kubectl).parent}:{os.environ['PATH']}"
    environment = {**os.environ, **plane.environment, "PATH": path}

    def told() -> str:
        done = subprocess.run(
            ["bash", "-c", step.command],
            input=step.stdin,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
        missing = missing_in(said, step)
        assert not missing, f"$ {step.command}\n{said}\nlacks {missing}"
        assert done.returncode == 0 or step.expect, said
        return said

    return until(told, lambda said: True, within_s=step.wait_s, ignoring=(AssertionError,))


def missing_in(said: str, step: Step) -> list[str]:
    return [pattern for pattern in step.expect if not re.search(pattern, said, re.MULTILINE)]


# -- objects


def deployment(name: str, replicas: int) -> str:
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "web"}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return json.dumps(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
    )


def service(name: str, **spec: Any) -> str:
    spec = {"selector": {"app": name}, "ports": [{"port": 80}], **spec}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
    )


def lease(node: str, revision: str) -> str:
    """What a node proxy writes; this one lives longer."""
    metadata = {
        "name": f"sliceplane-proxy-{node}",
        "namespace": "kube-node-lease",
        "labels": {"sliceplane.dev/component": "node-proxy"},
        "annotations": {"sliceplane.dev/endpointslices-revision": revision},
    }
    spec = {"holderIdentity": node, "leaseDurationSeconds": 600}
    return json.dumps(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }
    )


GHOST = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "ghost", "labels": {"app": "web"}},
    "spec": {"nodeName": "nowhere", "containers": [{"name": "main", "image": "web"}]},
}
GHOST_STATUS = {"phase": "Running", "podIP": "10.99.0.9", "podIPs": [{"ip": "10.99.0.9"}]}
GHOST_READY = json.dumps(
    {"status": {**GHOST_STATUS, "conditions": [{"type": "Ready", "status": "True"}]}}
)
SPREAD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "spread", "labels": {"app": "web"}},
    "spec": {
        "nodeName": "node-1",
        "containers": [{"name": "main", "image": "web"}],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app": "web"}},
            }
        ],
    },
}
STRANGE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "strange"}}
NODE_READY = {
    "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "4"}}
}

YAML = "kubectl get service web -o yaml | sed -n '/^status:/,$p'"
LATE_YAML = YAML.replace("service web", "service late")
DESCRIBE = "kubectl describe service web | sed -n '/^Traffic Dist/,$p'"
DESCRIBE_EVENTS = "kubectl describe service web | sed -n '/^Events:/,$p'"
EVENTS = "kubectl get events --field-selector involvedObject.kind=Service"
FROM = r"endpoint-slice-controller  +"


def applied(document: str) -> Step:
    return Step("kubectl apply -f -", stdin=document, hidden=True)


def hidden(command: str) -> Step:
    return Step(command, hidden=True)


def condition(kind: str, status: str, reason: str, message: str) -> str:
    return rf"message: {message}\n    reason: {reason}\n    status: \"?{status}\"?\n    type: TrafficDistribution{kind}$"  # noqa: E501


def _text(beginning: str) -> str:
    """As YAML has it: quoted, and maybe folded."""
    return rf"'?{beginning}(?s:.*?)"


def field(value: str) -> Step:
    patch = json.dumps({"spec": {"trafficDistribution": value}})
    return Step(f"kubectl patch service web --type merge -p '{patch}'", (r"service/web patched",))


def auto_problem(message: str) -> tuple[Step, ...]:
    pattern = re.escape(message)
    reason = r"TopologyAwareHintsDisabled +"
    return (
        Step(EVENTS, (rf"Warning +{reason}service/web +{pattern}, addressType: IPv4",)),
        Step(DESCRIBE_EVENTS, (rf"Warning +{reason}.*{FROM}{pattern}, addressType: IPv4",)),
    )


NO_HINTS = condition(
    "Accepted",
    "False",
    "AnnotationOverrides",
    r"the annotation .* takes precedence over\s+trafficDistribution",
)
FORGET = hidden("kubectl delete events --all")

STORY: tuple[Chapter, ...] = (
    Chapter(
        "All is well",
        "Four Pods in two zones, and a Service that wants `sliceplane.dev/Balanced`.",
        (
            applied(deployment("web", 4)),
            applied(deployment("late", 2)),
            hidden("kubectl rollout status deployment/web"),
            hidden("kubectl rollout status deployment/late"),
            applied(service("late", trafficDistribution="PreferSameZone")),
            applied(service("web", trafficDistribution="sliceplane.dev/Balanced")),
            Step(
                YAML,
                (
                    condition(
                        "Accepted", "True", "Accepted", "sliceplane.dev/Balanced is supported"
                    ),
                    condition(
                        "Programmed", "True", "HintsProgrammed", "every ready endpoint has hints"
                    ),
                    condition("Honored", "Unknown", "NoReports", "no node proxy reports .*"),
                ),
            ),
            Step(DESCRIBE, (r"Traffic Distribution: +sliceplane.dev/Balanced", r"Events: +<none>")),
            Step(EVENTS, (r"No resources found",)),
        ),
    ),
    Chapter(
        "Node proxies report",
        "`TrafficDistributionHonored`: all nodes hold the slices.",
        (
            applied(lease("node-1", "1000000")),
            applied(lease("node-2", "1000000")),
            Step(
                YAML,
                (condition("Honored", "True", "NodesUpToDate", "every reporting node proxy .*"),),
            ),
            Step(
                "kubectl get leases -n kube-node-lease",
                (r"sliceplane-proxy-node-1 +node-1", r"-node-2 +node-2"),
            ),
        ),
    ),
    Chapter(
        "A node catches up",
        "The proxy of node-2 holds an old revision only, and another Service asks for something "
        "else.",
        (
            applied(lease("node-2", "1")),
            Step(
                "kubectl patch service late --type merge -p "
                '\'{"spec":{"trafficDistribution":"PreferSameNode"}}\'',
                ("patched",),
            ),
            Step(
                LATE_YAML,
                (
                    condition(
                        "Honored", "Unknown", "NodesCatchUp", "not every node proxy has applied .*"
                    ),
                ),
            ),
        ),
    ),
    Chapter(
        "A heuristic that fails",
        "`HeuristicError`, an exception or a useless answer: the Service has no hints.",
        (
            Step("kubectl annotate service web sliceplane.dev/max-overload=lots", ("annotated",)),
            Step(
                EVENTS,
                (
                    r"Warning +TrafficDistributionFailed +service/web +sliceplane.dev/Balanced: .*'lots'",
                ),
            ),
            Step(
                DESCRIBE,
                (rf"Warning +TrafficDistributionFailed .*{FROM}sliceplane.dev/Balanced: .*'lots'",),
            ),
            Step(
                YAML,
                (
                    condition(
                        "Accepted", "True", "Accepted", "sliceplane.dev/Balanced is supported"
                    ),
                    condition(
                        "Programmed",
                        "False",
                        "HintsUnavailable",
                        _text("Z13: sliceplane.dev/max-overload is "),
                    ),
                ),
            ),
            Step("kubectl annotate service web sliceplane.dev/max-overload-", ("annotated",)),
            Step(
                EVENTS,
                (
                    r"Normal +TrafficDistributionEnabled +service/web +sliceplane.dev/Balanced: hints are given",
                ),
            ),
            FORGET,
        ),
    ),
    Chapter(
        "A heuristic that is not installed",
        "",
        (
            field("example.com/Nearest"),
            Step(
                EVENTS,
                (
                    r"Warning +TrafficDistributionUnsupported +service/web +no heuristic example.com/Nearest",
                ),
            ),
            Step(
                DESCRIBE,
                (
                    rf"Warning +TrafficDistributionUnsupported .*{FROM}no heuristic example.com/Nearest",
                ),
            ),
            Step(
                YAML,
                tuple(
                    condition(
                        kind,
                        "False",
                        "UnsupportedValue",
                        _text("Z13: no heuristic example.com/Nearest is installed"),
                    )
                    for kind in ("Accepted", "Programmed")
                ),
            ),
            FORGET,
        ),
    ),
    Chapter(
        "A heuristic without an answer for these Pods",
        "They have no topology spread constraints.",
        (
            field("sliceplane.dev/SpreadConstraints"),
            Step(
                YAML,
                (
                    condition(
                        "Programmed",
                        "False",
                        "NoHints",
                        _text("Z4: the EndpointSlices have no hints"),
                    ),
                ),
            ),
        ),
    ),
    Chapter(
        "A heuristic with an answer for some Pods",
        "A Pod beside them is spread over zones.",
        (
            applied(json.dumps(SPREAD)),
            Step(
                YAML,
                (condition("Programmed", "False", "IncompleteHints", _text("Z4: Some endpoints")),),
            ),
            hidden("kubectl delete pod spread --grace-period=0 --force"),
        ),
    ),
    Chapter(
        "Nodes whose zone is not known",
        "",
        (
            field("PreferSameZone"),
            Step("kubectl label node node-2 topology.kubernetes.io/zone-", ("unlabeled",)),
            Step(
                YAML,
                (
                    condition(
                        "Programmed", "False", "EndpointsWithoutZone", _text("Z2: An endpoint")
                    ),
                ),
            ),
            hidden("kubectl label node node-2 topology.kubernetes.io/zone=zone-b"),
        ),
    ),
    Chapter(
        "No endpoint is ready",
        "",
        (
            Step("kubectl scale deployment/web --replicas=0", ("scaled",)),
            Step(
                YAML,
                (condition("Programmed", "False", "NoReadyEndpoints", "no endpoint is ready"),),
            ),
            hidden("kubectl scale deployment/web --replicas=4"),
            hidden("kubectl rollout status deployment/web"),
        ),
    ),
    Chapter(
        "The annotation is stronger",
        "Topology-mode `Auto` beside the field; its own reasons follow.",
        (
            Step(
                "kubectl annotate service web service.kubernetes.io/topology-mode=Auto",
                ("annotated",),
            ),
            Step(YAML, (NO_HINTS,)),
            Step(
                EVENTS,
                (
                    r"Normal +TopologyAwareHintsEnabled +service/web +Topology Aware Hints has been enabled",
                ),
            ),
        ),
    ),
    Chapter(
        "Auto: fewer endpoints than zones",
        "",
        (
            Step("kubectl scale deployment/web --replicas=1", ("scaled",)),
            *auto_problem("Insufficient number of endpoints (1 endpoints, 2 zones)"),
            FORGET,
        ),
    ),
    Chapter(
        "Auto: too much load for some zone",
        "",
        (
            Step("kubectl scale deployment/web --replicas=3", ("scaled",)),
            *auto_problem(
                "Unable to allocate minimum required endpoints to each zone without exceeding "
                "overload threshold "
                "(3 endpoints, 2 zones)"
            ),
            FORGET,
            hidden("kubectl scale deployment/web --replicas=4"),
            Step(EVENTS, ("TopologyAwareHintsEnabled",), hidden=True),
        ),
    ),
    Chapter(
        "Auto: a Node without a zone",
        "",
        (
            applied(json.dumps(STRANGE)),
            Step(
                "kubectl patch node strange --subresource status --type merge -p "
                f"'{json.dumps(NODE_READY)}'",
                hidden=True,
            ),
            *auto_problem(
                "Insufficient Node information: allocatable CPU or zone not specified on one or "
                "more nodes"
            ),
            hidden("kubectl delete node strange"),
            FORGET,
        ),
    ),
    Chapter(
        "Auto: an endpoint without a zone",
        "A Pod on a Node that nobody knows, in a Service that publishes addresses that are not "
        "ready.",
        (
            hidden(
                "kubectl patch service web --type merge -p '"
                + json.dumps({"spec": {"publishNotReadyAddresses": True}})
                + "'"
            ),
            hidden("kubectl scale deployment/web --replicas=3"),
            Step(EVENTS, ("Unable to allocate",), hidden=True),
            FORGET,
            applied(json.dumps(GHOST)),
            hidden(f"kubectl patch pod ghost --subresource status --type merge -p '{GHOST_READY}'"),
            *auto_problem("One or more endpoints do not have a zone specified"),
            FORGET,
            hidden("kubectl delete pod ghost --force --grace-period=0"),
            hidden("kubectl scale deployment/web --replicas=4"),
        ),
    ),
    Chapter(
        "Auto: the annotation goes",
        "From then on the field counts.",
        (
            Step(EVENTS, ("TopologyAwareHintsEnabled",), hidden=True),
            Step(
                "kubectl annotate service web service.kubernetes.io/topology-mode-", ("annotated",)
            ),
            *auto_problem("Topology Aware Hints has been disabled"),
            Step(YAML, (condition("Accepted", "True", "Accepted", "PreferSameZone is supported"),)),
        ),
    ),
    Chapter(
        "The field goes",
        "",
        (
            Step(
                "kubectl patch service web --type merge -p "
                '\'{"spec":{"trafficDistribution":null}}\'',
                ("patched",),
            ),
            Step("kubectl get service web -o jsonpath='{.status}'", (r'^\{"loadBalancer":\{\}\}',)),
        ),
    ),
    Chapter(
        "A node is late",
        "The proxy of node-2 is alive, and holds an old revision for more than 30 s.",
        (
            Step(
                LATE_YAML,
                (
                    condition(
                        "Honored",
                        "False",
                        "NodesBehind",
                        r"'N2: 1 of 2 nodes have not applied the EndpointSlices of .*\s+yet:\s+node-2'",
                    ),
                ),
                wait_s=LATE_S,
            ),
        ),
    ),
)
