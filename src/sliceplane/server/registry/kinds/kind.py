"""The record of a kind: all that is its own, for the registry.

The verbs (``server.registry.verbs``) are the same for all kinds and ask the record where kinds
differ. A member that is left out is "nothing of its own": no rules, no status, no admission.

In what order the verbs ask:

- decoding a body: ``defaults``;
- create: ``prepare_create``, ``status.first``, ``validate``, ``admission.narrow``,
  ``admission.admit``; then, once the name is known to be free, ``warnings``,
  ``admission.allocate``, ``quota``, ``admission.claim``;
- update: ``prepare_update``, ``validate_update``, ``admission.narrow``, ``admission.admit``,
  ``warnings``, ``admission.allocate``, ``quota``, ``admission.claim``; through ``status`` or one of
  ``parts`` rules of its own in place of all of them;
- delete: ``deletion``;
- reading as a Table: ``columns``; at the start of a server: ``granted``.

A function changes the *new* document in place where its name says that it prepares, completes or
allocates, and never the *old* one, which is ``None`` for a new object.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from sliceplane.api.errors import FieldErrors
from sliceplane.api.gates import Gates
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import Resource
from sliceplane.server.documents import fields
from sliceplane.server.documents.fields import FieldSet
from sliceplane.server.documents.table.columns import PLAIN, Printer
from sliceplane.server.registry.documents import document_of
from sliceplane.server.registry.types import Target
from sliceplane.server.registry.validation.rules import Rules

if TYPE_CHECKING:
    from sliceplane.server.registry.core import Core

ValidateUpdate = Callable[[Document, Document], FieldErrors]


class Allocate(Protocol):
    def __call__(
        self, core: Core, new: Document, old: Document | None, /, *, dry_run: bool
    ) -> None: ...


def _nothing(*_: object, **__: object) -> None:
    """Changes nothing, refuses nothing, says nothing."""


def _no(*_: object) -> bool:
    return False


def no_errors(*_: object) -> FieldErrors:
    return []


def _no_texts(*_: object) -> tuple[str, ...]:
    return ()


def _no_costs(_projection: Object) -> Mapping[str, int]:
    return {}


def _missing_nothing(_projection: Object, _counted: Collection[str]) -> str:
    return ""


def _not_narrowed(
    _gates: Gates, errors: FieldErrors, _new: Document, _old: Document | None
) -> FieldErrors:
    return errors


def empty_status(_document: Document) -> Document:
    return {}


SPEC: Final = fields.of_paths([("f:spec",)])


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The member ``status``, and the endpoint of that name."""

    #: that of a new object, whatever the client sent; ``None``: as the client sent it
    first: Callable[[Document], Document | None] = _nothing
    validate: ValidateUpdate = no_errors
    #: what the endpoint does not write, for ``metadata.managedFields``
    not_written: FieldSet = msgspec.field(default_factory=lambda: SPEC)
    #: members of metadata that the endpoint leaves alone
    kept: tuple[str, ...] = ()


class SpecPart(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint that writes some members of the spec, and leaves the rest, metadata and status
    alone.
    """

    #: what a spec says of these members
    cut: Callable[[Document], Document]
    #: the stored spec (second) with these members as they are wanted (first); neither is changed
    merge: Callable[[Document, Document], Document]
    validate: ValidateUpdate
    #: what depends on more than the object itself.  Raises ``StatusError``.
    admit: Callable[[Core, Document, Document | None], None] = _nothing
    #: whether quotas are charged for it
    charged: bool = False


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Checks of a valid object itself, not of a subresource."""

    #: the errors of validation, with values refused whose feature gate is off
    narrow: Callable[[Gates, FieldErrors, Document, Document | None], FieldErrors] = _not_narrowed
    #: what depends on more than the object itself.  Raises ``StatusError``.
    admit: Callable[[Core, Document, Document | None], None] = _nothing
    #: fills in what is given out of ranges, and holds nothing yet.  Raises ``StatusError``.
    allocate: Allocate = _nothing
    #: stages what must be there together with the object, just before it; the last argument is the
    #: time
    claim: Callable[[Core, Document, float], None] = _nothing


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    #: by the name. Raises the 403 ``StatusError`` for an object that the cluster cannot be without.
    admit: Callable[[str], None] = _nothing
    #: whether the object stays for now, for a reason of its kind; its document is changed to say so
    #: (time: seconds)
    linger: Callable[[Document, float], bool] = _no
    #: seconds between the announcement and the end, by what was asked for; ``None``: the kind knows
    #: no grace
    grace: Callable[[Document, int | None], int | None] = _nothing
    #: whether more than finalizers holds an object that is being deleted
    is_blocked: Callable[[Document], bool] = _no


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """The names under which a ResourceQuota counts the kind (``server.registry.kinds``)."""

    #: under ``count/PLURAL.GROUP``, each object as one
    counted: bool = True
    #: further names, most of them older
    names: tuple[str, ...] = ()
    #: whether a name is one more of them, by its form
    counts: Callable[[str], bool] = _no
    #: what one object costs under all these names, by the projection of its ``Resource``
    usage: Callable[[Object], Mapping[str, Fraction | int]] = _no_costs
    #: what the scopes of a quota ask of an object; ``None``: no scope holds it
    traits: Callable[[Object], Any] = _nothing
    #: what an object must say since a quota counts these names; "": it says all
    missing: Callable[[Object, Collection[str]], str] = _missing_nothing
    #: whether an update can cost more than the object did
    rises: bool = False


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """Grants of the kind in upstream's roles for the users of a namespace (kubernetes.io, Using
    RBAC Authorization, User-facing roles), as subresources; "" stands for the object itself.
    """

    #: get, list and watch, by the role ``view``
    view: tuple[str, ...] = ()
    #: the same by ``edit`` alone
    edit_reads: tuple[str, ...] = ()
    #: all verbs that write, by ``edit``
    edit: tuple[str, ...] = ()
    #: all verbs, by ``admin`` alone
    admin: tuple[str, ...] = ()


def counted_as(name: str, *names: str, **members: Any) -> Quota:
    """As ``count/...``, and under *name*, of which each object costs one unless ``usage`` says
    otherwise.
    """
    return Quota(names=(name, *names), **{"usage": lambda _projection: {name: 1}, **members})


#: cluster-scoped, or not worth a quota
UNCOUNTED: Final = Quota(counted=False)


def viewed(*subresources: str) -> Granted:
    """The object and *subresources*, by ``view``."""
    return Granted(view=("", *subresources))


def edited(*subresources: str) -> Granted:
    """The object and *subresources* are seen by ``view``; ``edit`` writes the object."""
    return Granted(view=("", *subresources), edit=("",))


#: ``edit`` reads and writes it, ``view`` does not read it
EDITED_NOT_VIEWED: Final = Granted(edit_reads=("",), edit=("",))
#: who may do what in the namespace
ADMINISTERED: Final = Granted(admin=("",))


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """All that is a kind's own."""

    resource: Resource
    #: complaints in a fixed order, those about metadata left out. They see no other objects (that
    #: is admission), and types are right (decoding has seen to those).
    rules: Rules = Rules()
    #: the rules of an update beside ``rules`` and immutable members
    change_rules: ValidateUpdate = no_errors
    #: in place of all three, where upstream's order is another, or where it forgives an update what
    #: was there before
    update_rules: ValidateUpdate | None = None
    #: fills in what a client left out. Idempotent, drops nothing, looks at nothing but the
    #: document.
    defaults: Callable[[Document], None] = _nothing
    #: what the server sets itself in a new object, and what a client may not say yet
    prepare_create: Callable[[Core, Target, Document], None] = _nothing
    #: what a request may not change is undone; not asked through ``status``
    prepare_update: Callable[[Core, Target, Document, Document], None] = _nothing
    #: texts for ``Warning`` headers
    warnings: Callable[[Document, Document | None], Iterable[str]] = _no_texts
    status: Status = Status()
    #: by the name of the subresource
    parts: Mapping[str, SpecPart] = {}
    admission: Admission = Admission()
    deletion: Deletion = Deletion()
    quota: Quota = UNCOUNTED
    granted: Granted = Granted()
    columns: Printer = PLAIN

    def validate(self, document: Document) -> FieldErrors:
        return self.rules("", document)

    def validate_update(self, new: Document, old: Document) -> FieldErrors:
        if self.update_rules is not None:
            return self.update_rules(new, old)
        return [*self.rules("", new), *self.rules.changed(new, old), *self.change_rules(new, old)]


def keep(new: Document, old: Document, member: str) -> None:
    """*member* of *new* becomes what it is in *old*."""
    if member in old:
        new[member] = old[member]
    else:
        new.pop(member, None)


def default_object(core: Core, resource: Resource, *annotations: str) -> str | None:
    """The name of the object that one of *annotations* marks as default; of several the newest,
    then the first by name (``pkg/volume/util/storageclass.go``).
    """
    heads = (
        document_of(record)["metadata"] for record in core.store.iter_latest(resource.storage_key)
    )
    marked = sorted(
        (
            head
            for head in heads
            if any(head.get("annotations", {}).get(name) == "true" for name in annotations)
        ),
        key=lambda head: str(head["name"]),
    )
    return (
        str(max(marked, key=lambda head: str(head["creationTimestamp"]))["name"])
        if marked
        else None
    )
