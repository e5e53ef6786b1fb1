"""TokenReview: what would this token be worth."""

from __future__ import annotations

from sliceplane.api.errors import bad_request
from sliceplane.api.meta import Document
from sliceplane.registry.authentication.bearer import authenticate
from sliceplane.registry.authentication.user_info import user_info
from sliceplane.registry.core import Core


def status(core: Core, spec: Document, now: float) -> Document:
    """The status that answers *spec*.  Raises a 400 StatusError."""
    token = spec.get("token", "")
    if not token:
        raise bad_request("token is required for TokenReview in authentication")
    authenticated = authenticate(core, token, tuple(spec.get("audiences", ())), now)
    if authenticated is None:
        return {"user": {}, "error": "invalid bearer token"}
    answer: Document = {"authenticated": True, "user": user_info(authenticated.user)}
    if authenticated.audiences:
        answer["audiences"] = list(authenticated.audiences)
    return answer
