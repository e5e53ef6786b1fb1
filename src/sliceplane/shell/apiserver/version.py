"""``/version``: the Kubernetes release whose API we speak, and who speaks it."""

from __future__ import annotations

import json
import platform
from functools import cache

from sliceplane.api.gates import NEWEST, Release
from sliceplane.shell.apiserver.response import NO_CACHE, Response

#: the release whose behaviour the reference describes; kubectl compares the minor with its own
KUBERNETES_MAJOR, KUBERNETES_MINOR, KUBERNETES_PATCH = "1", "36", "2"


@cache
def respond(emulated: Release = NEWEST) -> Response:
    """*emulated* is the release whose feature gates count."""
    major, minor = emulated
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    document = {
        "major": KUBERNETES_MAJOR,
        "minor": KUBERNETES_MINOR,
        "emulationMajor": str(major),
        "emulationMinor": str(minor),
        "minCompatibilityMajor": str(major),
        "minCompatibilityMinor": str(minor - 1),
        # The part after "+" is build metadata to every semantic-version parser.
        "gitVersion": f"v{KUBERNETES_MAJOR}.{KUBERNETES_MINOR}.{KUBERNETES_PATCH}+sliceplane",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation(),
        "platform": f"{platform.system().lower()}/{machine}",
    }
    return Response(200, json.dumps(document, indent=2).encode(), headers=(NO_CACHE,))
