"""The real helm, built from its own module: nothing is skipped where it is not installed."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import yaml
from tests.peers.programs import go, run

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "sliceplane"
MANIFESTS = ROOT / "deploy" / "manifests"
HELM = "v3.18.6"
#: what the templates are rendered for
KUBERNETES = "1.36.0"


@functools.cache
def helm() -> str:
    """The path of the program.  The first build takes a minute or two, the next ones nothing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sliceplane-tests" / f"helm-{HELM}"
    program = cache / "helm"
    if not program.exists():
        part = cache.with_name(f"{cache.name}.{os.getpid()}")
        settings = {"GOBIN": str(part), "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
        run(
            go(),
            "install",
            "-ldflags=-s -w",
            f"helm.sh/helm/v3/cmd/helm@{HELM}",
            environment={**os.environ, **settings},
        )
        part.rename(cache)
    return str(program)


def rendered(*flags: str, release: str = "sliceplane", namespace: str = "kube-system") -> str:
    """What ``helm template`` prints.  Fails the test with helm's words if it refuses."""
    return run(helm(), "template", release, str(CHART), "-n", namespace, "--kube-version", KUBERNETES, *flags)


def documents(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]
