"""The Kubernetes release whose API we serve, and our own version: ``/version``, and the labels of a
metric.
"""

from __future__ import annotations

import platform

from sliceplane.api.gates import NEWEST, Release
from sliceplane.kit.metrics import Metrics

#: the release whose behaviour is followed; kubectl compares the minor with its own
KUBERNETES_MAJOR = "1"
KUBERNETES_MINOR = "36"
KUBERNETES_PATCH = "2"

_LABELS = {
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


def declare_build(metrics: Metrics, emulated: Release = NEWEST) -> None:
    """Upstream's gauge of what is running."""
    document = version_document(emulated)
    values = tuple(document[member] for member in _LABELS.values())
    text = "What runs, as /version has it."
    metrics.computed("gauge", "kubernetes_build_info", text, lambda: [(values, 1)], *_LABELS)


def version_document(emulated: Release = NEWEST) -> dict[str, str]:
    """*emulated* is the release whose feature gates count."""
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
