"""``/version``: the Kubernetes release whose API we speak, and who speaks it."""

from __future__ import annotations

import json
from functools import cache

from sliceplane.api.gates import NEWEST, Release
from sliceplane.shell.process.version import version_document
from sliceplane.shell.server.requests.response import NO_CACHE, Response


@cache
def respond(emulated: Release = NEWEST) -> Response:
    """*emulated* is the release whose feature gates count."""
    return Response(200, json.dumps(version_document(emulated), indent=2).encode(), headers=(NO_CACHE,))
