"""Random clusters in which nothing is wrong, with what real ones have besides: rollouts under way,
Jobs, headless and hand-written Services, control planes that take no Pods, Pods that ended, nodes
without leases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.diagnose.explain.faults.proxies import add_proxies
from tests.diagnose.explain.world import (
    World,
    add_node,
    add_pod,
    add_service,
    add_workload,
    ago,
    endpoint_of,
    owner,
    pod_spec,
    write_slice,
)

from sliceplane.kit.rng import Rng

NAMESPACES = ("shop", "pay", "search")
Kind = Callable[[World, Rng, str, str], None]


def healthy_cluster(rng: Rng, services: int) -> World:
    world = World()
    world.add("ServiceCIDR", "", "kubernetes", spec={"cidrs": ["10.96.0.0/16", "fd00::/64"]})
    for namespace in (*NAMESPACES, "kube-system"):
        world.add(
            "Namespace", "", namespace, status={"phase": "Active"}, labels={"name": namespace}
        )
    zones = 1 + rng.below(4)
    for number in range(zones * (1 + rng.below(4))):
        add_node(world, f"node-{number}", f"zone-{number % zones}")
    control = add_node(world, "control-0", "zone-0")
    control["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = ""
    control["spec"]["taints"] = [
        {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
    ]
    for number in range(services):
        namespace = NAMESPACES[rng.below(len(NAMESPACES))]
        KINDS[rng.below(len(KINDS))](world, rng, namespace, f"svc-{number}")
    if rng.below(2):
        add_proxies(world, 1_000_000)
    return world


def _workers(world: World) -> list[str]:
    return [
        node["metadata"]["name"] for node in world.all("Node") if not node["spec"].get("taints")
    ]


def _deployed(world: World, rng: Rng, namespace: str, name: str, **spec: Any) -> None:
    """A Deployment of up to five Pods, on workers in turn."""
    service = add_service(world, name, namespace, **spec)
    replicas = 2 + rng.below(4)
    add_workload(world, name, namespace, 0, **service["spec"]["selector"])
    deployment = world.get("Deployment", namespace, name)
    replica_set = world.get("ReplicaSet", namespace, f"{name}-7d9f")
    for item in (deployment, replica_set):
        item["spec"]["replicas"] = replicas
        item["status"] = {
            "replicas": replicas,
            "readyReplicas": replicas,
            "availableReplicas": replicas,
        }
    nodes = _workers(world)
    start = rng.below(len(nodes))
    for number in range(replicas):
        node = nodes[(start + number) % len(nodes)]
        add_pod(
            world, f"{name}-{number}", namespace, node, service["spec"]["selector"], replica_set
        )


def plain(world: World, rng: Rng, namespace: str, name: str) -> None:
    _deployed(world, rng, namespace, name)
    write_slice(world, name, namespace)


def named_port(world: World, rng: Rng, namespace: str, name: str) -> None:
    port = {"name": "web", "port": 80, "protocol": "TCP", "targetPort": "http"}
    _deployed(world, rng, namespace, name, ports=[port])
    write_slice(world, name, namespace)


def rolling(world: World, rng: Rng, namespace: str, name: str) -> None:
    """One Pod leaves, another is starting; the rest are ready."""
    _deployed(world, rng, namespace, name)
    leaving = world.get("Pod", namespace, f"{name}-0")
    leaving["metadata"].update(deletionTimestamp=ago(-50), deletionGracePeriodSeconds=60)
    coming = add_pod(world, f"{name}-new", namespace, _workers(world)[0], {"app": name})
    coming["metadata"].update(
        creationTimestamp=ago(3), ownerReferences=leaving["metadata"]["ownerReferences"]
    )
    for condition in coming["status"]["conditions"]:
        condition["lastTransitionTime"] = ago(2)
        if condition["type"] in ("Ready", "ContainersReady"):
            condition["status"] = "False"
    coming["status"]["containerStatuses"][0].update(
        ready=False, state={"running": {"startedAt": ago(2)}}
    )
    write_slice(world, name, namespace)


def with_ended_pods(world: World, rng: Rng, namespace: str, name: str) -> None:
    """An evicted Pod stays, as they do; a Job with labels of its own runs beside."""
    plain(world, rng, namespace, name)
    evicted = add_pod(world, f"{name}-old", namespace, _workers(world)[0], {"app": name})
    evicted["metadata"]["ownerReferences"] = world.get("Pod", namespace, f"{name}-0")["metadata"][
        "ownerReferences"
    ]
    evicted["status"] = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
    job = world.add(
        "Job",
        namespace,
        f"{name}-migrate",
        spec={"template": {"metadata": {"labels": {"job": name}}}},
    )
    add_pod(world, f"{name}-migrate-x", namespace, _workers(world)[0], {"job": name}, job)


def zonal(world: World, rng: Rng, namespace: str, name: str) -> None:
    """PreferSameZone with one Pod on every worker."""
    service = add_service(world, name, namespace, trafficDistribution="PreferSameZone")
    _on_every_node(world, namespace, name)
    for endpoint in write_slice(world, name, namespace)["endpoints"]:
        endpoint["hints"] = {"forZones": [{"name": endpoint["zone"]}]}
    assert service["spec"]["trafficDistribution"]


def local(world: World, rng: Rng, namespace: str, name: str) -> None:
    add_service(world, name, namespace, internalTrafficPolicy="Local")
    _on_every_node(world, namespace, name)
    write_slice(world, name, namespace)


def _on_every_node(world: World, namespace: str, name: str) -> None:
    spec = {"template": {"metadata": {"labels": {"app": name}}, "spec": pod_spec()}}
    daemon_set = world.add("DaemonSet", namespace, name, spec=spec)
    for number, node in enumerate(_workers(world)):
        add_pod(world, f"{name}-{number}", namespace, node, {"app": name}, daemon_set)


def headless(world: World, rng: Rng, namespace: str, name: str) -> None:
    port = {"name": "db", "port": 8080, "protocol": "TCP", "targetPort": 8080}
    published = bool(rng.below(2))
    add_service(
        world,
        name,
        namespace,
        clusterIP="None",
        clusterIPs=["None"],
        ports=[port],
        publishNotReadyAddresses=published,
    )
    template = {"metadata": {"labels": {"app": name}}, "spec": pod_spec()}
    stateful_set = world.add(
        "StatefulSet",
        namespace,
        name,
        spec={"replicas": 3, "serviceName": name, "template": template},
    )
    nodes = _workers(world)
    for number in range(3):
        add_pod(
            world,
            f"{name}-{number}",
            namespace,
            nodes[number % len(nodes)],
            {"app": name},
            stateful_set,
        )
    write_slice(world, name, namespace)


def balanced(world: World, rng: Rng, namespace: str, name: str) -> None:
    """A load balancer, under either policy; its health checks find the nodes."""
    policy = ("Cluster", "Local")[rng.below(2)]
    port = {
        "name": "http",
        "port": 80,
        "protocol": "TCP",
        "targetPort": 8080,
        "nodePort": 30000 + world.added,
    }
    more = {"healthCheckNodePort": 40000 + world.added} if policy == "Local" else {}
    _deployed(
        world,
        rng,
        namespace,
        name,
        type="LoadBalancer",
        externalTrafficPolicy=policy,
        ports=[port],
        **more,
    )
    ip = f"203.0.113.{world.added % 250}"
    ingress = [{"ip": f"{ip[:-1]}{world.count('Service')}"[:15]}]
    world.get("Service", namespace, name)["status"] = {"loadBalancer": {"ingress": ingress}}
    write_slice(world, name, namespace)


def by_hand(world: World, rng: Rng, namespace: str, name: str) -> None:
    """No selector; its slice is kept by hand."""
    spec = add_service(world, name, namespace)["spec"]
    del spec["selector"]
    labels = {"kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": "staff"}
    endpoints = [{"addresses": ["192.0.2.7"], "conditions": {"ready": True}}]
    ports = [{"name": "http", "port": 5432, "protocol": "TCP"}]
    world.add(
        "EndpointSlice",
        namespace,
        f"{name}-1",
        labels=labels,
        addressType="IPv4",
        endpoints=endpoints,
        ports=ports,
    )


def external(world: World, rng: Rng, namespace: str, name: str) -> None:
    spec = add_service(world, name, namespace)["spec"]
    for member in ("selector", "clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        del spec[member]
    spec.update(type="ExternalName", externalName="db.example.org")


def both_families(world: World, rng: Rng, namespace: str, name: str) -> None:
    _deployed(
        world, rng, namespace, name, ipFamilies=["IPv4", "IPv6"], ipFamilyPolicy="PreferDualStack"
    )
    service = world.get("Service", namespace, name)
    service["spec"]["clusterIPs"].append(f"fd00::{world.added:x}")
    six = []
    for pod in list(world.all("Pod")):
        if (
            pod["metadata"].get("labels") == {"app": name}
            and pod["metadata"]["namespace"] == namespace
        ):
            pod["status"]["podIPs"].append({"ip": f"fd01::{world.added:x}:{len(six):x}"})
            six.append({**endpoint_of(pod, {}), "addresses": [pod["status"]["podIPs"][1]["ip"]]})
    four = write_slice(world, name, namespace)
    world.add(
        "EndpointSlice",
        namespace,
        f"{name}-six",
        labels=four["metadata"]["labels"],
        addressType="IPv6",
        endpoints=six,
        ports=four["ports"],
        meta={"ownerReferences": [owner(service)]},
    )


def guarded(world: World, rng: Rng, namespace: str, name: str) -> None:
    """A NetworkPolicy that admits its clients, and an Ingress that leads to it."""
    plain(world, rng, namespace, name)
    rules = [
        {
            "from": [{"podSelector": {}}, {"namespaceSelector": {}}],
            "ports": [{"port": 8080, "protocol": "TCP"}],
        }
    ]
    spec = {
        "podSelector": {"matchLabels": {"app": name}},
        "policyTypes": ["Ingress"],
        "ingress": rules,
    }
    world.add("NetworkPolicy", namespace, name, spec=spec)
    backend = {"service": {"name": name, "port": {"number": 80}}}
    paths = [{"path": "/", "pathType": "Prefix", "backend": backend}]
    world.add(
        "Ingress",
        namespace,
        name,
        spec={"rules": [{"host": f"{name}.example.org", "http": {"paths": paths}}]},
    )


KINDS: tuple[Kind, ...] = (
    plain,
    plain,
    plain,
    named_port,
    rolling,
    with_ended_pods,
    zonal,
    local,
    headless,
    balanced,
    by_hand,
    external,
    both_families,
    guarded,
)
