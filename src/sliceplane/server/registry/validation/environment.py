"""Rules of what a container reads from elsewhere: variables, keys of other objects, fields of its
own Pod.

The messages and the order of complaints are those of Kubernetes
(pkg/apis/core/validation/validation.go).
"""

from __future__ import annotations

import re
from typing import Any, Final

from sliceplane.api.errors import FieldErrors, invalid_value, not_supported, required
from sliceplane.api.meta import Document
from sliceplane.api.quantity import exact
from sliceplane.kit.names import check_dns_label, check_dns_subdomain, check_qualified_name
from sliceplane.server.registry.validation.resources import text_of
from sliceplane.server.registry.validation.rules import (
    Field,
    Rules,
    among,
    each,
    no_way_up,
    of_form,
)

_ENV_NAME: Final = re.compile(r"[ -<>-~]+")
_ENV_DETAIL: Final = (
    "a valid environment variable name must consist only of printable ASCII characters other than "
    "'='"
)
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")
_KEY_DETAIL: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
    "'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
KEY_MAX_BYTES: Final = 253
_MAPS: Final = ("metadata.annotations", "metadata.labels")
ENV_FIELDS: Final = (
    *(
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
    ),
    *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
)
VOLUME_FIELDS: Final = ("metadata.annotations", "metadata.labels", *ENV_FIELDS[:3])
#: fields that a Pod has, and that neither can use
_FURTHER_FIELDS: Final = ("spec.restartPolicy", "spec.schedulerName", "status.phase")
_AMOUNTS: Final = (
    *("limits.cpu", "limits.ephemeral-storage", "limits.memory"),
    *("requests.cpu", "requests.ephemeral-storage", "requests.memory"),
)
_HUGE: Final = ("limits.hugepages-", "requests.hugepages-")
_SIZES: Final = (
    "1",
    *(f"1{prefix}" for prefix in "kMGTPE"),
    *(f"1{prefix}i" for prefix in "KMGTPE"),
)
_DIVISORS: Final = {
    "cpu": (("1m", "1"), "only divisor's values 1m and 1 are supported with the cpu resource"),
    **{
        name: (
            _SIZES,
            f"only divisor's values {', '.join(_SIZES)} are supported with the {noun} resource",
        )
        for name, noun in (
            ("memory", "memory"),
            ("ephemeral-storage", "local ephemeral storage"),
            ("hugepages", "hugepages"),
        )
    },
}
_SOURCES: Final = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_NO_SOURCE: Final = (
    "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or "
    "`fileKeyRef`"
)
_TWO_SOURCES: Final = "may not have more than one field specified at a time"


def env_name_problems(name: str) -> tuple[str, ...]:
    return () if _ENV_NAME.fullmatch(name) else (_ENV_DETAIL,)


def key_problems(key: str) -> list[str]:
    """The faults of a key of a ConfigMap or Secret."""
    problems = (
        [f"must be no more than {KEY_MAX_BYTES} characters"]
        if len(key.encode()) > KEY_MAX_BYTES
        else []
    )
    if not _KEY.fullmatch(key):
        problems.append(_KEY_DETAIL)
    if key in (".", "..") or key.startswith(".."):
        problems.append(
            f"must not be '{key}'" if key in (".", "..") else "must not start with '..'"
        )
    return problems


def _only_one(path: str, source: Document) -> FieldErrors:
    count = sum(member in source for member in _SOURCES)
    if not count:
        return [invalid_value(path, "", _NO_SOURCE)]
    return [invalid_value(path, "", _TWO_SOURCES)] if count > 1 else []


def _source(path: str, variable: Document) -> FieldErrors:
    where = f"{path}.valueFrom"
    source: Document = variable["valueFrom"]
    errors = _SOURCE(where, source)
    if variable.get("value") and any(member in source for member in _SOURCES):
        return [*errors, invalid_value(where, "", "may not be specified when `value` is not empty")]
    return errors + _only_one(where, source)


def check_field_of_pod(path: str, reference: Document, allowed: tuple[str, ...]) -> FieldErrors:
    where = f"{path}.fieldPath"
    field = reference.get("fieldPath", "")
    version = reference.get("apiVersion", "v1")
    if not field:
        return [required(where)]
    name, bracket, rest = field.partition("['")
    why = ""
    if version != "v1":
        why = f"unsupported pod version: {version}"
    elif bracket and name and rest.endswith("']"):
        if name in _MAPS:
            key = rest[:-2].lower() if name == _MAPS[0] else rest[:-2]
            return of_form(path, key, check_qualified_name)
        why = f"field label does not support subscript: {field}"
    # As upstream: the old name of ``spec.nodeName`` is still understood.
    elif field not in (*ENV_FIELDS, *_MAPS, *_FURTHER_FIELDS, "spec.host"):
        why = f"field label not supported: {field}"
    if why:
        return [invalid_value(where, field, f"error converting fieldPath: {why}")]
    field = "spec.nodeName" if field == "spec.host" else field
    return among(where, field, allowed)


def check_amount_of_container(path: str, reference: Document, *, named: bool) -> FieldErrors:
    """*named*: the reference says of which container."""
    name = reference.get("resource", "")
    errors: FieldErrors = []
    if named and not reference.get("containerName"):
        errors.append(required(f"{path}.containerName"))
    elif not name:
        errors.append(required(f"{path}.resource"))
    elif name not in _AMOUNTS and not name.startswith(_HUGE):
        errors.append(not_supported(f"{path}.resource", name, _AMOUNTS))
    resource = (
        "hugepages"
        if name.startswith(_HUGE)
        else name.partition(".")[2]
        if name in _AMOUNTS
        else ""
    )
    divisor: Any = reference.get("divisor", 0)
    if resource and exact(divisor) and text_of(divisor) not in _DIVISORS[resource][0]:
        errors.append(invalid_value(f"{path}.divisor", name, _DIVISORS[resource][1]))
    return errors


# As upstream: a name that ends with a dash passes, as if something were to be added to it.
_OBJECT: Final = Rules(
    Field(
        "name",
        required=True,
        form=lambda name: check_dns_subdomain(
            name[:-2] + "a" if len(name) > 1 and name.endswith("-") else name
        ),
    )
)
_KEY_OF_OBJECT: Final = Rules(
    Field("name", form=check_dns_subdomain, always=True),
    Field("key", required=True, form=key_problems),
)
_SOURCE: Final = Rules(
    Field("fieldRef", rows=lambda path, reference: check_field_of_pod(path, reference, ENV_FIELDS)),
    Field(
        "resourceFieldRef",
        rows=lambda path, reference: check_amount_of_container(path, reference, named=False),
    ),
    Field("configMapKeyRef", rows=_KEY_OF_OBJECT),
    Field("secretKeyRef", rows=_KEY_OF_OBJECT),
    Field(
        "fileKeyRef",
        rows=Rules(
            Field("key", required=True, form=env_name_problems),
            Field("volumeName", required=True, form=check_dns_label),
            Field("path", required=True, form=no_way_up),
        ),
    ),
)
check_variable: Final = Rules(
    Field("name", required=True, form=env_name_problems),
    lambda path, variable: _source(path, variable) if "valueFrom" in variable else [],
)
_SOURCE_OF_ALL: Final = Rules(
    Field("prefix", form=env_name_problems),
    Field("configMapRef", rows=_OBJECT),
    Field("secretRef", rows=_OBJECT),
)


def check_env_from(path: str, sources: list[Document]) -> FieldErrors:
    """As upstream: the list is named where the number of sources is wrong, not its entry."""

    def source_errors(where: str, source: Document) -> FieldErrors:
        errors = _SOURCE_OF_ALL(where, source)
        references = sum(member in source for member in ("configMapRef", "secretRef"))
        if references == 1:
            return errors
        detail = (
            _TWO_SOURCES if references else "must specify one of: `configMapRef` or `secretRef`"
        )
        return [*errors, invalid_value(path, "", detail)]

    return each(path, sources, source_errors)
