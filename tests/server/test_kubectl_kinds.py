"""The real kubectl and the kinds around discovery: Secret, ServiceAccount, and what describes
addresses.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.server.serving import Server, run_plane
from tests.server.test_kubectl_smoke import command, kubectl
from tests.waiting import until

from sliceplane.controllers.io.catalogue import default_controllers
from sliceplane.controllers.io.embedded import ControllerService
from sliceplane.server.documents.protobuf import decode
from sliceplane.server.io.plane import PlaneConfig

pytestmark = pytest.mark.kubectl


def test_secrets_and_service_accounts(server: Server, tmp_path: Path) -> None:
    kubectl(
        server,
        tmp_path,
        "create",
        "secret",
        "generic",
        "word",
        "--from-literal=a=x",
        "--from-literal=b=yy",
    )
    assert json.loads(kubectl(server, tmp_path, "get", "secret", "word", "-o", "json"))["data"] == {
        "a": "eA==",
        "b": "eXk=",
    }
    table = kubectl(server, tmp_path, "get", "secrets", "--field-selector=type=Opaque")
    assert table.splitlines()[1].split()[:3] == ["word", "Opaque", "2"]
    assert "a:  1 bytes" in kubectl(server, tmp_path, "describe", "secret", "word")
    login = ("--docker-server=r", "--docker-username=u", "--docker-password=p")
    kubectl(server, tmp_path, "create", "secret", "docker-registry", "login", *login)
    kubectl(server, tmp_path, "create", "serviceaccount", "robot")
    assert kubectl(server, tmp_path, "get", "sa", "robot", "--no-headers").split()[0] == "robot"
    assert 'serviceaccount "robot" deleted' in kubectl(server, tmp_path, "delete", "sa", "robot")


def test_addresses_and_ranges(server: Server, tmp_path: Path) -> None:
    manifest = """
apiVersion: networking.k8s.io/v1
kind: IPAddress
metadata: {name: "2001:db8::1"}
spec: {parentRef: {resource: services, namespace: default, name: other}}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: more}
spec: {cidrs: [10.7.0.0/16]}
"""
    kubectl(server, tmp_path, "apply", "-f", "-", stdin=manifest)
    line = kubectl(server, tmp_path, "get", "ip", "2001:db8::1", "--no-headers")
    assert line.split()[:2] == ["2001:db8::1", "services/default/other"]
    assert kubectl(server, tmp_path, "get", "servicecidr", "more", "--no-headers").split()[:2] == [
        "more",
        "10.7.0.0/16",
    ]
    assert "10.7.0.0/16" in kubectl(server, tmp_path, "describe", "servicecidr", "more")
    assert "services" in kubectl(server, tmp_path, "describe", "ipaddress", "2001:db8::1")


def test_addresses_of_services(server: Server, tmp_path: Path) -> None:
    kubectl(server, tmp_path, "create", "service", "clusterip", "held", "--tcp=80")
    address = kubectl(
        server, tmp_path, "get", "service", "held", "-o", "jsonpath={.spec.clusterIP}"
    )
    line = kubectl(server, tmp_path, "get", "ipaddresses", address, "--no-headers")
    assert line.split()[:2] == [address, "services/default/held"]
    assert (
        kubectl(server, tmp_path, "get", "servicecidr", "kubernetes", "--no-headers").split()[0]
        == "kubernetes"
    )
    kubectl(server, tmp_path, "delete", "service", "held")
    assert address not in kubectl(server, tmp_path, "get", "ipaddresses", "--no-headers")


CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, labels: {app: stored}}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""
VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk, labels: {app: stored}}
spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, hostPath: {path: /a}, storageClassName: fast}
"""
CLASS = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: example.com/disk
"""


def test_storage_is_applied_shown_and_pruned(server: Server, tmp_path: Path) -> None:
    """``kubectl apply --prune`` lists claims, volumes, Jobs and CronJobs, too, and ends with 0."""
    kubectl(server, tmp_path, "apply", "-f", "-", stdin=f"{CLAIM}---{VOLUME}---{CLASS}")
    lines = kubectl(server, tmp_path, "get", "pvc,pv,sc", "--no-headers").splitlines()
    shown = [line.split()[:-1] for line in lines if line]
    assert shown == [
        ["persistentvolumeclaim/data", "Pending", "<unset>"],
        ["persistentvolume/disk", "1Gi", "RWO", "Retain", "Pending", "fast", "<unset>"],
        ["storageclass.storage.k8s.io/fast", "example.com/disk", "Delete", "Immediate", "false"],
    ]
    pruned = kubectl(
        server, tmp_path, "apply", "--prune", "-l", "app=stored", "-f", "-", stdin=CLAIM
    )
    assert "persistentvolume/disk pruned" in pruned
    kubectl(server, tmp_path, "apply", "--server-side", "-f", "-", stdin=CLASS)
    kubectl(server, tmp_path, "delete", "pvc/data", "sc/fast")


def test_a_job_is_refused_with_the_reason(server: Server, tmp_path: Path) -> None:
    line = command(server, tmp_path, "create", "job", "once", "--image=i")
    refused = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert refused.returncode == 1
    assert "jobs.batch cannot be written: this server does not implement Job" in refused.stderr
    assert kubectl(server, tmp_path, "get", "jobs") == ""


def test_limit_ranges(server: Server, tmp_path: Path) -> None:
    manifest = """
apiVersion: v1
kind: LimitRange
metadata: {name: bounds}
spec: {limits: [{type: Container, max: {cpu: "2"}}]}
"""
    kubectl(server, tmp_path, "apply", "-f", "-", stdin=manifest)
    table = kubectl(server, tmp_path, "get", "limits", "bounds")
    assert table.splitlines()[0].split() == ["NAME", "CREATED", "AT"]
    assert "Container" in kubectl(server, tmp_path, "describe", "limitrange", "bounds")
    assert "maxLimitRequestRatio" in kubectl(server, tmp_path, "explain", "limitrange.spec.limits")
    kubectl(server, tmp_path, "delete", "limits", "bounds")


def test_events_in_both_apis(server: Server, tmp_path: Path) -> None:
    manifest = """
apiVersion: events.k8s.io/v1
kind: Event
metadata: {name: seen}
eventTime: "2026-11-21T10:00:00.000000Z"
type: Warning
action: Look
reason: Seen
note: something was seen
regarding: {kind: Pod, name: p, namespace: default, apiVersion: v1}
reportingController: example.com/eye
reportingInstance: eye-1
"""
    kubectl(server, tmp_path, "apply", "-f", "-", stdin=manifest)
    for resource in ("events", "events.events.k8s.io"):
        line = kubectl(server, tmp_path, "get", resource, "--no-headers")
        assert line.split()[1:4] == ["Warning", "Seen", "pod/p"], resource
    assert "something was seen" in kubectl(server, tmp_path, "events", "--for", "pod/p")
    found = json.loads(
        kubectl(server, tmp_path, "get", "events.v1.events.k8s.io", "seen", "-o", "json")
    )
    assert (found["apiVersion"], found["note"]) == ("events.k8s.io/v1", "something was seen")
    old = json.loads(kubectl(server, tmp_path, "get", "events.v1.", "seen", "-o", "json"))
    assert (old["apiVersion"], old["message"], old["metadata"]["uid"]) == (
        "v1",
        found["note"],
        found["metadata"]["uid"],
    )


def test_one_event_is_watched_through_both_apis(server: Server) -> None:
    base = {
        "type": "Normal",
        "reason": "R",
        "reportingController": "c",
        "reportingInstance": "i",
        "action": "A",
    }
    event = {
        "metadata": {"name": "both"},
        "eventTime": "2026-11-21T10:00:00.000000Z",
        "note": "n",
        **base,
    }
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    assert server.request("POST", path, body=event).code == 201
    query = "watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dboth"
    new = server.request("GET", f"{path}?{query}").json
    old = server.request("GET", f"/api/v1/namespaces/default/events?{query}").json
    assert (new["object"]["note"], new["object"]["apiVersion"]) == ("n", "events.k8s.io/v1")
    assert (old["object"]["message"], old["object"]["apiVersion"]) == ("n", "v1")
    binary = server.request("GET", f"{path}/both", Accept="application/vnd.kubernetes.protobuf")
    assert decode(binary.body)["note"] == "n"
    listed = server.request("GET", path, Accept="application/vnd.kubernetes.protobuf")
    assert "n" in [item["note"] for item in decode(listed.body)["items"]]


@pytest.fixture(scope="module")
def complete() -> Iterator[Server]:
    """A plane with its controllers."""
    controllers = ControllerService(default_controllers())
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0), services=(controllers,))
    yield Server(plane)
    end()


def test_quota(complete: Server, tmp_path: Path) -> None:
    slices = "count/endpointslices.discovery.k8s.io"
    created = kubectl(
        complete, tmp_path, "create", "quota", "q1", f"--hard=count/secrets=1,{slices}=3,pods=2"
    )
    assert created == "resourcequota/q1 created\n"
    shown = partial(kubectl, complete, tmp_path, "get", "quota", "q1", "--no-headers")
    until(shown, lambda line: "pods: 0/2" in line)
    kubectl(complete, tmp_path, "create", "secret", "generic", "one")
    refused = subprocess.run(
        command(complete, tmp_path, "create", "secret", "generic", "two"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert refused.stderr == (
        'error: failed to create secret secrets "two" is forbidden: exceeded quota: q1, '
        "requested: count/secrets=1, "
        "used: count/secrets=1, limited: count/secrets=1\n"
    )
    described = kubectl(complete, tmp_path, "describe", "quota", "q1")
    assert ["count/secrets", "1", "1"] in [each.split() for each in described.splitlines()]
    assert "q1" in kubectl(complete, tmp_path, "describe", "namespace", "default")
    kubectl(complete, tmp_path, "delete", "secret", "one")
    until(shown, lambda line: "count/secrets: 0/1" in line)
    kubectl(complete, tmp_path, "create", "secret", "generic", "two")
    kubectl(complete, tmp_path, "delete", "quota", "q1")


def test_a_namespace_with_every_kind_goes(complete: Server, tmp_path: Path) -> None:
    kubectl(complete, tmp_path, "create", "namespace", "full")
    for arguments in (
        ("secret", "generic", "s"),
        ("serviceaccount", "a"),
        ("quota", "q", "--hard=pods=1"),
    ):
        kubectl(complete, tmp_path, "create", "-n", "full", *arguments)
    kubectl(complete, tmp_path, "delete", "namespace", "full", "--timeout=240s")


MANY = """
apiVersion: v1
kind: PodTemplate
metadata: {name: later}
template: {metadata: {labels: {app: t}}, spec: {containers: [{name: c, image: "t:1"}]}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec:
  ingressClassName: nginx
  rules:
  - host: a.example
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: nginx}
spec: {controller: example.com/nginx}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {}, policyTypes: [Ingress]}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 1000
preemptionPolicy: Never
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: runc}
handler: runc
---
apiVersion: v1
kind: ReplicationController
metadata: {name: old}
spec: {replicas: 0, template: {metadata: {labels: {app: old}}, spec: {containers: [{name: c, image: "old:1"}]}}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template: {metadata: {labels: {app: agent}}, spec: {containers: [{name: c, image: "agent:1"}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: "db:1"}]}}
"""


def test_workloads_classes_and_policies(server: Server, tmp_path: Path) -> None:
    created = kubectl(server, tmp_path, "apply", "-f", "-", stdin=MANY).splitlines()
    assert len(created) == 9
    assert all(line.endswith(" created") for line in created), created
    again = kubectl(server, tmp_path, "apply", "-f", "-", stdin=MANY).splitlines()
    assert all(line.endswith(" unchanged") for line in again), again
    for name, cells in (
        ("podtemplates", ["later", "c", "t:1", "app=t"]),
        ("ing", ["web", "nginx", "a.example"]),
        ("ingressclasses", ["nginx", "example.com/nginx", "<none>"]),
        ("netpol", ["closed", "<none>"]),
        ("runtimeclasses", ["runc", "runc"]),
        ("rc", ["old", "0", "0", "0"]),
        ("ds", ["agent", "0", "0", "0", "0", "0", "<none>"]),
        ("sts", ["db", "0/2"]),
    ):
        line = kubectl(server, tmp_path, "get", name, "--no-headers").split()
        assert line[: len(cells)] == cells
    assert kubectl(server, tmp_path, "get", "pc", "high", "--no-headers").split()[1:3] == [
        "1000",
        "false",
    ]
    kubectl(server, tmp_path, "scale", "sts/db", "rc/old", "--replicas=3")
    assert kubectl(server, tmp_path, "get", "sts", "db", "-o", "jsonpath={.spec.replicas}") == "3"
    scale = json.loads(
        kubectl(server, tmp_path, "get", "rc", "old", "--subresource=scale", "-o", "json")
    )
    assert (scale["spec"]["replicas"], scale["status"]["selector"]) == (3, "app=old")
    assert "Allowing the specific traffic to all pods" in kubectl(
        server, tmp_path, "describe", "netpol", "closed"
    )
    assert "stable name" in kubectl(server, tmp_path, "explain", "statefulset")
    pod = '{"spec": {"priorityClassName": "high"}}'
    kubectl(server, tmp_path, "run", "dear", "--image=i", f"--overrides={pod}")
    shown = kubectl(
        server,
        tmp_path,
        "get",
        "pod",
        "dear",
        "-o",
        "jsonpath={.spec.priority} {.spec.preemptionPolicy}",
    )
    assert shown == "1000 Never"
    kubectl(server, tmp_path, "delete", "-f", "-", stdin=MANY)
    kubectl(server, tmp_path, "delete", "pod", "dear", "--now")


def test_a_budget_is_stored_with_its_status(server: Server, tmp_path: Path) -> None:
    kubectl(server, tmp_path, "create", "pdb", "some", "--selector=app=w", "--min-available=50%")
    change = '{"status": {"disruptionsAllowed": 2}}'
    kubectl(
        server,
        tmp_path,
        "patch",
        "pdb",
        "some",
        "--subresource=status",
        "--type=merge",
        "-p",
        change,
    )
    line = kubectl(server, tmp_path, "get", "pdb", "some", "--no-headers").split()
    assert line[:4] == ["some", "50%", "N/A", "2"]
    assert "Min available:  50%" in kubectl(server, tmp_path, "describe", "pdb", "some")
    kubectl(server, tmp_path, "delete", "pdb", "some")
