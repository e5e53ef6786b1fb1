"""A tiny API server for controller cores: versions, generations, preconditions, and a watch that
can lag.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from sliceplane.api.codec import decode, decode_document, encode
from sliceplane.api.core import (
    Condition,
    Container,
    ContainerPort,
    Endpoints,
    Namespace,
    Node,
    NodeStatus,
    Pod,
    PodIP,
    PodSpec,
    PodStatus,
    Service,
    ServicePort,
    ServiceSpec,
    TopologySpreadConstraint,
)
from sliceplane.api.discovery import LABEL_ZONE, EndpointSlice, SliceEndpoint
from sliceplane.api.errors import (
    StatusError,
    already_exists,
    conflict,
    invalid,
    invalid_value,
    not_found,
)
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Nodes, Pods, Resource, Services
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Controller, Done, EventNote, Job, Write

replace = msgspec.structs.replace
Key = tuple[str, str, str]


def make_pod(name: str, **over: Any) -> Pod:
    """A ready pod on node n0; *over*: ips, labels, node, ready, phase, terminating, port, hostname,
    uid, since, spread.
    """
    ips = over.get("ips", (f"10.0.0.{int(name.rpartition('-')[2]) + 1}",))
    ports = (ContainerPort(name="http", container_port=over.get("port", 8080)),)
    ready = Condition(
        type="Ready",
        status="True" if over.get("ready", True) else "False",
        last_transition_time=over.get("since", "2026-11-21T10:00:00Z"),
    )
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=over.get("namespace", "shop"),
            uid=over.get("uid", f"uid-{name}"),
            labels=over.get("labels", {"app": "web"}),
            deletion_timestamp="2026-11-21T11:00:00Z" if over.get("terminating") else None,
        ),
        spec=PodSpec(
            node_name=over.get("node", "n0"),
            hostname=over.get("hostname", ""),
            subdomain=over.get("subdomain", ""),
            containers=(Container(name="main", ports=ports),),
            topology_spread_constraints=tuple(
                TopologySpreadConstraint(topology_key=key) for key in over.get("spread", ())
            )
            or None,
        ),
        status=PodStatus(
            phase=over.get("phase", "Running"),
            pod_ip=ips[0] if ips else "",
            pod_ips=tuple(PodIP(ip=ip) for ip in ips),
            conditions=(ready,),
        ),
    )


def make_service(name: str = "web", **over: Any) -> Service:
    meta = ObjectMeta(
        name=name,
        namespace=over.pop("namespace", "shop"),
        uid=over.pop("uid", f"uid-{name}"),
        creation_timestamp="2026-11-21T09:00:00Z",
        labels=over.pop("labels", None),
        annotations=over.pop("annotations", None),
        deletion_timestamp=over.pop("deletion_timestamp", None),
    )
    spec = {
        "selector": {"app": "web"},
        "cluster_ip": "10.96.0.1",
        "ip_families": ("IPv4",),
        "ports": (ServicePort(name="http", port=80, target_port=8080),),
    }
    return Service(metadata=meta, spec=ServiceSpec(**{**spec, **over}))


def make_node(
    name: str, zone: str = "", *, cpu: str = "4", ready: bool = True, **labels: str
) -> Node:
    condition = Condition(type="Ready", status="True" if ready else "False")
    return Node(
        metadata=ObjectMeta(name=name, labels={**({LABEL_ZONE: zone} if zone else {}), **labels}),
        status=NodeStatus(allocatable={"cpu": cpu}, conditions=(condition,)),
    )


RESOURCE_OF: dict[type[Object], Resource] = {
    Pod: Pods,
    Node: Nodes,
    Service: Services,
    EndpointSlice: EndpointSlices,
    Endpoints: EndpointsObjects,
}


class FakeCluster:
    """Objects as projections.  ``pending`` is what the watch has not delivered yet."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.cache: dict[Key, Object] = {}
        self.pending: list[Change[Object]] = []
        self.revision = 100
        self.created = 0
        self.writes: list[Write] = []

    # -- the server

    def put(self, new: Object, resource: Resource | None = None) -> Object:
        resource = resource or RESOURCE_OF[type(new)]
        key = (resource.key, new.metadata.namespace, new.metadata.name)
        old = self.objects.get(key)
        self.revision += 1
        generation = (
            1 if old is None else old.metadata.generation + (_content(old) != _content(new))
        )
        meta = replace(new.metadata, resource_version=str(self.revision), generation=generation)
        stored = replace(new, metadata=meta)
        self.objects[key] = stored
        self.pending.append(Change(resource.key, old, stored))
        return stored

    def remove(self, resource: Resource, namespace: str, name: str) -> None:
        old = self.objects.pop((resource.key, namespace, name), None)
        if old is not None:
            self.revision += 1
            self.pending.append(Change(resource.key, old, None))

    def slices(self) -> list[EndpointSlice]:
        return [each for _, each in sorted(self.objects.items()) if isinstance(each, EndpointSlice)]

    def endpoints(self) -> list[SliceEndpoint]:
        return [endpoint for each in self.slices() for endpoint in each.endpoints or ()]

    def perform(self, write: Write) -> bytes:
        """One write; raises ``StatusError`` as the server would."""
        if write.verb != "list":
            self.writes.append(write)
        resource = write.resource
        if write.verb == "create":
            new = decode(write.body, resource.projection)
            self.created += 1
            # names that sort against the order of creation now and then, as random suffixes do
            name = (
                new.metadata.name
                or f"{new.metadata.generate_name}{self.created * 7 % 10}{self.created:03d}"
            )
            if (resource.key, write.namespace, name) in self.objects:
                raise already_exists(resource.plural, resource.group, name)
            uid = f"{resource.singular.removeprefix('endpoint')}-{self.created}"
            meta = replace(new.metadata, name=name, uid=uid, generate_name="")
            return encode(self.put(replace(new, metadata=meta), resource))
        if write.verb == "list":
            pairs = dict(each.split("=") for each in write.label_selector.split(",") if each)
            return (
                b'{"items":['
                + b",".join(
                    encode(each)
                    for (key, namespace, _), each in sorted(self.objects.items())
                    if (key, namespace) == (resource.key, write.namespace)
                    and pairs.items() <= (each.metadata.labels or {}).items()
                )
                + b"]}"
            )
        old = self.objects.get((resource.key, write.namespace, write.name))
        if old is None:
            raise not_found(resource.plural, resource.group, write.name)
        if write.verb == "update":
            new = decode(write.body, resource.projection)
            seen = (new.metadata.uid or old.metadata.uid, new.metadata.resource_version)
            if seen != (old.metadata.uid, old.metadata.resource_version):
                raise _conflict(write)
            return encode(self._settle(new, resource))
        if write.verb == "get":
            return encode(old)
        if write.verb == "patch":
            return self._patch(write, old)
        return self._delete(write, old)

    def _patch(self, write: Write, old: Object) -> bytes:
        """A merge patch; of strategic ones, that which takes owners out.  Metadata comes and goes
        as a whole member.
        """
        resource = write.resource
        document = msgspec.to_builtins(old)
        for member, value in decode_document(write.body).items():
            document[member] = {**document.get(member, {}), **value}
        if write.patch_type == "strategic" and not write.subresource:
            out = {
                each["uid"]
                for each in document["metadata"]["ownerReferences"]
                if each["$patch"] == "delete"
            }
            owners = [each for each in old.metadata.owner_references or () if each.uid not in out]
            document["metadata"]["ownerReferences"] = msgspec.to_builtins(owners) or None
        found = document["metadata"]
        if found.get("uid") != old.metadata.uid:
            raise invalid(
                resource.kind,
                resource.group,
                write.name,
                [invalid_value("metadata.uid", "x", "immutable")],
            )
        if found["resourceVersion"] != old.metadata.resource_version:
            raise _conflict(write)
        new = msgspec.convert(document, type(old))
        return encode(old if new == old else self._settle(new, resource))

    def _delete(self, write: Write, old: Object) -> bytes:
        options = decode_document(write.body)
        wanted = options.get("preconditions", {})
        if wanted.get("uid", old.metadata.uid) != old.metadata.uid:
            raise _conflict(write)
        if (
            wanted.get("resourceVersion", old.metadata.resource_version)
            != old.metadata.resource_version
        ):
            raise _conflict(write)
        self.delete(
            write.resource,
            write.namespace,
            write.name,
            options.get("propagationPolicy", "Background"),
        )
        return b"{}"

    def delete(
        self, resource: Resource, namespace: str, name: str, policy: str = "Background"
    ) -> None:
        """As a client would: finalizers hold the object back."""
        old = self.objects.get((resource.key, namespace, name))
        if old is None:
            return
        finalizer = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}.get(policy)
        finalizers = tuple(
            dict.fromkeys((*(old.metadata.finalizers or ()), *((finalizer,) if finalizer else ())))
        )
        when = old.metadata.deletion_timestamp or "2026-11-21T12:00:00Z"
        ending = replace(
            old,
            metadata=replace(old.metadata, finalizers=finalizers or None, deletion_timestamp=when),
        )
        if ending != old:
            self._settle(ending, resource)

    def _settle(self, new: Object, resource: Resource) -> Object:
        """Store *new*, or remove it if it was only waiting for its finalizers."""
        meta = new.metadata
        held = meta.finalizers or (isinstance(new, Namespace) and new.spec.finalizers)
        if meta.deletion_timestamp is not None and not held:
            self.remove(resource, meta.namespace, meta.name)
            return new
        return self.put(new, resource)

    # -- the watch

    def deliver(self, controller: Controller, now: float, count: int | None = None) -> None:
        batch = self.pending[: len(self.pending) if count is None else count]
        del self.pending[: len(batch)]
        for change in batch:
            self._show(change, controller, now)

    def relist(self, controller: Controller, now: float) -> None:
        """The watch broke: what the cache missed comes as one difference per object."""
        self.pending.clear()
        for key in sorted({*self.cache, *self.objects}):
            old, new = self.cache.get(key), self.objects.get(key)
            if old != new:
                self._show(Change(key[0], old, new), controller, now)

    def _show(self, change: Change[Object], controller: Controller, now: float) -> None:
        if not any(
            selection.resource.key == change.resource for selection in controller.info.watches
        ):
            return
        meta = change.object.metadata
        key = (change.resource, meta.namespace, meta.name)
        if change.new is None:
            self.cache.pop(key, None)
        else:
            self.cache[key] = change.new
        controller.on_change(change, now)

    def start(self, controller: Controller, now: float) -> None:
        """A new controller lists everything."""
        self.pending.clear()
        self.cache.clear()
        self.relist(controller, now)
        controller.on_synced(now)

    # -- the host

    def run(
        self,
        job: Job,
        *,
        fail_at: int | None = None,
        error: StatusError | None = None,
        lost: bool = False,
    ) -> Done:
        """Perform *job*.  At write *fail_at* answer *error*; *lost*: although the write was
        made.
        """
        results: list[bytes] = []
        for index, write in enumerate(job.writes):
            try:
                if index == fail_at and error is not None:
                    if lost:
                        with contextlib.suppress(StatusError):
                            self.perform(write)
                    raise error
                results.append(self.perform(write))
            except StatusError as failure:
                if failure.reason not in write.tolerate:
                    return Done(job, tuple(results), failure)
                results.append(b"")
        return Done(job, tuple(results))

    def settle(self, controller: Controller, now: float) -> tuple[float, list[EventNote]]:
        """Let everything happen that is going to happen without further input; gives the time
        then.
        """
        notes: list[EventNote] = []
        for _ in range(300):
            self.deliver(controller, now)
            work = controller.take_work(now, 10)
            notes.extend(work.notes)
            for job in work.jobs:
                controller.on_done(self.run(job), now)
            controller.check()
            if not work.jobs and not self.pending:
                deadline = controller.next_deadline()
                if deadline is None:
                    return now, notes
                now = max(now, deadline)
        raise AssertionError("the controller does not come to rest")


def _conflict(write: Write) -> StatusError:
    return conflict(
        write.resource.plural, write.resource.group, write.name, "the object has been modified"
    )


def _content(each: Object) -> bytes:
    """What a generation counts: everything but metadata, and labels."""
    return encode(replace(each, metadata=ObjectMeta(labels=each.metadata.labels)))
