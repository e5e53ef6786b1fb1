"""Offloaded validation: a write that takes too long for the event loop runs in another process, on
a copy of its inputs.

A write of megabytes takes seconds to decode, default, validate and compare, and must not delay the
requests of others for so long. So there are three steps, of which only the first and the last need
the registry:

1. ``gather_input`` copies the probable reads of the write: its object, the namespace, quotas, and
   all of RBAC for a role.
2. ``work_out``, in another process, is a function of that input and the request: it runs the verb
   on a registry with nothing else, and returns the verb's reads, the changes that it staged, and
   its answer or error.
3. ``apply_result`` compares and sets: it stages the same changes if everything that was read is
   unchanged; else it raises ``StaleInput``, and the caller retries with an input that has the
   missing reads (upstream's ``GuaranteedUpdate``).

The verbs are those of all other writes, without knowledge of the offloading. An input that is too
small costs a retry and never causes a wrong answer. Revisions are assigned in the last step.

Addresses and node ports of other Services are not read by key, so they have a rule of their own:
the copy treats the numbers of others as allocated, and ``apply_result`` checks that the chosen ones
are still free.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from sliceplane.api import codec
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.requests import SUBRESOURCES
from sliceplane.api.scheme import (
    REVIEWS,
    IPAddresses,
    LimitRanges,
    Namespaces,
    Pods,
    Resource,
    ResourceQuotas,
    ServiceCIDRs,
    Services,
    TokenReviews,
)
from sliceplane.api.users import User
from sliceplane.kit.ip import Family
from sliceplane.kit.rng import Rng
from sliceplane.server.registry.admission.quotas import admit_bytes, admit_size
from sliceplane.server.registry.authorization.index import RESOURCES as POLICY_RESOURCES
from sliceplane.server.registry.authorization.index import PolicyIndex
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.core import Core, key_of
from sliceplane.server.registry.types import (
    Attributes,
    Context,
    Decision,
    Outcome,
    Target,
    creation_of,
)
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import EventType, Key, Record, StoreEvent, restamp_body

#: a collection: ``Resource.storage_key`` and namespace, "" for all namespaces
Collection = tuple[str, str]
#: labels decoded in one step
_LABELS_PER_STEP: Final = 20_000
#: the owner, in the copy, of the addresses and ports of all Services that are not in it
_OTHERS: Final = Key(Services.storage_key, "", "")


class StaleInput(Exception):
    """The input lacks a read of the write, or has changed since. ``keys`` and ``collections`` are
    the reads of the write, which the next input should have.
    """

    def __init__(self, keys: frozenset[Key], collections: frozenset[Collection]) -> None:
        super().__init__("the state has changed")
        self.keys = keys
        self.collections = collections


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the newest state.  A key without a record does not exist."""

    config: RegistryConfig
    revision: int
    records: tuple[Record, ...]
    #: the collections that are complete
    collections: frozenset[Collection]
    #: drawn from the registry's generator, so that names and uids are equally random
    seed: int
    #: whether the user may create the target; ``None``: the input has all roles and bindings
    may_create: Decision | None
    #: addresses and node ports of other Services
    addresses: dict[Family, tuple[int, ...]]
    ports: tuple[int, ...]


class OffloadedChange(msgspec.Struct, frozen=True):
    """A staged change.  ``record`` lacks its revision and, until ``attach_labels``, its labels,
    which are maps in JSON.
    """

    type: EventType
    record: Record
    labels: tuple[bytes, ...] = ()


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The reads of a write, its changes, and its outcome or error.

    ``awaited``: the index of the change whose revision the outcome waits for, or -1. An outcome
    without a body answers with the body of that change; ``has_revision``: any other body contains
    its revision.
    """

    keys: frozenset[Key]
    collections: frozenset[Collection]
    changes: tuple[OffloadedChange, ...] = ()
    error: StatusError | None = None
    outcome: Outcome | None = None
    awaited: int = -1
    has_revision: bool = False


def gather_input(
    core: Core,
    ctx: Context,
    target: Target,
    *,
    keys: frozenset[Key],
    collections: frozenset[Collection],
) -> Input:
    """Returns the probable reads of a write to *target*, with *keys* and *collections*."""
    resource = target.resource
    own = key_of(target)
    keys |= {own}
    if target.namespace:
        keys |= {Key(Namespaces.storage_key, "", target.namespace)}
        collections |= {(ResourceQuotas.storage_key, target.namespace)}
    if resource is Pods:
        collections |= {(LimitRanges.storage_key, target.namespace)}
    addresses: dict[Family, tuple[int, ...]] = {}
    ports: tuple[int, ...] = ()
    if resource is Services:
        collections |= {(ServiceCIDRs.storage_key, "")}
        names = {*core.addresses.names_of(own), *core.services.addresses(own)}
        keys |= {Key(IPAddresses.storage_key, "", name) for name in names}
        allocated, ports = core.services.others(own)
        addresses = {
            family: tuple(numbers.union(allocated.get(family, ())))
            for family, numbers in core.addresses.numbers_without(names).items()
        }
    may_create: Decision | None = None
    if resource in REVIEWS or resource.storage_key in POLICY_RESOURCES:
        # Cluster roles grant rights in all namespaces; a review may be about any namespace.
        collections |= {(policy, "") for policy in POLICY_RESOURCES}
    else:
        may_create = core.policy.decide(ctx.user, creation_of(target))
    records = _records(core.store, keys, collections).values()
    return Input(
        config=core.config,
        revision=core.store.staged_revision,
        records=tuple(sorted(records, key=lambda record: record.revision)),
        collections=collections,
        seed=core.rng.bits64(),
        may_create=may_create,
        addresses=addresses,
        ports=ports,
    )


def _records(
    store: Store, keys: frozenset[Key], collections: frozenset[Collection]
) -> dict[Key, Record]:
    records = {record.key: record for each in collections for record in store.iter_latest(*each)}
    for key in keys:
        record = store.latest(key)
        if record is not None:
            records[key] = record
    return records


class _ReadRecorder(Store):
    """A store that records what is read."""

    def __init__(self, *, revision: int, compacted: int) -> None:
        super().__init__(revision=revision, compacted=compacted)
        self.forget_reads()

    def forget_reads(self) -> None:
        self.keys: set[Key] = set()
        self.collections: set[Collection] = set()

    def latest(self, key: Key) -> Record | None:
        self.keys.add(key)
        return super().latest(key)

    def iter_latest(self, resource: str, namespace: str = "") -> Iterator[Record]:
        self.collections.add((resource, namespace))
        return super().iter_latest(resource, namespace)


class _ExpectedDecision(PolicyIndex):
    """The one decision that a write of an ordinary kind needs, taken in advance."""

    def __init__(self, decision: Decision) -> None:
        super().__init__()
        self._decision = decision

    def decide(self, user: User, attributes: Attributes) -> Decision:
        assert attributes.verb == "create", (
            f"whether {user.name} may {attributes.verb} is not in the input"
        )
        return self._decision


def work_out(basis: Input, verb: Callable[[Core], Outcome]) -> Result:
    """Runs *verb* on a registry that contains only *basis*."""
    history = (
        StoreEvent(record.revision, EventType.ADDED, record, None) for record in basis.records
    )
    store = _ReadRecorder.restore(history, basis.revision, basis.revision)
    assert isinstance(store, _ReadRecorder), "restore makes one of its own class"
    core = Core(store, Rng(basis.seed), basis.config)
    if basis.may_create is not None:
        core.policy = _ExpectedDecision(basis.may_create)
    core.services.occupy(_OTHERS, basis.addresses, basis.ports)
    store.forget_reads()
    outcome = None
    error = None
    staged: tuple[StoreEvent, ...] = ()
    try:
        outcome = verb(core)
        staged = store.take_staged()
        for event in staged:
            # Here and not in ``apply_result``, so that a refused body is not sent.
            admit_size(0 if event.type is EventType.DELETED else len(event.record.body))
    except StatusError as refused:
        error = refused
    keys = frozenset(store.keys)
    # The indexes of the copy were built from the complete collections, which counts as a read.
    collections = basis.collections | store.collections
    if error is not None or outcome is None:
        return Result(keys=keys, collections=collections, error=error)
    revision = outcome.revision
    awaited = [event.revision for event in staged].index(revision) if revision else -1
    has_revision = False
    if revision and staged[awaited].record.body is outcome.body:
        outcome = replace(outcome, body=b"")
    elif revision:
        head = _head_decoder.decode(outcome.body).metadata
        has_revision = head.resourceVersion == str(revision)
    return Result(
        keys=keys,
        collections=collections,
        changes=tuple(map(_change, staged)),
        outcome=outcome,
        awaited=awaited,
        has_revision=has_revision,
    )


class _Metadata(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815  # the member's name


class _Head(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: Document = msgspec.field(default_factory=dict)


_labels_decoder = msgspec.json.Decoder(dict[str, str])
_head_decoder = msgspec.json.Decoder(_Head)


def _change(event: StoreEvent) -> OffloadedChange:
    labels = tuple(event.record.labels.items())
    parts = (
        dict(labels[first : first + _LABELS_PER_STEP])
        for first in range(0, len(labels), _LABELS_PER_STEP)
    )
    return OffloadedChange(
        event.type, replace(event.record, labels={}), tuple(map(codec.encode, parts))
    )


def attach_labels(result: Result) -> Generator[None, None, Result]:
    """Decodes the labels of *result*, in steps: an object may have hundreds of thousands of
    labels.
    """
    changes = []
    for change in result.changes:
        labels: dict[str, str] = {}
        for part in change.labels:
            labels.update(_labels_decoder.decode(part))
            yield
        changes.append(OffloadedChange(change.type, replace(change.record, labels=labels)))
    return replace(result, changes=tuple(changes))


def apply_result(
    core: Core, ctx: Context, basis: Input, result: Result, target: Target, *, dry_run: bool
) -> Outcome:
    """Stages the changes of *result*, which has its labels, if the byte limits allow it.

    Raises ``StaleInput``, with nothing staged, and the ``StatusError`` of the write.
    """
    if not _is_unchanged(core, basis, result):
        raise StaleInput(result.keys, result.collections)
    if result.error is not None:
        raise result.error
    outcome = result.outcome
    assert outcome is not None, "there is an outcome or an error"
    for change in result.changes:
        if change.type is not EventType.DELETED:
            size = partial(len, change.record.body)
            admit_bytes(core.store, ctx.user, target.resource, change.record.key, size)
    staged = [_stage(core.store, change) for change in result.changes]
    core.follow(record.key for record in staged)
    if not staged:
        return outcome if dry_run else replace(outcome, revision=_pending(core, target))
    if result.awaited < 0:
        return outcome
    awaited = staged[result.awaited]
    body = outcome.body or awaited.body
    if result.has_revision:
        body = restamp_body(body, awaited.revision)
    return replace(outcome, body=body, revision=awaited.revision)


def _is_unchanged(core: Core, basis: Input, result: Result) -> bool:
    """Returns True if all reads were in *basis*, and are unchanged."""
    if not result.collections <= basis.collections:
        return False
    then = {
        record.key: record
        for record in basis.records
        if record.key in result.keys
        or not result.collections.isdisjoint(
            ((record.key.resource, ""), (record.key.resource, record.key.namespace))
        )
    }
    # Bodies are compared, too: with several servers, a revision that was staged and dropped here
    # may belong to another server's write.
    return _records(core.store, result.keys, result.collections) == then and all(
        core.services.are_free(change.record.key, _head_decoder.decode(change.record.body).spec)
        for change in result.changes
        if change.record.key.resource == Services.storage_key
        and change.type is not EventType.DELETED
    )


def _stage(store: Store, change: OffloadedChange) -> Record:
    record = change.record

    def build(revision: int) -> Record:
        before = store.latest(record.key)
        created = before.created if before is not None else revision
        return replace(
            record, revision=revision, created=created, body=restamp_body(record.body, revision)
        )

    if change.type is EventType.DELETED:
        return store.stage_delete(record.key, build)
    return store.stage_put(record.key, build)


def _pending(core: Core, target: Target) -> int:
    """Returns the revision to wait for if nothing was written: the object may not be durable
    yet.
    """
    record = core.store.latest(key_of(target))
    return record.revision if record is not None and record.revision > core.store.revision else 0


def can_offload(resource: Resource, subresource: str) -> bool:
    """Returns False for writes that sign or verify tokens, as the keys stay in this process."""
    row = SUBRESOURCES.get(subresource)
    return not (row and row.signs) and resource is not TokenReviews
