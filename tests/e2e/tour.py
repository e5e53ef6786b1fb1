"""The kubectl tour: each step is a real command, its input, and patterns of its output.

``test_kubectl_tour.py`` drives every step with the real binary.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass, field

from tests.e2e.running import Plane

SLICE = """\
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: by-hand
  labels:
    kubernetes.io/service-name: external
addressType: IPv4
ports:
- name: http
  port: 8080
endpoints:
- addresses: ["198.51.100.7"]
  conditions: {ready: true}
  zone: zone-a
"""
SLICE_CHANGED = SLICE.replace("198.51.100.7", "198.51.100.8")
SLICE_TYPO = SLICE.replace("zone: zone-a", "zoen: zone-a")
SLICE_BAD = SLICE.replace("198.51.100.7", "127.0.0.1").replace("by-hand", "bad")

SERVICE = """\
apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  trafficDistribution: PreferSameZone
  ipFamilyPolicy: PreferDualStack
  selector: {app: web}
  ports:
  - {name: http, port: 80, targetPort: web}
"""
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  labels: {app: web}
spec:
  replicas: 3
  selector:
    matchLabels: {app: web}
  template:
    metadata:
      labels: {app: web}
    spec:
      containers:
      - name: server
        image: example/web:1
        ports:
        - {name: web, containerPort: 8080}
"""
LEASE = """\
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: leader}
spec: {holderIdentity: alice, leaseDurationSeconds: 15}
"""
QUEUE = """\
apiVersion: v1
kind: Service
metadata:
  name: queue
  labels: {tier: back}
spec:
  selector: {app: queue}
  ports:
  - {name: amqp, port: 5672}
"""
QUEUE_OTHER_PORT = QUEUE.replace("name: amqp", "name: other")
QUEUE_TWO_PORTS = QUEUE + "  - {name: admin, port: 15672}\n"
QUEUE_NO_LABEL = QUEUE.replace("  labels: {tier: back}\n", "")
ENDPOINTS = """\
apiVersion: v1
kind: Endpoints
metadata: {name: legacy}
subsets:
- addresses: [{ip: 198.51.100.9}]
  ports: [{port: 443}]
"""


@dataclass(frozen=True)
class Step:
    """``args`` after ``kubectl``; ``expect`` are regular expressions that standard output (or, for
    a step that ``fails``, standard error) must contain; ``absent`` ones that it must not.
    """

    args: str
    expect: tuple[str, ...] = ()
    stdin: str = ""
    fails: bool = False
    absent: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    #: for a watch, which has no end of its own: when it has said something this second command is
    #: run, and when it has said what is expected it is stopped
    meanwhile: str = ""


@dataclass(frozen=True)
class Chapter:
    title: str
    steps: tuple[Step, ...]


_NAME = "-l kubernetes.io/service-name=web"

TOUR: tuple[Chapter, ...] = (
    Chapter(
        "The server",
        (
            Step("version", (r"Server Version: v1\.3\d",)),
            Step(
                "api-resources --no-headers=false",
                (
                    r"endpointslices +discovery.k8s.io/v1 +true +EndpointSlice",
                    r"deployments +deploy +apps/v1",
                ),
            ),
            Step("get nodes -o wide", (r"node-1 +Ready", r"INTERNAL-IP")),
            Step("get namespaces", (r"default +Active", r"kube-system +Active")),
            Step(
                "get service kubernetes", (r"kubernetes +ClusterIP +10\.96\.0\.1 +<none> +443/TCP",)
            ),
        ),
    ),
    Chapter(
        "apply, rollout status, get",
        (
            Step("apply -f -", (r"service/web created",), stdin=SERVICE),
            Step("apply -f -", (r"deployment.apps/web created",), stdin=DEPLOYMENT),
            Step(
                "rollout status deployment/web --timeout=30s",
                (r'deployment "web" successfully rolled out',),
            ),
            Step("apply -f -", (r"service/web unchanged",), stdin=SERVICE),
            Step(
                "get deployments,replicasets,pods,services",
                (r"deployment.apps/web +3/3 +3 +3", r"pod/web-\S+ +1/1 +Running"),
            ),
            Step(
                "get pods -o wide",
                (r"NAME +READY +STATUS +RESTARTS +AGE +IP +NODE", r"10\.244\.\d+\.\d+ +node-"),
            ),
            Step(
                "get endpointslices",
                (
                    r"NAME +ADDRESSTYPE +PORTS +ENDPOINTS +AGE",
                    r"web-\w{5} +IPv4 +8080",
                    r"web-\w{5} +IPv6 +8080",
                ),
            ),
            Step(
                f"get endpointslices {_NAME} -o yaml",
                (
                    r"forZones:",
                    r"addressType: IPv4",
                    r"targetRef:",
                    r"kind: EndpointSliceList|kind: List",
                ),
            ),
            Step(f"get endpointslices {_NAME} -o json", (r'"addressType": "IPv4"', r'"forZones"')),
            Step(
                f"get endpointslices {_NAME} -o name",
                (r"^endpointslice.discovery.k8s.io/web-\w{5}",),
            ),
            Step(
                f"get endpointslices {_NAME} -o jsonpath={{.items[*].endpoints[*].zone}}",
                (r"^zone-[ab] zone-[ab]",),
            ),
            Step(
                f"get endpointslices {_NAME} -o custom-columns="
                "NAME:.metadata.name,TYPE:.addressType,HINTS:.endpoints[*].hints.forZones[*].name",
                (r"NAME +TYPE +HINTS", r"IPv4 +zone-"),
            ),
            Step(
                """get services -o 'go-template={{range .items}}{{.metadata.name}}{{"\\n"}}{{end}}'""",
                (r"kubernetes\nweb",),
            ),
            Step(
                "get pods --sort-by=.metadata.name --no-headers", (r"web-.*1/1",), absent=("NAME",)
            ),
            Step(
                "get pods -A -l app=web --field-selector spec.nodeName=node-1 --show-labels",
                (r"app=web,pod-template-hash=",),
            ),
            Step(
                f"get endpointslices {_NAME} -o jsonpath-as-json={{.items[0].kind}}",
                (r'"EndpointSlice"',),
            ),
            Step("get service web -o kyaml", (r'kind: "Service",', r'name: "web",')),
            Step("get service missing", (r'services "missing" not found',), fails=True),
        ),
    ),
    Chapter(
        "EndpointSlices by hand: create, apply, patch, edit, label",
        (
            Step("create -f -", (r"endpointslice.discovery.k8s.io/by-hand created",), stdin=SLICE),
            Step(
                "create -f -",
                (r'endpointslices.discovery.k8s.io "by-hand" already exists',),
                stdin=SLICE,
                fails=True,
            ),
            Step("apply -f -", (r"by-hand configured",), stdin=SLICE_CHANGED),
            Step(
                "diff -f -", (r"-  - 198.51.100.8", r"\+  - 198.51.100.7"), stdin=SLICE, fails=True
            ),
            Step(
                "apply --dry-run=server -f -",
                (r"by-hand configured \(server dry run\)",),
                stdin=SLICE,
            ),
            Step(
                "apply -f -",
                (r'unknown field "endpoints\[0\].zoen"',),
                stdin=SLICE_TYPO,
                fails=True,
            ),
            Step("apply -f -", (r"may not be in the loopback range",), stdin=SLICE_BAD, fails=True),
            Step(
                """patch endpointslice by-hand --type=merge -p '{"metadata":{"annotations":{"note":"merged"}}}'""",
                (r"by-hand patched",),
            ),
            Step(
                "patch endpointslice by-hand --type=json -p "
                """'[{"op":"replace","path":"/endpoints/0/conditions/ready","value":false}]'""",
                (r"by-hand patched",),
            ),
            Step(
                """patch service web -p '{"spec":{"ports":[{"port":81,"name":"more"}]}}'""",
                (r"service/web patched",),
            ),
            Step("get service web", (r"81/TCP,80/TCP|80/TCP,81/TCP",)),
            Step(
                "edit endpointslice by-hand",
                (r"by-hand edited",),
                environment={"KUBE_EDITOR": "sed -i s/198.51.100.8/198.51.100.9/"},
            ),
            Step("label endpointslice by-hand tier=front", (r"by-hand labeled",)),
            Step("annotate endpointslice by-hand note-", (r"by-hand annotated",)),
            Step(
                "get endpointslice by-hand -o yaml",
                (r"198.51.100.9", r"tier: front", r"ready: false"),
            ),
        ),
    ),
    Chapter(
        "Server-side apply",
        (
            Step("apply --server-side -f -", (r"^service/queue serverside-applied$",), stdin=QUEUE),
            Step("diff --server-side -f -", stdin=QUEUE, absent=(r".",)),
            Step(
                "diff --server-side -f -",
                (r"\+  - name: admin",),
                stdin=QUEUE_TWO_PORTS,
                fails=True,
            ),
            Step(
                "apply --server-side --field-manager=other -f -",
                (
                    (
                        r'Apply failed with 1 conflict: conflict with "kubectl": '
                        r'\.spec\.ports\[port=5672,protocol="TCP"\]\.name'
                    ),
                    r"--force-conflicts",
                ),
                stdin=QUEUE_OTHER_PORT,
                fails=True,
            ),
            Step(
                "apply --server-side --field-manager=other --force-conflicts -f -",
                (r"service/queue serverside-applied",),
                stdin=QUEUE_OTHER_PORT,
            ),
            Step("get service queue -o jsonpath={.spec.ports[*].name}", (r"^other$",)),
            Step(
                "apply --server-side --force-conflicts -f -",
                (r"serverside-applied",),
                stdin=QUEUE_NO_LABEL,
            ),
            Step("get service queue --show-labels", (r"queue +ClusterIP", r"tier=back")),
            Step(
                "apply --server-side --field-manager=other -f -",
                (r"serverside-applied",),
                stdin=QUEUE_NO_LABEL,
            ),
            Step("get service queue --show-labels", (r"<none>",), absent=(r"tier=",)),
            Step(
                "get service queue -o yaml --show-managed-fields",
                (
                    r"manager: other\n    operation: Apply",
                    r"manager: kubectl\n    operation: Apply",
                    r"f:selector: \{\}",
                ),
            ),
            Step("get service queue -o yaml", (r"name: queue",), absent=(r"managedFields",)),
            Step("apply --server-side -f -", (r"service/web serverside-applied",), stdin=SERVICE),
            Step("delete service queue", (r'service "queue" deleted',)),
        ),
    ),
    Chapter(
        "Who may do what",
        (
            Step("auth whoami", (r"Username +\S+", r"system:masters")),
            Step("auth can-i create endpointslices", (r"^yes$",)),
            Step("auth can-i --list", (r"\*\.\* +\[\] +\[\] +\[\*\]",)),
        ),
    ),
    Chapter(
        "Typed create commands (protobuf bodies)",
        (
            Step("create namespace team", (r"namespace/team created",)),
            Step(
                "create configmap settings -n team --from-literal=a=1",
                (r"configmap/settings created",),
            ),
            Step(
                "create service clusterip plain -n team --tcp=80:8080", (r"service/plain created",)
            ),
            Step(
                "create deployment app -n team --image=example/app:1 --replicas=2",
                (r"deployment.apps/app created",),
            ),
            Step(
                "get service plain -n team -o jsonpath={.spec.clusterIP}", (r"^10\.96\.\d+\.\d+$",)
            ),
            Step("apply -f -", (r"lease.coordination.k8s.io/leader created",), stdin=LEASE),
            Step("apply -f -", (r"endpoints/legacy created",), stdin=ENDPOINTS),
            Step("get leases,endpoints", (r"leader +alice", r"legacy +198.51.100.9:443")),
        ),
    ),
    Chapter(
        "scale, rolling update, watch, wait",
        (
            Step("scale deployment/web --replicas=5", (r"deployment.apps/web scaled",)),
            Step(
                "wait deployment/web --for=jsonpath={.status.readyReplicas}=5 --timeout=30s",
                (r"web condition met",),
            ),
            Step("set image deployment/web server=example/web:2", (r"image updated",)),
            Step("rollout status deployment/web --timeout=60s", (r"successfully rolled out",)),
            Step("rollout history deployment/web", (r"REVISION", r"^2 ")),
            Step("rollout undo deployment/web", (r"rolled back",)),
            Step("rollout status deployment/web --timeout=60s", (r"successfully rolled out",)),
            Step(
                "wait deployment/web --for=condition=Available --timeout=30s", (r"condition met",)
            ),
            Step(
                f"get endpointslices {_NAME} -w",
                (r"(?s)web-\w{5} +IPv4.*web-\w{5} +IPv4",),
                meanwhile="scale deployment/web --replicas=2",
            ),
            Step(
                "wait deployment/web --for=jsonpath={.status.replicas}=2 --timeout=30s",
                (r"condition met",),
            ),
        ),
    ),
    Chapter(
        "describe and explain",
        (
            Step(
                "describe endpointslice by-hand",
                (r"Name: +by-hand", r"AddressType: +IPv4", r"198.51.100.9"),
            ),
            Step(
                "describe service web",
                (
                    r"TrafficDistribution: +PreferSameZone|Traffic Distribution: +PreferSameZone",
                    r"Endpoints: +.*10\.244\.\d+\.\d+:8080",
                ),
            ),
            Step(
                "describe deployment web", (r"RollingUpdateStrategy", r"MinimumReplicasAvailable")
            ),
            # describe asks for each of a list again, and fails at one that went meanwhile
            Step(
                "wait deployment/web --for=jsonpath={.status.terminatingReplicas}=0 --timeout=60s",
                (r"met",),
            ),
            Step("describe pods -l app=web", (r"Status: +Running", r"Node: +node-")),
            Step(
                "describe node node-1",
                (r"Name: +node-1", r"topology.kubernetes.io/zone=zone-a", r"Non-terminated Pods"),
            ),
            Step("describe namespace team", (r"Status: +Active",)),
            Step(
                "explain endpointslice",
                (r"KIND: +EndpointSlice", r"GROUP: +discovery.k8s.io", r"addressType\t<string>"),
            ),
            Step(
                "explain endpointslice.endpoints.hints",
                (r"forZones\t<\[\]ForZone>", r"forNodes\t<\[\]ForNode>"),
            ),
            Step(
                "explain deployment.spec.strategy --recursive",
                (r"maxSurge", r"enum: Recreate, RollingUpdate"),
            ),
            Step(
                "explain pod.spec.dnsPolicy", (r"(?s)ENUM:\n +ClusterFirst\n.*DESCRIPTION:\n +\w+",)
            ),
        ),
    ),
    Chapter(
        "delete, and what becomes of what is owned",
        (
            Step("create deployment one --image=example/app:1", (r"one created",)),
            Step("create deployment two --image=example/app:1", (r"two created",)),
            Step("create deployment three --image=example/app:1", (r"three created",)),
            Step(
                "wait deployments one two three --for=condition=Available --timeout=30s",
                (r"(?s)met.*met.*met",),
            ),
            Step("delete deployment one --cascade=background", (r'deployment.apps "one" deleted',)),
            Step("wait replicasets,pods -l app=one --for=delete --timeout=30s"),
            Step(
                "delete deployment two --cascade=foreground --timeout=30s",
                (r'deployment.apps "two" deleted',),
            ),
            Step("get deployments,replicasets,pods -l app=two", (r"No resources found",)),
            Step("delete deployment three --cascade=orphan", (r'deployment.apps "three" deleted',)),
            Step(
                "get replicasets,pods -l app=three",
                (r"replicaset.apps/three-\w+ +1 +1 +1", r"pod/three-\S+ +1/1"),
            ),
            Step("delete replicaset -l app=three", (r'replicaset.apps "three-\w+" deleted',)),
            Step("wait pods -l app=three --for=delete --timeout=30s"),
        ),
    ),
    Chapter(
        "delete",
        (
            Step(
                "delete endpointslice by-hand --wait=true",
                (r'endpointslice.discovery.k8s.io "by-hand" deleted',),
            ),
            Step("delete service web", (r'service "web" deleted',)),
            Step(f"wait endpointslices {_NAME} --for=delete --timeout=30s"),
            Step(f"get endpointslices {_NAME}", (r"No resources found",), fails=False),
            Step("delete deployment web", (r'deployment.apps "web" deleted',)),
            Step("wait pods -l app=web --for=delete --timeout=30s"),
            Step("delete namespace team --timeout=60s", (r'namespace "team" deleted',)),
            Step("get configmaps,services,deployments,pods -n team", (r"No resources found",)),
        ),
    ),
)


def run_step(plane: Plane, step: Step) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **plane.environment, **step.environment}
    command = [plane.kubectl, *shlex.split(step.args)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    if step.meanwhile:
        out = _until_said(process, r"\n")
        subprocess.run(
            [plane.kubectl, *shlex.split(step.meanwhile)],
            env=environment,
            check=True,
            capture_output=True,
        )
        for pattern in step.expect:
            out = _until_said(process, pattern, out)
        process.terminate()
        with process:
            assert process.stdout is not None, "it is a pipe"
            assert process.stderr is not None, "it is a pipe"
            return subprocess.CompletedProcess(
                command, 0, out + process.stdout.read(), process.stderr.read()
            )
    out, err = process.communicate(step.stdin, timeout=90)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _until_said(process: subprocess.Popen[str], pattern: str, said: str = "") -> str:
    """All that it has said when that has *pattern*."""
    assert process.stdout is not None
    while not re.search(pattern, said, re.MULTILINE):
        line = process.stdout.readline()
        assert line, f"it ended and did not say {pattern}:\n{said}"
        said += line
    return said
