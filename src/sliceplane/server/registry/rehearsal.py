"""A write worked out elsewhere: against an extract of the state, by the same code, and then
performed here if it still holds.

A write of megabytes takes seconds to decode, default, validate and compare, and a server must not
do that between two requests of others. So there are three steps, of which only the first and the
last need the registry:

1. ``extract`` takes what the write is likely to look at: its object, the namespace, quotas, roles
   where it is one.
2. ``rehearse``, in another process or wherever there is time, runs the verb itself on a registry of
   that extract alone. It notes what the verb looked at, and returns what it staged and what it
   would answer, errors included.
3. ``perform`` stages the same here, if all that was looked at is still as it was; else it raises
   ``Stale``, and the caller begins again with an extract that has what was missing. That is
   upstream's ``GuaranteedUpdate``.

So there is one set of verbs, which know nothing of this, and an extract that is too small costs a
round and never a wrong answer. Revisions are given here, in the last step.

What Services hold is not looked up by key, so it has a rule of its own: the rehearsal gets the
numbers that others hold as taken, and ``perform`` looks whether what was chosen is still free.
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
    User,
    creation_of,
)
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import EventType, Key, Record, StoreEvent, restamp_body

#: a collection: ``Resource.storage_key`` and namespace, "" for all of them
Collection = tuple[str, str]
#: made in one step
_LABELS_TOGETHER: Final = 20_000
#: who holds, in a rehearsal, what Services hold that it does not know
_OTHERS: Final = Key(Services.storage_key, "", "")


class Stale(Exception):
    """What the write was worked out on is not so, or not any more. ``keys`` and ``collections`` are
    what it looked at: the next extract should have them.
    """

    def __init__(self, keys: frozenset[Key], collections: frozenset[Collection]) -> None:
        super().__init__("the state has changed")
        self.keys = keys
        self.collections = collections


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """What Services other than the one to be written hold."""

    addresses: dict[Family, tuple[int, ...]] = msgspec.field(default_factory=dict)
    ports: tuple[int, ...] = ()


class Extract(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the newest state.  A key of which there is no record is one that does not exist."""

    config: RegistryConfig
    revision: int
    records: tuple[Record, ...]
    #: those that are there whole
    collections: frozenset[Collection]
    #: for names and uids: drawn from the registry's own, so that they are as good
    seed: int
    #: may the user create what the target names? ``None``: all roles and bindings are there to be
    #: asked
    may_create: Decision | None
    numbers: Numbers


class Deed(msgspec.Struct, frozen=True):
    """``record`` is complete but for its revision and, until ``labelled``, its ``labels``: maps in
    JSON.
    """

    type: EventType
    record: Record
    labels: tuple[bytes, ...] = ()


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True):
    """What came out. ``answer`` is the number of the deed whose record is the answer, or -1, and
    then ``outcome`` has the body; ``stamped``: that body shows the revision of the write. ``made``
    is the deed whose revision to wait for, or -1.
    """

    keys: frozenset[Key]
    collections: frozenset[Collection]
    deeds: tuple[Deed, ...] = ()
    error: StatusError | None = None
    outcome: Outcome | None = None
    answer: int = -1
    made: int = -1
    stamped: bool = False


def extract(
    core: Core,
    ctx: Context,
    target: Target,
    *,
    keys: frozenset[Key],
    collections: frozenset[Collection],
) -> Extract:
    """What a write to *target* is likely to look at, and *keys* and *collections*."""
    resource = target.resource
    own = key_of(target)
    keys |= {own}
    if target.namespace:
        keys |= {Key(Namespaces.storage_key, "", target.namespace)}
        collections |= {(ResourceQuotas.storage_key, target.namespace)}
    if resource is Pods:
        collections |= {(LimitRanges.storage_key, target.namespace)}
    numbers = Numbers()
    if resource is Services:
        collections |= {(ServiceCIDRs.storage_key, "")}
        numbers, addresses = _numbers(core, own)
        keys |= addresses
    may_create: Decision | None = None
    if resource in REVIEWS or resource.storage_key in POLICY_RESOURCES:
        # Rights come from cluster roles anywhere; a review may be about any namespace.
        collections |= {(policy, "") for policy in POLICY_RESOURCES}
    else:
        may_create = core.policy.decide(ctx.user, creation_of(target))
    records = {
        record.key: record
        for collection in sorted(collections)
        for record in core.store.iter_latest(*collection)
    }
    for key in keys:
        record = core.store.latest(key)
        if record is not None:
            records[key] = record
    return Extract(
        config=core.config,
        revision=core.store.staged_revision,
        records=tuple(sorted(records.values(), key=lambda record: record.revision)),
        collections=collections,
        seed=core.rng.bits64(),
        may_create=may_create,
        numbers=numbers,
    )


def _numbers(core: Core, own: Key) -> tuple[Numbers, frozenset[Key]]:
    """What other Services hold or have an IPAddress for, and the keys of the IPAddresses of this
    one.
    """
    held, ports = core.services.others(own)
    mine = frozenset(core.addresses.names_of(own)) | frozenset(core.services.addresses(own))
    told = core.addresses.numbers_without(mine)
    both = {family: tuple({*held.get(family, ()), *told[family]}) for family in told}
    return Numbers(addresses=both, ports=ports), frozenset(
        Key(IPAddresses.storage_key, "", name) for name in mine
    )


class _Witness(Store):
    """A store that notes what it is asked for."""

    keys: set[Key]
    collections: set[Collection]

    def observe(self) -> None:
        """From now on."""
        self.keys = set()
        self.collections = set()

    def latest(self, key: Key) -> Record | None:
        if hasattr(self, "keys"):
            self.keys.add(key)
        return super().latest(key)

    def iter_latest(self, resource: str, namespace: str = "") -> Iterator[Record]:
        if hasattr(self, "collections"):
            self.collections.add((resource, namespace))
        return super().iter_latest(resource, namespace)


class _Foreseen(PolicyIndex):
    """The one decision that a write of an ordinary kind asks for, made before."""

    def __init__(self, decision: Decision) -> None:
        super().__init__()
        self._decision = decision

    def decide(self, user: User, wanted: Attributes) -> Decision:
        assert wanted.verb == "create", f"whether {user.name} may {wanted.verb} was not foreseen"
        return self._decision


def rehearse(basis: Extract, run: Callable[[Core], Outcome]) -> Rehearsed:
    """*run* a verb on a registry of *basis* alone."""
    history = (
        StoreEvent(record.revision, EventType.ADDED, record, None) for record in basis.records
    )
    store = _Witness.restore(history, basis.revision, basis.revision)
    assert isinstance(store, _Witness), "restore makes one of its own class"
    core = Core(store, Rng(basis.seed), basis.config)
    if basis.may_create is not None:
        core.policy = _Foreseen(basis.may_create)
    core.services.occupy(_OTHERS, basis.numbers.addresses, basis.numbers.ports)
    store.observe()
    outcome = None
    error = None
    staged: tuple[StoreEvent, ...] = ()
    try:
        outcome = run(core)
        staged = store.take_staged()
        for event in staged:
            # Here and not in ``perform``: what is refused is not carried to the server.
            admit_size(0 if event.type is EventType.DELETED else len(event.record.body))
    except StatusError as refused:
        error = refused
    # What indexes were made of counts as looked at.
    collections = frozenset(store.collections) | basis.collections
    keys = frozenset(store.keys)
    if error is not None or outcome is None:
        return Rehearsed(keys=keys, collections=collections, error=error)
    revisions = [event.revision for event in staged]
    answer = next((at for at, event in enumerate(staged) if event.record.body is outcome.body), -1)
    return Rehearsed(
        keys=keys,
        collections=collections,
        deeds=tuple(_deed(event) for event in staged),
        outcome=outcome if answer < 0 else replace(outcome, body=b""),
        answer=answer,
        made=revisions.index(outcome.revision) if outcome.revision else -1,
        stamped=answer < 0
        and bool(outcome.revision)
        and _head_decoder.decode(outcome.body).metadata.resourceVersion == str(outcome.revision),
    )


class _Metadata(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815  # the member's name
    name: str = ""
    namespace: str = ""


class _Head(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Claims(_Head):
    spec: Document = msgspec.field(default_factory=dict)


_labels_decoder = msgspec.json.Decoder(dict[str, str])
_head_decoder = msgspec.json.Decoder(_Head)
_claims_decoder = msgspec.json.Decoder(_Claims)


def _deed(event: StoreEvent) -> Deed:
    labels = tuple(event.record.labels.items())
    parts = (
        dict(labels[first : first + _LABELS_TOGETHER])
        for first in range(0, len(labels), _LABELS_TOGETHER)
    )
    return Deed(event.type, replace(event.record, labels={}), tuple(map(codec.encode, parts)))


def labelled(done: Rehearsed) -> Generator[None, None, Rehearsed]:
    """*done* as ``perform`` wants it, in steps: an object may have hundreds of thousands of
    labels.
    """
    deeds = []
    for deed in done.deeds:
        labels: dict[str, str] = {}
        for part in deed.labels:
            labels.update(_labels_decoder.decode(part))
            yield
        deeds.append(Deed(deed.type, replace(deed.record, labels=labels)))
    return replace(done, deeds=tuple(deeds))


def perform(
    core: Core, ctx: Context, basis: Extract, done: Rehearsed, target: Target, *, dry_run: bool
) -> Outcome:
    """Stage here what was staged in the rehearsal on *basis*, ``labelled``, if there is room for
    its bytes.

    Raises ``Stale``, having staged nothing, and the rehearsal's ``StatusError``.
    """
    if not _holds(core, basis, done):
        raise Stale(done.keys, done.collections)
    if done.error is not None:
        raise done.error
    outcome = done.outcome
    assert outcome is not None, "a rehearsal ends with an outcome or an error"
    for deed in done.deeds:
        if deed.type is not EventType.DELETED:
            size = partial(len, deed.record.body)
            admit_bytes(core.store, ctx.user, target.resource, deed.record.key, size)
    staged = [_stage(core, deed) for deed in done.deeds]
    core.follow(record.key for record in staged)
    if not staged:
        return outcome if dry_run else replace(outcome, revision=_pending(core, target))
    revision = staged[done.made].revision if done.made >= 0 else 0
    if done.answer >= 0:
        body = staged[done.answer].body
    else:
        body = restamp_body(outcome.body, revision) if done.stamped else outcome.body
    return replace(outcome, body=body, revision=revision)


def _holds(core: Core, basis: Extract, done: Rehearsed) -> bool:
    """Whether all that was looked at is there, and as it was."""
    then = {record.key: record for record in basis.records}
    if not done.collections <= basis.collections:
        return False
    if not all(_same(core.store.latest(key), then.get(key)) for key in done.keys):
        return False
    for resource, namespace in done.collections:
        now = {record.key: record for record in core.store.iter_latest(resource, namespace)}
        was = {key for key in then if key.resource == resource and namespace in ("", key.namespace)}
        if now.keys() != was or not all(_same(record, then[key]) for key, record in now.items()):
            return False
    return all(
        core.services.are_free(deed.record.key, _claims_decoder.decode(deed.record.body).spec)
        for deed in done.deeds
        if deed.record.key.resource == Services.storage_key and deed.type is not EventType.DELETED
    )


def _same(now: Record | None, then: Record | None) -> bool:
    """By the body too: where several servers write, a revision that was staged and forgotten here
    may be another's.
    """
    if now is None or then is None:
        return now is then
    return now is then or (now.revision == then.revision and now.body == then.body)


def _stage(core: Core, deed: Deed) -> Record:
    record = deed.record
    store = core.store

    def build(revision: int) -> Record:
        before = store.latest(record.key)
        created = before.created if before is not None else revision
        return replace(
            record, revision=revision, created=created, body=restamp_body(record.body, revision)
        )

    if deed.type is EventType.DELETED:
        return store.stage_delete(record.key, build)
    return store.stage_put(record.key, build)


def _pending(core: Core, target: Target) -> int:
    """Nothing was written, but what the client sees may not be durable yet."""
    record = core.store.latest(key_of(target))
    return record.revision if record is not None and record.revision > core.store.revision else 0


def is_known(resource: Resource, subresource: str) -> bool:
    """Whether the writes of an endpoint can be rehearsed: not those about tokens, whose keys stay
    here.
    """
    row = SUBRESOURCES.get(subresource)
    return not (row and row.signs) and resource is not TokenReviews
