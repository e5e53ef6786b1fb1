"""ConfigMap and Secret: keys, size, the keys that a type of Secret promises, and what may never
change.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Final

from sliceplane.api.errors import (
    FieldErrors,
    duplicate,
    forbidden_field,
    invalid_value,
    required,
    too_long,
    until_error_limit,
)
from sliceplane.api.meta import Document
from sliceplane.api.scheme import ConfigMaps, Secrets
from sliceplane.server.documents.table.columns import AGE, NAME, Column, Printer, mapping
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.validation.environment import key_problems
from sliceplane.server.registry.validation.rules import Rules, of_form, unchanged

DATA_MAX_BYTES = 1024 * 1024
_KEPT: Final = "field is immutable when `immutable` is set"


def _validate(_path: str, document: Document) -> FieldErrors:
    errors: FieldErrors = []
    text: dict[str, str] = document.get("data", {})
    binary: dict[str, str] = document.get("binaryData", {})
    size = 0
    for key, value in until_error_limit(errors, text.items()):
        errors += of_form(f"data[{key}]", key, key_problems)
        if key in binary:
            errors.append(duplicate(f"data[{key}]", key))
        size += len(value.encode())
    for key, value in until_error_limit(errors, binary.items()):
        errors += of_form(f"binaryData[{key}]", key, key_problems)
        size += len(value) * 3 // 4
    return [*errors, too_long("[]", DATA_MAX_BYTES)] if size > DATA_MAX_BYTES else errors


def check_kept(new: Document, old: Document) -> FieldErrors:
    """The complaints about changes of what ``immutable`` fixes: that flag itself, and the data."""
    if not old.get("immutable"):
        return []
    flag = [] if new.get("immutable") else ["immutable"]
    changed = [
        member for member in ("data", "binaryData") if new.get(member, {}) != old.get(member, {})
    ]
    return [forbidden_field(member, _KEPT) for member in (*flag, *changed)]


CONFIG_MAP: Final = kind.Kind(
    resource=ConfigMaps,
    rules=Rules(_validate),
    update_rules=lambda new, old: check_kept(new, old) + _validate("", new),
    quota=kind.counted_as(ConfigMaps.plural),
    granted=kind.edited(),
    columns=Printer(
        (
            NAME,
            Column(
                "Data",
                "How many entries there are.",
                lambda config_map: (
                    len(mapping(config_map, "data")) + len(mapping(config_map, "binaryData"))
                ),
            ),
            AGE,
        )
    ),
)


TOKEN_TYPE: Final = "kubernetes.io/service-account-token"
ACCOUNT_ANNOTATION: Final = "kubernetes.io/service-account.name"
#: the keys that must be there and not empty
_TYPE_KEYS: Final = {
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_JSON_KEYS: Final = {
    "kubernetes.io/dockercfg": ".dockercfg",
    "kubernetes.io/dockerconfigjson": ".dockerconfigjson",
}
#: present is enough for TLS, which may wait for its certificate
_MAY_BE_EMPTY: Final = frozenset({"kubernetes.io/tls"})


def _validate_secret(_path: str, document: Document) -> FieldErrors:
    data: dict[str, str] = document.get("data", {})
    errors: FieldErrors = []
    size = 0
    for key, value in until_error_limit(errors, data.items()):
        errors += of_form(f"data[{key}]", key, key_problems)
        size += len(value) * 3 // 4
    if size > DATA_MAX_BYTES:
        errors.append(too_long("data", DATA_MAX_BYTES))
    kind = document.get("type", "")
    if kind == TOKEN_TYPE and not document["metadata"].get("annotations", {}).get(
        ACCOUNT_ANNOTATION
    ):
        errors.append(required(f"metadata.annotations[{ACCOUNT_ANNOTATION}]"))
    elif kind == "kubernetes.io/basic-auth" and not ("username" in data or "password" in data):
        errors += [required("data[username]"), required("data[password]")]
    elif kind in _JSON_KEYS:
        errors += _json(_JSON_KEYS[kind], data)
    for key in _TYPE_KEYS.get(kind, ()):
        if not data.get(key) and not (key in data and kind in _MAY_BE_EMPTY):
            errors.append(required(f"data[{key}]"))
    return errors


def _validate_update(new: Document, old: Document) -> FieldErrors:
    return unchanged("type", new, old) + check_kept(new, old) + _validate_secret("", new)


def _json(key: str, data: dict[str, str]) -> FieldErrors:
    """Registry credentials must be JSON; what they are is not shown."""
    if key not in data:
        return [required(f"data[{key}]")]
    try:
        json.loads(base64.b64decode(data[key]))
    except (ValueError, binascii.Error, RecursionError) as error:
        return [invalid_value(f"data[{key}]", "<secret contents redacted>", _reason(error))]
    return []


def _reason(error: Exception) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else "not JSON in UTF-8"


def _default(document: Document) -> None:
    """``stringData`` is another way to write ``data``, and is never read back."""
    plain = document.pop("stringData", None)
    if plain:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
        document["data"] = dict(sorted({**document.get("data", {}), **encoded}.items()))
    if not document.get("data"):
        document.pop("data", None)
    document["type"] = document.get("type") or "Opaque"


SECRET: Final = kind.Kind(
    resource=Secrets,
    defaults=_default,
    rules=Rules(_validate_secret),
    update_rules=_validate_update,
    quota=kind.counted_as(Secrets.plural),
    granted=kind.EDITED_NOT_VIEWED,
    columns=Printer(
        (
            NAME,
            Column("Type", "What the data is for.", "type"),
            Column(
                "Data", "How many entries there are.", lambda secret: len(mapping(secret, "data"))
            ),
            AGE,
        )
    ),
)
