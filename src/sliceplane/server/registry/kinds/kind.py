"""What a kind is to the registry: one frozen record with all that is its own, and the names for "nothing of its own".

The verbs (``server.registry.create``, ``update``, ``delete`` ...) are the same for all kinds and ask the record where
kinds differ.  No member has a default value: a kind that forgets one is a type error, and one that has nothing to say
says so by name (``no_defaults``, ``NO_STATUS``, ``ADMITTED``, ``AT_ONCE``, ``COUNTED``; ``stored_as_sent`` for many at
once).

In what order the verbs ask:

- decoding a body: ``defaults``;
- create: ``prepare_create``, ``status.first``, ``validate``, ``admission.narrow``, ``admission.admit``; then, once the
  name is known to be free, ``warnings``, ``admission.allocate``, ``quota``, ``admission.claim``;
- update: ``prepare_update``, ``validate_update``, ``admission.narrow``, ``admission.admit``, ``warnings``,
  ``admission.allocate``, ``quota``, ``admission.claim``; through ``status`` or one of ``parts`` rules
  of its own in place of all of them;
- delete: ``deletion``;
- reading as a Table: ``columns``; at the start of a server: ``granted``.

A function changes the *new* document in place where its name says that it prepares, completes or allocates, and never
the *old* one, which is ``None`` for a new object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from sliceplane.api.errors import FieldError
from sliceplane.api.gates import Gates
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import Resource
from sliceplane.server.documents import fields
from sliceplane.server.documents.fields import FieldSet
from sliceplane.server.documents.table.columns import Printer
from sliceplane.server.registry.types import Target

if TYPE_CHECKING:
    from sliceplane.server.registry.core import Core

Validate = Callable[[Document], list[FieldError]]
ValidateUpdate = Callable[[Document, Document], list[FieldError]]


class Allocate(Protocol):
    def __call__(self, core: Core, new: Document, old: Document | None, /, *, dry_run: bool) -> None: ...


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The member ``status``, and the endpoint of that name."""

    #: that of a new object, whatever the client sent; ``None``: as the client sent it
    first: Callable[[Document], Document | None]
    validate: ValidateUpdate
    #: what the endpoint does not write, for ``metadata.managedFields``
    not_written: FieldSet
    #: members of metadata that the endpoint leaves alone
    kept: tuple[str, ...]


class SpecPart(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint that writes some members of the spec, and leaves the rest, metadata and status alone."""

    #: what a spec says of these members
    cut: Callable[[Document], Document]
    #: the stored spec (second) with these members as they are wanted (first); neither is changed
    merge: Callable[[Document, Document], Document]
    validate: ValidateUpdate
    #: what depends on more than the object itself.  Raises ``StatusError``.
    admit: Callable[[Core, Document, Document | None], None]
    #: whether quotas are charged for it
    charged: bool


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """What a valid object must pass besides; of the object itself, not of a subresource."""

    #: the errors of validation, with values refused whose feature gate is off
    narrow: Callable[[Gates, list[FieldError], Document, Document | None], list[FieldError]]
    #: what depends on more than the object itself.  Raises ``StatusError``.
    admit: Callable[[Core, Document, Document | None], None]
    #: fills in what is given out of ranges, and holds nothing yet.  Raises ``StatusError``.
    allocate: Allocate
    #: stages what must be there together with the object, just before it; the last argument is the time
    claim: Callable[[Core, Document, float], None]


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    #: by the name.  Raises the 403 ``StatusError`` for an object that the cluster cannot be without.
    admit: Callable[[str], None]
    #: whether the object stays for now, for a reason of its kind; its document is changed to say so (time: seconds)
    linger: Callable[[Document, float], bool]
    #: seconds between the announcement and the end, by what was asked for; ``None``: the kind knows no grace
    grace: Callable[[Document, int | None], int | None]
    #: whether more than finalizers holds an object that is being deleted
    is_held: Callable[[Document], bool]


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """What a ResourceQuota counts of the kind (``server.registry.kinds``)."""

    #: under ``count/PLURAL.GROUP``, each object as one
    counted: bool
    #: further names, most of them older
    names: tuple[str, ...]
    #: whether a name is one more of them, by its form
    counts: Callable[[str], bool]
    #: what one object costs under all these names, by the projection of its ``Resource``
    usage: Callable[[Object], Mapping[str, Fraction | int]]
    #: what the scopes of a quota ask of an object; ``None``: no scope holds it
    traits: Callable[[Object], Any]
    #: what an object must say since a quota counts these names; "": it says all
    missing: Callable[[Object, Collection[str]], str]
    #: whether an update can cost more than the object did
    rises: bool


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """What upstream's roles for the users of a namespace grant of the kind (kubernetes.io, Using RBAC Authorization,
    User-facing roles), as subresources; "" stands for the object itself."""

    #: get, list and watch, by the role ``view``
    view: tuple[str, ...]
    #: the same by ``edit`` alone
    edit_reads: tuple[str, ...]
    #: all verbs that write, by ``edit``
    edit: tuple[str, ...]
    #: all verbs, by ``admin`` alone
    admin: tuple[str, ...]


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """All that is a kind's own."""

    resource: Resource
    #: fills in what a client left out.  Idempotent, drops nothing, looks at nothing but the document.
    defaults: Callable[[Document], None]
    #: what the server sets itself in a new object, and what a client may not say yet
    prepare_create: Callable[[Core, Target, Document], None]
    #: what a request may not change is undone; not asked through ``status``
    prepare_update: Callable[[Core, Target, Document, Document], None]
    #: complaints in a fixed order, those about metadata left out.  Looks at no other objects (that is admission), and
    #: at no types (decoding has seen to those).
    validate: Validate
    #: what was good once is not held against an update where upstream does so too ("ratcheting")
    validate_update: ValidateUpdate
    #: texts for ``Warning`` headers
    warnings: Callable[[Document, Document | None], Iterable[str]]
    status: Status
    #: by the name of the subresource
    parts: Mapping[str, SpecPart]
    admission: Admission
    deletion: Deletion
    quota: Quota
    granted: Granted
    columns: Printer


# Nothing of its own


def _nothing(*_: object, **__: object) -> None:
    """Changes nothing, refuses nothing, says nothing."""


def _no(*_: object) -> bool:
    return False


def no_rules(*_: object) -> list[FieldError]:
    return []


def as_new(validate: Validate) -> ValidateUpdate:
    """The rules of an update are those of a new object."""
    return lambda new, _old: validate(new)


def no_warnings(*_: object) -> tuple[str, ...]:
    return ()


def empty_status(_document: Document) -> Document:
    return {}


def not_narrowed(_gates: Gates, errors: list[FieldError], _new: Document, _old: Document | None) -> list[FieldError]:
    return errors


no_defaults: Final = _nothing
created_as_sent: Final = _nothing
updated_as_sent: Final = _nothing
no_update_rules: Final = no_rules
status_as_sent: Final = _nothing
admitted: Final = _nothing
nothing_allocated: Final = _nothing
nothing_claimed: Final = _nothing
any_name: Final = _nothing
goes_at_once: Final = _no
no_grace: Final = _nothing
held_by_finalizers: Final = _no

SPEC: Final = fields.of_paths([("f:spec",)])
#: the kind has no status
NO_STATUS: Final = Status(first=status_as_sent, validate=no_update_rules, not_written=SPEC, kept=())
#: nothing in it at first, no rules
EMPTY_STATUS: Final = Status(first=empty_status, validate=no_update_rules, not_written=SPEC, kept=())
NO_PARTS: Final[Mapping[str, SpecPart]] = MappingProxyType({})
ADMITTED: Final = Admission(narrow=not_narrowed, admit=admitted, allocate=nothing_allocated, claim=nothing_claimed)
AT_ONCE: Final = Deletion(admit=any_name, linger=goes_at_once, grace=no_grace, is_held=held_by_finalizers)


def _costs_nothing_else(_projection: Object) -> Mapping[str, int]:
    return {}


def _says_all(_projection: Object, _counted: Collection[str]) -> str:
    return ""


def counted(
    *names: str, usage: Callable[[Object], Mapping[str, Fraction | int]] = _costs_nothing_else, rises: bool = False
) -> Quota:
    """As ``count/...`` and under *names*; scopes hold none of them."""
    return Quota(counted=True, names=names, counts=_no, usage=usage, traits=_nothing, missing=_says_all, rises=rises)


def counted_as(name: str) -> Quota:
    """As ``count/...`` and under one older name."""
    return counted(name, usage=lambda _projection: {name: 1})


#: one object is one object
COUNTED: Final = counted()
#: cluster-scoped, or not worth a quota
UNCOUNTED: Final = replace(COUNTED, counted=False)


NOT_GRANTED: Final = Granted(view=(), edit_reads=(), edit=(), admin=())


def viewed(*subresources: str) -> Granted:
    """The object and *subresources*, by ``view``."""
    return Granted(view=("", *subresources), edit_reads=(), edit=(), admin=())


def edited(*subresources: str) -> Granted:
    """The object and *subresources* are seen by ``view``; ``edit`` writes the object."""
    return Granted(view=("", *subresources), edit_reads=(), edit=("",), admin=())


#: not for eyes that may only view
EDITED_UNSEEN: Final = Granted(view=(), edit_reads=("",), edit=("",), admin=())
#: who may do what in the namespace
ADMINISTERED: Final = Granted(view=(), edit_reads=(), edit=(), admin=("",))


def beside_spec(first: Callable[[Document], Document | None], validate: ValidateUpdate) -> Status:
    """A status whose endpoint does not write the spec, and leaves nothing of metadata alone."""
    return Status(first=first, validate=validate, not_written=SPEC, kept=())


def keep(new: Document, old: Document, member: str) -> None:
    """*member* of *new* becomes what it is in *old*."""
    if member in old:
        new[member] = old[member]
    else:
        new.pop(member, None)


def stored_as_sent(
    *,
    resource: Resource,
    defaults: Callable[[Document], None],
    validate: Validate,
    validate_update: ValidateUpdate,
    warnings: Callable[[Document, Document | None], Iterable[str]],
    quota: Quota,
    granted: Granted,
    columns: Printer,
) -> Kind:
    """A kind that is what clients wrote: no status, nothing that the server sets, admits or holds back by itself."""
    return Kind(
        resource=resource,
        defaults=defaults,
        prepare_create=created_as_sent,
        prepare_update=updated_as_sent,
        validate=validate,
        validate_update=validate_update,
        warnings=warnings,
        status=NO_STATUS,
        parts=NO_PARTS,
        admission=ADMITTED,
        deletion=AT_ONCE,
        quota=quota,
        granted=granted,
        columns=columns,
    )


def bare_kind(resource: Resource, columns: Printer) -> Kind:
    """A kind whose objects no client writes, or that is asked and never stored."""
    return stored_as_sent(
        resource=resource,
        defaults=no_defaults,
        validate=no_rules,
        validate_update=no_update_rules,
        warnings=no_warnings,
        quota=UNCOUNTED,
        granted=NOT_GRANTED,
        columns=columns,
    )
