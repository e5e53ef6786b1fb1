"""What an object must be to be stored, in the words that Kubernetes uses: metadata first, then the kind's own rules.

Promises: a list of field errors in a fixed order; nothing changed.
"""

from __future__ import annotations

from sliceplane.api.errors import FieldError, invalid
from sliceplane.api.gates import Gates
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource, stored_form
from sliceplane.registry.kinds import kind_of
from sliceplane.registry.types import Target
from sliceplane.registry.validation import metadata


def validate_create(resource: Resource, document: Document) -> list[FieldError]:
    """Complaints about a new object."""
    return [*metadata.validate(resource, document["metadata"]), *kind_of(resource).validate(document)]


def validate_update(resource: Resource, new: Document, old: Document, subresource: str = "") -> list[FieldError]:
    """Complaints about *new* as the successor of *old*; on ``status`` the status rules alone."""
    kind = kind_of(resource)
    rules = kind.status.validate if subresource == "status" else kind.validate_update
    return [*metadata.validate_update(new["metadata"], old["metadata"]), *rules(new, old)]


def check(gates: Gates, target: Target, new: Document, old: Document | None) -> None:
    """The rules above and those of feature gates.  Raises the 422 ``StatusError``."""
    resource = target.resource
    if old is None:
        errors = validate_create(resource, new)
    else:
        errors = validate_update(resource, new, old, target.subresource)
    if target.subresource != "status":
        errors = kind_of(resource).admission.narrow(gates, errors, new, old)
    refuse(resource, new["metadata"], errors)


def refuse(resource: Resource, head: Document, errors: list[FieldError]) -> None:
    """Raises the 422 ``StatusError`` of *errors*, if there are any."""
    if errors:
        # A view is checked and complained of in its stored form.
        resource = stored_form(resource)
        raise invalid(resource.kind, resource.group, head.get("name", ""), errors)
