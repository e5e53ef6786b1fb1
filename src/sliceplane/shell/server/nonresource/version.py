"""``/version``: the Kubernetes release whose API we speak, and who speaks it."""

from __future__ import annotations

import json
import platform
from functools import cache

from sliceplane.api.gates import NEWEST, Release
from sliceplane.shell.server.requests.response import NO_CACHE, Response

#: the release whose behaviour the reference describes; kubectl compares the minor with its own
KUBERNETES_MAJOR, KUBERNETES_MINOR, KUBERNETES_PATCH = "1", "36", "2"


@cache
def respond(emulated: Release = NEWEST) -> Response:
    """*emulated* is the release whose feature gates count."""
    return Response(200, json.dumps(_document(emulated), indent=2).encode(), headers=(NO_CACHE,))


def build_labels(emulated: Release = NEWEST) -> dict[str, str]:
    """The labels of ``kubernetes_build_info``."""
    document = _document(emulated)
    names = {
        "build_date": "buildDate",
        "compiler": "compiler",
        "git_commit": "gitCommit",
        "git_tree_state": "gitTreeState",
        "git_version": "gitVersion",
        "go_version": "goVersion",
        "major": "major",
        "minor": "minor",
        "platform": "platform",
    }
    return {label: document[member] for label, member in names.items()}


def _document(emulated: Release) -> dict[str, str]:
    major, minor = emulated
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
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
