"""Where the three controllers are at rest the audit finds nothing wrong, whatever happened
before.
"""

from __future__ import annotations

import random

import pytest

from sliceplane.api.codec import encode
from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import EndpointsObjects, Nodes, Pods, Services
from sliceplane.controllers.endpoints import EndpointsController
from sliceplane.controllers.endpointslice import EndpointSliceController
from sliceplane.controllers.endpointslice_mirroring import EndpointSliceMirroringController
from sliceplane.diagnose.audit.audit import AUDITED, Auditor
from sliceplane.lab.sim.cluster import Cluster

#: true of every history here: users' Endpoints without Service, Pods without the port that a
#: Service names, and a test that writes without a manager's name
TRUE = {"L3", "L5", "L4", "T2"}


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_wrong_with_what_controllers_keep(seed: int) -> None:
    rng = random.Random(seed)
    cluster = Cluster(
        EndpointSliceController(), EndpointsController(), EndpointSliceMirroringController()
    )
    cluster.create(Nodes, {"metadata": {"name": "n1"}})
    for _ in range(60):
        try:
            step(cluster, rng)
        except StatusError as error:
            if error.reason not in ("AlreadyExists", "NotFound"):
                raise
    cluster.converge()
    auditor = Auditor()
    for resource in AUDITED:
        for document in cluster.list(resource):
            auditor.on_object(resource.plural, encode(document))
    assert [each for each in auditor.findings() if each.code not in TRUE] == []


def step(cluster: Cluster, rng: random.Random) -> None:
    name, pod = rng.choice("abc"), f"p{rng.randrange(12)}"
    match rng.randrange(7):
        case 0:
            spec = {
                "ports": [{"port": 80, "targetPort": rng.choice([80, "x"])}],
                "publishNotReadyAddresses": rng.random() < 0.3,
                "clusterIP": rng.choice(["None", None]),
                "ipFamilies": rng.choice([["IPv4"], ["IPv6", "IPv4"]]),
                "ipFamilyPolicy": "PreferDualStack",
                "selector": {"app": name} if rng.random() < 0.7 else None,
            }
            cluster.create(Services, {"metadata": {"name": name}, "spec": spec})
        case 1 | 2:
            make_pod(cluster, rng, pod, name)
        case 3:
            cluster.delete(Pods, pod, gracePeriodSeconds=30)
        case 4:
            cluster.patch(Services, name, {"spec": {"selector": rng.choice([None, {"app": name}])}})
        case 5:
            cluster.delete(Services, name)
        case _:
            subset = {
                "addresses": [{"ip": f"10.1.0.{rng.randrange(1, 9)}"}],
                "ports": [{"port": 5}],
            }
            cluster.create(EndpointsObjects, {"metadata": {"name": name}, "subsets": [subset]})


def make_pod(cluster: Cluster, rng: random.Random, name: str, app: str) -> None:
    ports = [{"name": rng.choice("xy"), "containerPort": rng.choice([1, 2])}]
    spec = {"nodeName": "n1", "containers": [{"name": "m", "image": "x", "ports": ports}]}
    cluster.create(Pods, {"metadata": {"name": name, "labels": {"app": app}}, "spec": spec})
    ips = [{"ip": f"10.0.0.{rng.randrange(1, 15)}"}, {"ip": f"fd00::{rng.randrange(1, 9)}"}]
    conditions = [{"type": "Ready", "status": rng.choice(["True", "False"])}]
    status = {"phase": "Running", "podIP": ips[0]["ip"], "podIPs": ips, "conditions": conditions}
    cluster.patch(Pods, name, {"status": status}, subresource="status")
