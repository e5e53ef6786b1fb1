"""``metadata`` of every object: the members that the server owns and writes (Kubernetes API
conventions, Metadata), and the rules of names, labels, annotations, owners, finalizers and
immutable members (staging/src/k8s.io/apimachinery/pkg/api/validation/objectmeta.go). The rules of
label selectors are here, too.

Functions named ``prepare_...`` change their argument in place; the caller owns it.
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
    until_error_limit,
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
from sliceplane.server.registry.validation.rules import IMMUTABLE, each, each_of_form, of_form

_SERVER_OWNED_ON_CREATE = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
#: members that a client may omit in an update; validation refuses changes of them
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
# Most writes have the same few keys and values.
_key_problems = remembered(4096)(check_qualified_name)
_value_problems = remembered(4096)(check_label_value)
#: maximum of errors about a second controller: each prints all references, and a thousand of them
#: would be a gigabyte
CONTROLLER_ERRORS_MAX = 8


def match_namespace(target: Target, metadata: Document) -> None:
    """Checks that the body's namespace is the URL's or absent; a cluster-scoped object has none."""
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
    """Checks that a PUT's body has the name of the URL."""
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
    """Sets uid, creationTimestamp and generation of a new object.  The caller handles
    ``generateName``.
    """
    for name in _SERVER_OWNED_ON_CREATE:
        metadata.pop(name, None)
    metadata["uid"] = rng.uuid()
    metadata["creationTimestamp"] = format_time(now)
    if resource.generation != "none":
        metadata["generation"] = 1


def generated_name(prefix: str, rng: Rng) -> str:
    return prefix[:GENERATED_BASE_MAX] + rng.text(GENERATED_SUFFIX_LENGTH, GENERATED_ALPHABET)


def prepare_update(resource: Resource, new: Document, old: Document) -> None:
    """Carries over the members that an update cannot change, and increments the generation."""
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
    """Returns the content that counts for the generation: no type, and of the metadata only the
    labels.
    """
    return {
        **document,
        "kind": "",
        "apiVersion": "",
        "metadata": document["metadata"].get("labels", {}),
    }


def mark_deleted(metadata: Document, now: float, grace_s: int | None) -> None:
    """Sets deletionTimestamp to ``now + grace_s`` if there is none, which increments the
    generation.
    """
    if "deletionTimestamp" not in metadata:
        metadata["deletionTimestamp"] = format_time(now + (grace_s or 0))
        if metadata.get("generation"):
            metadata["generation"] += 1
    if grace_s is not None:
        metadata["deletionGracePeriodSeconds"] = grace_s


def shorten_grace(metadata: Document, grace_s: int) -> None:
    """Moves an announced deletion to an earlier time."""
    started = parse_time(metadata["deletionTimestamp"]) - metadata["deletionGracePeriodSeconds"]
    metadata["deletionTimestamp"] = format_time(started + grace_s)
    metadata["deletionGracePeriodSeconds"] = grace_s


def parse_resource_version(value: Any) -> int:
    """Parses a body's resourceVersion; "" and "0" are 0.  As upstream, raises a 500 without reason
    if it is not a number.
    """
    text = str(value or "0")
    try:
        return parse_uint64(text)
    except NotAnInteger as error:
        raise StatusError(
            500, "", f"strconv.ParseUint: parsing {show(text)}: {error.why}"
        ) from error


def validate(resource: Resource, head: Document) -> FieldErrors:
    """Validates the metadata of a new object."""
    errors: FieldErrors = []
    prefix = head.get("generateName", "")
    name = head.get("name", "")
    if prefix:
        # A trailing dash is the usual separator before the generated suffix.
        masked = prefix[:-1] + "a" if prefix.endswith("-") and len(prefix) > 1 else prefix
        errors += of_form("metadata.generateName", prefix, lambda _: resource.check_name(masked))
    if not name:
        errors.append(required("metadata.name", "name or generateName is required"))
    else:
        errors += of_form("metadata.name", name, resource.check_name)
    if resource.namespaced and not head.get("namespace"):
        errors.append(required("metadata.namespace"))
    errors += validate_maps(head)
    errors += _validate_owners(head)
    errors += _validate_finalizers(head)
    errors += _validate_managers(head)
    return errors


def validate_update(new: Document, old: Document) -> FieldErrors:
    """Validates the metadata of an update.  As upstream, the first rules run twice, and the Status
    has their causes twice.
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
    """Validates labels and annotations."""
    errors = validate_labels(f"{path}.labels", head.get("labels", {}))
    annotations: dict[str, str] = head.get("annotations", {})
    where = f"{path}.annotations"
    size = 0
    for key, value in until_error_limit(errors, annotations.items()):
        # The case of annotation keys is free, unlike that of label prefixes.
        errors += of_form(where, key, lambda key: _key_problems(key.lower()))
        size += len(key.encode()) + len(value.encode())
    if size > ANNOTATIONS_MAX_BYTES:
        errors.append(too_long(where, ANNOTATIONS_MAX_BYTES))
    return errors


def in_go(document: Document, *members: str, **zero: Any) -> Document:
    """Returns *document* as messages of Kubernetes print a Go struct: members by Go's names,
    absent ones as null or as in *zero*.
    """
    return {name[0].upper() + name[1:]: document.get(name, zero.get(name)) for name in members}


def validate_labels(path: str, labels: dict[str, str]) -> FieldErrors:
    errors: FieldErrors = []
    for key, value in until_error_limit(errors, labels.items()):
        errors += of_form(path, key, _key_problems) + of_form(path, value, _value_problems)
    return errors


def check_label_selector(path: str, selector: Document | None) -> FieldErrors:
    """Checks a label selector; an absent one is valid."""
    errors = validate_labels(f"{path}.matchLabels", (selector or {}).get("matchLabels", {}))
    expressions = (selector or {}).get("matchExpressions", ())
    return errors + each(f"{path}.matchExpressions", expressions, check_requirement_and_values)


def check_requirement_and_values(
    path: str, requirement: Document, *, of_node: bool = False
) -> FieldErrors:
    """Checks a requirement of labels; *of_node*: as ``check_requirement``."""
    values: list[str] = requirement.get("values", [])
    errors = check_requirement(path, requirement, of_node=of_node)
    return errors + each_of_form(f"{path}.values", values, check_label_value)


def check_requirement(path: str, requirement: Document, *, of_node: bool = False) -> FieldErrors:
    """Checks operator and key of a requirement, and the number of its values.  *of_node*: Gt and
    Lt are allowed, too.
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
    return errors + of_form(f"{path}.key", key, check_qualified_name)


def _validate_managers(head: Document) -> FieldErrors:
    """Checks entries that decoding accepts and upstream refuses."""
    return each("metadata.managedFields", head.get("managedFields", ()), _manager)


def _manager(path: str, entry: Document) -> FieldErrors:
    errors: FieldErrors = []
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
    for owner in until_error_limit(errors, owners):
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
                    path,
                    _owner_in_go_order(owner),
                    "/v1, Kind=Event is disallowed from being an owner",
                )
            )
        if owner.get("controller"):
            name = f"{kind}/{owner.get('name', '')}"
            if controller and further == CONTROLLER_ERRORS_MAX:
                continue
            if controller:
                further += 1
                detail = (
                    'Only one reference can have Controller set to true. Found "true" in '
                    "references for "
                    f"{controller} and {name}"
                )
                errors.append(
                    invalid_value(path, [_owner_in_go_order(other) for other in owners], detail)
                )
            else:
                controller = name
    return errors


def _owner_in_go_order(owner: Document) -> Document:
    """Returns an owner reference as Go prints it: with all required members, in the order of the
    struct.
    """
    return {
        member: owner.get(member, "")
        for member in _OWNER_ORDER
        if member in owner or member not in ("controller", "blockOwnerDeletion")
    }


def _validate_finalizers(head: Document) -> FieldErrors:
    path = "metadata.finalizers"
    finalizers: list[str] = head.get("finalizers", [])
    errors = each(path, finalizers, validate_finalizer)
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
