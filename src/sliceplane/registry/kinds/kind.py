"""What a kind is to the registry: one frozen record with all that is its own, and the names for "nothing of its own".

The verbs (``registry.create``, ``update``, ``delete`` ...) are the same for all kinds and ask the record where kinds
differ.  No member has a default value: a kind that forgets one is a type error, and one that has nothing to say says so
by name (``no_defaults``, ``NO_STATUS``, ``ADMITTED``, ``AT_ONCE``, ``COUNTED``, ``PLAIN`` ...).

In what order the verbs ask:

- decoding a body: ``defaults``;
- create: ``prepare_create``, ``status.first``, ``validate``, ``admission.narrow``, ``admission.admit``; then, once the
  name is known to be free, ``warnings``, ``admission.allocate``, ``quota``, ``admission.claim``;
- update: ``prepare_update``, ``validate_update``, ``admission.narrow``, ``admission.admit``, ``warnings``,
  ``admission.allocate``, ``quota``, ``admission.claim``; through ``status`` its own rules in place of all of them;
- delete: ``deletion``;
- reading as a Table: ``columns``.

A function changes the *new* document in place where its name says that it prepares, completes or allocates, and never
the *old* one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from sliceplane.api.errors import FieldError
from sliceplane.api.gates import Gates
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import Resource
from sliceplane.documents import fields
from sliceplane.documents.fields import FieldSet
from sliceplane.documents.table.columns import Printer

if TYPE_CHECKING:
    from sliceplane.registry.core import Core
    from sliceplane.registry.types import Target


class Defaults(Protocol):
    """Fills in what a client left out.  Idempotent, drops nothing, looks at nothing but the document: it runs on every
    decoded body, patched or new."""

    def __call__(self, document: Document, /) -> None: ...


class PrepareCreate(Protocol):
    """Before validation: what the server sets itself in a new object, and what a client may not say yet."""

    def __call__(self, core: Core, target: Target, new: Document, /) -> None: ...


class PrepareUpdate(Protocol):
    """Before validation of an update that is not through ``status``: what the request may not change is undone."""

    def __call__(self, core: Core, target: Target, new: Document, old: Document, /) -> None: ...


class Validate(Protocol):
    """Complaints about a new object in a fixed order, its metadata left out.  Looks at no other objects (that is
    admission), and at no types (decoding has seen to those)."""

    def __call__(self, document: Document, /) -> list[FieldError]: ...


class ValidateUpdate(Protocol):
    """Complaints about *new* as the successor of *old*; what was good once is not held against an update where upstream
    does so too ("ratcheting")."""

    def __call__(self, new: Document, old: Document, /) -> list[FieldError]: ...


class Warn(Protocol):
    """Texts for ``Warning`` headers; *old* is ``None`` for a new object."""

    def __call__(self, new: Document, old: Document | None, /) -> tuple[str, ...]: ...


# Status


class FirstStatus(Protocol):
    """The status of a new object, whatever the client sent; ``None``: as the client sent it."""

    def __call__(self, document: Document, /) -> Document | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The member ``status``, and the endpoint of that name."""

    first: FirstStatus
    validate: ValidateUpdate
    #: what the endpoint does not write, for ``metadata.managedFields``
    not_written: FieldSet
    #: members of metadata that the endpoint leaves alone
    kept: tuple[str, ...]


# Admission


class Narrow(Protocol):
    """The *errors* of validation, with values refused whose feature gate is off."""

    def __call__(
        self, gates: Gates, errors: list[FieldError], new: Document, old: Document | None, /
    ) -> list[FieldError]: ...


class Admit(Protocol):
    """What depends on more than the object itself.  Raises ``StatusError``."""

    def __call__(self, core: Core, new: Document, old: Document | None, /) -> None: ...


class Allocate(Protocol):
    """Fill in what is given out of ranges.  Holds nothing yet.  Raises ``StatusError``."""

    def __call__(self, core: Core, new: Document, old: Document | None, /, *, dry_run: bool) -> None: ...


class StageWith(Protocol):
    """Stage what must be there together with the object, just before it."""

    def __call__(self, core: Core, document: Document, now: float, /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What a valid object must pass besides; of the object itself, not of a subresource."""

    narrow: Narrow
    admit: Admit
    allocate: Allocate
    claim: StageWith


# Deletion


class AdmitDelete(Protocol):
    """Raises the 403 ``StatusError`` for an object that the cluster cannot be without."""

    def __call__(self, name: str, /) -> None: ...


class Linger(Protocol):
    """Whether the object stays for now, for a reason of its kind, whatever its finalizers; its document is changed to
    say so."""

    def __call__(self, document: Document, now: float, /) -> bool: ...


class Grace(Protocol):
    """The seconds between the announcement and the end, by what was *asked*; ``None``: the kind knows no grace."""

    def __call__(self, document: Document, asked: int | None, /) -> int | None: ...


class IsHeld(Protocol):
    """Whether more than finalizers holds an object that is being deleted."""

    def __call__(self, document: Document, /) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    admit: AdmitDelete
    linger: Linger
    grace: Grace
    is_held: IsHeld


# Quota


class Usage(Protocol):
    """What one object costs under the names of ``Quota.names``; *projection* is that of its ``Resource``."""

    def __call__(self, projection: Object, /) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a ResourceQuota counts of the kind (``registry.kinds.counting``)."""

    #: under ``count/PLURAL.GROUP``, each object as one
    counted: bool
    #: further names, most of them older
    names: tuple[str, ...]
    usage: Usage
    #: whether an update can cost more than the object did
    rises: bool


# Access


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """All that is a kind's own.  See the top of this module for when each member is asked."""

    resource: Resource
    defaults: Defaults
    prepare_create: PrepareCreate
    prepare_update: PrepareUpdate
    validate: Validate
    validate_update: ValidateUpdate
    warnings: Warn
    status: Status
    admission: Admission
    deletion: Deletion
    quota: Quota
    granted: Granted
    columns: Printer


# Nothing of its own


def no_defaults(_document: Document) -> None:
    pass


def created_as_sent(_core: Core, _target: Target, _new: Document) -> None:
    pass


def updated_as_sent(_core: Core, _target: Target, _new: Document, _old: Document) -> None:
    pass


def no_rules(_document: Document) -> list[FieldError]:
    return []


def no_update_rules(_new: Document, _old: Document) -> list[FieldError]:
    return []


def as_new(validate: Validate) -> ValidateUpdate:
    """The rules of an update are those of a new object."""
    return lambda new, _old: validate(new)


def no_warnings(_new: Document, _old: Document | None) -> tuple[str, ...]:
    return ()


def status_as_sent(_document: Document) -> Document | None:
    return None


def empty_status(_document: Document) -> Document:
    return {}


SPEC: Final = fields.of_paths([("f:spec",)])
#: the kind has no status
NO_STATUS: Final = Status(first=status_as_sent, validate=no_update_rules, not_written=SPEC, kept=())
#: nothing in it at first, no rules
EMPTY_STATUS: Final = Status(first=empty_status, validate=no_update_rules, not_written=SPEC, kept=())


def not_narrowed(_gates: Gates, errors: list[FieldError], _new: Document, _old: Document | None) -> list[FieldError]:
    return errors


def admitted(_core: Core, _new: Document, _old: Document | None) -> None:
    pass


def nothing_allocated(_core: Core, _new: Document, _old: Document | None, *, dry_run: bool) -> None:
    pass


def nothing_claimed(_core: Core, _document: Document, _now: float) -> None:
    pass


ADMITTED: Final = Admission(narrow=not_narrowed, admit=admitted, allocate=nothing_allocated, claim=nothing_claimed)


def any_name(_name: str) -> None:
    pass


def goes_at_once(_document: Document, _now: float) -> bool:
    return False


def no_grace(_document: Document, _asked: int | None) -> int | None:
    return None


def held_by_finalizers(_document: Document) -> bool:
    return False


AT_ONCE: Final = Deletion(admit=any_name, linger=goes_at_once, grace=no_grace, is_held=held_by_finalizers)


def _costs_nothing_else(_projection: Object) -> Mapping[str, int]:
    return {}


#: one object is one object
COUNTED: Final = Quota(counted=True, names=(), usage=_costs_nothing_else, rises=False)
#: cluster-scoped, or not worth a quota
UNCOUNTED: Final = Quota(counted=False, names=(), usage=_costs_nothing_else, rises=False)


def counted_as(name: str) -> Quota:
    """As ``count/...`` and under one older name."""
    return Quota(counted=True, names=(name,), usage=lambda _projection: {name: 1}, rises=False)


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


def keep(new: Document, old: Document, member: str) -> None:
    """*member* of *new* becomes what it is in *old*."""
    if member in old:
        new[member] = old[member]
    else:
        new.pop(member, None)


def bare_kind(resource: Resource, columns: Printer) -> Kind:
    """A kind whose objects no client writes, or that is asked and never stored."""
    return Kind(
        resource=resource,
        defaults=no_defaults,
        prepare_create=created_as_sent,
        prepare_update=updated_as_sent,
        validate=no_rules,
        validate_update=no_update_rules,
        warnings=no_warnings,
        status=NO_STATUS,
        admission=ADMITTED,
        deletion=AT_ONCE,
        quota=UNCOUNTED,
        granted=NOT_GRANTED,
        columns=columns,
    )
