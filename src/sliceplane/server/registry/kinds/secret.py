"""Secret: keys, size, the keys that a type promises, and what may never change."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Final

from sliceplane.api.errors import FieldErrors, invalid_value, required, too_long, while_few
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Secrets
from sliceplane.server.documents.table.columns import AGE, NAME, Column, Printer, mapping
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.config_map import DATA_MAX_BYTES, check_kept
from sliceplane.server.registry.validation.environment import key_problems
from sliceplane.server.registry.validation.rules import Rules, of_form, unchanged

TOKEN_TYPE: Final = "kubernetes.io/service-account-token"
ACCOUNT_ANNOTATION: Final = "kubernetes.io/service-account.name"
#: the keys that must be there and not empty
_KEYS: Final = {
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_JSON_KEYS: Final = {
    "kubernetes.io/dockercfg": ".dockercfg",
    "kubernetes.io/dockerconfigjson": ".dockerconfigjson",
}
#: present is enough for TLS, which may wait for its certificate
_MAY_BE_EMPTY: Final = frozenset({"kubernetes.io/tls"})


def _validate(_path: str, document: Document) -> FieldErrors:
    data: dict[str, str] = document.get("data", {})
    errors: FieldErrors = []
    size = 0
    for key, value in while_few(errors, data.items()):
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
    for key in _KEYS.get(kind, ()):
        if not data.get(key) and not (key in data and kind in _MAY_BE_EMPTY):
            errors.append(required(f"data[{key}]"))
    return errors


def _validate_update(new: Document, old: Document) -> FieldErrors:
    return unchanged("type", new, old) + check_kept(new, old) + _validate("", new)


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
    rules=Rules(_validate),
    update_rules=_validate_update,
    quota=kind.counted_as(Secrets.plural),
    granted=kind.EDITED_UNSEEN,
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
