"""Histories of objects and jobs for the recorder, out of one random number."""

from __future__ import annotations

from random import Random

from sliceplane.api.codec import encode
from sliceplane.api.core import (
    Condition,
    Pod,
    PodIP,
    PodSpec,
    PodStatus,
    Service,
    ServicePort,
    ServiceSpec,
)
from sliceplane.api.discovery import EndpointConditions, EndpointPort, EndpointSlice, SliceEndpoint
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object, ObjectMeta, ObjectReference
from sliceplane.api.scheme import EndpointSlices, Pods, Resource, Services
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Job, Work, Write

RESOURCES: dict[str, Resource] = {
    resource.key: resource for resource in (Pods, Services, EndpointSlices)
}


class History:
    """Changes as an informer would tell them, and jobs as a controller would hand them out."""

    def __init__(self, seed: int, names: int = 6) -> None:
        self.random = Random(seed)
        self.names = names
        self.version = 0
        self.objects: dict[tuple[str, str], Object] = {}
        self.jobs: dict[str, Job] = {}

    def change(self) -> Change[Object]:
        resource = self.random.choice(list(RESOURCES.values()))
        name = f"{resource.plural}-{self.random.randrange(self.names)}"
        old = self.objects.get((resource.key, name))
        if old is not None and self.random.random() < 0.15:
            del self.objects[resource.key, name]
            return Change(resource.key, old, None)
        new = self._object(resource, name, old)
        self.objects[resource.key, name] = new
        return Change(resource.key, old, new)

    def _object(self, resource: Resource, name: str, old: Object | None) -> Object:
        self.version += 1
        random = self.random
        meta = ObjectMeta(
            name=name,
            namespace="shop",
            uid=old.metadata.uid if old is not None else f"uid-{self.version}",
            resource_version=str(self.version),
            labels={"app": random.choice(("web", "db"))} if random.random() < 0.8 else None,
            annotations=random.choice(
                (None, {"sliceplane.dev/x": "1"}, {"vault.example/secret": "swordfish"})
            ),
        )
        if resource is Pods:
            ready = Condition(
                type="Ready",
                status=random.choice(("True", "False")),
                last_transition_time="2026-01-01",
            )
            conditions = (Condition(type="Initialized", status="True"), ready)
            ips = tuple(
                PodIP(ip=f"10.0.0.{random.randrange(9)}") for _ in range(random.randrange(3))
            )
            status = PodStatus(
                phase=random.choice(("", "Running")), pod_ips=ips or None, conditions=conditions
            )
            return Pod(
                metadata=meta, spec=PodSpec(node_name=random.choice(("", "n1"))), status=status
            )
        if resource is Services:
            ports = tuple(
                ServicePort(name=f"p{n}", port=80 + n) for n in range(random.randrange(3))
            )
            return Service(
                metadata=meta, spec=ServiceSpec(ports=ports or None, selector={"app": "web"})
            )
        endpoints = tuple(
            SliceEndpoint(
                addresses=(f"10.0.0.{n}",),
                conditions=EndpointConditions(ready=random.random() < 0.7),
                target_ref=ObjectReference(kind="Pod", name=f"pod-{n}"),
            )
            for n in sorted(random.sample(range(9), random.randrange(6)))
        )
        return EndpointSlice(
            metadata=meta,
            address_type="IPv4",
            endpoints=endpoints,
            ports=(EndpointPort(name="", port=80),),
        )

    def work(self) -> Work:
        key = f"shop/{self.random.randrange(self.names)}"
        if key in self.jobs or self.random.random() < 0.5:
            return Work()
        body = encode(
            {
                "metadata": {"name": "a", "annotations": {"vault.example/secret": "swordfish"}},
                "n": self.version,
            }
        )
        writes = (
            Write(verb="update", resource=EndpointSlices, namespace="shop", name="a", body=body),
            Write(
                verb="delete",
                resource=EndpointSlices,
                namespace="shop",
                name="b",
                tolerate=("NotFound",),
            ),
        )
        self.jobs[key] = job = Job(key=key, writes=writes)
        return Work(jobs=(job,))

    def done(self) -> Done | None:
        if not self.jobs:
            return None
        job = self.jobs.pop(self.random.choice(sorted(self.jobs)))
        if self.random.random() < 0.3:
            return Done(job, (), StatusError(409, "Conflict", "another was first", {"name": "a"}))
        answer = self._object(EndpointSlices, "a", self.objects.get((EndpointSlices.key, "a")))
        return Done(job, (encode(answer), b""))
