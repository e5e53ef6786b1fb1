"""What an answer that is an error means: a ``StatusError``, by its Status body or else by its code and text; whether
the request may be sent again; and, where no answer came at all, why.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import ssl
from dataclasses import dataclass
from typing import Final

import msgspec

from sliceplane.api import codec
from sliceplane.api.errors import StatusError, from_status
from sliceplane.kit.integers import NotAnInteger, parse_uint64

#: of an error without a Status, this much goes into the message
TEXT_CHARACTERS_MAX: Final = 1024
#: a server that asks for more than this is not waited for here: the caller has plans of its own for that
RETRY_AFTER_S_MAX: Final = 10
#: where no time is given
RETRY_S: Final = 0.5
JITTER: Final = 0.2

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Gone",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


def error_of(code: int, body: bytes, retry_after: str = "") -> StatusError:
    """The error that an answer with *code* stands for; *retry_after* is its header, seconds or nothing."""
    error = _from_body(code, body)
    if error.retry_after_s is not None:
        return error
    try:
        after_s = parse_uint64(retry_after)
    except NotAnInteger:
        return error
    return StatusError(error.code, error.reason, error.message, error.details, error.metadata, retry_after_s=after_s)


def _from_body(code: int, body: bytes) -> StatusError:
    try:
        document = codec.decode_document(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        document = {}
    if document.get("kind") == "Status" or "status" in document:
        try:
            return from_status(document, code)
        except (TypeError, ValueError):
            pass
    text = body.decode(errors="replace").strip()[:TEXT_CHARACTERS_MAX]
    # Proxies and overloaded servers answer in plain text.
    return StatusError(code, _REASONS.get(code, ""), text or f"the server answered {code}")


@dataclass(frozen=True, slots=True)
class Retries:
    """When a request that was refused may be sent again, and after how long; ``times`` at most.

    Only after answers that say that the server did nothing: 429 (it, or something before it, has too much to do), and
    503 with Retry-After, with which an API server refuses what it has not begun.  A read may be sent again after any
    503.  A request without an answer is never sent again here: whether a write happened is found out by the caller, who
    reads its object.
    """

    times: int = 4

    def wait_s(self, method: str, status: int, retry_after: str, attempt: int) -> float | None:
        """Seconds before try ``attempt + 2``, jittered so that clients that were refused together do not come
        together; ``None``: no.  *attempt* counts from 0."""
        if attempt >= self.times or not (status == 429 or (status == 503 and (retry_after or method == "GET"))):
            return None
        if retry_after:
            if not retry_after.isdecimal() or int(retry_after) > RETRY_AFTER_S_MAX:
                return None
            base = float(retry_after)
        else:
            base = RETRY_S * 2.0**attempt
        return base + random.uniform(0.0, JITTER * max(base, RETRY_S))


NO_RETRIES: Final = Retries(0)


def why_no_answer(error: Exception) -> str:
    """In a few words for people what kept an answer from coming: *error* is aiohttp's, the system's or ours.

    The text of aiohttp's own names the host once more, and how TLS was set up instead of what is wrong with it.
    """
    if type(error).__name__ == "ClientPayloadError":  # aiohttp's, which is loaded with the first request alone
        return "the connection broke within the answer"
    certificate = getattr(error, "certificate_error", None)
    if isinstance(certificate, ssl.SSLCertVerificationError):
        return f"the server's certificate is not accepted: {certificate.verify_message}"
    cause = getattr(error, "os_error", error)
    if isinstance(cause, ssl.SSLError):
        reason = str(getattr(cause, "reason", "") or cause)
        return f"no TLS there: {reason.replace('_', ' ').lower()}"
    if isinstance(cause, socket.gaierror):
        return f"the name is not known: {(cause.strerror or str(cause)).lower()}"
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno in errno.errorcode:
        return os.strerror(cause.errno).lower()
    return str(error) or ("timed out" if isinstance(error, TimeoutError) else type(error).__name__)
