"""``default/kubernetes``: the API servers' own Service, maintained while one of them runs
(pkg/controlplane/reconcilers/lease.go).

Every server over one store holds a Lease in ``kube-system`` that names its address, and renews it
every ``INTERVAL_S``. With each renewal it writes the addresses of all valid Leases into one
Endpoints and one EndpointSlice. A server that stops deletes its Lease; a crashed server is removed
when its Lease is ``LEASE_S`` old. Upstream keeps these records beside the API, with a time to live
in etcd; here they are plain Leases that users can read.

A loopback address cannot be an endpoint: such a server maintains the Service and holds no Lease.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import StatusError
from sliceplane.api.gates import ENDPOINT_SLICE
from sliceplane.api.meta import Document
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Leases, Resource, Services
from sliceplane.kit.ip import Address, parse_strict
from sliceplane.kit.times import format_micro_time, parse_time
from sliceplane.server.registry.core import Core, WriteCall, key_of
from sliceplane.server.registry.documents import document_of
from sliceplane.server.registry.types import BY_THE_SERVER, Body, Context, Target
from sliceplane.server.registry.validation.addresses import special_problem
from sliceplane.server.registry.verbs.create import create
from sliceplane.server.registry.verbs.update import update
from sliceplane.server.store.types import Record

API_SERVICE_NAME: Final = "kubernetes"
API_SERVICE_NAMESPACE: Final = "default"
API_SERVICE_PORT: Final = 443
INTERVAL_S: Final = 10.0
LEASE_S: Final = 15
_LEASE_NAMESPACE = "kube-system"
_LEASE_PREFIX = "apiserver-endpoint-"
_LEASE_LABELS = {"component": "apiserver", "provider": "kubernetes"}
_SKIP_MIRROR = "endpointslice.kubernetes.io/skip-mirror"


def reconcile(core: Core, ctx: Context) -> None:
    """Brings the Service, Endpoints and EndpointSlice to their desired state; apart from them it
    writes only the server's own Lease.
    """
    own = _own_address(core)
    if own is None:
        return
    _ensure_service(core, ctx)
    if special_problem(str(own)):
        # An endpoint must not have such an address; clients on this machine use the kubeconfig.
        before = core.store.staged_revision
        others = _valid_addresses(core, ctx.now)
        if core.store.staged_revision != before:
            _publish(core, ctx, others)
        return
    _renew(core, ctx, own)
    _publish(core, ctx, _valid_addresses(core, ctx.now))


def withdraw(core: Core, ctx: Context) -> None:
    """Removes the Lease and the address of this server, which stops; after the last server the
    list is empty.
    """
    own = _own_address(core)
    record = None if own is None else core.store.latest(key_of(_lease_target(own)))
    if record is not None:
        core.remove(record)
        _publish(core, ctx, _valid_addresses(core, ctx.now))


def _own_address(core: Core) -> Address | None:
    text = core.config.advertise_address
    if not (text and core.config.advertise_port):
        return None
    address = parse_strict(text)
    assert address is not None, f"advertise_address {text!r} is not an IP address"
    return address


# Leases


def _lease_target(address: Address) -> Target:
    name = _LEASE_PREFIX + address.exploded.replace(".", "-").replace(":", "-")
    return Target(resource=Leases, namespace=_LEASE_NAMESPACE, name=name)


def _renew(core: Core, ctx: Context, own: Address) -> None:
    target = _lease_target(own)
    now = format_micro_time(ctx.now)
    record = core.store.latest(key_of(target))
    spec: Document = {
        "holderIdentity": str(own),
        "leaseDurationSeconds": LEASE_S,
        "renewTime": now,
    }
    if record is None:
        head = {"name": target.name, "namespace": target.namespace, "labels": dict(_LEASE_LABELS)}
        _create(core, ctx, Leases, {"metadata": head, "spec": {**spec, "acquireTime": now}})
        return
    document = document_of(record)
    document["metadata"]["labels"] = {**document["metadata"].get("labels", {}), **_LEASE_LABELS}
    document["spec"] = {"acquireTime": now, **document.get("spec", {}), **spec}
    update(WriteCall(core, ctx, target, BY_THE_SERVER), Body(document=document))


def _valid_addresses(core: Core, now: float) -> list[Address]:
    """Returns the sorted addresses of all servers.  Removes expired Leases."""
    addresses: list[Address] = []
    for record in tuple(core.store.iter_latest(Leases.storage_key, _LEASE_NAMESPACE)):
        if not record.key.name.startswith(_LEASE_PREFIX):
            continue
        address, ends = _read(record)
        if now >= ends:
            core.remove(record)
        elif address is not None:
            addresses.append(address)
    return sorted(addresses, key=lambda address: (address.version, int(address)))


def _read(record: Record) -> tuple[Address | None, float]:
    """Returns the address of a Lease and its expiry time.  An invalid Lease is expired."""
    spec: Document = document_of(record).get("spec", {})
    address = parse_strict(spec.get("holderIdentity", ""))
    if (
        address is None
        or special_problem(str(address))
        or _lease_target(address).name != record.key.name
    ):
        return None, 0.0
    renewed = parse_time(spec["renewTime"]) if spec.get("renewTime") else 0.0
    return address, renewed + spec.get("leaseDurationSeconds", LEASE_S)


# Published objects


def _ensure_service(core: Core, ctx: Context) -> None:
    """Creates the Service if it is missing; never corrects an existing one."""
    head = {"name": API_SERVICE_NAME, "namespace": API_SERVICE_NAMESPACE}
    if core.store.latest(key_of(_target(Services))) is not None:
        return
    service: Document = {
        "metadata": {**head, "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "clusterIP": core.services.reserved_address,
            "ipFamilyPolicy": "SingleStack",
            "ports": [
                {
                    "name": "https",
                    "protocol": "TCP",
                    "port": API_SERVICE_PORT,
                    "targetPort": core.config.advertise_port,
                }
            ],
        },
    }
    _create(core, ctx, Services, service)


def _publish(core: Core, ctx: Context, addresses: list[Address]) -> None:
    ports = [{"name": "https", "port": core.config.advertise_port, "protocol": "TCP"}]
    subsets: list[Document] = [
        {"addresses": [{"ip": str(address)} for address in addresses], "ports": ports}
    ]
    _write(
        core,
        ctx,
        EndpointsObjects,
        {"subsets": subsets if addresses else []},
        {_SKIP_MIRROR: "true"},
    )
    if not core.config.gates.enabled(ENDPOINT_SLICE):
        return
    # One family: IPv6 only if there is no IPv4 address.
    version = 6 if addresses and all(address.version == 6 for address in addresses) else 4
    content: Document = {
        "addressType": f"IPv{version}",
        "endpoints": [
            {"addresses": [str(address)], "conditions": {"ready": True}}
            for address in addresses
            if address.version == version
        ],
        "ports": ports if addresses else [],
    }
    _write(core, ctx, EndpointSlices, content, {"kubernetes.io/service-name": API_SERVICE_NAME})


def _write(
    core: Core, ctx: Context, resource: Resource, content: Document, labels: dict[str, str]
) -> None:
    """Creates the object, or updates *content* and labels of an existing one."""
    target = _target(resource)
    record = core.store.latest(key_of(target))
    document = None if record is None else document_of(record)
    if (
        record is not None
        and document is not None
        and document.get("addressType") != content.get("addressType")
    ):
        # addressType is immutable: a change of family needs a new object.
        core.remove(record)
        document = None
    if document is None:
        head = {"name": target.name, "namespace": target.namespace, "labels": labels}
        _create(core, ctx, resource, {"metadata": head, **content})
        return
    if resource is EndpointsObjects:
        # Endpoints keep labels of other writers; slices do not.
        labels = {**document["metadata"].get("labels", {}), **labels}
    document["metadata"]["labels"] = labels
    update(WriteCall(core, ctx, target, BY_THE_SERVER), Body(document={**document, **content}))


def _target(resource: Resource) -> Target:
    return Target(resource=resource, namespace=API_SERVICE_NAMESPACE, name=API_SERVICE_NAME)


def _create(core: Core, ctx: Context, resource: Resource, document: Document) -> None:
    target = Target(resource=resource, namespace=document["metadata"]["namespace"])
    try:
        create(WriteCall(core, ctx, target, BY_THE_SERVER), Body(document=document))
    except StatusError as error:
        if error.code != 409:
            raise
