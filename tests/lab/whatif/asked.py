"""Clusters on virtual time, and what-if questions to them."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from typing import Any

from sliceplane.api.meta import Document
from sliceplane.api.scheme import Deployments, Services
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.emulation.deployments.controller import DeploymentController
from sliceplane.emulation.kubelet import KubeletController
from sliceplane.emulation.nodes import EmulatedNode, EmulationConfig, parse_nodes
from sliceplane.emulation.replicaset import ReplicaSetController
from sliceplane.lab.sim.cluster import Cluster
from sliceplane.lab.whatif.changes import KEYS, NOW_KEYS, checked, parse, running
from sliceplane.lab.whatif.picture import Clients
from sliceplane.lab.whatif.prediction import Prediction, Price, WhatIfQuestion, predict
from sliceplane.lab.whatif.state import ClusterState, of_snapshot
from sliceplane.server.store.snapshot import records_of, written

NO_PRICE = Price(per_gb=Fraction(2, 100), of="AWS, 2026-11")


def nodes(**zones: int) -> tuple[EmulatedNode, ...]:
    """``nodes(a=2, b=1)``: two Nodes in zone-a, one in zone-b; ``none``: without a zone."""
    entries = [
        {"name": f"node-{zone}-{number}", **({} if zone == "none" else {"zone": f"zone-{zone}"})}
        for zone, count in zones.items()
        for number in range(1, count + 1)
    ]
    return parse_nodes(entries)


def make_cluster(*, config: EndpointSliceConfig | None = None, **zones: int) -> Cluster:
    emulation = EmulationConfig(nodes=nodes(**zones), termination_s=2.0)
    return Cluster(
        EndpointSliceController(config),
        DeploymentController(),
        ReplicaSetController(),
        KubeletController(emulation),
    )


def deployment(replicas: int, *, app: str = "cart", **spec: Any) -> Document:
    containers = [{"name": "main", "image": "x", "ports": [{"containerPort": 8080}]}]
    template = {"metadata": {"labels": {"app": app}}, "spec": {"containers": containers, **spec}}
    selector = {"matchLabels": {"app": app}}
    return {
        "metadata": {"name": app},
        "spec": {"replicas": replicas, "selector": selector, "template": template},
    }


def service(app: str = "cart", **spec: Any) -> Document:
    ports = [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]
    return {"metadata": {"name": app}, "spec": {"selector": {"app": app}, "ports": ports, **spec}}


def cart(
    replicas: int,
    *,
    config: EndpointSliceConfig | None = None,
    of: Document | None = None,
    **zones: int,
) -> Cluster:
    """A Service of so many Pods; *of*: members of its spec."""
    cluster = make_cluster(config=config, **zones)
    cluster.converge()
    cluster.create(Deployments, deployment(replicas))
    cluster.create(Services, service(**(of or {})))
    cluster.converge()
    return cluster


def state_of(cluster: Cluster) -> ClusterState:
    """By way of a snapshot's lines."""
    lines = b"".join(written(records_of(cluster.store), cluster.store.revision)).splitlines(
        keepends=True
    )
    return of_snapshot(lines, "test")


@cache
def cart_snapshot() -> bytes:
    """The cluster of docs/what-if.md: eleven Pods, two Nodes in each of three zones."""
    cluster = cart(11, a=2, b=2, c=2)
    return b"".join(written(records_of(cluster.store), cluster.store.revision))


def ask(
    state: ClusterState | Cluster,
    *changes: str,
    now: Iterable[str] = (),
    clients: Clients | None = None,
    watchers: int = 0,
    price: Price = NO_PRICE,
    name: str = "cart",
) -> Prediction:
    known = state_of(state) if isinstance(state, Cluster) else state
    subject = known.service("default", name)
    settings = tuple(parse(text, KEYS) for text in changes)
    question = WhatIfQuestion(
        service=subject,
        changes=checked(settings, known, subject),
        now=running(tuple(parse(text, NOW_KEYS) for text in now)),
        clients=clients or Clients(),
        price=price,
        watchers=watchers,
    )
    return predict(known, question)


def traffic(**zones: float) -> Clients:
    """Without zones: where Nodes take Pods."""
    return Clients(traffic={f"zone-{zone}": Fraction(str(share)) for zone, share in zones.items()})
