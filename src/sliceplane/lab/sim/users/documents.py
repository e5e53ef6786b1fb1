"""The documents that users write in a simulation: Services, Deployments, Pods without a kubelet,
Nodes, foreign slices.
"""

from __future__ import annotations

from sliceplane.api.discovery import LABEL_MANAGED_BY, LABEL_SERVICE_NAME, LABEL_ZONE
from sliceplane.api.meta import Document
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.roster import ZONES

FOREIGN_MANAGER = "somebody.example.com"
PORTS: tuple[list[Document], ...] = (
    [{"name": "http", "port": 80, "targetPort": 8080}],
    [{"name": "http", "port": 80, "targetPort": "web"}],
    [
        {"name": "http", "port": 80, "targetPort": "web"},
        {"name": "admin", "port": 81, "targetPort": "admin"},
    ],
    [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53}],
)
DISTRIBUTIONS = (None, None, "PreferClose", "PreferSameZone", "PreferSameNode")
FAMILIES: tuple[Document, ...] = (
    {"ipFamilyPolicy": "SingleStack"},
    {"ipFamilyPolicy": "PreferDualStack"},
    {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]},
)


def namespace(name: str) -> Document:
    return {"metadata": {"name": name}}


def quota(hard: Document) -> Document:
    return {"metadata": {"name": "limits"}, "spec": {"hard": hard}}


def node(name: str, zone: str | None) -> Document:
    return {"metadata": {"name": name, "labels": {LABEL_ZONE: zone} if zone else {}}}


def service(name: str, app: str, rng: Rng) -> Document:
    spec: Document = {"selector": {"app": app}, "ports": PORTS[rng.below(len(PORTS))]}
    distribution = DISTRIBUTIONS[rng.below(len(DISTRIBUTIONS))]
    if distribution:
        spec["trafficDistribution"] = distribution
    spec |= FAMILIES[rng.below(len(FAMILIES))]
    if rng.below(4) == 0:
        spec["clusterIP"] = "None"
    if rng.below(6) == 0:
        spec["publishNotReadyAddresses"] = True
    return {"metadata": {"name": name, "labels": {"team": "a"}}, "spec": spec}


def service_edit(app: str, rng: Rng) -> Document:
    """Returns a merge patch of a Service with one typical user change."""
    choices: tuple[Document, ...] = (
        {"spec": {"ports": PORTS[rng.below(len(PORTS))]}},
        {"spec": {"trafficDistribution": DISTRIBUTIONS[rng.below(len(DISTRIBUTIONS))]}},
        {"spec": {"publishNotReadyAddresses": rng.below(2) == 0}},
        {"spec": {"selector": {"app": app}}},
        {"spec": {"selector": {"app": app, "tier": "front"}}},
        {"spec": {"selector": None}},
        {"spec": {"type": "ExternalName", "externalName": "db.example.com"}},
        {"spec": {"type": "ClusterIP", "externalName": None}},
        {"spec": {"type": "NodePort"}},
        {"metadata": {"labels": {"team": f"t{rng.below(3)}"}}},
        {"metadata": {"labels": {"service.kubernetes.io/headless": "user"}}},
        {"metadata": {"annotations": {"note": f"n{rng.below(3)}"}}},
        {"spec": {"ipFamilyPolicy": "PreferDualStack"}},
        {"spec": {"ipFamilyPolicy": "SingleStack", "ipFamilies": None, "clusterIPs": None}},
    )
    return choices[rng.below(len(choices))]


def _template(app: str, image: str) -> Document:
    ports = [
        {"name": "web", "containerPort": 8080},
        {"name": "admin", "containerPort": 9000 + len(image) % 3},
    ]
    containers = [{"name": "main", "image": image, "ports": ports}]
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": containers}}


def deployment(name: str, app: str, replicas: int, image: str) -> Document:
    selector = {"matchLabels": {"app": app}}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": selector, "template": _template(app, image)},
    }


def image_change(image: str) -> Document:
    return {
        "spec": {"template": {"spec": {"containers": _template("", image)["spec"]["containers"]}}}
    }


def bare_pod(name: str, app: str, node_name: str, rng: Rng) -> Document:
    labels = {"app": app, **({"tier": "front"} if rng.below(2) else {})}
    ports = [
        {"name": "web", "containerPort": 8080 + rng.below(2)},
        {"name": "admin", "containerPort": 9000},
    ]
    spec: Document = {
        "nodeName": node_name,
        "containers": [{"name": "main", "image": "bare", "ports": ports}],
    }
    if rng.below(4) == 0:
        spec |= {"hostname": name, "subdomain": app}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def pod_status(addresses: list[str], *, ready: bool, phase: str = "Running") -> Document:
    status = {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
    }
    if addresses:
        status |= {"podIP": addresses[0], "podIPs": [{"ip": address} for address in addresses]}
    return {"status": status}


def foreign_slice(service_name: str, which: int) -> Document:
    labels = {LABEL_SERVICE_NAME: service_name, LABEL_MANAGED_BY: FOREIGN_MANAGER}
    return {
        "metadata": {"name": f"theirs-{service_name}-{which}", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [f"198.51.100.{which}"], "zone": ZONES[which % len(ZONES)]}],
        "ports": [{"name": "http", "port": 80}],
    }
