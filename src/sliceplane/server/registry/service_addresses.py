"""IPAddress objects for the addresses of Services, and ServiceCIDRs for their ranges (KEP-1880).

``Core`` stages the IPAddresses of a Service just before the Service, and removes them just after
the Service releases them. The registry stages both in one step and the committer writes a step as
one batch, so after a crash there are both or neither. This module repairs everything else, with the
messages of upstream's repair loop: IPAddresses that a user changed, and databases from before there
were IPAddresses.

``tend`` checks suspects only (see ``AddressBook``), so it costs nothing while nothing happens.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Events, IPAddresses, Resource, ServiceCIDRs, Services
from sliceplane.kit.times import format_micro_time, format_time, parse_time
from sliceplane.server.registry.admission.address_book import (
    ALLOCATOR,
    FAMILY_LABEL,
    MANAGED_BY_LABEL,
    READY,
    family_of,
    is_managed,
    parent_of,
)
from sliceplane.server.registry.core import Core, WriteCall
from sliceplane.server.registry.documents import document_of, set_condition
from sliceplane.server.registry.types import BY_THE_SERVER, Body, Context, DeleteOptions, Target
from sliceplane.server.registry.verbs.create import create
from sliceplane.server.registry.verbs.delete import delete
from sliceplane.server.store.types import Key, Record

DEFAULT_RANGE: Final = "kubernetes"
FINALIZER: Final = "networking.k8s.io/service-cidr-finalizer"
#: seconds for which an IPAddress without its Service is kept: a client may be about to create the
#: Service
ORPHAN_GRACE_S: Final = 60.0
_REPORTER: Final = "ipallocator-repair-controller"
_IN_USE: Final = (
    "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new "
    "ServiceCIDR"
)
_READY_TEXT: Final = "Kubernetes Service CIDR is ready"


def tend(core: Core, ctx: Context, *, quiet: bool = False) -> None:
    """Repairs the suspects and maintains ServiceCIDRs.  *quiet*: without Events, for the start of a
    server.
    """
    if core.addresses.ranges_changed:
        _tend_ranges(core, ctx)
    for name in sorted(core.addresses.suspects):
        if _is_fine(core, name) or _reconcile(core, ctx, name, quiet):
            # The repair made it a suspect again, although it is correct now.
            core.addresses.suspects.discard(name)
        core.store.end_step()


# IPAddresses


def _is_fine(core: Core, name: str) -> bool:
    """Returns True if the IPAddress is correct according to the address book, the usual case."""
    entry = core.addresses.entry(name)
    if entry is None or not entry.intact or entry.service is None:
        return False
    return core.services.holder(name) == entry.service and core.addresses.covers(name)


def _reconcile(core: Core, ctx: Context, name: str, quiet: bool) -> bool:
    """Makes the IPAddress and the Service agree.  Returns False if it is too early to decide."""
    holder = core.services.holder(name)
    record = core.store.latest(Key(IPAddresses.storage_key, "", name))
    if holder is not None:
        return _reconcile_allocated(core, ctx, name, holder, record, quiet=quiet)
    if record is None:
        return True
    document = document_of(record)
    if not is_managed(document):
        return True
    if "deletionTimestamp" in document["metadata"]:
        return False
    service = parent_of(document)
    if service is None:
        parent = document["spec"]["parentRef"]
        why = (
            f"IPAddress {name} appears to have been modified, not referencing a Service {parent}: "
            "cleaning up"
        )
        _drop(core, ctx, record, "IPAddressNotAllocated", why)
        return core.addresses.entry(name) is None
    quoted = f"{service.namespace}/{service.name}"
    if core.store.latest(service) is not None:
        why = f"IPAddress: {name} for Service {quoted} has a wrong reference; cleaning up"
        _drop(core, ctx, record, "IPAddressWrongReference", why)
        return core.addresses.entry(name) is None
    created = parse_time(document["metadata"]["creationTimestamp"])
    if ctx.now - created <= ORPHAN_GRACE_S:
        return False
    why = f"IPAddress: {name} for Service {quoted} appears to have leaked: cleaning up"
    _drop(core, ctx, record, "IPAddressNotAllocated", why)
    return core.addresses.entry(name) is None


def _reconcile_allocated(
    core: Core, ctx: Context, name: str, holder: Key, record: Record | None, *, quiet: bool
) -> bool:
    """Ensures that the address of a Service has an IPAddress that references the Service."""
    service = core.store.latest(holder)
    assert service is not None, f"{holder} holds {name} and does not exist"
    quoted = f"[{family_of(name)}]: {name}"
    if not core.addresses.covers(name) and not quiet:
        why = f"Cluster IP {quoted} is not within any configured Service CIDR; please recreate service"
        _record_event(core, ctx, service, Services, reason="ClusterIPOutOfRange", why=why)
    if record is None:
        why = f"Cluster IP {quoted} is not allocated; repairing"
    else:
        document = document_of(record)
        if "deletionTimestamp" in document["metadata"]:
            return False
        if parent_of(document) != holder:
            why = (
                f"Cluster IP {quoted} for Service {holder.namespace}/{holder.name} has a wrong "
                "reference; repairing"
            )
            core.remove(record)
        elif not is_managed(document) or document["metadata"]["labels"].get(
            FAMILY_LABEL
        ) != family_of(name):
            labels = document["metadata"].get("labels", {})
            document["metadata"]["labels"] = {
                **labels,
                FAMILY_LABEL: family_of(name),
                MANAGED_BY_LABEL: ALLOCATOR,
            }
            core.put(IPAddresses, document)
            return True
        else:
            return True
    core.make_address(name, holder, ctx.now)
    if not quiet:
        _record_event(core, ctx, service, Services, reason="ClusterIPNotAllocated", why=why)
    return True


def _drop(core: Core, ctx: Context, record: Record, reason: str, why: str) -> None:
    delete(core, ctx, Target(resource=IPAddresses, name=record.key.name), DeleteOptions())
    _record_event(core, ctx, record, IPAddresses, reason=reason, why=why)


def _record_event(
    core: Core, ctx: Context, about: Record, resource: Resource, *, reason: str, why: str
) -> None:
    """Writes a Warning Event, or none if it cannot be stored (its namespace is terminating)."""
    namespace = about.key.namespace or "default"
    event: Document = {
        "metadata": {
            "name": f"{about.key.name}.{core.rng.text(16, '0123456789abcdef')}",
            "namespace": namespace,
        },
        "involvedObject": {
            "kind": resource.kind,
            "namespace": about.key.namespace,
            "name": about.key.name,
            "uid": about.uid,
            "apiVersion": resource.api_version,
            "resourceVersion": str(about.revision),
        },
        "reason": reason,
        "message": why,
        "type": "Warning",
        "eventTime": format_micro_time(ctx.now),
        "action": "ClusterIPAllocation" if resource is Services else "IPAddressAllocation",
        "reportingComponent": _REPORTER,
        "reportingInstance": _REPORTER,
    }
    event["involvedObject"] = {
        member: value for member, value in event["involvedObject"].items() if value
    }
    target = Target(resource=Events, namespace=namespace)
    try:
        create(WriteCall(core, ctx, target, BY_THE_SERVER), Body(document=event))
    except StatusError:
        return


# ServiceCIDRs


def _tend_ranges(core: Core, ctx: Context) -> None:
    # Required order: before the loop, as each write in it sets ``ranges_changed``.
    core.addresses.ranges_changed = False
    _ensure_default(core, ctx)
    for record in tuple(core.store.iter_latest(ServiceCIDRs.storage_key)):
        document = document_of(record)
        head = document["metadata"]
        finalizers: list[str] = head.get("finalizers", [])
        if "deletionTimestamp" not in head:
            if FINALIZER not in finalizers:
                head["finalizers"] = [*finalizers, FINALIZER]
            changed = (
                _set_ready(document, ctx.now, "True", "", _READY_TEXT)
                or FINALIZER not in finalizers
            )
        elif FINALIZER not in finalizers:
            changed = False
        elif core.addresses.is_needed(record.key.name):
            changed = _set_ready(document, ctx.now, "False", "Terminating", _IN_USE)
        else:
            head["finalizers"] = [name for name in finalizers if name != FINALIZER]
            changed = bool(head["finalizers"])
            if not changed:
                core.remove(record)
                _ensure_default(core, ctx)
        if changed:
            core.put(ServiceCIDRs, document)
    core.addresses.ranges_changed = False


def _ensure_default(core: Core, ctx: Context) -> None:
    """Ensures the ServiceCIDR of the configured ranges, which is ready at once; an existing one may
    become dual-stack.
    """
    key = Key(ServiceCIDRs.storage_key, "", DEFAULT_RANGE)
    configured = list(core.config.service_cidrs)
    record = core.store.latest(key)
    if record is None:
        document: Document = {
            "metadata": {
                "name": DEFAULT_RANGE,
                "uid": core.rng.uuid(),
                "creationTimestamp": format_time(ctx.now),
                "finalizers": [FINALIZER],
            },
            "spec": {"cidrs": configured},
            "status": {},
        }
        _set_ready(document, ctx.now, "True", "", _READY_TEXT)
        core.put(ServiceCIDRs, document)
        return
    document = document_of(record)
    cidrs: list[str] = document["spec"]["cidrs"]
    if cidrs == configured or "deletionTimestamp" in document["metadata"]:
        return
    if len(configured) > len(cidrs) and configured[: len(cidrs)] == cidrs:
        document["spec"]["cidrs"] = configured
        core.put(ServiceCIDRs, document)


def _set_ready(document: Document, now: float, status: str, reason: str, message: str) -> bool:
    """Sets the condition Ready.  Returns False if nothing changed."""
    condition = {"type": READY, "status": status, "reason": reason, "message": message}
    return set_condition(document, condition, now)
