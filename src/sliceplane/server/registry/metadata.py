"""``metadata`` of every object: which members the server owns and what it writes there (Kubernetes
API conventions, Metadata), and the rules of names, labels, annotations, owners and finalizers, and
of what may never change (staging/src/k8s.io/apimachinery/pkg/api/validation/objectmeta.go).
Selectors of labels have their rules here, too.

Functions that prepare change the document that they are given; callers own it.
"""

from __future__ import annotations

from typing import Any

from sliceplane.api.errors import (
    FieldError,
    FieldErrors,
    StatusError,
    bad_request,
    forbidden_field,
    invalid_value,
    required,
    show,
    too_long,
    while_few,
)
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource
from sliceplane.kit.containers import remembered
from sliceplane.kit.integers import NotAnInteger, parse_uint64
from sliceplane.kit.names import (
    GENERATED_ALPHABET,
    GENERATED_BASE_MAX,
    GENERATED_SUFFIX_LENGTH,
    check_label_value,
    check_qualified_name,
)
from sliceplane.kit.rng import Rng
from sliceplane.kit.times import format_time, parse_time
from sliceplane.server.registry.types import Target

_SERVER_OWNED_ON_CREATE = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
#: members that a client may leave out of an update; changing them is refused by validation
_KEPT_ON_UPDATE = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
ANNOTATIONS_MAX_BYTES = 256 * 1024
MANAGER_MAX_BYTES = 128
SUBRESOURCE_MAX_BYTES = 256
STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
_IMMUTABLE = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_OWNER_ORDER = ("apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion")
IMMUTABLE = "field is immutable"
# The same few keys and values come with every write.
_key_problems = remembered(4096)(check_qualified_name)
_value_problems = remembered(4096)(check_label_value)
#: each complaint about one controller too many shows all references: a thousand of them would be a
#: gigabyte
CONTROLLERS_TOLD_MAX = 8


def match_namespace(target: Target, metadata: Document) -> None:
    """The body's namespace must be the URL's, or nothing; a cluster-scoped object has none."""
    if not target.resource.namespaced:
        metadata.pop("namespace", None)
        return
    if metadata.get("namespace") or target.namespace:
        namespace = metadata.setdefault("namespace", target.namespace) or target.namespace
        if namespace != target.namespace:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the "
                "request"
            )
        metadata["namespace"] = namespace


def match_name(target: Target, metadata: Document) -> None:
    """A PUT's body must carry the URL's name."""
    name = metadata.get("name")
    if not name:
        raise bad_request(
            f"the name of the object ({target.name} based on URL) was undeterminable: name must "
            "be provided"
        )
    if name != target.name:
        raise bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({target.name})"
        )


def prepare_create(resource: Resource, metadata: Document, rng: Rng, now: float) -> None:
    """Identity and birth of a new object.  ``generateName`` is left to the caller."""
    for name in _SERVER_OWNED_ON_CREATE:
        metadata.pop(name, None)
    metadata["uid"] = rng.uuid()
    metadata["creationTimestamp"] = format_time(now)
    if resource.generation != "none":
        metadata["generation"] = 1


def generated_name(prefix: str, rng: Rng) -> str:
    return prefix[:GENERATED_BASE_MAX] + rng.text(GENERATED_SUFFIX_LENGTH, GENERATED_ALPHABET)


def prepare_update(resource: Resource, new: Document, old: Document) -> None:
    """Carry over what an update cannot change, and count the generation."""
    metadata = new["metadata"]
    before = old["metadata"]
    for name in _KEPT_ON_UPDATE:
        if not metadata.get(name) and name in before:
            metadata[name] = before[name]
    metadata["resourceVersion"] = before["resourceVersion"]
    metadata.pop("generation", None)
    if resource.generation == "none":
        step = False
    elif resource.generation == "content":
        step = _counted(new) != _counted(old)
    else:
        step = new.get(resource.generation, {}) != old.get(resource.generation, {})
    generation = before.get("generation", 0) + step
    if generation:
        metadata["generation"] = generation


def _counted(document: Document) -> Document:
    """All but what the server writes, and but metadata that is no label."""
    return {
        **document,
        "kind": "",
        "apiVersion": "",
        "metadata": document["metadata"].get("labels", {}),
    }


def mark_deleted(metadata: Document, now: float, grace_s: int | None) -> None:
    """Set deletionTimestamp to ``now + grace_s`` if there is none; the first time counts as a
    generation.
    """
    if "deletionTimestamp" not in metadata:
        metadata["deletionTimestamp"] = format_time(now + (grace_s or 0))
        if metadata.get("generation"):
            metadata["generation"] += 1
    if grace_s is not None:
        metadata["deletionGracePeriodSeconds"] = grace_s


def shorten_grace(metadata: Document, grace_s: int) -> None:
    """Move an announced deletion to an earlier moment."""
    started = parse_time(metadata["deletionTimestamp"]) - metadata["deletionGracePeriodSeconds"]
    metadata["deletionTimestamp"] = format_time(started + grace_s)
    metadata["deletionGracePeriodSeconds"] = grace_s


def parse_resource_version(value: Any) -> int:
    """A body's resourceVersion; "" and "0" are 0.  As upstream: a 500 without reason if it is not a
    number.
    """
    text = str(value or "0")
    try:
        return parse_uint64(text)
    except NotAnInteger as error:
        raise StatusError(
            500, "", f"strconv.ParseUint: parsing {show(text)}: {error.why}"
        ) from error


def validate(resource: Resource, head: Document) -> FieldErrors:
    """The metadata of a new object."""
    errors: FieldErrors = []
    prefix = head.get("generateName", "")
    name = head.get("name", "")
    if prefix:
        # A trailing dash is the usual separator before the generated suffix.
        masked = prefix[:-1] + "a" if prefix.endswith("-") and len(prefix) > 1 else prefix
        errors += [
            invalid_value("metadata.generateName", prefix, problem)
            for problem in resource.check_name(masked)
        ]
    if not name:
        errors.append(required("metadata.name", "name or generateName is required"))
    else:
        errors += [
            invalid_value("metadata.name", name, problem) for problem in resource.check_name(name)
        ]
    if resource.namespaced and not head.get("namespace"):
        errors.append(required("metadata.namespace"))
    errors += validate_maps(head)
    errors += _validate_owners(head)
    errors += _validate_finalizers(head)
    errors += _validate_managers(head)
    return errors


def validate_update(new: Document, old: Document) -> FieldErrors:
    """The metadata of an update.  As upstream: the first rules run twice, which clients see as
    doubled causes.
    """
    errors: FieldErrors = []
    if old.get("deletionTimestamp"):
        added = set(new.get("finalizers", ())).difference(old.get("finalizers", ()))
        if added:
            listed = ", ".join(f'"{name}"' for name in sorted(added))
            errors.append(
                forbidden_field(
                    "metadata.finalizers",
                    "no new finalizers can be added if the object is being deleted, "
                    f"found new finalizers []string{{{listed}}}",
                )
            )
    changed = [member for member in _IMMUTABLE if new.get(member) != old.get(member)]
    errors += [
        invalid_value(f"metadata.{member}", new.get(member), IMMUTABLE) for member in changed
    ]
    if new.get("labels") != old.get("labels") or new.get("annotations") != old.get("annotations"):
        errors += validate_maps(new)
    if new.get("ownerReferences") != old.get("ownerReferences"):
        errors += _validate_owners(new)
    errors += _validate_managers(new)
    errors = [*errors, *errors]
    if new.get("finalizers") != old.get("finalizers"):
        errors += _validate_finalizers(new)
    return errors


def validate_maps(head: Document, path: str = "metadata") -> FieldErrors:
    """Labels and annotations."""
    errors = validate_labels(head.get("labels", {}), f"{path}.labels")
    annotations: dict[str, str] = head.get("annotations", {})
    where = f"{path}.annotations"
    size = 0
    for key, value in while_few(errors, annotations.items()):
        # The case of annotation keys is free, unlike that of label prefixes.
        errors += [invalid_value(where, key, problem) for problem in _key_problems(key.lower())]
        size += len(key.encode()) + len(value.encode())
    if size > ANNOTATIONS_MAX_BYTES:
        errors.append(too_long(where, ANNOTATIONS_MAX_BYTES))
    return errors


def in_go(document: Document, *members: str, **zero: Any) -> Document:
    """*document* as messages of Kubernetes show a value of its own types: members by Go's names,
    null where there is nothing, or *zero*.
    """
    return {name[0].upper() + name[1:]: document.get(name, zero.get(name)) for name in members}


def validate_labels(labels: dict[str, str], path: str) -> FieldErrors:
    errors: FieldErrors = []
    for key, value in while_few(errors, labels.items()):
        errors += [invalid_value(path, key, problem) for problem in _key_problems(key)]
        errors += [invalid_value(path, value, problem) for problem in _value_problems(value)]
    return errors


def check_label_selector(path: str, selector: Document | None) -> FieldErrors:
    """No selector is no mistake."""
    errors = validate_labels((selector or {}).get("matchLabels", {}), f"{path}.matchLabels")
    for index, requirement in while_few(
        errors, enumerate((selector or {}).get("matchExpressions", ()))
    ):
        errors += _requirement(f"{path}.matchExpressions[{index}]", requirement)
    return errors


def _requirement(path: str, requirement: Document) -> FieldErrors:
    errors = check_requirement(path, requirement)
    for index, value in while_few(errors, enumerate(requirement.get("values", ()))):
        errors += [
            invalid_value(f"{path}.values[{index}]", value, problem)
            for problem in check_label_value(value)
        ]
    return errors


def check_requirement(path: str, requirement: Document, *, of_node: bool = False) -> FieldErrors:
    """Operator and key of a requirement, and the number of its values.  *of_node*: numbers can be
    compared, too.
    """
    key = requirement.get("key", "")
    operator = requirement.get("operator", "")
    values: list[str] = requirement.get("values", [])
    errors: FieldErrors = []
    if operator in ("In", "NotIn"):
        if not values:
            errors.append(
                required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
            )
    elif of_node and operator in ("Gt", "Lt"):
        if len(values) != 1:
            detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            errors.append(required(f"{path}.values", detail))
    elif operator not in ("Exists", "DoesNotExist"):
        errors.append(invalid_value(f"{path}.operator", operator, "not a valid selector operator"))
    elif values:
        detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        errors.append(forbidden_field(f"{path}.values", detail))
    return errors + [
        invalid_value(f"{path}.key", key, problem) for problem in check_qualified_name(key)
    ]


def _validate_managers(head: Document) -> FieldErrors:
    """What clients can send in entries that are understood otherwise."""
    errors: FieldErrors = []
    for index, entry in while_few(errors, enumerate(head.get("managedFields", ()))):
        path = f"metadata.managedFields[{index}]"
        if len(entry["manager"].encode()) > MANAGER_MAX_BYTES:
            errors.append(too_long(f"{path}.manager", MANAGER_MAX_BYTES))
        elif not entry["manager"].isprintable():
            errors.append(_unprintable(f"{path}.manager", entry["manager"]))
        if len(entry.get("subresource", "")) > SUBRESOURCE_MAX_BYTES:
            errors.append(too_long(f"{path}.subresource", SUBRESOURCE_MAX_BYTES))
    return errors


def _unprintable(path: str, manager: str) -> FieldError:
    position, character = next(
        (at, character) for at, character in enumerate(manager) if not character.isprintable()
    )
    return invalid_value(
        path, manager, f"invalid character U+{ord(character):04X} (at position {position})"
    )


def _validate_owners(head: Document) -> FieldErrors:
    path = "metadata.ownerReferences"
    errors: FieldErrors = []
    controller = ""
    further = 0
    owners: list[Document] = head.get("ownerReferences", [])
    for owner in while_few(errors, owners):
        api_version = owner.get("apiVersion", "")
        kind = owner.get("kind", "")
        group, _, version = api_version.rpartition("/")
        if not version:
            errors.append(
                invalid_value(f"{path}.apiVersion", api_version, "version must not be empty")
            )
        errors += [
            invalid_value(f"{path}.{member}", owner.get(member, ""), "must not be empty")
            for member in ("kind", "name", "uid")
            if not owner.get(member)
        ]
        if (group, version, kind) == ("", "v1", "Event"):
            errors.append(
                invalid_value(
                    path, _shown_owner(owner), "/v1, Kind=Event is disallowed from being an owner"
                )
            )
        if owner.get("controller"):
            name = f"{kind}/{owner.get('name', '')}"
            if controller and further == CONTROLLERS_TOLD_MAX:
                continue
            if controller:
                further += 1
                detail = (
                    'Only one reference can have Controller set to true. Found "true" in '
                    "references for "
                    f"{controller} and {name}"
                )
                errors.append(
                    invalid_value(path, [_shown_owner(other) for other in owners], detail)
                )
            else:
                controller = name
    return errors


def _shown_owner(owner: Document) -> Document:
    """An owner reference as Go prints it: the required members always, in the order of the
    struct.
    """
    return {
        member: owner.get(member, "")
        for member in _OWNER_ORDER
        if member in owner or member not in ("controller", "blockOwnerDeletion")
    }


def _validate_finalizers(head: Document) -> FieldErrors:
    path = "metadata.finalizers"
    errors: FieldErrors = []
    finalizers: list[str] = head.get("finalizers", [])
    for index, name in while_few(errors, enumerate(finalizers)):
        errors += validate_finalizer(f"{path}[{index}]", name)
    if "orphan" in finalizers and "foregroundDeletion" in finalizers:
        errors.append(
            invalid_value(
                path, finalizers, "finalizer orphan and foregroundDeletion cannot be both set"
            )
        )
    return errors


def validate_finalizer(path: str, name: str) -> FieldErrors:
    errors = [invalid_value(path, name, problem) for problem in _key_problems(name)]
    if "/" not in name and name not in STANDARD_FINALIZERS:
        detail = "name is neither a standard finalizer name nor is it fully qualified"
        errors.append(invalid_value(path, name, detail))
    return errors
