"""Errors that a client can cause or must handle, worded exactly as Kubernetes words them
(staging/src/k8s.io/apimachinery/pkg/api/errors/errors.go).

``StatusError`` is the one exception that crosses layers: it carries an HTTP code and renders as a
``Status`` object. ``FieldError`` is one complaint about one field; validation returns lists of them
and ``invalid`` folds a list into a 422.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

Cause = dict[str, str]
T = TypeVar("T")

#: complaints about one object. Upstream has no bound: 3 MiB of bad labels would be answered with
#: 300 MB.
ERRORS_MAX: Final = 1000
#: of the texts of complaints, together; a single one may be longer, as it shows what was sent
ERRORS_CHARACTERS_MAX: Final = 1 << 20
#: of the message of a peer's Status: a server's own is shorter, a stranger's may be megabytes
MESSAGE_CHARACTERS_MAX: Final = 1 << 16
#: a peer that asks for more patience is taken to ask for this
RETRY_AFTER_SECONDS_MAX: Final = 3600
#: the list of resources that other Kubernetes API servers have and this one has not
NOT_SERVED: Final = "docs/api.md#not-served"
#: what follows the last complaint that is told
AND_MORE: Final = "too many errors"


class FieldError(msgspec.Struct, frozen=True):
    """One complaint: ``type`` is the machine name that goes into ``causes[].reason``."""

    type: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


FieldErrors = list[FieldError]


def until_error_limit(errors: Sized, items: Iterable[T]) -> Iterator[T]:
    """Yields *items* while there are fewer than ``ERRORS_MAX`` *errors*, which the caller adds
    to.
    """
    for item in items:
        if len(errors) >= ERRORS_MAX:
            return
        yield item


def show(value: Any) -> str:
    """A bad value as Kubernetes prints it: strings quoted, objects and lists as JSON, null as
    ``null``.
    """
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def quote(text: str) -> str:
    """As Go's ``%q``: what cannot be seen, or looks like nothing, is spelled out."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(map(_quoted, text)) + '"'


_GO_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def _quoted(character: str) -> str:
    if character in _GO_ESCAPES:
        return _GO_ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def required(path: str, detail: str = "") -> FieldError:
    return FieldError(
        "FieldValueRequired", path, f"Required value: {detail}" if detail else "Required value"
    )


def invalid_value(path: str, value: Any, detail: str) -> FieldError:
    quoted = f"Invalid value: {show(value)}"
    return FieldError("FieldValueInvalid", path, f"{quoted}: {detail}" if detail else quoted)


def not_supported(path: str, value: Any, supported: tuple[str, ...]) -> FieldError:
    options = ", ".join(show(option) for option in supported)
    return FieldError(
        "FieldValueNotSupported",
        path,
        f"Unsupported value: {show(value)}: supported values: {options}",
    )


def duplicate(path: str, value: Any) -> FieldError:
    return FieldError("FieldValueDuplicate", path, f"Duplicate value: {show(value)}")


def missing_value(path: str, value: str, detail: str = "") -> FieldError:
    """A name that stands for nothing."""
    quoted = f"Not found: {quote(value)}"
    return FieldError("FieldValueNotFound", path, f"{quoted}: {detail}" if detail else quoted)


def forbidden_field(path: str, detail: str) -> FieldError:
    return FieldError("FieldValueForbidden", path, f"Forbidden: {detail}")


def too_long(path: str, limit_bytes: int) -> FieldError:
    return FieldError(
        "FieldValueTooLong", path, f"Too long: may not be more than {limit_bytes} bytes"
    )


def too_many(path: str, actual: int, limit: int) -> FieldError:
    return FieldError(
        "FieldValueTooMany", path, f"Too many: {actual}: must have at most {limit} items"
    )


@dataclass
class StatusError(Exception):
    """An HTTP error with the ``Status`` body that Kubernetes gives for it.

    Not frozen, although it is never changed: Python itself assigns ``__traceback__`` when an
    exception passes through a ``contextlib`` context manager.
    """

    code: int
    reason: str
    message: str
    details: dict[str, Any] | None = None
    #: extra members of ``metadata`` (an expired continue token carries a fresh one)
    metadata: dict[str, Any] = field(default_factory=dict)
    retry_after_s: int | None = None
    #: of a 405
    allowed_methods: tuple[str, ...] = ()
    #: texts of ``Warning`` headers, which kubectl prints; a client that compares Statuses does not
    #: see them
    warnings: tuple[str, ...] = ()

    __hash__ = Exception.__hash__

    def __str__(self) -> str:
        return self.message

    @property
    def rests_on_state(self) -> bool:
        """Returns False for a complaint about the request alone, which is true whatever is
        stored.
        """
        return self.code not in (400, 405, 406, 413, 415)

    def status(self) -> dict[str, Any]:
        """The ``Status`` document; empty members are left out, as upstream does."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        body["code"] = self.code
        return body


def _details(name: str, group: str, kind: str, causes: list[Cause] | None = None) -> dict[str, Any]:
    """``details`` with empty members left out; *kind* is the plural except for ``Invalid``."""
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    if kind:
        details["kind"] = kind
    if causes:
        details["causes"] = causes
    return details


def _qualified(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized", "Unauthorized")


def forbidden(
    plural: str, group: str, name: str, why: str, causes: list[Cause] | None = None
) -> StatusError:
    subject = f'{_qualified(plural, group)} "{name}"' if name else _qualified(plural, group)
    return StatusError(
        403, "Forbidden", f"{subject} is forbidden: {why}", _details(name, group, plural, causes)
    )


def not_found(plural: str, group: str, name: str) -> StatusError:
    message = f'{_qualified(plural, group)} "{name}" not found'
    return StatusError(404, "NotFound", message, _details(name, group, plural))


def unknown_resource(plural: str = "", group_version: str = "") -> StatusError:
    """Returns upstream's 404.  A warning says that *plural* is not served at all, and where that is
    documented.
    """
    warnings = (
        (f"this server does not serve {plural} of {group_version}: see {NOT_SERVED}",)
        if plural
        else ()
    )
    return StatusError(
        404, "NotFound", "the server could not find the requested resource", {}, warnings=warnings
    )


def method_not_allowed(allowed: tuple[str, ...] = (), why: str = "") -> StatusError:
    """*allowed*: the methods that would do, for the ``Allow`` header (RFC 9110 section 15.5.6);
    *why*: in the place of upstream's message.
    """
    message = why or "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, {}, allowed_methods=allowed)


def already_exists(
    plural: str, group: str, name: str, *, being_deleted: bool = False
) -> StatusError:
    message = f'{_qualified(plural, group)} "{name}" already exists'
    if being_deleted:
        message = f"object is being deleted: {message}"
    return StatusError(409, "AlreadyExists", message, _details(name, group, plural))


def conflict(plural: str, group: str, name: str, why: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {_qualified(plural, group)} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(name, group, plural))


STALE_WRITE = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


def invalid(kind: str, group: str, name: str, errors: FieldErrors) -> StatusError:
    """422 from field errors, in their order.  *kind* is the KIND, not the plural."""
    assert errors, "invalid() needs at least one error"
    qualified = f"{kind}.{group}" if group else kind
    quoted = _within_limits(errors)
    # As upstream: a complaint that two rules make is one text, but stays two causes.
    texts = list(dict.fromkeys(str(error) for error in quoted))
    if len(quoted) < len(errors) or len(quoted) >= ERRORS_MAX:
        texts.append(AND_MORE)
    listed = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    causes = [
        {"reason": error.type, "message": error.message, "field": error.field} for error in quoted
    ]
    details = _details(name, group, kind, causes)
    return StatusError(422, "Invalid", f'{qualified} "{name}" is invalid: {listed}', details)


def _within_limits(errors: FieldErrors) -> FieldErrors:
    """Returns the first of *errors*, at least one, whose texts fit into ERRORS_CHARACTERS_MAX."""
    remaining = ERRORS_CHARACTERS_MAX
    for index, error in enumerate(errors[:ERRORS_MAX]):
        remaining -= len(error.field) + len(error.message)
        if remaining < 0:
            return errors[: max(index, 1)]
    return errors[:ERRORS_MAX]


def expired(message: str, metadata: dict[str, Any] | None = None) -> StatusError:
    return StatusError(410, "Expired", message, metadata=metadata or {})


def too_large_resource_version(requested: int, current: int, *, retry: bool = True) -> StatusError:
    """*retry*: with the advice to come back in a second."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    details: dict[str, Any] = {"causes": [cause]}
    if retry:
        details["retryAfterSeconds"] = 1
    message = f"Timeout: Too large resource version: {requested}, current: {current}"
    return StatusError(504, "Timeout", message, details, retry_after_s=1 if retry else None)


def too_large_body(most: int) -> StatusError:
    """*most*: bytes."""
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {most}")


def internal(message: str) -> StatusError:
    return StatusError(500, "InternalError", message)


def unavailable(why: str) -> StatusError:
    """A request that was not even tried, and may be sent again in a second."""
    return StatusError(503, "ServiceUnavailable", why, retry_after_s=1)


def from_status(body: dict[str, Any], code: int) -> StatusError:
    """The error that a peer's ``Status`` body stands for; a body without the code of an error takes
    the HTTP *code*. Raises ``TypeError`` and ``ValueError`` for a code that is no number.
    """
    details = body.get("details")
    retry_after = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    own_code = int(body.get("code") or code)
    return StatusError(
        own_code if 300 <= own_code <= 599 else code,
        str(body.get("reason") or "")[:MESSAGE_CHARACTERS_MAX],
        str(body.get("message") or "")[:MESSAGE_CHARACTERS_MAX],
        details if isinstance(details, dict) else None,
        retry_after_s=min(max(retry_after, 0), RETRY_AFTER_SECONDS_MAX)
        if isinstance(retry_after, int)
        else None,
    )


def is_namespace_terminating(error: StatusError) -> bool:
    """Nothing can be created there any more: a controller should stop, not try again."""
    causes = (error.details or {}).get("causes") or ()
    return any(
        isinstance(cause, dict) and cause.get("reason") == "NamespaceTerminating"
        for cause in causes
    )


def unreachable(message: str) -> StatusError:
    """Not a server's answer but the lack of one, for cores: if it was a write, its outcome is
    unknown.
    """
    return StatusError(503, "Unreachable", message)


def is_unreachable(error: StatusError) -> bool:
    return error.reason == "Unreachable"
