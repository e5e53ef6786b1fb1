"""Parameters of lists, watches and deletions: their errors as upstream, and the token that
continues a list from a key and a revision (kubernetes.io, API concepts, Retrieving large results
sets in chunks).

The token is URL-safe, unpadded base64 of ``{"v":"meta.k8s.io/v1","rv":N,"start":"/NAME\u0000"}``.
``start`` is the last key below the listed prefix and a NUL, which makes it the smallest possible
next key; ``rv`` -1 means the newest revision, and is in the token that replaces an expired one.
"""

from __future__ import annotations

import base64
import binascii
import json
import posixpath
from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from sliceplane.api.errors import (
    FieldError,
    FieldErrors,
    StatusError,
    bad_request,
    forbidden_field,
    invalid,
    invalid_value,
    not_supported,
    show,
)
from sliceplane.kit.integers import NotAnInteger, parse_uint64
from sliceplane.server.registry.types import DeleteOptions, ListOptions, Propagation, WatchOptions

EXACT = "Exact"
NOT_OLDER_THAN = "NotOlderThan"
META_GROUP = "meta.k8s.io"
_PROPAGATIONS = get_args(Propagation)
_JSON_TYPES = {bool: "bool", int: "number", float: "number", str: "string", list: "array"}
NEWEST = -1
_VERSION = "meta.k8s.io/v1"


def check_list(options: ListOptions) -> None:
    """Raises a 422 StatusError with all errors."""
    errors: FieldErrors = []
    if options.send_initial_events is not None:
        errors.append(
            forbidden_field("sendInitialEvents", "sendInitialEvents is forbidden for list")
        )
    match = options.resource_version_match
    if match:
        path = "resourceVersionMatch"
        if not options.resource_version:
            errors.append(
                forbidden_field(
                    path, "resourceVersionMatch is forbidden unless resourceVersion is provided"
                )
            )
        if options.continue_token:
            errors.append(
                forbidden_field(path, "resourceVersionMatch is forbidden when continue is provided")
            )
        if match not in (EXACT, NOT_OLDER_THAN):
            errors.append(not_supported(path, match, (EXACT, NOT_OLDER_THAN, "")))
        if match == EXACT and options.resource_version == "0":
            errors.append(
                forbidden_field(
                    path, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
                )
            )
    _refuse(errors)


def check_watch(options: WatchOptions) -> None:
    """Raises a 422 StatusError with all errors."""
    errors: FieldErrors = []
    match = options.resource_version_match or ""
    path = "resourceVersionMatch"
    if options.send_initial_events is not None:
        if match != NOT_OLDER_THAN:
            errors.append(
                forbidden_field(
                    path, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
                )
            )
    elif match:
        errors.append(
            forbidden_field(
                path,
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )
        )
    if match and match != NOT_OLDER_THAN:
        errors.append(not_supported(path, match, (NOT_OLDER_THAN,)))
    _refuse(errors)


def _refuse(errors: FieldErrors) -> None:
    if errors:
        raise invalid("ListOptions", "meta.k8s.io", "", errors)


def list_version(text: str | None) -> int | None:
    """Returns the requested version; ``None`` for "most recent".  Raises a 400 StatusError."""
    if not text:
        return None
    try:
        return parse_uint64(text)
    except NotAnInteger as error:
        raise bad_request(f"invalid resource version: {_not_a_number(text, error)}") from error


def read_version(text: str | None) -> int | None:
    """Returns the same for get and watch.  As upstream, they answer a 500 without reason."""
    if not text:
        return None
    try:
        return parse_uint64(text)
    except NotAnInteger as error:
        raise StatusError(500, "", str(_not_a_number(text, error))) from error


def _not_a_number(text: str, error: NotAnInteger) -> FieldError:
    return invalid_value(
        "resourceVersion", text, f"strconv.ParseUint: parsing {show(text)}: {error.why}"
    )


def delete_options_of_document(document: dict[str, Any]) -> DeleteOptions:
    """Raises the 400 or 422 ``StatusError``."""
    grace = _member(document, "gracePeriodSeconds", int)
    policy = _member(document, "propagationPolicy", str)
    orphan = _member(document, "orphanDependents", bool)
    dry_run = tuple(_member(document, "dryRun", list) or ())
    preconditions = _member(document, "preconditions", dict) or {}
    errors: FieldErrors = []
    if orphan is not None and policy is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        errors.append(invalid_value("propagationPolicy", policy, why))
    if policy is not None and policy not in _PROPAGATIONS:
        errors.append(
            not_supported(
                "propagationPolicy", policy, ("Foreground", "Background", "Orphan", "nil")
            )
        )
    errors.extend(check_dry_run(dry_run))
    if errors:
        raise invalid_options("DeleteOptions", errors)
    if orphan is not None:
        policy = "Orphan" if orphan else "Background"
    return DeleteOptions(
        dry_run=bool(dry_run),
        grace_period_s=grace,
        propagation=policy,
        precondition_uid=_member(preconditions, "uid", str),
        precondition_resource_version=_member(preconditions, "resourceVersion", str),
        forbids_orphans=orphan is False,
    )


def check_dry_run(values: Sequence[str]) -> FieldErrors:
    if all(value == "All" for value in values):
        return []
    return [not_supported("dryRun", list(values), ("All",))]


def invalid_options(kind: str, errors: FieldErrors) -> StatusError:
    return invalid(kind, META_GROUP, "", errors)


def _member(document: dict[str, Any], name: str, kind: type) -> Any:
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        actual = _JSON_TYPES.get(type(value), "object")
        detail = f"json: cannot unmarshal {actual} into Go struct field DeleteOptions.{name}"
        raise bad_request(
            f'DeleteOptions in version "v1" cannot be handled as a DeleteOptions: {detail}'
        )
    return value


class Continue(msgspec.Struct, frozen=True):
    """A decoded token.  ``start`` is relative to the listed prefix, without a leading slash."""

    revision: int
    start: str

    def after(self, namespace: str) -> str:
        """Returns the key path strictly after which the list continues."""
        relative = self.start
        if relative.endswith("\0"):
            relative = relative[:-1]
        else:
            # A key without the NUL is itself the next one: continue after its greatest predecessor.
            relative = relative[:-1] + chr(max(ord(relative[-1]) - 1, 1)) + "\U0010ffff"
        return f"{namespace}/{relative}" if namespace else relative


def encode_continue(revision: int, path: str, namespace: str) -> str:
    """Returns the token for "after *path*" in a list of *namespace* ("": all, or cluster
    scope).
    """
    relative = path[len(namespace) :].removeprefix("/") if namespace else path
    return encode_continue_start(revision, f"/{relative}\0")


def encode_continue_start(revision: int, start: str) -> str:
    text = json.dumps({"v": _VERSION, "rv": revision, "start": start}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def decode_continue(token: str) -> Continue:
    """Decodes a token.  Raises a 400 StatusError with the reason."""
    padding = "=" * (-len(token) % 4)
    try:
        raw = base64.b64decode(token + padding, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise _bad("illegal base64 data at input byte 0") from error
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _bad("invalid character looking for beginning of value") from error
    if not isinstance(fields, dict):
        raise _bad("json: cannot unmarshal into Go value of type storage.continueToken")
    version = fields.get("v", "")
    revision = fields.get("rv", 0)
    start = fields.get("start", "")
    if version != _VERSION:
        raise _bad(f"server does not recognize this encoded version {json.dumps(version)}")
    if type(revision) is not int or revision == 0 or revision < NEWEST:
        raise _bad(f"incorrect encoded start resourceVersion (version {_VERSION})")
    if not isinstance(start, str) or not start.strip("/\0"):
        raise _bad(f"encoded start key empty (version {_VERSION})")
    key = start if start.startswith("/") else f"/{start}"
    # A start outside of the listed prefix would list other objects.
    if posixpath.normpath(key.rstrip("\0")) != key.rstrip("\0"):
        # Half a surrogate pair cannot be encoded.
        raise _bad(start.encode(errors="replace").decode())
    return Continue(revision, key[1:])


def _bad(detail: str) -> StatusError:
    return bad_request(f"invalid continue token: continue key is not valid: {detail}")
