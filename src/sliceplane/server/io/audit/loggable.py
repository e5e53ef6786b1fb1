"""The parts of a request that a log may have: never a value of a Secret, never a credential, and
never more than a bound.

The client gets the Status that Kubernetes gives, word for word, and many of its sentences repeat
what was sent: a patch that fails is quoted with the whole object. The audit log is at level
Metadata, which promises that no body is in it. So where bodies are secret (``_SECRET_BODIES``), the
log has the code, the reason and the fields of a Status, and its sentences only for codes that speak
of names and rights.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

from sliceplane.api.errors import StatusError
from sliceplane.server.io.requests.request import Request
from sliceplane.server.registry.types import Attributes

_Error = TypeVar("_Error", bound=BaseException)

#: as upstream's audit log (apiserver/pkg/audit/request.go)
AGENT_CHARACTERS_MAX = 1024
_AGENT_CUT = "...TRUNCATED"
URI_CHARACTERS_MAX = 8 * 1024
_CUT = "...TRUNCATED"

#: by group, resource and subresource; None: all of the resource's
_SECRET_BODIES: frozenset[tuple[str, str, str | None]] = frozenset(
    {
        ("", "secrets", None),
        ("", "serviceaccounts", "token"),
        ("authentication.k8s.io", "tokenreviews", None),
    }
)
#: their sentences name who, what and how much, and repeat nothing else
_WITHOUT_BODY = frozenset({401, 403, 404, 405, 406, 409, 410, 413, 415, 429, 503, 504})
OMITTED_MESSAGE = "(left out: the message may repeat what was sent)"

#: RFC 6750 section 2.3 and what else clients put into a query although it is logged
_CREDENTIAL = re.compile(
    r"([?&](?:access_token|id_token|token|password|client_secret|authorization)=)[^&]*", re.I
)


def agent_of(request: Request) -> str:
    agent = request.header(b"user-agent")
    return (
        agent if len(agent) <= AGENT_CHARACTERS_MAX else agent[:AGENT_CHARACTERS_MAX] + _AGENT_CUT
    )


def uri_of(request: Request) -> str:
    """Path and query without credentials."""
    uri = _CREDENTIAL.sub(r"\1REDACTED", request.uri)
    return uri if len(uri) <= URI_CHARACTERS_MAX else uri[:URI_CHARACTERS_MAX] + _CUT


def has_secret_body(attributes: Attributes) -> bool:
    """Returns True if requests and answers of this resource carry values that no log may have."""
    exact = (attributes.group, attributes.resource, attributes.subresource)
    return (
        exact in _SECRET_BODIES or (attributes.group, attributes.resource, None) in _SECRET_BODIES
    )


def status_of(error: StatusError, *, secret: bool) -> dict[str, Any]:
    """``responseStatus`` of an audit event.  *secret*: see ``has_secret_body``."""
    status = {
        name: value for name, value in error.status().items() if name not in ("kind", "apiVersion")
    }
    if not secret or error.code in _WITHOUT_BODY:
        return status
    status["message"] = OMITTED_MESSAGE
    if status.get("details"):
        causes = [
            {name: value for name, value in cause.items() if name != "message"}
            for cause in status["details"].get("causes", ())
        ]
        status["details"] = status["details"] | ({"causes": causes} if causes else {})
    return status


def error_of(error: Exception, *, secret: bool) -> Exception:
    """*error* as a traceback may show it: where it happened, and what it says unless that may be
    *secret*.
    """
    if not secret:
        return error
    return RuntimeError(f"{type(error).__name__} {OMITTED_MESSAGE}").with_traceback(
        error.__traceback__
    )


def shortened(event: Any, characters: int, items: int) -> Any:
    """*event* with strings of so many characters at most, and lists and mappings of so many
    items.
    """
    match event:
        case str():
            return event if len(event) <= characters else event[:characters] + _CUT
        case dict():
            kept = list(event.items())[:items]
            return {
                shortened(name, characters, items): shortened(value, characters, items)
                for name, value in kept
            }
        case list():
            return [shortened(value, characters, items) for value in event[:items]]
        case _:
            return event


def without_frames(error: _Error) -> _Error:
    """*error*, and what it was raised from, without tracebacks, so that it can be kept for a while.

    An error knows the frames that it went through, and they know the request, its headers and body,
    and often the error itself: a cycle of everything that a request was, which only the cyclic
    collector would free.
    """
    waiting: list[BaseException] = [error]
    seen: set[int] = set()
    while waiting:
        current = waiting.pop()
        if id(current) not in seen:
            seen.add(id(current))
            current.__traceback__ = None
            waiting.extend(
                related
                for related in (current.__cause__, current.__context__)
                if related is not None
            )
    return error
